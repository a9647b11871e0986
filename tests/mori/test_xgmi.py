"""XGMI on the real engine: its failures, its batches, and descriptions that lie."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.parties import Stranger, on_xgmi, on_xgmi_next_door
from tests.sims import hipsim

from stagelink.adapters.mori import DeviceMemoryProvider, PinnedMemoryProvider, card, hip
from stagelink.core.errors import CapacityError, ConfigError, TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.meeting import REGION, Meeting, Outcome, comes, difference
from stagelink.plugins.conformance.parties import FarParty
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.adapters.mori.card import Card

LARGE = 128 << 10
"""More than what is waited for where it is posted."""


@pytest.fixture
def pair(meet: Callable[..., Meeting]) -> Meeting:
    """Two parties on two GPUs."""
    return meet(on_xgmi, on_xgmi_next_door, 8 << 20)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Elsewhere]]:
    """Starts strangers, and ends them."""
    made: list[Elsewhere] = []

    def start(make: Any, size: int = 1 << 20) -> Elsewhere:
        made.append(Elsewhere(Stranger, make, size))
        return made[-1]

    yield start
    for one in made:
        one.end()


def post(pair: Meeting, offset: int, size: int) -> Outcome:
    where = RegionRef(REGION, offset, size)
    return pair.post(0, source=where, target=where)


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_failed_copy_is_told_in_moris_words_and_the_next_one_arrives(
    pair: Meeting, size: int
) -> None:
    content = pair.fill()
    hipsim.fail_next()

    error = post(pair, 0, size).wait()

    assert error.startswith("Mori: ERR_GPU_OP: ")
    assert not difference(pair.move(0, size), content[:size])


def test_a_long_copy_does_not_hold_up_who_posts_it(pair: Meeting) -> None:
    with hipsim.held():
        began_s = time.monotonic()
        outcome = post(pair, 0, LARGE)
        took_s = time.monotonic() - began_s
        assert not outcome.errors
    assert not outcome.wait()
    assert took_s < 10.0


def test_writes_that_queue_up_go_in_fewer_calls(pair: Meeting) -> None:
    content, before = pair.fill(), hipsim.stats()["copies"]
    with hipsim.held():
        outcomes = [post(pair, index * LARGE, LARGE) for index in range(60)]

    assert [outcome.wait() for outcome in outcomes] == [""] * 60
    assert not difference(pair.peer.memory.buffer[: 60 * LARGE], content[: 60 * LARGE])
    # 16 alone, and the rest in batches of 1 MiB, each one copy since its parts are neighbours.
    assert hipsim.stats()["copies"] - before == 16 + 6


def test_a_failure_in_a_batch_is_told_to_each_of_its_writes(pair: Meeting) -> None:
    hipsim.fail_next(skip=17)
    with hipsim.held():
        alone = [post(pair, index * LARGE, LARGE) for index in range(16)]
        batched = [post(pair, 2 * index * LARGE, LARGE) for index in range(16, 20)]

    assert [outcome.wait() for outcome in alone] == [""] * 16
    assert {outcome.wait()[:17] for outcome in batched} == {"Mori: ERR_GPU_OP:"}


def test_both_directions_between_two_processes_and_two_gpus(meet: Callable[..., Meeting]) -> None:
    near = meet(on_xgmi, on_xgmi_next_door, 8 << 20).owner
    near.memory.buffer[:] = b"\x11" * (8 << 20)
    far = FarParty(on_xgmi_next_door, near, 8 << 20, 0x44)
    try:
        for size in (1, 4096, 5 << 20):
            assert not far.post(size).wait()
            assert far.ask("holds", 0x11, size)
        far.ask("write", near.instance, 8 << 20, 1)
        expected = b"\x11" * (5 << 20) + b"\x44" * (3 << 20)
        assert comes(lambda: near.memory.buffer[-1] == 0x44)
        assert comes(lambda: not difference(near.memory.buffer, expected))
    finally:
        far.end()


def test_the_memory_of_a_fenced_peer_is_let_go(
    pair: Meeting, elsewhere: Callable[..., Elsewhere]
) -> None:
    before = hipsim.stats()["mappings"]
    far = elsewhere(on_xgmi)
    peer, descriptor = far.ask("introduce")
    pair.owner.plane.attach(peer, descriptor)
    assert hipsim.stats()["mappings"] == before + 1
    far.kill()

    assert pair.owner.plane.fence(peer, dead=True)

    assert hipsim.stats()["mappings"] == before


def test_who_died_before_the_first_write_cannot_be_attached(
    pair: Meeting, elsewhere: Callable[..., Elsewhere]
) -> None:
    far = elsewhere(on_xgmi)
    peer, descriptor = far.ask("introduce")
    far.kill()

    with pytest.raises(TransportError, match=r"Mori: "):
        pair.owner.plane.attach(peer, descriptor)

    assert pair.post(1000).wait() == ""


def test_devices_without_a_link_are_told_of(
    pair: Meeting, elsewhere: Callable[..., Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIPSIM_P2P", "0")
    alone = elsewhere(on_xgmi_next_door)

    error = alone.ask("attach", pair.owner.instance, pair.owner.plane.describe())

    assert "Mori" in error


# --- descriptions that lie, in an envelope that does not -----------------------------------------


def _row(found: Card, **changed: Any) -> Card:
    return found._replace(rows=(found.rows[0]._replace(**changed),))


def _zeroed_handle(found: Card) -> Card:
    memory = bytearray(found.rows[0].memory)
    at = memory.index(b"HIPSIM")
    memory[at : at + 64] = bytes(64)
    return _row(found, memory=bytes(memory))


def _other_name(found: Card) -> Card:
    key, other = found.instance.hex().encode(), b"0" * 32
    return _row(found, memory=found.rows[0].memory.replace(key, other))


LIES: dict[str, Callable[[Card], Card]] = {
    "a memory without a handle": _zeroed_handle,
    "a memory of another engine": _other_name,
    "more bytes than Mori says": lambda one: _row(one, size=one.rows[0].size + 1),
    "fewer bytes than Mori says": lambda one: _row(one, size=one.rows[0].size - 1),
    "another beacon": lambda one: _row(one, nonce=bytes(16)),
    "no memory at all": lambda one: _row(one, memory=b""),
    "a memory cut short": lambda one: _row(one, memory=one.rows[0].memory[:-5]),
    "more behind the memory": lambda one: _row(one, memory=one.rows[0].memory + b"\0"),
    "an empty array": lambda one: _row(one, memory=b"\x90"),
    "an array of 4 GiB": lambda one: _row(one, memory=b"\xdd\xff\xff\xff\xff"),
    "no engine": lambda one: one._replace(engine=b"\xc0"),
    "an engine that is a memory": lambda one: one._replace(engine=one.rows[0].memory),
    "another fabric": lambda one: one._replace(fabric="rdma"),
    "notifications": lambda one: one._replace(notifies=True),
    "another process": lambda one: one._replace(instance=bytes(16)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_description_that_lies_is_refused_and_nothing_breaks(pair: Meeting, lie: str) -> None:
    peer = pair.peer
    found = card.unpack(peer.plane.describe(), peer.instance)

    with pytest.raises(TransportError):
        pair.owner.plane.attach(peer.instance, card.pack(LIES[lie](found)))

    content = pair.fill()
    assert not difference(pair.move(0, 1000), content[:1000])


# --- pools ---------------------------------------------------------------------------------------


def test_a_pool_beyond_the_device_says_what_there_is() -> None:
    with pytest.raises(CapacityError, match=r"device 0 has \d+ available") as caught:
        DeviceMemoryProvider("cuda:0").allocate(16 << 30)
    assert caught.value.never_fits
    DeviceMemoryProvider("cuda:0").allocate(4096).close()


def test_the_driver_is_asked_for_whole_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it maps the whole of it by small ones, and copies of it take longer."""
    asked: list[int] = []
    take = hip.Hip.allocate

    def allocate(runtime: hip.Hip, size: int, device: int) -> int:
        asked.append(size)
        return take(runtime, size, device)

    monkeypatch.setattr(hip.Hip, "allocate", allocate)
    for size in (4096, (2 << 20) - 4096, 2 << 20, (5 << 20) + 4096):
        memory = DeviceMemoryProvider("cuda:0").allocate(size)
        assert len(memory.buffer) == memory.size == size
        memory.close()
    assert asked == [2 << 20, 2 << 20, 4 << 20, 6 << 20]


