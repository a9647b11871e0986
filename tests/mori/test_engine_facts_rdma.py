"""What AMD's engine does, as we rely on it or guard against it: its RDMA backend.

Each test fails when a new version behaves otherwise.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.real import SIZE, Far, Side, child, ended, mori
from tests.sims import verbsim
from tests.sims.verbsim import Event, Status

from stagelink.plugins.conformance.meeting import comes

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeSide = Callable[..., Side]
    MakeFar = Callable[..., Far]

BEFORE, OURS = b"\x44", b"\x11"
GOOD = ("SUCCESS", "success")
FLUSHED = ("ERR_RDMA_OP", "Work Request Flushed Error")


class Two:
    """Two engines of this process that know each other, and have written once."""

    def __init__(self, side: MakeSide, **settings: Any) -> None:
        self.ours, self.theirs = (
            side(key, "rdma", byte, **settings) for key, byte in [("ours", 0x11), ("theirs", 0x44)]
        )
        self.ours.meet(self.theirs.described())
        self.theirs.meet(self.ours.described())
        assert ended(self.write(1, at=SIZE - 1)) == GOOD

    def write(self, size: int = 64, **where: int) -> Any:
        return self.ours.write(self.theirs.memory, size, **where)

    def batch(self, mine: list[int], theirs: list[int], sizes: list[int]) -> Any:
        session = self.ours.engine.create_session(self.ours.memory, self.theirs.memory)
        return session.batch_write(mine, theirs, sizes, self.ours.engine.allocate_transfer_uid())


@pytest.fixture
def two(side: MakeSide) -> Two:
    return Two(side)


def fails(status: Any, reason: str) -> bool:
    code, message = ended(status)
    return code == "ERR_RDMA_OP" and message.startswith(reason)


def told(side: Side) -> list[tuple[str, str]]:
    """What the engine tells of failures: by another thread than that which fails the writes."""
    found: list[tuple[str, str]] = []

    def look() -> bool:
        found.extend(side.failures())
        return bool(found)

    assert comes(look)
    return found


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "mine"), [(SIZE - 32, 0), (0, SIZE - 32)])
def test_a_range_beyond_either_region_is_refused(two: Two, at: int, mine: int) -> None:
    """Unlike by XGMI; we check all the same, to say it in our words."""
    assert ended(two.write(64, at=at, mine=mine)) == ("ERR_INVALID_ARGS", "length out of range")
    assert ended(two.write()) == GOOD


def test_one_bad_part_refuses_the_whole_batch(two: Two) -> None:
    assert ended(two.batch([0, 0], [0, SIZE - 32], [64, 64]))[0] == "ERR_INVALID_ARGS"
    assert two.theirs.peek(64) == BEFORE * 64


def test_a_size_of_four_gibibytes_is_refused_and_none_is_fine(two: Two) -> None:
    code, message = ended(two.write(1 << 32))

    assert (code, "exceeds UINT32_MAX" in message) == ("ERR_INVALID_ARGS", True)
    assert ended(two.write(0)) == GOOD


# --- errors --------------------------------------------------------------------------------------

WORDS = {
    Status.LOCAL_LENGTH: "local length error",
    Status.LOCAL_PROTECTION: "local protection error",
    Status.REMOTE_REQUEST: "remote invalid request error",
    Status.REMOTE_ACCESS: "remote access error",
    Status.REMOTE_OPERATION: "remote operation error",
    Status.RETRIES_EXCEEDED: "transport retry counter exceeded",
    Status.NOT_READY_EXCEEDED: "RNR retry counter exceeded",
    Status.GENERAL: "general error",
}


@pytest.mark.parametrize("status", WORDS)
def test_after_any_error_nothing_gets_through_any_more(two: Two, status: Status) -> None:
    verbsim.fail_next(1, status)

    assert fails(two.write(), WORDS[status])
    assert ended(two.write()) == FLUSHED


def test_only_a_new_backend_gets_through_again(two: Two) -> None:
    """So a reset makes one, under a new key: to meet again, or new regions, change nothing."""
    verbsim.fail_next(1, Status.RETRIES_EXCEEDED)
    ended(two.write())

    two.ours.engine.deregister_remote_engine(two.theirs.engine.get_engine_desc())
    two.ours.meet(two.theirs.described())
    assert ended(two.write()) == FLUSHED
    two.ours.deregister()
    two.ours.memory = two.ours.register(two.ours.address, SIZE)
    assert ended(two.write()) == FLUSHED
    two.ours.again()
    two.ours.meet(two.theirs.described())
    assert ended(two.write()) == GOOD


def test_another_peer_is_not_touched_by_an_error(two: Two, side: MakeSide) -> None:
    third = side("third", "rdma")
    memory = two.ours.meet(third.described())
    third.meet(two.ours.described())
    assert ended(two.ours.write(memory)) == GOOD
    verbsim.fail_next(1, Status.RETRIES_EXCEEDED)
    ended(two.write())

    assert ended(two.ours.write(memory)) == GOOD


def test_an_error_within_a_batch_shows_as_what_follows_from_it(side: MakeSide) -> None:
    """The first part of it landed, the cause is lost: so the first status has the root cause."""
    two = Two(side, enable_notification=False)
    verbsim.fail_next(1, Status.REMOTE_OPERATION, skip=4)

    status = two.batch([i * 128 for i in range(8)], [i * 256 for i in range(8)], [64] * 8)

    assert ended(status) == FLUSHED
    assert [two.theirs.peek(1, at=256 * i) for i in range(8)] == [OURS] * 4 + [BEFORE] * 4


def test_a_lost_acknowledgement_is_an_error_though_the_bytes_are_there(two: Two) -> None:
    verbsim.fail_next(1, Status.RETRIES_EXCEEDED, after=True)

    assert fails(two.write(), "transport retry counter exceeded")
    assert two.theirs.peek(64) == OURS * 64


@pytest.mark.parametrize("event", [Event.PAIR_FATAL, Event.PAIR_ACCESS, Event.DEVICE_FATAL])
def test_what_a_card_tells_fails_what_is_under_way_and_all_that_follows(
    two: Two, event: Event
) -> None:
    with verbsim.held():
        status = two.write()
        verbsim.event(0, event)
        code, message = ended(status)

    assert code == "ERR_RDMA_OP"
    assert "async event" in message or (event == Event.PAIR_FATAL and message == FLUSHED[1])
    assert ended(two.write())[0] == "ERR_RDMA_OP"
    reason = "LOCAL_DEVICE_FATAL" if event == Event.DEVICE_FATAL else "LOCAL_QP_ERROR"
    assert {found for _, found in told(two.ours)} == {reason}


def test_a_link_that_comes_back_in_time_is_nothing(two: Two) -> None:
    with verbsim.retry_for(20.0):
        with verbsim.port_down():
            status = two.write()
            time.sleep(0.05)
            assert status.InProgress()

        assert ended(status) == GOOD


def test_a_link_that_stays_down_is_told_and_fails(two: Two) -> None:
    with verbsim.retry_for(0.05), verbsim.port_down():
        assert fails(two.write(), "transport retry counter exceeded")
    assert ("", "LOCAL_PORT_DOWN") in told(two.ours)


# --- peers that die ------------------------------------------------------------------------------


def test_a_write_to_the_dead_fails_within_its_retries(two: Two, far: MakeFar) -> None:
    peer = far("peer", "rdma")
    memory = two.ours.meet(peer.described)
    session = two.ours.engine.create_session(two.ours.memory, memory)
    assert ended(session.write(0, 0, 64, 1)) == GOOD
    assert session.alive()
    peer.process.kill()

    began_s = time.monotonic()
    assert fails(session.write(0, 0, 64, 2), "transport retry counter exceeded")

    assert 0.4 < time.monotonic() - began_s < 5.0
    assert two.ours.failures() == [("peer", "PEER_UNREACHABLE")]
    assert not session.alive()


def test_who_died_before_the_first_write_is_an_exception(two: Two, far: MakeFar) -> None:
    peer = far("peer", "rdma")
    memory = two.ours.meet(peer.described)
    peer.process.kill()

    with pytest.raises(RuntimeError, match="Connection refused"):
        two.ours.write(memory)
    with pytest.raises(RuntimeError, match="Connection refused"):
        two.ours.engine.create_session(two.ours.memory, memory)


def test_a_successor_of_the_same_name_is_not_reached(two: Two, far: MakeFar) -> None:
    """It needs an engine key of its own."""
    first = far("same", "rdma")
    assert ended(two.ours.write(two.ours.meet(first.described))) == GOOD
    first.process.kill()
    second = far("same", "rdma")

    with verbsim.retry_for(0.05):
        assert ended(two.ours.write(two.ours.meet(second.described)))[0] == "ERR_RDMA_OP"

    assert second.peek() == BEFORE * 8


def test_a_peer_that_deregistered_cannot_be_written(two: Two, far: MakeFar) -> None:
    """A fence that holds: and the target's engine hears that its pair broke."""
    peer = far("peer", "rdma")
    memory = two.ours.meet(peer.described)
    assert ended(two.ours.write(memory, at=64)) == GOOD
    peer.process.ask("deregister")

    assert fails(two.ours.write(memory), "remote access error")

    assert peer.peek() == BEFORE * 8
    until_s = time.monotonic() + 10
    while not (heard := peer.process.ask("failures")):
        assert time.monotonic() < until_s
    assert heard == [("ours", "LOCAL_QP_ERROR")]


