"""What AMD's engine does, as we rely on it or guard against it: its XGMI backend, and all of it.

Each test fails when a new version behaves otherwise. Many hold what we would rather have different:
then the guard in ``adapters/mori`` may go. The RDMA backend has a file of its own.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.real import SIZE, Far, Side, child, ended, mori
from tests.sims import hipsim

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeSide = Callable[..., Side]
    MakeFar = Callable[..., Far]

BEFORE, OURS = b"\x44", b"\x11"


class Two:
    """Two engines of this process that know each other, on a device each."""

    def __init__(self, side: MakeSide) -> None:
        self.ours, self.theirs = side("ours", "xgmi"), side("theirs", "xgmi", 0x44, device=1)
        self.ours.meet(self.theirs.described())
        self.theirs.meet(self.ours.described())

    def write(self, size: int = 64, **where: int) -> Any:
        return self.ours.write(self.theirs.memory, size, **where)

    def session(self) -> Any:
        return self.ours.engine.create_session(self.ours.memory, self.theirs.memory)


@pytest.fixture
def two(side: MakeSide) -> Two:
    return Two(side)


# --- bounds --------------------------------------------------------------------------------------


def test_a_write_beyond_the_region_lands_in_its_neighbour_and_succeeds(two: Two) -> None:
    """So we check every offset and length ourselves, before."""
    first_page = two.theirs.register(two.theirs.address, 4096)

    status = two.ours.write(first_page, at=8192)

    assert ended(status) == ("SUCCESS", "")
    assert two.theirs.peek(64, at=8192) == OURS * 64


def test_a_session_checks_no_bounds_either(two: Two) -> None:
    first_page = two.theirs.register(two.theirs.address, 4096)
    session = two.ours.engine.create_session(two.ours.memory, first_page)

    assert ended(session.write(0, 8192, 64, 1)) == ("SUCCESS", "")
    assert two.theirs.peek(64, at=8192) == OURS * 64


def test_a_batch_with_a_bad_part_has_failed_while_its_other_parts_still_move(two: Two) -> None:
    """So a failed batch says nothing of the target, neither now nor later."""
    with hipsim.held():
        status = two.session().batch_write([0, 0], [0, SIZE - 32], [64, 64], 1)

        assert ended(status)[0] == "ERR_GPU_OP"
        assert two.theirs.peek(64) == BEFORE * 64
    lands(two, 64)


def lands(two: Two, size: int) -> None:
    until_s = time.monotonic() + 10
    while two.theirs.peek(size) != OURS * size:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_write_of_nothing_succeeds(two: Two) -> None:
    assert ended(two.write(0)) == ("SUCCESS", "")


@pytest.mark.parametrize(
    "call",
    [
        "session.batch_write([0], [0, 64], [64, 64], 1)",
        "session.batch_write([0, 64], [0, 64], [64], 1)",
        "ours.engine.batch_write([ours.memory], [[0]], [theirs], [[0]], [[64]], [])",
        "ours.engine.batch_write([ours.memory] * 2, [[0]], [theirs], [[0]], [[64]], [1])",
        "ours.engine.create_backend(mori.BackendType.TCP, mori.XgmiBackendConfig())",
    ],
)
def test_nonsense_aborts_the_process(call: str) -> None:
    """A typed error of ours comes before: lengths are compared, and backends chosen, by us."""
    done = child(f"""
