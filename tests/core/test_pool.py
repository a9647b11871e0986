from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagelink.core.errors import ConfigError, LeaseError, ProtocolViolationError
from stagelink.core.pool import (
    HEAD_PATIENCE_S,
    RECEIVE,
    SEND,
    Block,
    Grant,
    Pool,
    PoolStats,
    Refusal,
)

UNIT = 16
LATER = 100.0


def pool_of(units: int, send_floor: float = 0.0, receive_floor: float = 0.0) -> Pool:
    return Pool(units * UNIT, UNIT, send_floor, receive_floor)


def taken(pool: Pool, units: int, use: int = SEND, now_s: float = 0.0) -> Block:
    got = pool.reserve(-1, units * UNIT, use, now_s, now_s)
    assert isinstance(got, Block), got
    return got


def numbers(requested: int, free: int, largest: int, leases: int, oldest_s: float) -> Refusal:
    """What a pool of four units says."""
    return Refusal(False, requested, UNIT, free, largest, 4 * UNIT, leases, oldest_s)


# Reserving


def test_a_block_that_fits_is_reserved_at_once_even_without_time_to_wait() -> None:
    pool = Pool(4 * UNIT, UNIT, 0, 0, pool_id=7)

    assert pool.reserve(1, 5, SEND, deadline_s=3.0, now_s=3.0) == Block(0, UNIT, 1, 7)
    assert pool.reserve(2, 0, RECEIVE, deadline_s=3.0, now_s=3.0) == Block(3 * UNIT, UNIT, 2, 7)
    assert pool.stats() == PoolStats(4 * UNIT, 2 * UNIT, 2 * UNIT, 2 * UNIT, 0, 0, 2, 0)


def test_a_full_pool_lets_wait_and_grants_when_a_block_is_freed() -> None:
    pool = pool_of(4)
    block = taken(pool, 4)

    assert pool.reserve(1, UNIT, RECEIVE, LATER, 1.0) is None
    assert pool.stats().waiting == 1
    assert pool.free(block) == [Grant(1, (Block(3 * UNIT, UNIT, 2),))]
    assert pool.stats().waiting == 0


@pytest.mark.parametrize("deadline_s", [4.5, 5.0, float("nan")])
def test_a_deadline_at_or_before_now_is_refused_with_the_numbers(deadline_s: float) -> None:
    pool = pool_of(4)
    blocks = [taken(pool, 1, now_s=2.0 + i) for i in range(3)]
    pool.free(blocks[1])
    before = pool.freeze(5.0)

    got = pool.reserve(1, 2 * UNIT - 1, SEND, deadline_s, now_s=5.0)

    assert got == numbers(2 * UNIT - 1, 2 * UNIT, UNIT, 2, oldest_s=3.0)
    assert pool.refusal(2 * UNIT - 1, 5.0) == got
    assert pool.freeze(5.0) == before


def test_a_deadline_just_after_now_waits() -> None:
    pool = pool_of(1)
    taken(pool, 1)

    assert pool.reserve(1, 1, SEND, deadline_s=5.000001, now_s=5.0) is None


@pytest.mark.parametrize("use", [SEND, RECEIVE])
def test_what_can_never_fit_beside_the_other_floor_is_refused_at_once(use: int) -> None:
    pool = pool_of(4, 0.25, 0.25)
    before = pool.freeze(0.0)

    got = pool.reserve(1, 3 * UNIT + 1, use, LATER, 0.0)

    assert got == numbers(3 * UNIT + 1, 4 * UNIT, 4 * UNIT, 0, 0.0)._replace(never_fits=True)
    assert pool.freeze(0.0) == before
    assert isinstance(pool.reserve(1, 3 * UNIT, use, LATER, 0.0), Block)


def test_a_batch_larger_than_the_pool_is_refused_at_once() -> None:
    got = pool_of(4).reserve_all(1, (2 * UNIT, 2 * UNIT, 1), SEND, LATER, 0.0)

    assert got == numbers(4 * UNIT + 1, 4 * UNIT, 4 * UNIT, 0, 0.0)._replace(never_fits=True)


