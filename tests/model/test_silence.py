"""A peer that is silent for ever costs its share, in every state in which it may fall silent."""

from __future__ import annotations

from collections import deque

import pytest
from tests.model.explorer import Explorer
from tests.model.moves import apply, moves
from tests.model.mutations import mutated
from tests.model.silence import MUTATIONS, WORLDS, survives_silence
from tests.model.world import World

EVERY = 7
"""Silence is tried in every so-manieth state."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["pull: share", "pull: share, cut", "offer: share"])
def test_nobody_ever_has_more_than_a_share(name: str) -> None:
    result = Explorer(name, WORLDS[name]).run(most=3_000)

    assert not result.violation, str(result)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORLDS)
def test_whoever_falls_silent_costs_the_other_its_share_and_no_call(name: str) -> None:
    world = World(WORLDS[name])
    todo, seen = deque([world.first()]), {world.first()}
    silences = 0

    while todo and len(seen) < 1_500:
        state = todo.popleft()
        if len(seen) % EVERY == 0:
            silences += len(survives_silence(world, state, "s")) > 0
            silences += len(survives_silence(world, state, "r")) > 0
        fresh = {apply(world, state, move) for move in moves(world, state)} - seen
        seen |= fresh
        todo.extend(fresh)

    assert silences > 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_explorer_finds_the_mistake(name: str) -> None:
    mutation = MUTATIONS[name]

    with mutated(mutation):
        result = Explorer(name, mutation.bounds, progress_every=25).run(seconds=250.0)

    assert result.violation, f"{name} survives {result.states} states"
    print(result)
