"""A peer that is silent for ever costs its share, in every state in which it may fall silent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from tests.model.explorer import Explorer
from tests.model.moves import apply, moves
from tests.model.mutations import mutated
from tests.model.silence import MUTATIONS, WORLDS, begun, survives_silence
from tests.model.state import Violation
from tests.model.world import World

if TYPE_CHECKING:
    from tests.model.state import Bounds

EVERY = 7
"""Silence is tried in every so-manieth state."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["pull: share", "pull: share, cut", "offer: share"])
def test_nobody_ever_has_more_than_a_share(name: str) -> None:
    result = Explorer(name, WORLDS[name]).run(most=3_000)

    assert not result.violation, str(result)


def try_silences(bounds: Bounds) -> int:
    """Let each side fall silent in states of a world, nearest first; how often that was told."""
    world = World(bounds)
    first = begun(world)
    todo, seen, silences = deque([first]), {first}, 0
    while todo and len(seen) < 1_500:
        state = todo.popleft()
        if len(seen) % EVERY == 0:
            silences += sum(len(survives_silence(world, state, side)) > 0 for side in "sr")
        fresh = {apply(world, state, move) for move in moves(world, state)} - seen
        seen |= fresh
        todo.extend(fresh)
    return silences


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORLDS)
def test_whoever_falls_silent_costs_the_other_its_share_and_no_call(name: str) -> None:
    assert try_silences(WORLDS[name]) > 30


@pytest.mark.parametrize("name", ["no share", "an offer pins nothing"])
def test_a_silence_that_costs_more_is_found(name: str) -> None:
    with mutated(MUTATIONS[name]), pytest.raises(Violation, match="16 a silent peer costs more"):
        try_silences(MUTATIONS[name].bounds)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_explorer_finds_the_mistake(name: str) -> None:
    mutation = MUTATIONS[name]

    with mutated(mutation):
        result = Explorer(name, mutation.bounds, progress_every=25).run(seconds=250.0)

    assert result.violation, f"{name} survives {result.states} states"
    print(result)