# --- registration --------------------------------------------------------------------------------


def test_memory_is_registered_with_the_card_when_it_is_first_used(two: Two) -> None:
    more = two.ours.register(two.ours.address, 4096)
    before = verbsim.stats()["regions"]

    two.ours.engine.write(more, 0, two.theirs.memory, 0, 64, 9).Wait()

    assert verbsim.stats()["regions"] > before


def test_a_registration_that_fails_aborts_the_process() -> None:
    """So everything is used once at the start, and limits are looked at before."""
    done = child("""
with verbsim.limit_regions(4096):
    ours, theirs = Side("ours", "rdma"), Side("theirs", "rdma")
    theirs.meet(ours.described())
    print("so far", flush=True)
    ours.write(ours.meet(theirs.described()))
""")

    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "so far\n"), done.stderr


def test_a_registration_that_fails_at_the_target_aborts_the_target(two: Two, far: MakeFar) -> None:
    peer = far("peer", "rdma")
    memory = two.ours.meet(peer.described)
    peer.process.ask("limit_regions", 32768)

    with pytest.raises(RuntimeError, match=r"EOF|reset"):
        two.ours.write(memory)

    with pytest.raises((EOFError, OSError, AssertionError)):
        peer.process.ask("peek")


# --- notification --------------------------------------------------------------------------------


