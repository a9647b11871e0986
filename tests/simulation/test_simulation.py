"""Whole endpoints under bad weather. ``STAGELINK_SEEDS`` sets how many stories are lived through.

Odd seeds have impatient callers: gets whose caller has gone when they are answered, and waits for
the first of many keys. To see one again: ``python -m tests.simulation --seed SEED --trace``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.simulation.errors import SimulationError
from tests.simulation.world import World

from stagelink.core.gets import Gets
from stagelink.core.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.events import Action
    from stagelink.core.handshake.fetch import Fetch

BLOCKS = 20
SEEDS = int(os.environ.get("STAGELINK_SEEDS", "600"))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_story_ends_badly(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        World(seed, impatient=seed % 2 == 1).run()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(96, id="a landed payload keeps its slot until somebody takes it"),
        pytest.param(245, id="a get of one generation does not adopt a poll's other one (map)"),
        pytest.param(368, id="a get of one generation does not adopt a poll's other one (write)"),
        pytest.param(1018, id="a greeting gives no slot away whose count was lost"),
        pytest.param(2724, id="a get that drains has no deadline left in the same tick"),
    ],
)
def test_a_story_that_once_ended_badly_ends_well(seed: int) -> None:
    World(seed).run()


def test_a_seed_replays_exactly() -> None:
    first, second = World(7).run(), World(7).run()
    assert (first.steps, list(first.trace)) == (second.steps, list(second.trace))


def _free_at_once(gets: Gets, fetch: Fetch, reason: str, detail: str, out: list[Action]) -> None:
    gets.fail(fetch, reason, detail, out)


def _not_pinned(ledger: Ledger, generation: int, reader: str) -> None:
    entry = ledger.entries[generation]
    entry.holders = (*entry.holders, reader)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(Gets, "give_up", _free_at_once, id="free instead of quarantine"),
        pytest.param(Gets, "consumed", lambda *_: None, id="forget what was consumed"),
        pytest.param(Ledger, "lease", _not_pinned, id="lease without pinning the bytes"),
    ],
)
def test_a_broken_machine_is_caught_within_200_seeds(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(SimulationError, match=r"seed \d+"):
        for seed in range(200):
            World(seed).run()