@pytest.mark.parametrize("device", ["cuda:2", "cuda:-1", "cuda:x", "cpu", "tpu"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ConfigError, match="cuda:0, cuda:1"):
        DeviceMemoryProvider(device)


def test_memory_of_the_host_is_refused() -> None:
    party, memory = on_xgmi(4096), PinnedMemoryProvider().allocate(4096)
    with pytest.raises(TransportError, match="cannot use host-private memory"):
        party.plane.register(REGION, memory)
    party.plane.close()


def test_device_memory_lives_as_long_as_its_views() -> None:
    before = hipsim.stats()["allocations"]
    memory = DeviceMemoryProvider("cuda:1").allocate(4096)
    view = memory.buffer[100:200]
    memory.close()
    view[:] = bytes(100)
    assert hipsim.stats()["allocations"] == before + 1
    view.release()
    assert hipsim.stats()["allocations"] == before


def test_what_is_out_of_bounds_never_reaches_mori(pair: Meeting) -> None:
    before, peer = hipsim.stats()["copies"], pair.peer.instance
    for where in (RegionRef(REGION, 8 << 20, 1), RegionRef(REGION, (8 << 20) - 1, 2)):
        inside = where._replace(offset=0)
        for source, target in ((where, inside), (inside, where)):
            outcome = Outcome()
            pair.owner.plane.post(WriteOrder(peer, 1, source, target), outcome)
            assert "outside a region of 8388608 bytes" in outcome.wait()
    assert hipsim.stats()["copies"] == before