# Batches


def test_of_two_transfers_of_three_units_one_is_admitted_whole_and_one_holds_nothing() -> None:
    pool = pool_of(4)

    first = pool.reserve_all(1, (UNIT,) * 3, RECEIVE, LATER, 0.0)
    second = pool.reserve_all(2, (UNIT,) * 3, RECEIVE, LATER, 0.0)

    assert first == tuple(Block((3 - i) * UNIT, UNIT, i + 1) for i in range(3))
    assert second is None
    assert pool.stats().reserved == 3 * UNIT
    assert pool.free(Block(3 * UNIT, UNIT, 1)) == []
    [grant] = pool.free(Block(2 * UNIT, UNIT, 2))
    assert (grant.waiter, [block.size for block in grant.blocks]) == (2, [UNIT] * 3)


def test_a_batch_whose_fourth_block_does_not_fit_changes_nothing() -> None:
    pool = pool_of(8)
    blocks = [taken(pool, 1) for _ in range(8)]
    for i in (0, 2, 4, 6, 7):
        pool.free(blocks[i])
    before = pool.freeze(0.0)

    got = pool.reserve_all(1, (1, 1, 1, 2 * UNIT, 1), SEND, 0.0, 0.0)

    assert isinstance(got, Refusal)
    assert got.requested == 2 * UNIT + 4
    assert pool.freeze(0.0) == before


def test_the_blocks_of_a_batch_come_in_the_order_asked_for() -> None:
    got = pool_of(8).reserve_all(1, (1, 3 * UNIT, 2 * UNIT), SEND, LATER, 0.0)

    assert got == (
        Block(5 * UNIT, UNIT, 1),
        Block(0, 3 * UNIT, 2),
        Block(3 * UNIT, 2 * UNIT, 3),
    )


# Shares


def test_sending_cannot_take_the_floor_of_receiving_nor_the_other_way() -> None:
    for mine, other in ((SEND, RECEIVE), (RECEIVE, SEND)):
        pool = pool_of(8, 0.25, 0.25)
        taken(pool, 6, mine)

        assert isinstance(pool.reserve(1, 1, mine, 0.0, 0.0), Refusal)
        assert isinstance(pool.reserve(2, 2 * UNIT, other, 0.0, 0.0), Block)


def test_what_one_side_holds_never_breaks_the_floor_of_the_other() -> None:
    pool = Pool(16 * UNIT, UNIT)
    small, large = 3 * UNIT, 4 * UNIT
    held: list[Block] = []
    for _ in range(4):  # as gets and puts of a busy stage come and go
        sent = pool.reserve(1, small, SEND, 0.0, 0.0)
        got = pool.reserve(2, large, RECEIVE, 0.0, 0.0)
        held += [got] if isinstance(got, Block) else []
        if isinstance(sent, Block):
            pool.free(sent)

    assert len(held) == 3, "all but the other's floor"
    assert isinstance(pool.reserve(3, large, SEND, 0.0, 0.0), Block)


def test_who_passes_a_patient_head_takes_nothing_that_it_waits_for() -> None:
    pool = Pool(8 * UNIT, UNIT)
    sent = [pool.reserve(n, UNIT, SEND, 0.0, 0.0) for n in range(6)]
    assert pool.reserve(9, 4 * UNIT, SEND, 9.0, 0.0) is None
    pool.expire(1.0)

    got = pool.reserve(7, UNIT, RECEIVE, 2.0, 1.0)

    assert got == Block(7 * UNIT, UNIT, 7)
    for block in sent[3:5]:
        assert isinstance(block, Block)
        assert pool.free(block) == []
    assert isinstance(sent[5], Block)
    assert [grant.waiter for grant in pool.free(sent[5])] == []
    assert isinstance(sent[2], Block)
    assert [grant.waiter for grant in pool.free(sent[2])] == [9]


def test_a_put_that_waits_for_room_does_not_stop_a_get_within_its_floor() -> None:
    pool = pool_of(8, 0.25, 0.25)
    taken(pool, 6, SEND)
    pool.reserve(1, UNIT, SEND, LATER, 0.0)
    pool.expire(1.0)

    assert isinstance(pool.reserve(2, 2 * UNIT, RECEIVE, 1.0, 1.0), Block)


