"""The random hunt, a little of it: ``python -m tests.chaos`` goes on for as long as is wanted."""

from __future__ import annotations

from functools import partial

import pytest
from tests.chaos.hunt import hunt, share
from tests.chaos.plan import LANES, MORTALS, STRIKES, Plan, draw

ROUNDS = range(1, 25)


def heard(said: list[str], done: int, of: int, plan: Plan | None, faults: list[str]) -> None:
    """Keep what a hunt reports of its failures."""
    if faults:
        said += [str(plan or "afterwards"), *faults]


def test_no_round_ends_badly() -> None:
    said: list[str] = []
    tally = hunt([draw(number) for number in ROUNDS], 4, partial(heard, said))
    assert not said, "\n".join(said)
    assert (tally.rounds, tally.failures) == (len(ROUNDS), 0)
    assert tally.slowest_notice_ms > 0
    assert min(tally.kills, tally.stops, tally.restarts, tally.aborts, tally.right) > 0


@pytest.mark.parametrize(
    ("mistake", "lane", "word"),
    [
        ("deaths", "shm", "readers"),
        ("sweep", "shm-write, ZeroMQ", "left in shared memory"),
        ("bytes", "shm-write", "wrong"),
    ],
)
def test_a_mistake_is_found(mistake: str, lane: str, word: str) -> None:
    said: list[str] = []
    assert hunt([draw(1, (lane,))], 1, partial(heard, said), mistake).failures
    assert word in "\n".join(said)


def test_a_round_has_the_same_plan_every_time() -> None:
    assert [draw(number) for number in ROUNDS] == [draw(number) for number in ROUNDS]


def test_rounds_take_turns_on_every_lane_and_strike_in_every_way() -> None:
    plans = [draw(number) for number in range(500)]
    assert {plan.lane for plan in plans} == set(LANES)
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {strike.what for strike in strikes} == set(STRIKES) - {"calm"}
    assert {strike.whom for strike in strikes} > set(MORTALS)
    assert {one.abort for plan in plans for one in plan.hand_offs} == {
        "", "withdraw", "replace", "cancel", "reject", "abort", "leave",
    }  # fmt: skip


def test_troupes_share_the_rounds_of_a_lane() -> None:
    plans = [draw(number, tuple(LANES)[:4]) for number in range(40)]
    shares = share(plans, 8)
    assert len(shares) == 8
    assert sorted(plan.number for one in shares for plan in one) == list(range(40))
    assert all(len({plan.lane for plan in one}) == 1 for one in shares)
