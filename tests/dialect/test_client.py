"""The getting half without sockets: whatever is said, lost or late, no block is reused too soon."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stagelink.adapters.vllm_omni_mori import frames
from stagelink.adapters.vllm_omni_mori.client import Client
from stagelink.adapters.vllm_omni_mori.figures import Figures
from stagelink.adapters.vllm_omni_mori.pulls import Ask, Bounds, Landed, Leave, Ref, Rest, Waiter
from stagelink.core.errors import (
    CapacityError,
    DeadlineError,
    PeerError,
    ProtocolViolationError,
    Reason,
)
from stagelink.core.pool import RECEIVE, Block, Pool, Refusal
from stagelink.ports import ForeignCard

PAGE, AT = 4096, "tcp://them:1"
REF = Ref(AT, "k@0_1")
BOUNDS = Bounds(5.0, lambda size: 30.0, 30.0, 30.0, 2 * PAGE)
CARD = ForeignCard(b"engine", b"memory")


class PoolStore:
    """The part of a ForeignStore that gets need, over a pool alone."""

    def __init__(self, pages: int = 4) -> None:
        self.pool = Pool(pages * PAGE, PAGE, 0.0, 0.0, 1)

    def reserve(self, size: int, *, receive: bool) -> Block | Refusal:
        assert receive
        found = self.pool.reserve(0, size, RECEIVE, 0.0, 0.0)
        assert found is not None
        return found

    def free(self, block: Block) -> None:
        self.pool.free(block)

    def strand(self, block: Block, transfer: int) -> None:
        assert transfer < 0
        self.pool.quarantine(block, [transfer])

    def ashore(self, transfer: int) -> None:
        self.pool.ended(transfer)


class World:
    """A client, who waits, and which blocks a sender of theirs may still write to."""

    def __init__(self, pages: int = 4) -> None:
        self.store = PoolStore(pages)
        self.figures = Figures()
        store: Any = self.store
        self.client = Client(BOUNDS, store, lambda: CARD, self.figures)
        self.now_s = 0.0
        self.asked: dict[int, frames.Request] = {}
        self.writable: dict[int, int] = {}  # number -> offset
        self.outcomes: list[Any] = []

    def do(self, orders: list[Any]) -> list[Any]:
        for order in orders:
            if isinstance(order, Ask):
                request = frames.decode_request(order.body)
                self.asked[order.number] = request
                if isinstance(request, frames.Pull):
                    self.writable[order.number] = request.dst_offset
            else:
                assert isinstance(order, (Rest, Leave))
                self.asked.pop(order.number, None)
        self.check()
        return orders

    def check(self) -> None:
        """What may be written to is nobody else's."""
        live = {row[0]: row for row in self.store.pool._blocks.freeze()}
        for offset in self.writable.values():
            assert offset in live
        assert len(set(self.writable.values())) == len(self.writable)
        figures = self.figures
        assert figures.stranded_bytes == self.store.pool.stats().quarantined

    def get(self, ref: Ref = REF, patience_s: float = 10.0, info: Any = None) -> Waiter:
        settled: list[Any] = []

        def settle(outcome: Any) -> None:
            assert not settled, "it was answered before"
            settled.append(outcome)
            self.outcomes.append(outcome)

        waiter = Waiter(self.now_s + patience_s, settle, info)
        self.do(self.client.begin(ref, waiter, self.now_s))
        return waiter

    def poll(self, ref: Ref = REF) -> None:
        self.do(self.client.begin(ref, None, self.now_s))

    def say(self, number: int, answer: frames.Answer | bytes) -> None:
        body = answer if isinstance(answer, bytes) else frames.encode(answer)
        if body in {b"trans_done", b"trans_error"}:
            self.writable.pop(number, None)  # by their protocol no write comes after it
        self.do(self.client.answered(number, body, self.now_s))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.do(self.client.on_time(self.now_s))

    def is_free(self) -> bool:
        stats = self.store.pool.stats()
        return stats.free == stats.capacity