def test_beyond_its_floor_the_other_side_does_not_pass_a_patient_head() -> None:
    pool = pool_of(8, 0.25, 0.25)
    taken(pool, 5, SEND)
    pool.reserve(1, 4 * UNIT, SEND, LATER, 0.0)
    early = Pool.thaw(pool.freeze(0.0))

    assert isinstance(pool.reserve(2, 3 * UNIT, RECEIVE, 1.0, 1.0), Refusal)
    assert isinstance(early.reserve(2, 3 * UNIT, RECEIVE, 0.01, 0.01), Block)


def test_a_floor_does_not_let_its_own_side_pass_a_patient_head() -> None:
    pool = pool_of(8, 0.25, 0.25)
    taken(pool, 3, RECEIVE)
    pool.reserve(1, 6 * UNIT, SEND, LATER, 0.0)

    assert isinstance(pool.reserve(2, UNIT, SEND, 1.0, 1.0), Refusal)


def test_floors_survive_binary_fractions() -> None:
    pool = pool_of(100, 0.29, 0.71)

    assert isinstance(pool.reserve(1, 72 * UNIT, RECEIVE, 0.0, 0.0), Refusal)
    assert isinstance(pool.reserve(1, 71 * UNIT, RECEIVE, 0.0, 0.0), Block)
    assert isinstance(pool.reserve(1, 29 * UNIT, SEND, 0.0, 0.0), Block)


# The queue


def test_a_smaller_one_passes_until_the_head_has_waited_fifty_milliseconds() -> None:
    pool = pool_of(4)
    taken(pool, 2)
    assert pool.reserve(1, 3 * UNIT, SEND, LATER, 0.0) is None

    just_before = pool.reserve(2, UNIT, SEND, LATER, HEAD_PATIENCE_S - 1e-6)
    at_the_moment = pool.reserve(3, UNIT, SEND, LATER, HEAD_PATIENCE_S)

    assert HEAD_PATIENCE_S == 0.05
    assert isinstance(just_before, Block)
    assert at_the_moment is None


def test_space_is_kept_for_the_head_until_it_fits() -> None:
    pool = pool_of(4)
    blocks = [taken(pool, 1) for _ in range(4)]
    pool.reserve(1, 3 * UNIT, SEND, LATER, 0.0)
    pool.reserve(2, UNIT, SEND, LATER, 0.0)
    assert pool.expire(HEAD_PATIENCE_S) == ([], [])

    assert pool.free(blocks[0]) == pool.free(blocks[1]) == []
    assert pool.free(blocks[2]) == [Grant(1, (Block(0, 3 * UNIT, 5),))]


def test_without_the_moment_told_a_smaller_one_is_served_before_the_head() -> None:
    pool = pool_of(4)
    blocks = [taken(pool, 1) for _ in range(4)]
    pool.reserve(1, 3 * UNIT, SEND, LATER, 0.0)
    pool.reserve(2, UNIT, SEND, LATER, 0.0)
    pool.expire(HEAD_PATIENCE_S / 2)

    assert pool.free(blocks[0]) == [Grant(2, (Block(0, UNIT, 5),))]


def test_a_head_that_leaves_unblocks_those_behind() -> None:
    pool = pool_of(4)
    taken(pool, 2)
    pool.reserve(1, 3 * UNIT, SEND, LATER, 0.0)
    pool.reserve(2, UNIT, SEND, LATER, 1.0)

    assert pool.leave(1) == [Grant(2, (Block(2 * UNIT, UNIT, 2),))]
    assert pool.leave(1) == []


