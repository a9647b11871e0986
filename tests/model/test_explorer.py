"""Every small world is explored to its end, and the normal form merges only what behaves alike."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import pytest
from tests.model.hunt import explore_all
from tests.model.moves import apply, moves
from tests.model.state import Bounds
from tests.model.world import World
from tests.model.worlds import LARGE, SMALL

if TYPE_CHECKING:
    from tests.model.state import State

STATES = int(os.environ.get("STAGELINK_MODEL_STATES", "0"))
"""More than 0: explore the large worlds too, so many states of each."""


@pytest.mark.timeout(600)
def test_every_small_world_holds_its_promises() -> None:
    results = explore_all(SMALL)

    assert [str(result) for result in results if result.violation] == []
    assert all(result.exhausted for result in results)
    assert sum(result.states for result in results) >= 100_000


@pytest.mark.skipif(not STATES, reason="takes minutes: set STAGELINK_MODEL_STATES")
def test_large_worlds_hold_their_promises() -> None:
    results = explore_all(LARGE, most=STATES, processes=os.cpu_count() or 2)

    assert [str(result) for result in results if result.violation] == []


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(puts=0, cuts=3),
        Bounds(mode="offer", cuts=2),
        Bounds(losses=1, greets=1),
        Bounds(mode="eager", puts=2, gets=2),
        Bounds(puts=2, gets=2, stops=1),
    ],
)
def test_states_of_one_normal_form_have_the_same_successors(bounds: Bounds) -> None:
    world = World(bounds)
    name = world.names.digest
    raw: dict[bytes, set[State]] = defaultdict(set)
    todo, seen = deque([world.first()]), {world.first()}

    while todo and len(seen) < 2500:
        state = todo.popleft()
        raw[name(state)].add(state)
        fresh = {apply(world, state, move) for move in moves(world, state)} - seen
        seen |= fresh
        todo.extend(fresh)

    merged = [states for states in raw.values() if len(states) > 1]
    for states in merged:
        successors = {
            frozenset(name(apply(world, state, move)) for move in moves(world, state))
            for state in states
        }
        assert len(successors) == 1
    assert len(merged) >= 3
