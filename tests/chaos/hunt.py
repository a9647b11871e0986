"""Many rounds, on several lanes at a time, and what has grown over them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from tests.chaos.lanes import Lane
from tests.chaos.rounds import play
from tests.chaos.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.chaos.plan import Plan

    Show = Callable[[int, int, Plan | None, list[str]], None]

SETTLED = 6
"""Rounds after which everything of a survivor has been used once, and what comes is growth."""

MOST_KIB = 24 << 10
MOST_ENTRIES = 96
"""That a table may have more than before: beyond what any of them holds of a single round."""


def hunt(plans: Iterable[Plan], jobs: int, show: Show, mistake: str = "") -> Tally:
    """Play *plans*, on *jobs* lanes at a time, each lane's in order; what came of them."""
    start_s = time.monotonic()
    by_lane: dict[str, list[Plan]] = {}
    for plan in plans:
        by_lane.setdefault(plan.lane, []).append(plan)
    tally, lock = Tally(), Lock()
    total = sum(map(len, by_lane.values()))

    def done(plan: Plan | None, part: Tally, faults: list[str]) -> None:
        with lock:
            tally.add(part)
            show(tally.rounds, total, plan, faults)

    with ThreadPoolExecutor(jobs) as pool:
        every = [pool.submit(_hunt_on, *one, done, mistake) for one in by_lane.items()]
        for one in every:
            one.result()
    tally.seconds = time.monotonic() - start_s
    return tally


def _hunt_on(
    name: str, plans: list[Plan], done: Callable[[Plan | None, Tally, list[str]], None],
    mistake: str,
) -> None:  # fmt: skip
    lane = Lane(name, mistake)
    growth = Growth(lane)
    try:
        for plan in plans:
            part = Tally()
            faults = play(lane, plan, part)
            growth.after(bool(faults))
            done(plan, part, faults)
        part = Tally()
        faults = growth.faults(part)
        done(None, part, faults)
    finally:
        lane.close()


class Growth:
    """What the survivors of a lane hold more than after their first few rounds."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._rounds = 0
        self._first: dict[str, dict[str, object]] = {}

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
                if count > before + MOST_ENTRIES:
                    found.append(f"{role} on {self._lane.name}: {path} from {before} to {count}")
        tally.failures += bool(found)
        return found
