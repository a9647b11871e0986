"""A digest behind every payload: what was changed on the way is never handed out."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import stagelink
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.wrap import Integrity
from stagelink.core import envelope, payload
from stagelink.core.errors import ConfigError, PayloadError, Reason, TransportError
from stagelink.plugins.conformance.connector import eventually, is_linked, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

BACKENDS = ["shm", "shm-write", "memory", "memory-write"]
SIZES = {"eager": 1000, "pool": 300_001}
COMMON: dict[str, Any] = {"pool_bytes": 8 << 20, "timeouts": {"transfer_base_s": 20.0}}


def open_sender(backend: str, **settings: Any) -> Connector:
    return stagelink.open(stage="thinker", role="sender", backend=backend, **COMMON, **settings)


def open_receiver(tx: Connector, **settings: Any) -> Connector:
    backend = tx.config.backend
    return stagelink.open(
        stage="talker", role="receiver", backend=backend, sender=tx.endpoint, **COMMON, **settings
    )


@contextmanager
def pair(backend: str, ours: str = "xxh3", theirs: str = "xxh3") -> Iterator[tuple[Any, Any]]:
    with (
        open_sender(backend, integrity=ours) as tx,
        open_receiver(tx, integrity=theirs) as rx,
    ):
        yield tx, rx


def flip(tx: Connector, key: str, place: int) -> None:
    """Change one byte of a published payload: in the pool, or in the body to be announced."""
    ledger = tx._driver.look(lambda e: e.outgoing.ledgers["talker"])
    entry = ledger.live(key)
    assert entry is not None
    if entry.block is not None:
        at = entry.block.offset + range(entry.size)[place]
        tx._driver.parts.memory.buffer[at] ^= 0x10
    else:
        body = bytearray(entry.body)
        body[place] ^= 0x10
        entry.body = bytes(body)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_changed_byte_is_an_error_that_is_counted_and_nothing_is_kept(
    backend: str, size: int
) -> None:
    with open_sender(backend, integrity="xxh3") as tx:
        tx.put("k", {"bulk": bytes(size)}, to="talker")
        flip(tx, "k", size // 2)
        with open_receiver(tx) as rx:
            with pytest.raises(TransportError, match="xxh3 digest") as caught:
                rx.get("k", source="thinker", timeout=10)

            assert caught.value.reason is Reason.CORRUPT
            assert "not those that were put" in str(caught.value)
            assert rx.health()["errors"] == {"corrupt": 1}
            assert rx.health()["gets"] == 0
            assert eventually(lambda: is_whole(rx) and is_whole(tx))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_not_changed_arrives_bit_by_bit(backend: str, size: int) -> None:
    value = torch.arange(size, dtype=torch.uint8)

    with pair(backend) as (tx, rx):
        receipt = tx.put("k", {"x": value, "n": [1, None]}, to="talker")
        with rx.get("k", source="thinker", timeout=10) as got:
            assert got.size == receipt.size
            assert torch.equal(got.value["x"], value)
            assert got.value["n"] == [1, None]
        assert rx.health()["errors"] == {}


@pytest.mark.parametrize("place", [*range(24), 30, 60, 200, -9, -8, -1])
def test_a_receiver_that_asks_for_digests_sees_a_change_of_any_byte(place: int) -> None:
    with open_sender("memory", integrity="xxh3") as tx:
        tx.put("k", {"bulk": bytes(300)}, to="talker")
        flip(tx, "k", place)
        with (
            open_receiver(tx, integrity="xxh3") as rx,
            pytest.raises(TransportError, match="not those that were put"),
        ):
            rx.get("k", source="thinker", timeout=10)


@pytest.mark.parametrize("backend", ["shm", "memory-write"])
def test_a_draft_gets_its_digest_when_it_is_put(backend: str) -> None:
    with pair(backend) as (tx, rx):
        for key in ("good", "bad"):
            with tx.alloc((100_000,), "float32") as draft:
                draft.tensor.fill_(3)
                tx.put(key, draft, to="talker")
        flip(tx, "bad", 4000)

        with rx.get("good", source="thinker", timeout=10) as got:
            assert torch.equal(got.value, torch.full((100_000,), 3.0))
        with pytest.raises(TransportError, match="xxh3"):
            rx.get("bad", source="thinker", timeout=10)


def test_a_poll_does_not_hand_it_out_either() -> None:
    with open_sender("memory", integrity="xxh3") as tx:
        tx.put("k", bytes(1000), to="talker")
        flip(tx, "k", 500)
        with open_receiver(tx) as rx:
            rx.poll("k", source="thinker")
            assert is_linked(rx)

            with pytest.raises(TransportError, match="not those that were put"):
                eventually(lambda: rx.poll("k", source="thinker"))


def test_a_sender_without_digests_is_believed() -> None:
    with pair("memory", ours="", theirs="xxh3") as (tx, rx):
        tx.put("k", [1, 2], to="talker")

        with rx.get("k", source="thinker", timeout=10) as got:
            assert got.value == [1, 2]


def test_a_receiver_without_the_package_takes_what_it_cannot_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair("memory", theirs="") as (tx, rx):
        monkeypatch.setitem(sys.modules, "xxhash", None)
        for key in ("a", "b"):
            tx.put(key, [key, bytes(1000)], to="talker")
            with rx.get(key, source="thinker", timeout=10) as got:
                assert got.value == [key, bytes(1000)]


def test_asking_for_digests_without_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)

    with pytest.raises(ConfigError, match=r"pip install stagelink\[integrity\]"):
        open_sender("memory", integrity="xxh3")


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="integrity"):
        open_sender("memory", integrity="crc32")


def sealed(value: Any) -> bytearray:
    staged = Integrity("xxh3").wrap(PayloadSerializer().stage(value))
    data = bytearray(staged.size)
    staged.write(memoryview(data))
    return data


def test_a_payload_with_a_digest_is_read_like_any_other() -> None:
    value = {"x": np.arange(7), "b": bytes(300)}
    data = sealed(value)

    got = PayloadSerializer().load(data, len(data))
    assert got["x"].tolist() == value["x"].tolist()  # type: ignore[attr-defined]
    assert got["b"] == value["b"]
    assert envelope.digest_of(memoryview(data)) is not None


def test_a_truncated_digest_is_refused() -> None:
    data = sealed([1])

    with pytest.raises(PayloadError, match="arrived"):
        payload.parse(data, len(data) - 8)
    assert Integrity("xxh3").flaw(memoryview(data)[:-8])
    assert envelope.digest_of(memoryview(b"SLPL")) is None