ours = Side("ours", "xgmi")
theirs = ours.meet(Side("theirs", "xgmi", device=1).described())
session = ours.engine.create_session(ours.memory, theirs)
print("so far", flush=True)
{call}
""")

    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "so far\n"), done.stderr


# --- order and identity --------------------------------------------------------------------------


def test_memory_registered_before_the_backend_has_no_handle(side: MakeSide) -> None:
    """The backend comes first; so it is with remote engines, below."""
    made = side("ours", "xgmi")
    early = mori.IOEngine("early", mori.IOEngineConfig(host="127.0.0.1", port=0))

    memory = early.register_memory(made.address, SIZE, 0, mori.MemoryLocationType.GPU)

    assert (any(memory.ipc_handle), any(made.memory.ipc_handle)) == (False, True)


def test_an_engine_met_before_the_backend_is_out_of_reach(side: MakeSide) -> None:
    ours, theirs = side("ours", "xgmi"), side("theirs", "xgmi", device=1)
    early = mori.IOEngine("early", mori.IOEngineConfig(host="127.0.0.1", port=0))
    early.register_remote_engine(theirs.engine.get_engine_desc())
    early.create_backend(mori.BackendType.XGMI, mori.XgmiBackendConfig())
    memory = early.register_memory(ours.address, SIZE, 0, mori.MemoryLocationType.GPU)

    status = early.write(memory, 0, theirs.memory, 0, 64, 1)

    assert ended(status)[0] == "ERR_BAD_STATE"


def test_a_session_with_who_is_out_of_reach_is_none(two: Two, far: MakeFar) -> None:
    stranger = mori.MemoryDesc.unpack(far("stranger", "xgmi").described[1])

    assert two.ours.engine.create_session(two.ours.memory, stranger) is None


def test_a_successor_of_the_same_name_is_served_from_the_dead_ones_memory(
    two: Two, far: MakeFar
) -> None:
    """So every incarnation has an engine key of its own. Only a new backend forgets."""
    first = far("same", "xgmi", device=1)
    assert ended(two.ours.write(two.ours.meet(first.described))) == ("SUCCESS", "")
    first.process.kill()
    second = far("same", "xgmi", device=1)
    memory = two.ours.meet(second.described)

    assert ended(two.ours.write(memory)) == ("SUCCESS", "")

    assert second.peek() == BEFORE * 8
    two.ours.again()
    memory = two.ours.meet(second.described)
    assert ended(two.ours.write(memory)) == ("SUCCESS", "")
    assert second.peek() == OURS * 8


def test_a_peer_of_our_own_name_is_taken_for_ourselves(two: Two, far: MakeFar) -> None:
    """Its address is taken for one of ours, which is luckily none."""
    twin = far("ours", "xgmi", device=1, size=2 * SIZE)

    code, _ = ended(two.ours.write(two.ours.meet(twin.described)))

    assert (code, twin.peek()) in [("ERR_GPU_OP", BEFORE * 8), ("SUCCESS", BEFORE * 8)]


# --- waiting -------------------------------------------------------------------------------------


def longest_pause(of: Callable[[], object]) -> float:
    """How long another thread of Python stood still while *of* ran."""
    seen = [time.monotonic()]
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            seen.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    of()
    stop.set()
    thread.join()
    seen.append(time.monotonic())
    return max(later - earlier for earlier, later in pairwise(seen))


def test_other_threads_run_while_one_waits(two: Two) -> None:
    with hipsim.delay(0.5):
        status = two.write()

        pause = longest_pause(status.Wait)

    assert status.Succeeded()
    assert pause < 0.4


def test_a_limited_wait_sleeps_to_its_end_though_the_write_is_done(two: Two) -> None:
    """So we never use it: Wait() in a thread of ours."""
    with hipsim.delay(0.02):
        status = two.write()
        began_s = time.monotonic()
        assert status.WaitFor(300) == mori.StatusCode.SUCCESS
        first_s = time.monotonic() - began_s
        status = two.write()
        began_s = time.monotonic()
        assert two.ours.engine.wait_all([status], timeout_ms=300) == mori.StatusCode.SUCCESS
        second_s = time.monotonic() - began_s

    assert min(first_s, second_s) > 0.29


def test_to_look_while_another_waits_stops_every_thread(two: Two) -> None:
    """InProgress() waits for the waiting one, and holds the interpreter meanwhile."""
    with hipsim.delay(0.5):
        status = two.write()
        waiting = threading.Thread(target=status.Wait)
        waiting.start()
        time.sleep(0.05)

        pause = longest_pause(status.InProgress)

        waiting.join()
    assert pause > 0.1


def test_a_status_that_was_never_issued_stays_so(two: Two) -> None:
    status = type(two.write())()

    status.Wait()

    assert status.Code() == mori.StatusCode.INIT


def test_a_write_whose_status_nobody_keeps_still_lands(two: Two) -> None:
    """Nothing can be cancelled, not even so."""
    with hipsim.held():
        two.write()
    lands(two, 64)


def test_a_copy_that_fails_is_told_once_and_the_next_one_succeeds(two: Two) -> None:
    hipsim.fail_next(1)

    failed, message = ended_after_wait(two.write())

    assert failed == "ERR_GPU_OP"
    assert "unspecified launch failure" in message
    assert ended_after_wait(two.write()) == ("SUCCESS", "")


def ended_after_wait(status: Any) -> tuple[str, str]:
    status.Wait()
    return status.Code().name, status.Message()


def test_sessions_and_deregistration_do_not_wait_for_each_other(two: Two) -> None:
    """engine.write() on a new pair may deadlock with deregister_memory(); sessions do not."""
    stop = threading.Event()
    done = [0, 0]

    def use() -> None:
        while not stop.is_set():
            memory = two.ours.register(two.ours.address, 4096)
            session = two.ours.engine.create_session(memory, two.theirs.memory)
            session.write(0, 0, 8, 1).Wait()
            two.ours.engine.deregister_memory(memory)
            done[0] += 1

    def churn() -> None:
        while not stop.is_set():
            two.ours.engine.deregister_memory(two.ours.register(two.ours.address, 4096))
            done[1] += 1

    threads = [threading.Thread(target=run, daemon=True) for run in (use, use, churn, churn)]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join(30.0)

    assert not any(thread.is_alive() for thread in threads)
    assert min(done) > 0


def test_a_status_waited_for_after_its_engine_is_gone_is_no_good() -> None:
    """So an engine outlives all of them: this one crashes, or hangs."""
    done = child(
        """
