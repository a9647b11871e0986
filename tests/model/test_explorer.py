"""Every small world is explored to its end, and the normal form merges only what behaves alike."""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import pytest
from tests.model.__main__ import main
from tests.model.hunt import explore_all
from tests.model.moves import apply, moves
from tests.model.state import Bounds
from tests.model.world import World
from tests.model.worlds import LARGE, SMALL

if TYPE_CHECKING:
    from tests.model.state import State

STATES = int(os.environ.get("STAGELINK_MODEL_STATES", "0"))
"""More than 0: explore the large worlds too, so many states of each."""

MOST = 8_000
"""States of one world that a run of every day explores."""


@pytest.mark.timeout(600)
def test_every_small_world_holds_its_promises() -> None:
    """Most to their end; ``python -m tests.model`` has the patience for those of credits."""
    results = explore_all(SMALL, most=MOST)

    assert [str(result) for result in results if result.violation] == []
    assert all(result.exhausted or result.states >= MOST for result in results)
    others = [result for result in results if not result.name.startswith("credit")]
    assert sum(result.exhausted for result in others) >= len(others) // 2
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
        Bounds(puts=2, gets=1, withdraws=1, credits=True, receiver_pages=2),
    ],
)
def test_states_of_one_normal_form_have_the_same_successors(bounds: Bounds) -> None:
    world = World(bounds)
    name = world.names.digest
    raw: dict[bytes, set[State]] = defaultdict(set)
    todo, seen = deque([world.first()]), {world.first()}

    while todo and len(seen) < 1500:
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


def test_the_command_line_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eager: poll", "--no-mutations", "--json", "--small"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["worlds"] == found["exhausted"] == 1
    assert found["violations"] == []
    assert found["states"] > 100