def info(size: int, ref: Ref = REF) -> frames.Info:
    return frames.Info(ref.request, size, is_fast_path=True)


def test_a_get_asks_pulls_and_hands_out_what_landed() -> None:
    world = World()
    world.get()
    assert world.asked == {1: frames.Query(REF.request)}

    world.say(1, info(100))
    [(number, pull)] = world.asked.items()
    world.say(1, frames.DONE)

    offset = world.store.pool._blocks.freeze()[0][0]
    assert (number, pull) == (1, frames.Pull(REF.request, b"engine", b"memory", offset, 100))
    [landed] = world.outcomes
    assert landed == Landed(landed.block, 100, plain=True)
    assert world.client.next_deadline() == float("inf")


def test_what_is_not_there_is_asked_for_again_more_and_more_seldom() -> None:
    world = World()
    world.get()
    pauses = []
    for _ in range(7):
        world.say(1, frames.NOT_FOUND)
        pauses.append(world.client.next_deadline() - world.now_s)
        world.wait(pauses[-1])

    assert [round(pause, 6) for pause in pauses] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]
    world.wait(10.0)
    assert isinstance(world.outcomes[0], DeadlineError)
    world.say(1, frames.NOT_FOUND)
    assert world.client.next_deadline() == float("inf")  # nobody waits: nothing is left


def test_a_polls_question_ends_with_the_answer_that_nothing_is_there() -> None:
    world = World()
    world.poll()
    world.poll()  # asked already

    world.say(1, frames.NOT_FOUND)

    assert (world.figures.asked, world.asked, world.client.active) == (1, {}, {})


def test_the_second_who_waits_asks_anew_when_the_first_is_served() -> None:
    world = World()
    world.get()
    world.get()
    world.say(1, info(10))
    world.say(1, frames.DONE)

    assert len(world.outcomes) == 1
    assert world.asked == {2: frames.Query(REF.request)}


def test_silence_strands_at_the_time_and_not_before() -> None:
    world = World()
    world.get(patience_s=100.0, info=(50, True))

    world.wait(29.9)
    assert world.figures.stranded == 0
    world.wait(0.1)

    assert world.figures.stranded == 1
    assert isinstance(world.outcomes[0], PeerError)
    assert not world.client.wants_fence
    world.wait(30.0)
    assert world.client.may_fence


def test_a_fence_waits_for_pulls_under_way_and_new_ones_wait_for_the_fence() -> None:
    world = World()
    other, third = Ref(AT, "o@0_1"), Ref("tcp://else:1", "t@0_1")
    world.get(info=(50, True))
    world.wait(30.0)
    world.wait(29.0)
    world.get(other, info=(50, True), patience_s=100.0)
    world.wait(1.0)
    assert world.client.wants_fence
    assert not world.client.may_fence  # it would break the one under way

    world.get(third, patience_s=100.0)
    world.say(3, info(50, third))
    assert 3 not in world.asked  # it rests
    world.say(2, frames.DONE)
    assert world.client.may_fence
    world.writable.clear()
    world.do(world.client.fenced(True))
    world.wait(0.1)
    world.say(3, info(50, third))

    assert isinstance(world.asked[3], frames.Pull)
    assert (world.figures.fences, world.figures.stranded) == (1, 0)


def test_a_plane_that_cannot_fence_is_not_asked_again_and_holds_nobody_up() -> None:
    world = World()
    world.get(info=(50, True))
    world.wait(30.0)
    world.wait(30.0)

    world.do(world.client.fenced(False))

    assert not world.client.wants_fence
    assert world.figures.stranded == 1
    world.do(world.client.ended("tcp://other:1"))
    assert world.figures.stranded == 1
    world.writable.clear()
    world.do(world.client.ended(AT))
    assert world.is_free()


def test_a_question_that_cannot_be_sent_leaves_no_block_behind() -> None:
    world = World()
    world.get(info=(50, True), patience_s=1.0)
    world.writable.clear()  # it was never sent

    world.do(world.client.unsent(1, world.now_s))
    assert world.is_free()
    world.wait(1.0)

    assert isinstance(world.outcomes[0], PeerError)