def test_the_target_is_told_of_a_write_and_of_a_read(two: Two) -> None:
    for uid, call in [(7, two.ours.engine.write), (8, two.ours.engine.read)]:
        call(two.ours.memory, 0, two.theirs.memory, 0, 64, uid).Wait()
        until_s = time.monotonic() + 10
        while not (heard := two.theirs.heard("ours", uid)):
            assert time.monotonic() < until_s
        assert heard == "SUCCESS"


def test_who_notifies_one_that_does_not_listen_waits_for_ever(side: MakeSide) -> None:
    """The second transfer never completes: so both sides agree, in hello."""
    ours = side("ours", "rdma", enable_notification=True)
    theirs = side("theirs", "rdma", 0x44, enable_notification=False)
    theirs.meet(ours.described())
    memory = ours.meet(theirs.described())
    assert ended(ours.write(memory)) == GOOD

    status = ours.write(memory)

    with pytest.raises(AssertionError, match="does not end"):
        ended(status, within_s=1.0)


def test_without_notification_nobody_is_told(side: MakeSide) -> None:
    two = Two(side, enable_notification=False)

    ended(two.ours.engine.write(two.ours.memory, 0, two.theirs.memory, 0, 64, 7))

    assert (two.theirs.heard("ours", 7), verbsim.stats()["sends_in"] >= 0) == ("", True)


# --- waiting -------------------------------------------------------------------------------------


def test_a_limited_wait_ends_with_the_write_or_with_the_limit(two: Two) -> None:
    """Unlike with XGMI, where it sleeps to its end."""
    with verbsim.delay(0.2):
        status = two.write()
        assert status.WaitFor(10) == mori.StatusCode.IN_PROGRESS
        began_s = time.monotonic()
        assert status.WaitFor(20_000) == mori.StatusCode.SUCCESS
        status = two.write()
        assert two.ours.engine.wait_all([status], timeout_ms=20_000) == mori.StatusCode.SUCCESS
    assert time.monotonic() - began_s < 15.0