def test_waiters_are_dismissed_at_their_deadline_and_not_before() -> None:
    pool = pool_of(4)
    taken(pool, 2)
    pool.reserve(1, 3 * UNIT, SEND, 2.0, 0.0)
    pool.reserve(2, UNIT, SEND, LATER, 1.0)

    assert pool.expire(1.999999) == ([], [])
    refused, grants = pool.expire(2.0)

    assert refused == [(1, numbers(3 * UNIT, 2 * UNIT, 2 * UNIT, 1, oldest_s=2.0))]
    assert grants == [Grant(2, (Block(2 * UNIT, UNIT, 2),))]
    assert pool.expire(2.0) == ([], [])


def test_the_next_deadline_is_the_patience_of_the_head_and_then_the_earliest_deadline() -> None:
    pool = pool_of(1)
    block = taken(pool, 1)
    assert pool.next_deadline() is None
    pool.reserve(1, 1, SEND, 9.0, 1.0)
    pool.reserve(2, 1, SEND, 5.0, 1.0)

    assert pool.next_deadline() == 1.0 + HEAD_PATIENCE_S
    pool.expire(1.0 + HEAD_PATIENCE_S)
    assert pool.next_deadline() == 5.0
    pool.expire(5.0)
    assert pool.next_deadline() == 9.0
    pool.free(block)
    assert pool.next_deadline() is None


def test_a_waiter_cannot_wait_twice() -> None:
    pool = pool_of(1)
    taken(pool, 1)
    pool.reserve(1, 1, SEND, LATER, 0.0)
    before = pool.freeze(0.0)

    with pytest.raises(ProtocolViolationError, match="waiter 1"):
        pool.reserve(1, 1, SEND, LATER, 0.0)

    assert pool.freeze(0.0) == before


# Blocks


def test_a_held_block_is_counted_as_held_and_then_freed() -> None:
    pool = pool_of(4)
    block = taken(pool, 3)
    pool.hold(block)

    assert pool.stats()[3:6] == (0, 3 * UNIT, 0)
    assert pool.free(block) == []
    assert pool.stats()[1:6] == (4 * UNIT, 4 * UNIT, 0, 0, 0)


def test_a_block_leaves_quarantine_with_the_last_transfer_that_may_reach_it() -> None:
    pool = pool_of(4)
    block = taken(pool, 4)
    pool.quarantine(block, [7, 8, 7])
    pool.reserve(1, 1, SEND, LATER, 0.0)

    assert pool.stats()[3:6] == (0, 0, 4 * UNIT)
    assert pool.ended(7) == pool.ended(7) == pool.ended(99) == []
    assert pool.ended(8) == [Grant(1, (Block(0, UNIT, 2),))]


def test_one_transfer_may_hold_several_blocks_in_quarantine() -> None:
    pool = pool_of(4)
    blocks = [taken(pool, 2), taken(pool, 2)]
    for block in blocks:
        pool.quarantine(block, {3})
    pool.reserve(1, 4 * UNIT, SEND, LATER, 0.0)

    assert pool.ended(3) == [Grant(1, (Block(0, 4 * UNIT, 3),))]


def test_a_quarantine_of_nothing_frees_at_once() -> None:
    pool = pool_of(4)
    block = taken(pool, 4)
    pool.reserve(1, 1, SEND, LATER, 0.0)

    assert pool.quarantine(block, ()) == [Grant(1, (Block(0, UNIT, 2),))]


@pytest.mark.parametrize("call", ["free", "hold", "quarantine"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Block(0, UNIT, 1), "freed before"),  # its place and size are those of block 5 now
        (Block(UNIT, UNIT, 2, pool=9), "of pool 9"),
        (Block(0, UNIT, 2), "never handed it out"),
        (Block(0, UNIT, 6), "never handed it out"),
        (Block(0, UNIT, 0), "never handed it out"),
        (Block(3 * UNIT, UNIT, 4), "is quarantined"),
    ],
)
def test_double_stale_and_foreign_blocks_are_recognised(call: str, wrong: Block, why: str) -> None:
    pool = pool_of(8)
    blocks = [taken(pool, 1) for _ in range(4)]
    pool.free(blocks[0])
    assert taken(pool, 1) == Block(0, UNIT, 5)
    pool.hold(blocks[2])
    pool.quarantine(blocks[3], {1})
    before, stats = pool.freeze(0.0), pool.stats()

    with pytest.raises(LeaseError, match=f"block {wrong.serial} .*{why}"):
        pool.quarantine(wrong, {1}) if call == "quarantine" else getattr(pool, call)(wrong)

    assert (pool.freeze(0.0), pool.stats()) == (before, stats)