def test_no_room_is_told_at_the_deadline_and_found_if_some_comes_before() -> None:
    world = World(pages=2)
    taken = world.store.reserve(2 * PAGE, receive=True)
    assert isinstance(taken, Block)
    world.get(patience_s=1.0)
    world.say(1, info(PAGE))
    world.wait(1.0)
    assert isinstance(world.outcomes[0], CapacityError)

    world.get(patience_s=1.0)
    world.say(2, info(PAGE))
    world.store.free(taken)
    world.wait(0.1)
    world.say(2, info(PAGE))
    world.say(2, frames.DONE)
    assert isinstance(world.outcomes[1], Landed)


STEP: Any = st.tuples(
    st.sampled_from(
        ["get", "poll", "info", "none", "done", "error", "garbage", "wait", "long", "leave", "cancel",
         "fence", "ended", "unfenced", "free"]
    ),
    st.integers(0, 3),
)  # fmt: skip


class Walk:
    """Random steps over three keys at two addresses."""

    def __init__(self) -> None:
        self.world = World(pages=6)
        self.refs = [Ref(AT, "a@0_1"), Ref(AT, "b@0_1"), Ref("tcp://else:1", "c@0_1")]
        self.waiters: list[tuple[Ref, Waiter]] = []

    def step(self, what: str, which: int) -> None:
        world, ref = self.world, self.refs[which % 3]
        open_now = sorted(world.asked)
        number = open_now[which % len(open_now)] if open_now else 99
        asked = world.asked.get(number)
        if what == "get":
            self.waiters.append((ref, world.get(ref, 3.0 + which)))
        elif what == "poll":
            world.poll(ref)
        elif what == "info" and asked is not None:
            world.say(number, frames.Info(asked.request_id, 1 + 5000 * which, which % 2 == 0))
        elif what in {"none", "done", "error"}:
            pulls = isinstance(asked, frames.Pull)
            words = {"none": frames.NOT_FOUND, "done": frames.DONE, "error": frames.ERROR}
            if pulls == (what != "none"):
                world.say(number, words[what])
        elif what == "garbage":
            world.say(number, b"rubbish")
        elif what in {"wait", "long"}:
            world.wait(0.5 if what == "wait" else 31.0)
        elif what == "leave" and self.waiters:
            world.client.leave(*self.waiters.pop())
        elif what == "cancel":
            world.do(world.client.cancel(ref, Reason.CANCELLED))
        elif what == "fence" and world.client.may_fence:
            world.writable.clear()
            world.do(world.client.fenced(True))
        elif what == "ended":
            at = ref.address
            gone = [p.number for p in world.client._pulls.values() if p.ref.address == at]
            world.writable = {n: o for n, o in world.writable.items() if n not in gone}
            world.do(world.client.ended(at))
        elif what == "free":
            self.take()

    def take(self) -> None:
        for found in self.world.outcomes:
            if isinstance(found, Landed):
                self.world.store.free(found.block)
        self.world.outcomes.clear()


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_whatever_happens_every_wait_ends_and_every_byte_comes_back(steps: list[Any]) -> None:
    walk = Walk()
    world = walk.world

    for what, which in steps:
        walk.step(what, which)

    for _ in range(4):
        world.wait(40.0)
    assert not any(pull.waiters for pull in world.client._pulls.values())
    world.writable.clear()
    for address in {AT, "tcp://else:1"}:
        world.do(world.client.ended(address))
    world.do(world.client.close())
    walk.take()
    assert world.is_free()
    assert not world.client._pulls
    assert not world.client.active


def test_a_stray_answer_closes_its_socket_and_nothing_else() -> None:
    world = World()

    assert world.client.answered(7, b"trans_done", 0.0) == [Leave(7)]


def test_rubbish_in_place_of_information_takes_no_memory() -> None:
    world = World()
    world.get()

    world.say(1, info(100, Ref(AT, "other@0_1")))

    assert isinstance(world.outcomes[0], ProtocolViolationError)
    assert world.is_free()
