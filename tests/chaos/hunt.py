"""Many rounds, on several lanes at a time, and what has grown over them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from tests.chaos.lanes import Lane
from tests.chaos.rounds import last_look, play
from tests.chaos.tally import Tally

from stagelink.adapters.frames.doorway import MOST_DEAD
from stagelink.core.receivers import FENCED_PEERS
from stagelink.core.rejections import REJECTED_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.chaos.plan import Plan

    Show = Callable[[int, int, Plan | None, list[str]], None]

SETTLED = 6
"""Rounds after which everything of a survivor has been used once, and what comes is growth."""

MOST_KIB = 8 << 10
MOST_ENTRIES = 96
"""That a table may have more than before: beyond what any of them holds of a single round."""


BOUNDED = {
    "receivers.floors": FENCED_PEERS, "_door._dead": MOST_DEAD, ".rejected": REJECTED_KEYS,
}  # fmt: skip
"""What is meant to be remembered of those who have gone or may yet come, by the end of its path."""


def hunt(plans: Sequence[Plan], troupes: int, show: Show, mistake: str = "") -> Tally:
    """Play *plans* by so many *troupes* at a time, each on one lane and in order.

    *show* is told, after each round, how many of how many are over, its plan and its faults.
    """
    start_s = time.monotonic()
    total, lock, halt = Tally(), Lock(), Event()

    def done(plan: Plan | None, part: Tally, faults: list[str]) -> None:
        with lock:
            total.add(part)
            show(total.rounds, len(plans), plan, faults)

    with ThreadPoolExecutor(troupes) as pool:
        tours = [pool.submit(_tour, one, done, halt, mistake) for one in share(plans, troupes)]
        try:
            for tour in as_completed(tours):
                tour.result()
        finally:
            halt.set()  # interrupted, or broken: the others end with their present round
    total.seconds = time.monotonic() - start_s
    return total


def share(plans: Iterable[Plan], troupes: int) -> list[list[Plan]]:
    """The plans of each troupe: of one lane, which several may share."""
    by_lane: dict[str, list[Plan]] = {}
    for plan in plans:
        by_lane.setdefault(plan.lane, []).append(plan)
    each = max(1, troupes // max(1, len(by_lane)))
    shares = [on_lane[nth::each] for nth in range(each) for on_lane in by_lane.values()]
    return [share for share in shares if share]


def _tour(
    plans: list[Plan], done: Callable[[Plan | None, Tally, list[str]], None], halt: Event,
    mistake: str,
) -> None:  # fmt: skip
    lane = Lane(plans[0].lane, mistake)
    growth = Growth(lane)
    try:
        for plan in plans:
            part = Tally()
            faults = play(lane, plan, part)
            growth.after(bool(faults))
            done(plan, part, faults)
            if halt.is_set() or (faults and mistake):
                return  # a mistake is found once
        part = Tally()
        faults = last_look(lane) + growth.faults(part)
        part.failures = len(faults)
        done(None, part, faults)
    finally:
        lane.close()


class Growth:
    """What the survivors of a lane hold more than after their first few rounds."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._rounds = 0
        self._first: dict[str, dict[str, Any]] = {}

    def after(self, failed: bool) -> None:
        """A round has been played; after one that failed there are new survivors."""
        self._rounds = 0 if failed else self._rounds + 1
        if self._rounds == SETTLED:
            self._first = self._lane.memory()

    def faults(self, tally: Tally) -> list[str]:
        """What has grown too much."""
        if self._rounds <= SETTLED:
            return []
        found = []
        for role, now in self._lane.memory().items():
            first = self._first[role]
            more = now["resident_kib"] - first["resident_kib"]
            tally.growth_kib = max(tally.growth_kib, more)
            if more > MOST_KIB:
                found.append(f"{role} on {self._lane.name} has grown by {more} KiB")
            for path, count in now["census"].items():
                before = first["census"].get(path, 0)
                if count > max(before + MOST_ENTRIES, bound_of(path)):
                    found.append(f"{role} on {self._lane.name}: {path} from {before} to {count}")
        return found


def bound_of(path: str) -> int:
    """How many entries the table at *path* may have whatever it had before."""
    return max((most for end, most in BOUNDED.items() if path.endswith(end)), default=0)
