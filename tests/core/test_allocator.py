from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagelink.core.allocator import Allocator
from stagelink.core.errors import ConfigError, LeaseError

UNIT = 16


def test_sizes_are_rounded_up_to_whole_units_and_zero_takes_one() -> None:
    allocator = Allocator(8 * UNIT, UNIT)

    got = [allocator.allocate(size) for size in (0, 1, UNIT, UNIT + 1)]

    assert got == [(0, UNIT), (UNIT, UNIT), (2 * UNIT, UNIT), (3 * UNIT, 2 * UNIT)]


def test_the_smallest_hole_that_is_large_enough_is_taken() -> None:
    allocator = Allocator(10 * UNIT, UNIT)
    for units in (3, 1, 2, 1, 3):  # 0-3, 3-4, 4-6, 6-7, 7-10
        allocator.allocate(units * UNIT)
    for start in (0, 4, 7):
        allocator.free(start * UNIT)

    assert allocator.allocate(2 * UNIT) == (4 * UNIT, 2 * UNIT)
    assert allocator.allocate(2 * UNIT) == (0, 2 * UNIT)


def test_a_hole_of_exactly_the_size_is_enough_and_one_unit_more_is_not() -> None:
    allocator = Allocator(4 * UNIT, UNIT)
    allocator.allocate(UNIT)

    assert allocator.largest_free == 3 * UNIT
    assert allocator.allocate(3 * UNIT + 1) is None
    assert allocator.allocate(3 * UNIT) == (UNIT, 3 * UNIT)
    assert (allocator.free_bytes, allocator.largest_free, allocator.live) == (0, 0, 2)


def test_a_capacity_that_is_no_multiple_is_rounded_down() -> None:
    allocator = Allocator(3 * UNIT + 5, UNIT)

    assert allocator.capacity == allocator.free_bytes == 3 * UNIT
    assert allocator.allocate(3 * UNIT + 1) is None


@pytest.mark.parametrize(("capacity", "alignment"), [(15, 16), (64, 24), (64, 0), (0, 1), (-1, 1)])
def test_a_pool_that_makes_no_sense_is_refused(capacity: int, alignment: int) -> None:
    with pytest.raises(ConfigError, match=r"\d"):
        Allocator(capacity, alignment)


@pytest.mark.parametrize("offset", [UNIT, 1, -UNIT, 1 << 40])
def test_what_is_not_live_cannot_be_freed(offset: int) -> None:
    allocator = Allocator(4 * UNIT, UNIT)
    allocator.allocate(2 * UNIT)

    with pytest.raises(LeaseError, match=str(offset)):
        allocator.free(offset)

    assert (allocator.free_bytes, allocator.live) == (2 * UNIT, 1)


def test_a_negative_size_changes_nothing_even_in_a_batch() -> None:
    allocator = Allocator(4 * UNIT, UNIT)

    for call in (lambda: allocator.allocate(-1), lambda: allocator.allocate_all((UNIT, -1))):
        with pytest.raises(ConfigError, match="-1"):
            call()

    assert allocator.live == 0


def test_a_batch_is_placed_whole_or_not_at_all() -> None:
    allocator = Allocator(4 * UNIT, UNIT)

    assert allocator.allocate_all((UNIT, UNIT, UNIT, 2 * UNIT)) is None
    assert (allocator.holes, allocator.largest_free, allocator.live) == (1, 4 * UNIT, 0)
    assert allocator.allocate_all((1, 3 * UNIT)) == ((3 * UNIT, UNIT), (0, 3 * UNIT))


def test_after_ten_thousand_random_steps_all_the_space_is_one_hole_again() -> None:
    chance = random.Random(3)
    allocator = Allocator(1 << 24, 64)
    live: list[int] = []
    for _ in range(10_000):
        if live and chance.random() < 0.5:
            allocator.free(live.pop(chance.randrange(len(live))))
        elif got := allocator.allocate(chance.choice((0, 100, 5_000, 70_000))):
            live.append(got[0])

    for offset in live:
        allocator.free(offset)

    assert (allocator.holes, allocator.largest_free, allocator.live) == (1, 1 << 24, 0)
    assert allocator.allocate(1 << 24) == (0, 1 << 24)


class AllocatorBesideAList(RuleBasedStateMachine):
    """Every byte of a small pool in a list, and best fit by looking at all of them."""

    UNITS = 24

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(self.UNITS * UNIT, UNIT)
        self.live: dict[int, int] = {}

    def holes(self) -> list[tuple[int, int]]:
        taken = [False] * self.UNITS
        for offset, size in self.live.items():
            for i in range(offset // UNIT, (offset + size) // UNIT):
                assert not taken[i], "two live extents overlap"
                taken[i] = True
        holes, start = [], None
        for i, used in enumerate([*taken, True]):
            if used and start is not None:
                holes.append(((i - start) * UNIT, start * UNIT))
                start = None
            elif not used and start is None:
                start = i
        return sorted(holes)

    @rule(size=st.integers(0, 10 * UNIT))
    def allocate(self, size: int) -> None:
        need = max(1, -(-size // UNIT)) * UNIT
        fitting = [hole for hole in self.holes() if hole[0] >= need]

        got = self.allocator.allocate(size)

        assert got == ((fitting[0][1], need) if fitting else None)
        if got:
            self.live[got[0]] = got[1]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.live)))

        assert self.allocator.free(offset) == self.live.pop(offset)

    @rule()
    def rebuild(self) -> None:
        self.allocator = Allocator.holding(self.UNITS * UNIT, UNIT, list(self.live.items()))

    @invariant()
    def every_byte_is_counted_once(self) -> None:
        holes = self.holes()
        assert self.allocator.free_bytes == sum(size for size, _ in holes)
        assert self.allocator.free_bytes + sum(self.live.values()) == self.allocator.capacity
        assert self.allocator.largest_free == max((size for size, _ in holes), default=0)
        assert (self.allocator.holes, self.allocator.live) == (len(holes), len(self.live))


TestAllocatorBesideAList = AllocatorBesideAList.TestCase
TestAllocatorBesideAList.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
