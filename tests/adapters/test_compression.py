"""Compression of one edge: the same bits, or a typed error; only where the readers can undo it."""

from __future__ import annotations

import os
import sys
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import stagelink
from stagelink.adapters.wrap import Compression, Integrity, Wrapping
from stagelink.compose import compose
from stagelink.core import envelope
from stagelink.core.errors import ConfigError, PayloadError, TransportError
from stagelink.plugins import Compressor, Manager, hookimpl
from stagelink.plugins import zstd as zstd_plugin
from stagelink.plugins.conformance.connector import eventually, is_linked, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

BACKENDS = ["shm", "shm-write", "memory", "memory-write"]
COMMON: dict[str, Any] = {"pool_bytes": 8 << 20, "timeouts": {"transfer_base_s": 20.0}}
ZSTD = Compressor("zstd", zstd_plugin.compress, zstd_plugin.decompress, plugin="stagelink-zstd")


class Plugin:
    """Contributes these compressors."""

    __name__ = "presses"

    def __init__(self, *presses: Compressor) -> None:
        self._presses = presses

    @hookimpl
    def stagelink_compressors(self) -> list[Compressor]:
        return list(self._presses)


def unzip(packed: memoryview, into: memoryview) -> int:
    raw = zlib.decompress(packed)
    into[: len(raw)] = raw
    return len(raw)


ZIP = Compressor("zip", lambda raw: zlib.compress(raw, 1), unzip)


def sender(backend: str, manager: Manager | None = None, **settings: Any) -> Connector:
    return compose(
        {"stage": "thinker", "role": "sender", "backend": backend, **COMMON, **settings}, manager
    )


def receiver(tx: Connector, manager: Manager | None = None, **settings: Any) -> Connector:
    own = {"stage": "talker", "role": "receiver", "backend": tx.config.backend}
    return compose({**own, "sender": tx.endpoint, **COMMON, **settings}, manager)


def linked(rx: Connector, tx: Connector, readers: int = 1) -> None:
    """Dial, and wait until the sender knows so many readers."""
    rx.poll("nothing", source="thinker")
    assert is_linked(rx)
    assert eventually(
        lambda: sum(r["state"] == "open" for r in tx.health()["sessions"]) == readers
    )


@contextmanager
def pair(backend: str = "memory", **settings: Any) -> Iterator[tuple[Connector, Connector]]:
    settings = {"compression": {"talker": "zstd"}} | settings
    with sender(backend, **settings) as tx, receiver(tx) as rx:
        linked(rx, tx)
        yield tx, rx