@pytest.mark.parametrize("mode", ["POLLING", "EVENT"])
def test_an_idle_engine_keeps_a_processor_busy(side: MakeSide, mode: str) -> None:
    """In both modes: so it is made only where this backend is chosen."""
    side("ours", "rdma", poll_cq_mode=getattr(mori.PollCqMode, mode))
    cpu_s, until_s = time.process_time() + 0.2, time.monotonic() + 20

    while time.process_time() < cpu_s:
        assert time.monotonic() < until_s, "it sleeps"
        time.sleep(0.01)


# --- settings ------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "two pairs": {"qp_per_transfer": 2},
    "event mode": {"poll_cq_mode": mori.PollCqMode.EVENT},
    "chunks": {"enable_transfer_chunking": True, "chunk_bytes": 4096},
    "two cards": {"qp_per_transfer": 2, "num_nics_per_transfer": 2},
    "two workers, one card": {"qp_per_transfer": 2, "num_worker_threads": 2},
    "silence": {"enable_notification": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_moves_bytes_with_these_settings(
    side: MakeSide, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if "one card" in name:
        monkeypatch.setenv("MORI_IO_RDMA_NIC_IDX", "0")
    two = Two(side, **SETTINGS[name])

    assert ended(two.write(SIZE)) == GOOD
    assert two.theirs.peek(SIZE) == OURS * SIZE
    assert ended(two.batch([0, 256, 512, 768], [1, 513, 1025, 1537], [64] * 4)) == GOOD


def test_two_workers_and_two_cards_use_the_wrong_keys(side: MakeSide) -> None:
    """So one card is chosen by name."""
    two = Two(side, qp_per_transfer=2, num_worker_threads=2)

    code, _ = ended(two.batch([0, 256, 512, 768], [0, 512, 1024, 1536], [64] * 4))

    assert code == "ERR_RDMA_OP"


def test_chunks_are_requests_of_their_own(side: MakeSide) -> None:
    two = Two(side, enable_notification=False, enable_transfer_chunking=True, chunk_bytes=8192)
    before = verbsim.stats()["requests"]

    assert ended(two.write(SIZE)) == GOOD

    assert verbsim.stats()["requests"] - before == SIZE // 8192


# --- devices -------------------------------------------------------------------------------------

MAKES_ONE = """
try:
    made = Side("ours", "rdma")
except RuntimeError as error:
    print(error)
else:
    theirs = Side("theirs", "rdma")
    theirs.meet(made.described())
    code, _ = ended(made.write(made.meet(theirs.described())))
    print(code, {pair.device for pair in verbsim.pairs()})
"""


@pytest.mark.parametrize(
    "without", [{"VERBSIM_DEVICES": "0"}, {"VERBSIM_PORTS_DOWN": "3"}], ids=["none", "all down"]
)
def test_without_an_active_card_there_is_no_backend(without: dict[str, str]) -> None:
    done = child(MAKES_ONE, without)

    assert (done.returncode, "no active RDMA device" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(("names", "index"), [("one", 0), ("two", 1)])
def test_cards_are_chosen_by_name(names: str, index: int) -> None:
    done = child(MAKES_ONE, {"VERBSIM_DEVICES": "one,two", "MORI_RDMA_DEVICES": names})

    assert (done.returncode, done.stdout) == (0, f"SUCCESS {{{index}}}\n"), done.stderr


@pytest.mark.parametrize(("disable", "copies"), [("0", True), ("1", False)])
def test_between_two_gpus_xgmi_is_taken_unless_that_is_disabled(
    disable: str, copies: bool
) -> None:
    done = child(
        """
GPU = mori.MemoryLocationType.GPU
ours, theirs = Side("ours", "rdma"), Side("theirs", "rdma")
theirs.meet(ours.described())
ours.meet(theirs.described())
here, there = hipsim.malloc(64, 0), hipsim.malloc(64, 1)
here = ours.engine.register_memory(here, 64, 0, GPU)
there = theirs.engine.register_memory(there, 64, 1, GPU)
print(*ended(ours.engine.write(here, 0, there, 0, 64, 1)), hipsim.stats()["copies"])
""",
        {"MORI_DISABLE_AUTO_XGMI": disable},
    )

    assert done.stdout.split()[0] == "SUCCESS", done.stderr
    assert (done.stdout.split()[-1] != "0") == copies