ours = Side("ours", "xgmi")
theirs = Side("theirs", "xgmi", device=1)
hipsim._hip().hipsim_set_delay_us(50000)
status = ours.write(ours.meet(theirs.described()))
del ours
status.Wait()
print(status.Code().name)
""",
        timeout_s=10.0,
    )

    assert (done.returncode, done.stdout) != (0, "SUCCESS\n")


# --- peers ---------------------------------------------------------------------------------------


def test_a_receiver_hears_nothing_of_what_was_written(two: Two) -> None:
    """That a transfer is complete is for the control channel to say."""
    uid = two.ours.engine.allocate_transfer_uid()
    two.ours.engine.write(two.ours.memory, 0, two.theirs.memory, 0, 64, uid).Wait()

    assert two.theirs.heard("ours", uid) == ""


def test_writes_to_the_dead_succeed_and_nothing_tells(two: Two, far: MakeFar) -> None:
    """That a peer lives is for us to prove."""
    peer = far("peer", "xgmi", device=1)
    memory = two.ours.meet(peer.described)
    session = two.ours.engine.create_session(two.ours.memory, memory)
    assert ended(session.write(0, 0, 64, 1)) == ("SUCCESS", "")
    peer.process.kill()

    assert ended(session.write(0, 0, 64, 2)) == ("SUCCESS", "")
    assert (session.alive(), two.ours.failures()) == (True, [])


def test_who_died_before_the_first_write_is_out_of_reach(two: Two, far: MakeFar) -> None:
    peer = far("peer", "xgmi", device=1)
    memory = two.ours.meet(peer.described)
    peer.process.kill()

    assert ended(two.ours.write(memory))[0] == "ERR_BAD_STATE"
    assert two.ours.engine.create_session(two.ours.memory, memory) is None


def test_memory_that_was_deregistered_is_written_all_the_same(two: Two, far: MakeFar) -> None:
    """So deregistration fences nobody: a mapping that a peer has, stays."""
    peer = far("peer", "xgmi", device=1)
    memory = two.ours.meet(peer.described)
    assert ended(two.ours.write(memory, at=64)) == ("SUCCESS", "")
    peer.process.ask("deregister")

    assert ended(two.ours.write(memory)) == ("SUCCESS", "")
    assert peer.peek() == OURS * 8


# --- what comes from others ----------------------------------------------------------------------

GARBAGE = {
    "nothing": b"",
    "text": b"garbage",
    "ones": b"\xff" * 64,
    "a list of nil": b"\x96\xc0\xc0\xc0\xc0\xc0\xc0",
    "a list of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a string": "abc",
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("kind", [mori.EngineDesc, mori.MemoryDesc])
def test_garbage_is_refused_in_one_of_three_ways(kind: Any, name: str) -> None:
    with pytest.raises((RuntimeError, MemoryError, TypeError)):
        kind.unpack(GARBAGE[name])


def test_what_was_cut_off_or_is_of_the_other_kind_is_refused(side: MakeSide) -> None:
    engine, memory = side("ours", "xgmi").described()

    for kind, whole, other in [
        (mori.EngineDesc, engine, memory),
        (mori.MemoryDesc, memory, engine),
    ]:
        for wrong in (whole[:-5], whole[:1], other):
            with pytest.raises(RuntimeError):
                kind.unpack(wrong)


def test_some_garbage_is_accepted(side: MakeSide) -> None:
    """So we look at every field ourselves, after unpack."""
    engine, memory = side("ours", "xgmi").described()

    assert mori.EngineDesc.unpack(b"\x90").key == ""
    assert mori.MemoryDesc.unpack(b"\x90").size == 0
    assert mori.EngineDesc.unpack(engine + b"zz").key == "ours"
    assert mori.MemoryDesc.unpack(memory + b"zz").size == SIZE


# --- logs, devices and torch ---------------------------------------------------------------------

LOGS_AN_ERROR = """
from mori import io
{before}
engine = io.IOEngine("ours", io.IOEngineConfig("127.0.0.1", 0))
engine.create_backend(io.BackendType.XGMI)
memory = engine.register_memory(hipsim.malloc(64), 64, 0, io.MemoryLocationType.CPU)
engine.write(memory, 0, memory, 0, 8, 1)
"""


@pytest.mark.parametrize(
    ("before", "level", "levels"),
    [
        ("", "", {"error"}),
        ("io.set_log_level('critical')", "", {"error"}),
        ("", "critical", set()),
        ("io.set_log_level('trace')", "critical", set()),
    ],
)
def test_it_logs_to_stdout_and_only_the_environment_is_asked(
    before: str, level: str, levels: set[str]
) -> None:
    done = child(LOGS_AN_ERROR.format(before=before), {"MORI_IO_LOG_LEVEL": level})

    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\[(error|critical)\]", done.stdout)) == levels
    assert "[error]" not in done.stderr


def test_memory_on_the_host_is_nothing_for_xgmi(two: Two) -> None:
    address = hipsim.malloc(SIZE)
    memory = two.ours.engine.register_memory(address, SIZE, -1, mori.MemoryLocationType.CPU)

    assert two.ours.engine.create_session(memory, two.theirs.memory) is None
    hipsim.free(address)


def test_a_device_that_does_not_exist_is_not_refused(two: Two) -> None:
    """Its memory is merely out of reach, so we look before."""
    memory = two.ours.engine.register_memory(
        two.ours.address, SIZE, 7, mori.MemoryLocationType.GPU
    )

    assert memory.device_bus_id == ""
    assert (
        ended(two.ours.engine.write(memory, 0, two.theirs.memory, 0, 64, 1))[0] == "ERR_BAD_STATE"
    )
