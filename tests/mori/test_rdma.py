"""RDMA on the real engine: what NICs, cables and peers do, and what comes after."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.parties import Stranger, on_rdma
from tests.sims import verbsim
from tests.sims.verbsim import Status

from stagelink.adapters.mori import PinnedMemoryProvider, RdmaOptions, rdma_plane, rdma_problem
from stagelink.core.errors import ConfigError, TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.meeting import REGION, Meeting, Outcome, comes, difference
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = 8 << 20
PART = 64 << 10


@pytest.fixture
def pair(meet: Callable[..., Meeting]) -> Meeting:
    """Two parties on two NICs."""
    return meet(on_rdma, size=SIZE)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Elsewhere]]:
    """Starts strangers, and ends them."""
    made: list[Elsewhere] = []

    def start(size: int = SIZE, **options: Any) -> Elsewhere:
        made.append(Elsewhere(Stranger, partial(on_rdma, **options), size))
        return made[-1]

    yield start
    for one in made:
        one.end()


def write(pair: Meeting, peer: bytes, offset: int = 0, size: int = PART) -> Outcome:
    """Begin a write to the same place of *peer*."""
    where, outcome = RegionRef(REGION, offset, size), Outcome()
    pair.owner.plane.post(WriteOrder(peer, 1, where, where), outcome)
    return outcome


def arrives(pair: Meeting) -> bool:
    """Whether a whole transfer arrives."""
    content = pair.fill()
    return not difference(pair.move(0, SIZE), content)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"event_mode": True},
        {"qp_per_transfer": 2},
        {"qp_per_transfer": 2, "num_worker_threads": 2},
        {"qp_per_transfer": 2, "num_nics_per_transfer": 2},
        {"enable_transfer_chunking": True, "chunk_bytes": 1 << 20},
        {"enable_transfer_chunking": True, "max_chunks_per_transfer": 4, "qp_per_transfer": 2},
        {"enable_notification": True},
        {"post_batch_size": 4},
        {"device_name": "vsim1"},
    ],
    ids=str,
)
def test_transfers_arrive_whatever_is_tuned(
    meet: Callable[..., Meeting], options: dict[str, Any]
) -> None:
    pair = meet(partial(on_rdma, **options), size=SIZE)
    assert arrives(pair)
    outcomes = [
        write(pair, pair.peer.instance, index * 2 * PART, PART)
        for index in range(SIZE // PART // 2)
    ]
    assert {outcome.wait() for outcome in outcomes} == {""}


def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"\['vsim0', 'vsim1'\]"):
        on_rdma(4096, device_name="mlx5_0")
    assert "vsim0" in rdma_problem(RdmaOptions(device_name="mlx5_0"))


def test_no_active_port_is_an_error_with_its_remedy() -> None:
    with verbsim.port_down(0), verbsim.port_down(1):
        with pytest.raises(TransportError, match=r"vsim0 .down., vsim1 .down.*ibv_devinfo"):
            on_rdma(4096)
        assert "ibv_devinfo" in rdma_problem(RdmaOptions())
    assert not rdma_problem(RdmaOptions())


def test_notifications_must_be_agreed_on(meet: Callable[..., Meeting]) -> None:
    with pytest.raises(TransportError, match="enable_notification alike on both sides"):
        meet(on_rdma, partial(on_rdma, enable_notification=True))


# --- registration --------------------------------------------------------------------------------


def test_a_refused_registration_is_an_error_and_no_abort() -> None:
    party = on_rdma(1 << 20)
    refused = pytest.raises(TransportError, match=r"vsim0 does not take 1052672 .*Invalid arg")
    with verbsim.limit_regions(max_bytes=1 << 16, error=22), refused:
        party.plane.register(REGION, party.memory)
    party.plane.register(REGION, party.memory)
    party.plane.close()


def test_registration_happens_at_once_and_not_under_way(meet: Callable[..., Meeting]) -> None:
    pair = meet(on_rdma)
    before = verbsim.stats()["regions"]
    assert not write(pair, pair.peer.instance).wait()
    assert verbsim.stats()["regions"] == before


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.FLUSHED])
def test_after_any_failed_request_the_next_write_arrives(pair: Meeting, status: Status) -> None:
    verbsim.fail_next(1, status)

    error = write(pair, pair.peer.instance).wait()

    assert error.startswith("Mori: ERR_RDMA_OP: ")
    assert arrives(pair)


def test_what_fails_behind_a_failure_names_it(pair: Meeting) -> None:
    with verbsim.held():
        verbsim.fail_next(1, Status.REMOTE_OPERATION)
        outcomes = [write(pair, pair.peer.instance, i * PART) for i in range(4)]

    first, *others = [outcome.wait() for outcome in outcomes]

    assert "remote operation error" in first
    assert {("Flush" in other, first in other) for other in others} == {(True, True)}
    assert arrives(pair)


def test_a_lost_acknowledgement_is_an_error_although_the_bytes_are_there(pair: Meeting) -> None:
    pair.owner.memory.buffer[:PART] = b"\x22" * PART
    verbsim.fail_next(1, Status.RETRIES_EXCEEDED, after=True)

    assert write(pair, pair.peer.instance).wait()

    assert bytes(pair.peer.memory.buffer[:PART]) == b"\x22" * PART
    assert arrives(pair)


def test_a_cut_cable_fails_writes_until_it_is_mended(meet: Callable[..., Meeting]) -> None:
    pair = meet(partial(on_rdma, device_name="vsim0"), size=SIZE)
    with verbsim.retry_for(0.05), verbsim.port_down(0):
        errors = [write(pair, pair.peer.instance).wait() for _ in range(3)]
    assert all(error.startswith("Mori: ") for error in errors)
    until_s = time.monotonic() + 5.0
    while write(pair, pair.peer.instance).wait() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert arrives(pair)


def test_a_slow_network_holds_up_nobody_who_posts(pair: Meeting) -> None:
    with verbsim.delay(0.2):
        began_s = time.monotonic()
        outcomes = [write(pair, pair.peer.instance, i * PART) for i in range(40)]
        assert time.monotonic() - began_s < 40 * 0.2 / 2
        assert not any(outcome.errors for outcome in outcomes[-1:])
    assert {outcome.wait() for outcome in outcomes} == {""}


# --- peers ---------------------------------------------------------------------------------------


def test_a_peer_that_died_before_it_was_attached_is_refused(
    pair: Meeting, elsewhere: Callable[..., Elsewhere]
) -> None:
    far = elsewhere()
    peer, descriptor = far.ask("introduce")
    far.kill()
    with pytest.raises(TransportError, match="Mori: no connection"):
        pair.owner.plane.attach(peer, descriptor)
    assert arrives(pair)


def test_writes_to_a_peer_that_died_end_and_harm_no_other(
    pair: Meeting, elsewhere: Callable[..., Elsewhere]
) -> None:
    far = elsewhere()
    peer, descriptor = far.ask("introduce")
    pair.owner.plane.attach(peer, descriptor)
    assert not write(pair, peer).wait()
    with verbsim.retry_for(0.1):
        with verbsim.delay(0.1):
            under_way = [write(pair, peer) for _ in range(3)]
        far.kill()
        afterwards = write(pair, peer)
        assert arrives(pair)
        assert all(outcome.wait() for outcome in [*under_way[1:], afterwards])
        assert write(pair, peer).wait()
    assert pair.owner.plane.fence(peer, dead=True)
    assert arrives(pair)


def test_a_peer_that_stalls_while_we_connect_stops_no_other_thread(
    pair: Meeting, elsewhere: Callable[..., Elsewhere]
) -> None:
    far = elsewhere()
    peer, descriptor = far.ask("introduce")
    far.freeze()
    ended = threading.Event()

    def attach() -> None:
        with ExitStack() as last:
            last.callback(ended.set)
            with pytest.raises(TransportError):
                pair.owner.plane.attach(peer, descriptor)

    thread = threading.Thread(target=attach)
    thread.start()
    ticks = 0
    while not ended.wait(0.01):
        ticks += 1
    thread.join()
    assert ticks > 50
    assert arrives(pair)
    far.thaw()
    pair.owner.plane.attach(peer, descriptor)
    assert not write(pair, peer).wait()


def test_who_is_cut_off_alive_loses_its_writes_and_the_others_attach_again(
    pair: Meeting, meet: Callable[..., Meeting]
) -> None:
    """The peer cuts off the owner, by registering its memory anew; a third one loses it too."""
    third = meet(on_rdma, size=SIZE)
    reader = pair.peer
    third.owner.plane.attach(reader.instance, reader.plane.describe())
    assert not write(third, reader.instance).wait()

    assert reader.plane.fence(pair.owner.instance, dead=False)

    reader.memory.buffer[:] = b"\x33" * SIZE
    assert write(pair, reader.instance).wait()
    assert write(third, reader.instance).wait()
    third.owner.plane.attach(reader.instance, reader.plane.describe())
    assert bytes(reader.memory.buffer) == b"\x33" * SIZE
    assert not write(third, reader.instance).wait()
    assert write(pair, reader.instance).wait()


def test_a_fence_leaves_our_own_writes_to_others_whole(
    pair: Meeting, meet: Callable[..., Meeting]
) -> None:
    third = meet(on_rdma, size=SIZE)
    third.owner.plane.attach(pair.owner.instance, pair.owner.plane.describe())
    with verbsim.delay(0.02):
        outcomes = [write(pair, pair.peer.instance, i * PART) for i in range(30)]
    assert pair.owner.plane.fence(third.owner.instance, dead=False)
    assert {outcome.wait() for outcome in outcomes} == {""}
    assert arrives(pair)


def test_engines_are_gone_after_the_close() -> None:
    before = len(verbsim.pairs())
    made = Meeting(on_rdma(SIZE), on_rdma(SIZE))
    assert arrives(made)
    assert len(verbsim.pairs()) > before
    made.close()
    assert comes(lambda: len(verbsim.pairs()) == before)


def test_memory_of_a_gpu_is_refused_by_a_plane_for_the_host() -> None:
    plane = rdma_plane(bytes(16), on_device=True)
    with pytest.raises(TransportError, match="only device"):
        plane.register(REGION, PinnedMemoryProvider().allocate(4096))
    plane.close()


def test_a_reset_ends_what_the_network_does_not(
    pair: Meeting, meet: Callable[..., Meeting]
) -> None:
    other = meet(on_rdma, size=SIZE)
    pair.owner.plane.attach(other.owner.instance, other.owner.plane.describe())
    before = pair.owner.plane.describe()
    with verbsim.retry_for(60.0), verbsim.drop_all():
        outcomes = [write(pair, pair.peer.instance, i * PART) for i in range(40)]
        began_s = time.monotonic()
        pair.owner.plane.reset()
        assert time.monotonic() - began_s < 10.0
        assert all("the write was stopped" in outcome.wait() for outcome in outcomes)
    pair.peer.memory.buffer[:] = b"\x33" * SIZE
    assert pair.owner.plane.describe() != before
    time.sleep(0.1)
    assert bytes(pair.peer.memory.buffer) == b"\x33" * SIZE
    assert arrives(pair)
    assert not write(pair, other.owner.instance).wait()