@pytest.mark.parametrize("integrity", ["", "xxh3"])
@pytest.mark.parametrize("size", [3000, 2_000_000], ids=["eager", "pool"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_compressed_arrives_bit_by_bit(backend: str, size: int, integrity: str) -> None:
    value: dict[str, Any] = {"x": torch.arange(size, dtype=torch.int32) // 99, "b": b"ab" * size}

    with pair(backend, integrity=integrity) as (tx, rx):
        receipt = tx.put("k", value, to="talker")
        with rx.get("k", source="thinker", metadata=receipt.metadata, timeout=10) as got:
            assert torch.equal(got.value["x"], value["x"])
            assert got.value["b"] == value["b"]
            got.value["x"].zero_()  # it is our own memory
        assert receipt.size < size
        assert got.size > 6 * size
        assert tx.health()["compression"]["compressed"] == 1
        assert rx.health()["compression"]["undone"] == 1
        assert eventually(lambda: is_whole(rx) and is_whole(tx))


def test_other_edges_are_left_alone() -> None:
    with pair(compression={"other": "zstd"}) as (tx, rx):
        receipt = tx.put("k", bytes(100_000), to="talker")

        assert receipt.size > 100_000
        with rx.get("k", source="thinker", timeout=10) as got:
            assert got.value == bytes(100_000)
        assert set(tx.health()["compression"].values()) == {0}


def test_what_does_not_shrink_by_a_tenth_travels_as_it_is() -> None:
    noise = os.urandom(100_000)

    with pair() as (tx, rx):
        assert tx.put("k", noise, to="talker").size > 100_000
        with rx.get("k", source="thinker", timeout=10) as got:
            assert got.value == noise
        assert tx.health()["compression"]["no_gain"] == 1
        assert rx.health()["compression"]["undone"] == 0


def test_a_draft_travels_as_it_was_filled() -> None:
    with pair(integrity="xxh3") as (tx, rx):
        with tx.alloc((50_000,), "float32") as draft:
            draft.tensor.fill_(1)
            assert tx.put("k", draft, to="talker").size > 200_000
        with rx.get("k", source="thinker", timeout=10) as got:
            assert got.value.sum() == 50_000


# --- agreed with the readers -----------------------------------------------------------------


def test_nothing_is_compressed_before_a_reader_has_said_that_it_can_undo_it() -> None:
    with sender("memory", compression={"talker": "zstd"}) as tx:
        tx.put("early", bytes(100_000), to="talker")
        assert tx.health()["compression"]["not_agreed"] == 1
        with receiver(tx) as rx:
            linked(rx, tx)
            assert tx.put("late", bytes(100_000), to="talker").size < 1000
            for key in ("early", "late"):
                with rx.get(key, source="thinker", timeout=10) as got:
                    assert got.value == bytes(100_000)


def test_one_reader_that_cannot_undo_it_turns_it_off_for_the_stage() -> None:
    able = Manager([Plugin(ZIP)])
    with (
        sender("memory", able, compression={"talker": "zip"}, readers=2) as tx,
        receiver(tx, able) as one,
    ):
        linked(one, tx)
        assert tx.put("a", bytes(100_000), to="talker").size < 1000
        with receiver(tx, Manager(), replica=1) as other:
            linked(other, tx, readers=2)
            assert tx.put("b", bytes(100_000), to="talker").size > 100_000
            for rx in (one, other):
                with rx.get("b", source="thinker", timeout=10) as got:
                    assert got.value == bytes(100_000)
        assert tx.health()["compression"]["not_agreed"] == 1


def test_a_reader_that_comes_too_late_is_told_what_it_lacks() -> None:
    able = Manager([Plugin(ZIP)])
    with (
        sender("memory", able, compression={"talker": "zip"}, readers=2) as tx,
        receiver(tx, able) as one,
    ):
        linked(one, tx)
        tx.put("a", bytes(100_000), to="talker")
        with receiver(tx, Manager(), replica=1) as other:
            with pytest.raises(PayloadError, match=r"'zip', which cannot be undone here.*zstd"):
                other.get("a", source="thinker", timeout=10)
            assert other.health()["errors"] == {"PayloadError": 1}
            assert eventually(lambda: is_whole(other))


# --- what can be set -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression": {"talker": "lzma"}}, "unknown compressor 'lzma'; known: zstd"),
        ({"compression": {"": "zstd"}}, "stage"),
        ({"compression": ["zstd"]}, "wrong setting"),
        ({"decompress_limit": -1}, "use 0 or more"),
        ({"decompress_limit": "1TiB"}, f"use {64 << 30} or less"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stagelink.open(stage="a", role="sender", backend="memory", **settings)


def test_a_compressor_whose_package_is_missing_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(ConfigError, match=r"pip install stagelink\[zstd\]"):
        sender("memory", compression={"talker": "zstd"})
    with sender("memory") as tx:  # and only those who ask for it
        assert tx.health()["compression"]["compressed"] == 0


def test_two_plugins_cannot_bring_the_same_compressor() -> None:
    with pytest.raises(ConfigError, match=r"'presses' and 'stagelink-zstd'.*'zstd'"):
        Manager([Plugin(ZSTD)])


def test_a_probe_that_fails_harms_only_those_who_ask() -> None:
    manager = Manager([Plugin(ZIP._replace(probe=lambda: str(1 // 0)))])

    assert set(manager.working_compressors()) == {"zstd"}
    with pytest.raises(ConfigError, match="'presses' failed: ZeroDivisionError"):
        manager.compressor("zip")


# --- what arrives ----------------------------------------------------------------------------

KNOWN = {"zstd": ZSTD}


class Raw:
    """Bytes as a staged value."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def write(self, target: memoryview) -> None:
        target[:] = self._data


def packed(data: bytes, compressor: Compressor = ZSTD) -> bytearray:
    staged = Compression({}, {compressor.name: compressor}).wrap(Raw(data), compressor.name)
    target = bytearray(staged.size)
    staged.write(memoryview(target))
    return target


def test_memory_is_taken_for_what_comes_and_never_for_what_is_promised() -> None:
    bomb = packed(bytes(1 << 20))
    envelope._SIZE.pack_into(bomb, 24, 1 << 30)

    with pytest.raises(PayloadError, match="'zstd' of plugin 'stagelink-zstd' cannot decompress"):
        Compression({}, KNOWN).unwrap(memoryview(bomb))


@pytest.mark.parametrize(
    ("raw_size", "said"),
    [
        ((1 << 20) - 1, "1048576 bytes, not 1048575"),
        ((1 << 20) + 1, "1048576 bytes, not 1048577"),
        (envelope.MOST_RAW + 1, "the limit is"),
        (1 << 63, "the limit is"),
        (23, "the limit is"),
    ],
)
def test_a_size_that_is_not_the_promised_one_is_refused(raw_size: int, said: str) -> None:
    data = packed(bytes(1 << 20))
    envelope._SIZE.pack_into(data, 24, raw_size)

    with pytest.raises(PayloadError, match=said):
        Compression({}, KNOWN).unwrap(memoryview(data))


def test_a_receiver_bounds_what_it_decompresses() -> None:
    with (
        sender("memory", compression={"talker": "zstd"}) as tx,
        receiver(tx, decompress_limit="64KiB") as rx,
    ):
        linked(rx, tx)
        tx.put("k", bytes(100_000), to="talker")

        with pytest.raises(PayloadError, match=r"the limit is 65536.*raise decompress_limit"):
            rx.get("k", source="thinker", timeout=10)
        assert eventually(lambda: is_whole(rx))


def test_a_decompressor_that_makes_less_is_found_out() -> None:
    short = ZSTD._replace(decompress=lambda _packed, into: len(into) - 1)

    with pytest.raises(PayloadError, match="made 4999 bytes, the payload promises 5000"):
        Compression({}, {"zstd": short}).unwrap(memoryview(packed(bytes(5000))))


def test_a_frame_that_goes_on_beyond_its_size_is_refused() -> None:
    engine = zstandard.ZstdCompressor(write_content_size=False)
    frame = engine.compress(bytes(9000))

    with pytest.raises(ValueError, match="not 4000"):
        zstd_plugin.decompress(memoryview(frame), memoryview(bytearray(4000)))


@given(st.binary(min_size=1024, max_size=4000).map(lambda b: b + bytes(9000)))
def test_any_bytes_come_back_as_they_were(data: bytes) -> None:
    assert bytes(Compression({}, KNOWN).unwrap(memoryview(packed(data)))) == data


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_form_is_a_typed_error_or_makes_bytes_of_the_promised_size(
    place: int, byte: int
) -> None:
    data = packed(bytes(range(256)) * 40)
    data[place % len(data)] = byte

    try:
        raw = Compression({}, KNOWN).unwrap(memoryview(data))
    except PayloadError:
        return
    assert len(raw) == 256 * 40


@given(st.binary(max_size=100).map(lambda b: b"SLPZ\x01\x00\x00\x00" + b))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        Compression({}, KNOWN).unwrap(memoryview(data))


def test_a_foreign_compressor_that_fails_is_named() -> None:
    def fail(_raw: memoryview) -> bytes:
        msg = "out of steam"
        raise RuntimeError(msg)

    press = Compressor("steam", fail, unzip, plugin="engines")

    with pytest.raises(PayloadError, match=r"'steam' of plugin 'engines'.*out of steam") as caught:
        packed(bytes(5000), press)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_digest_is_of_what_travels_and_checked_before_anything_is_undone() -> None:
    def never(_packed: memoryview, _into: memoryview) -> int:
        raise AssertionError

    wrapping = Wrapping(
        Integrity("xxh3"), Compression({}, {"zstd": ZSTD._replace(decompress=never)})
    )
    staged = wrapping.wrap(Raw(bytes(5000)), "zstd", False)
    data = bytearray(staged.size)
    staged.write(memoryview(data))
    assert wrapping.flaw(data, len(data)) == ""

    for place in range(len(data)):
        data[place] ^= 1
        assert wrapping.flaw(data, len(data))
        data[place] ^= 1


def test_a_changed_byte_of_a_compressed_payload_is_never_handed_out() -> None:
    with pair(integrity="xxh3") as (tx, rx):
        value = np.arange(200_000, dtype=np.int64)
        receipt = tx.put("k", value, to="talker")
        assert 65_536 < receipt.size < value.nbytes
        entry = tx._driver.look(lambda e: e.outgoing.ledgers["talker"].live("k"))
        assert entry is not None
        assert entry.block is not None
        tx._driver.parts.memory.buffer[entry.block.offset + 5000] ^= 1

        with pytest.raises(TransportError, match="not those that were put"):
            rx.get("k", source="thinker", timeout=10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_changed_byte_in_one_of_many_costs_none_of_the_others(backend: str) -> None:
    with pair(backend, integrity="xxh3", credits=False) as (tx, rx):  # else it is there already
        values = {key: np.arange(200_000, dtype=np.int64) + ord(key) for key in "abc"}
        for key, value in values.items():
            tx.put(key, value, to="talker")
        entry = tx._driver.look(lambda e: e.outgoing.ledgers["talker"].live("b"))
        assert entry is not None
        assert entry.block is not None
        tx._driver.parts.memory.buffer[entry.block.offset + 5000] ^= 1

        with pytest.raises(TransportError, match="not those that were put"):
            rx.get_many(list("abc"), source="thinker", timeout=10)

        for key in "ac":
            with rx.get(key, source="thinker", timeout=10) as payload:
                assert np.array_equal(payload.value, values[key])
        assert eventually(lambda: is_whole(rx) and is_whole(tx))


def test_many_that_came_compressed_are_released_once() -> None:
    with pair() as (tx, rx):
        for key in "ab":
            tx.put(key, np.arange(200_000, dtype=np.int64), to="talker")

        payloads = rx.get_many(list("ab"), source="thinker", timeout=10)

        assert eventually(lambda: is_whole(rx) and is_whole(tx))
        assert all(payload.value[-1] == 199_999 for payload in payloads)