def test_a_held_block_is_neither_held_again_nor_quarantined() -> None:
    pool = pool_of(1)
    block = taken(pool, 1)
    pool.hold(block)

    for call in (lambda: pool.hold(block), lambda: pool.quarantine(block, ())):
        with pytest.raises(LeaseError, match="it is held"):
            call()


# Arguments


@pytest.mark.parametrize(
    "arguments",
    [
        (15, 16),
        (64, 24),
        (64, 16, -0.1, 0.2),
        (64, 16, 0.2, -0.1),
        (64, 16, float("nan"), 0.2),
        (64, 16, 0.2, float("nan")),
        (64, 16, 0.6, 0.5),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        Pool(*arguments)


@pytest.mark.parametrize(("sizes", "use"), [((-1,), 0), ((), 0), ((1, -1), 1), ((1,), 2)])
def test_a_reservation_that_makes_no_sense_changes_nothing(
    sizes: tuple[int, ...], use: int
) -> None:
    pool = pool_of(1)
    before = pool.freeze(0.0)

    with pytest.raises(ConfigError):
        pool.reserve_all(1, sizes, use, LATER, 0.0)

    assert pool.freeze(0.0) == before


# Freezing


def test_a_frozen_pool_holds_plain_numbers_and_distances_only() -> None:
    pool = Pool(4 * UNIT, UNIT, 0.25, 0.25, pool_id=3)
    block = taken(pool, 3)
    pool.quarantine(block, {9, 4})
    pool.reserve(5, 2 * UNIT, RECEIVE, 12.5, 10.0)

    frozen = pool.freeze(10.25)

    limit = 3 * UNIT
    rows = ((0, limit, 1, 3, 2, SEND, (4, 9)),)
    assert frozen == (
        (4 * UNIT, UNIT, (limit, limit), 3),
        1,
        rows,
        ((5, (2 * UNIT,), RECEIVE, 2.25, 0.0),),
    )
    assert hash(frozen) == hash(Pool.thaw(frozen, 77.0).freeze(77.0))


def test_pools_that_differ_only_in_age_freeze_equal() -> None:
    young, old = pool_of(4), pool_of(4)
    taken(young, 1, now_s=9.0)
    taken(old, 1, now_s=1.0)

    assert young.freeze(9.0) == old.freeze(9.0)


def test_a_thawed_pool_gives_the_ages_of_blocks_since_then() -> None:
    pool = pool_of(4)
    taken(pool, 4, now_s=1.0)

    thawed = Pool.thaw(pool.freeze(5.0), now_s=2.0)

    assert thawed.refusal(1, 2.5) == numbers(1, 0, 0, 1, oldest_s=0.0)


def test_a_grant_of_a_thawed_pool_is_born_at_the_thaw() -> None:
    pool = pool_of(4)
    block = taken(pool, 4)
    pool.reserve(1, 4 * UNIT, SEND, LATER, 0.0)
    thawed = Pool.thaw(pool.freeze(0.0), now_s=2.0)

    thawed.free(block)

    assert thawed.refusal(1, 2.5) == numbers(1, 0, 0, 1, oldest_s=0.5)


# Beside a model


class Ask(NamedTuple):
    waiter: int
    sizes: tuple[int, ...]
    use: int
    deadline_s: float
    since_s: float


class NaivePool:
    """The rules again, by brute force over units: no index, no counters, no early exit."""

    def __init__(self, units: int, floors: tuple[int, int]) -> None:
        self.units, self.floors = units, floors
        self.live: dict[Block, tuple[str, int, frozenset[int]]] = {}
        self.queue: list[Ask] = []
        self.serial, self.now_s = 0, 0.0

    def used(self, use: int) -> int:
        return sum(b.size // UNIT for b, (_, of, _) in self.live.items() if of == use)

    def try_place(self, ask: Ask) -> tuple[Block, ...] | None:
        need = [max(1, -(-size // UNIT)) for size in ask.sizes]
        if self.used(ask.use) + sum(need) > self.units - self.floors[1 - ask.use]:
            return None
        taken = {
            i for b in self.live for i in range(b.offset // UNIT, (b.offset + b.size) // UNIT)
        }
        places: dict[int, int] = {}
        for which in sorted(range(len(need)), key=lambda i: -ask.sizes[i]):
            runs, start = [], None
            for i in range(self.units + 1):
                if i == self.units or i in taken:
                    if start is not None and self.reaches(ask, need[which], start, i):
                        runs.append((i - start, start, i))
                    start = None
                elif start is None:
                    start = i
            if not runs:
                return None
            _, start, end = min(runs)
            places[which] = start if ask.use == SEND else end - need[which]
            taken |= set(range(places[which], places[which] + need[which]))
        return tuple(
            Block(places[i] * UNIT, need[i] * UNIT, self.serial + 1 + i) for i in range(len(need))
        )

    def reaches(self, ask: Ask, need: int, start: int, end: int) -> bool:
        """Whether the hole has room, within what is not the other side's (or within its own)."""
        reach = self.floors[ask.use] if self.passes(ask) else self.units - self.floors[1 - ask.use]
        inside = start + need <= reach if ask.use == SEND else end - need >= self.units - reach
        return end - start >= need and inside

    def passes(self, ask: Ask) -> bool:
        """Whether it would be served before a first one that has lost its patience."""
        head = self.queue[0] if self.queue else ask
        return head is not ask and self.now_s >= head.since_s + HEAD_PATIENCE_S

    def give(self, ask: Ask) -> tuple[Block, ...] | None:
        blocks = self.try_place(ask) if self.allowed(ask) else None
        for block in blocks or ():
            self.serial += 1
            self.live[block] = ("reserved", ask.use, frozenset())
        return blocks

    def allowed(self, ask: Ask) -> bool:
        if not self.passes(ask):
            return True
        need = sum(max(1, -(-size // UNIT)) for size in ask.sizes)
        within = self.used(ask.use) + need <= self.floors[ask.use]
        return ask.use != self.queue[0].use and within

    def serve(self) -> list[Grant]:
        for ask in self.queue:
            blocks = self.give(ask)
            if blocks:
                self.queue.remove(ask)
                return [Grant(ask.waiter, blocks), *self.serve()]
        return []


class PoolBesideAModel(RuleBasedStateMachine):
    UNITS = 12
    FLOORS = (3, 2)

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(self.UNITS * UNIT, UNIT, 0.25, 0.2)
        self.model = NaivePool(self.UNITS, self.FLOORS)
        self.now_s = 0.0
        self.waiter = 0
        self.gone: list[Block] = []

    def pick(self, data: st.DataObject, *states: str) -> Block | None:
        blocks = [b for b, (state, _, _) in self.model.live.items() if state in states]
        return data.draw(st.sampled_from(blocks)) if blocks else None

    @rule(
        sizes=st.lists(st.integers(0, 5 * UNIT), min_size=1, max_size=3).map(tuple),
        use=st.sampled_from([SEND, RECEIVE]),
        life_s=st.sampled_from([0.0, 0.03125, 0.25, 1.0]),
    )
    def reserve(self, sizes: tuple[int, ...], use: int, life_s: float) -> None:
        self.waiter += 1
        self.model.now_s = self.now_s
        ask = Ask(self.waiter, sizes, use, self.now_s + life_s, self.now_s)
        before = self.pool.freeze(self.now_s)

        got = self.pool.reserve_all(self.waiter, sizes, use, ask.deadline_s, self.now_s)

        expected = self.model.give(ask)
        need = sum(max(1, -(-size // UNIT)) for size in sizes)
        if isinstance(got, Refusal):
            assert expected is None
            assert got.never_fits == (need > self.UNITS - self.FLOORS[1 - use])
            assert got.never_fits or life_s == 0
            assert self.pool.freeze(self.now_s) == before
        else:
            assert got == expected
            if got is None:
                assert life_s > 0
                self.model.queue.append(ask)

    @rule(steps=st.integers(0, 6))
    def time_passes(self, steps: int) -> None:
        self.now_s += steps / 64

    @rule()
    def expire(self) -> None:
        self.model.now_s = self.now_s
        due = [ask for ask in self.model.queue if ask.deadline_s <= self.now_s]
        self.model.queue = [ask for ask in self.model.queue if ask not in due]

        refused, grants = self.pool.expire(self.now_s)

        assert [waiter for waiter, _ in refused] == [ask.waiter for ask in due]
        assert grants == (self.model.serve() if due else [])

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if block := self.pick(data, "reserved", "held"):
            del self.model.live[block]
            self.gone.append(block)

            assert self.pool.free(block) == self.model.serve()

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        if block := self.pick(data, "reserved"):
            self.pool.hold(block)
            self.model.live[block] = ("held", self.model.live[block][1], frozenset())

    @rule(data=st.data(), ids=st.frozensets(st.integers(1, 4), min_size=1, max_size=3))
    def quarantine(self, data: st.DataObject, ids: frozenset[int]) -> None:
        if block := self.pick(data, "reserved"):
            assert self.pool.quarantine(block, ids) == []
            self.model.live[block] = ("quarantined", self.model.live[block][1], ids)

    @rule(transfer_id=st.integers(1, 4))
    def transfer_ends(self, transfer_id: int) -> None:
        freed = False
        for block, (state, use, ids) in list(self.model.live.items()):
            if ids == {transfer_id}:
                del self.model.live[block]
                self.gone.append(block)
                freed = True
            else:
                self.model.live[block] = (state, use, ids - {transfer_id})

        assert self.pool.ended(transfer_id) == (self.model.serve() if freed else [])

    @precondition(lambda self: self.model.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(self.model.queue))
        self.model.queue.remove(ask)

        assert self.pool.leave(ask.waiter) == self.model.serve()

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.gone))
        before = self.pool.freeze(self.now_s)
        for wrong in (stale, stale._replace(pool=1)):
            for call in (self.pool.free, self.pool.hold):
                with pytest.raises(LeaseError, match=f"block {wrong.serial} "):
                    call(wrong)

        assert self.pool.freeze(self.now_s) == before

    @rule()
    def go_on_with_a_copy(self) -> None:
        frozen = self.pool.freeze(self.now_s)
        self.pool = Pool.thaw(frozen, self.now_s)
        self.model.now_s = self.now_s

        assert self.pool.freeze(self.now_s) == frozen

    @invariant()
    def every_byte_is_in_one_state(self) -> None:
        stats = self.pool.stats()
        by_state = {"reserved": 0, "held": 0, "quarantined": 0}
        for block, (state, _, _) in self.model.live.items():
            by_state[state] += block.size
        assert stats[3:6] == tuple(by_state.values())
        assert stats.free + sum(by_state.values()) == stats.capacity == self.UNITS * UNIT
        assert (stats.blocks, stats.waiting) == (len(self.model.live), len(self.model.queue))

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        blocks = sorted(self.model.live)
        for one, other in pairwise(blocks):
            assert one.offset + one.size <= other.offset

    @invariant()
    def neither_side_eats_the_floor_of_the_other(self) -> None:
        for use in (SEND, RECEIVE):
            assert self.model.used(use) <= self.UNITS - self.FLOORS[1 - use]

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for ask in self.model.queue:
            assert not (self.model.allowed(ask) and self.model.try_place(ask)), ask

    @invariant()
    def somebody_is_woken_while_anyone_waits(self) -> None:
        queue, wake_s = self.model.queue, self.pool.next_deadline()
        first = min((ask.deadline_s for ask in queue), default=None)
        assert (wake_s is None) == (first is None)
        if first is not None and wake_s is not None:
            assert wake_s <= max(first, self.now_s)  # a copy counts a late one from now


TestPoolBesideAModel = PoolBesideAModel.TestCase
TestPoolBesideAModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
