"""What may take long keeps nobody waiting whom it does not concern."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.adapters.frames import FramesPlane, places
from stagelink.adapters.frames.wire import Description, pack
from stagelink.adapters.memory import PrivateMemoryProvider
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads.errands import MOST_AT_ONCE, Agenda, Errand, Errands
from stagelink.adapters.threads.narrator import Narrator
from stagelink.adapters.threads.work import Work
from stagelink.core.events import Attach, Attached, Fence, Fenced, PlaneReset, ResetPlane
from stagelink.core.values import PlaneCard
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.core.events import Action, Event

PATIENCE_S = 10.0
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def errand(*keys: object) -> Errand:
    return Errand(lambda: None, frozenset(keys))


def agenda(*errands: Errand) -> Agenda:
    made = Agenda()
    for one in errands:
        made.add(one)
    return made


# --- in which order ----------------------------------------------------------------------


def test_errands_that_share_no_key_begin_at_once() -> None:
    one, two = errand("a"), errand("b", "c")

    assert agenda(one, two).begin() == [one, two]


def test_errands_that_share_a_key_follow_each_other_as_they_came() -> None:
    first, second, third = errand("a"), errand("a", "b"), errand("b")
    plan = agenda(first, second, third)

    assert plan.begin() == [first]
    plan.over(first)
    assert plan.begin() == [second]
    plan.over(second)
    assert plan.begin() == [third]


def test_one_without_keys_runs_alone_after_all_before_it() -> None:
    before, alone, after = errand("a"), errand(), errand("b")
    plan = agenda(before, alone, after)

    assert plan.begin() == [before]
    plan.over(before)
    assert (plan.begin(), plan.begin()) == ([alone], [])
    plan.over(alone)
    assert plan.begin() == [after]


def test_no_more_than_a_few_run_at_once_and_the_others_do_later() -> None:
    many = [errand(number) for number in range(MOST_AT_ONCE + 2)]
    plan = agenda(*many)

    assert plan.begin() == many[:MOST_AT_ONCE]
    plan.over(many[3])
    assert plan.begin() == many[MOST_AT_ONCE : MOST_AT_ONCE + 1]
    assert not plan.idle


# --- on threads --------------------------------------------------------------------------


@pytest.fixture
def errands() -> Iterator[Errands]:
    made = Errands(Log())
    yield made
    made.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("stagelink-errand")]


def test_one_that_takes_long_holds_up_those_of_its_key_only(errands: Errands) -> None:
    done: SimpleQueue[str] = SimpleQueue()
    go_on = threading.Event()

    def slow() -> None:
        assert go_on.wait(PATIENCE_S)
        done.put("slow")

    errands.run(slow, "a")
    errands.run(lambda: done.put("behind it"), "a")
    errands.run(lambda: done.put("beside it"), "b")

    assert done.get(timeout=PATIENCE_S) == "beside it"
    go_on.set()
    assert [done.get(timeout=PATIENCE_S) for _ in range(2)] == ["slow", "behind it"]


def test_what_is_queued_at_the_end_is_done_before_it(errands: Errands) -> None:
    done: list[int] = []
    for number in range(20):
        errands.run(partial(done.append, number), "a")

    errands.stop()

    assert done == list(range(20))


def test_one_that_fails_lets_the_next_of_its_key_run(errands: Errands) -> None:
    done = threading.Event()

    errands.run(lambda: 1 // 0, "a")  # type: ignore[arg-type]
    errands.run(done.set, "a")

    assert done.wait(PATIENCE_S)


# --- as the core orders them -------------------------------------------------------------


class SlowPlane:
    """Attaches peer A when it may; notes what it is told to do."""

    capabilities = Capabilities("write", "host-private", True, False, True)

    def __init__(self) -> None:
        self.may_attach = threading.Event()
        self.told: list[str] = []

    def attach(self, peer: bytes, descriptor: bytes) -> None:
        del descriptor
        if peer == A:
            assert self.may_attach.wait(PATIENCE_S)
        self.told.append(f"attach {peer[:1].decode()}")

    def fence(self, peer: bytes, dead: bool) -> bool:
        del dead
        self.told.append(f"fence {peer[:1].decode()}")
        return True

    def reset(self) -> None:
        self.told.append("reset")

    def describe(self) -> bytes:
        return b"described"


@contextmanager
def work_of(plane: Any) -> Iterator[tuple[Work, SimpleQueue[Event]]]:
    """What performs orders on *plane*, and what it reports."""
    events: SimpleQueue[Event] = SimpleQueue()
    narrator, nothing = Narrator(Log(), 60.0), lambda *_: None
    nobody: Any = None
    made = Work(
        {"p": plane}, nobody, events.put, nothing, nothing, lost=nothing, narrator=narrator
    )
    assert isinstance(made.todo, deque)
    yield made, events
    made.errands.stop()


def attach(peer: bytes, descriptor: bytes = b"") -> Attach:
    return Attach(peer, f"to {peer[:1].decode()}", 1, PlaneCard("p", "write", descriptor))


def attached(peer: bytes) -> Attached:
    return Attached(peer, f"to {peer[:1].decode()}", 1, "")


def test_an_attach_that_takes_long_holds_up_its_own_peer_and_a_reset() -> None:
    plane = SlowPlane()
    orders: list[Action] = [attach(A), Fence(A, dead=True), attach(B), Fence(C, dead=True)]
    with work_of(plane) as (work, events):
        work.todo.extend([*orders, ResetPlane(), attach(C)])
        work.run()

        first = {type(events.get(timeout=PATIENCE_S)) for _ in range(2)}
        told = sorted(plane.told)
        plane.may_attach.set()
        then = [events.get(timeout=PATIENCE_S) for _ in range(4)]

    assert (first, told) == ({Attached, Fenced}, ["attach b", "fence c"])
    assert plane.told[2:] == ["attach a", "fence a", "reset", "attach c"]
    cards = (PlaneCard("p", "write", b"described"),)
    assert then == [attached(A), Fenced(A, True, ()), PlaneReset(cards), attached(C)]


def test_living_peers_are_cut_off_one_by_one_so_that_the_last_description_comes_last() -> None:
    class Describing(SlowPlane):
        """Describes itself anew after each cut, and slowly after the first."""

        def describe(self) -> bytes:
            number = len(self.told)
            if number == 1:
                self.may_attach.wait(0.05)  # long enough for another to overtake, if it could
            return b"%d" % number

    with work_of(Describing()) as (work, events):
        work.todo.extend([Fence(A, dead=False), Fence(B, dead=False)])
        work.run()
        cuts = [events.get(timeout=PATIENCE_S) for _ in range(2)]

    assert cuts == [
        Fenced(peer, True, (PlaneCard("p", "write", number),))
        for peer, number in ((A, b"1"), (B, b"2"))
    ]


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that answers nobody: its queue is full, so the kernel drops who comes.

    Once left, nobody listens there, and who comes again is refused.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        host, port = server.getsockname()
        waiting = []
        for _ in range(4):  # as many as the kernel queues, and more
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, port))
            waiting.append(one)
        yield host, port
        for one in waiting:
            one.close()


def test_a_peer_that_answers_nothing_keeps_no_other_from_being_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "DIAL_S", PATIENCE_S)
    memory = PrivateMemoryProvider().allocate(4096)
    writer = FramesPlane(A, None)
    reader = FramesPlane(B, kind=memory.kind)
    reader.register(1, memory)
    try:
        with work_of(writer) as (work, events), black_hole() as hole:
            told = Description(C, b"t" * 16, *hole, "", {1: 4096})
            work.todo.extend([attach(C, pack(told)), attach(B, reader.describe())])
            work.run()

            assert events.get(timeout=PATIENCE_S / 2) == attached(B)
        # the kernel asks once more within a second, and now nobody is there
        unreachable = events.get(timeout=PATIENCE_S)
    finally:
        writer.close()
        reader.close()
        memory.close()

    assert isinstance(unreachable, Attached)
    assert unreachable.peer == C
    assert "cannot be reached" in unreachable.error
