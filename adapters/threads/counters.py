"""What calls did, counted from any thread."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from threading import Lock

BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds of the buckets, in seconds; one more bucket is beyond."""

MOST_STAGES = 64
"""Other stages told apart; what is exchanged with further ones counts as :data:`OTHER`."""

OTHER = "other"

MOST_NOTED = 64
"""Calls that are noted before they are counted."""


class Tallies:
    """Successful calls of one kind, by the stage on the other side.

    A call is noted, and counted with others or when somebody asks: to count takes a call that has
    waited, and finds nothing of this in the caches, longer than to decode its answer.
    """

    __slots__ = ("_by_stage", "_lock", "_noted")

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted: deque[tuple[str, int, float]] = deque()
        # Bytes, seconds, then the buckets: one list is quicker than an object. Bucket i took at
        # most BOUNDS_S[i]; the number of calls is the sum over all of them.
        self._by_stage: dict[str, list[float]] = {}

    def add(self, stage: str, size: int, seconds: float) -> None:
        """One more call, of *size* bytes; it took *seconds*."""
        noted = self._noted
        noted.append((stage, size, seconds))
        if len(noted) >= MOST_NOTED:
            with self._lock:
                self._count()

    def _count(self) -> None:
        """Count what was noted, with the lock held."""
        while self._noted:
            stage, size, seconds = self._noted.popleft()
            tally = self._by_stage.get(stage) or self._new(stage)
            tally[0] += size
            tally[1] += seconds
            tally[bisect_left(BOUNDS_S, seconds) + 2] += 1

    def _new(self, stage: str) -> list[float]:
        name = stage if len(self._by_stage) < MOST_STAGES else OTHER
        return self._by_stage.setdefault(name, [0, 0.0, *([0] * (len(BOUNDS_S) + 1))])

    def rows(self) -> dict[str, tuple[int, int, float, list[int]]]:
        """Calls, bytes, seconds and buckets by stage, of one moment."""
        with self._lock:
            self._count()
            copies = {stage: list(tally) for stage, tally in self._by_stage.items()}
        rows = {}
        for stage, (size, seconds, *counts) in copies.items():
            buckets = [int(count) for count in counts]
            rows[stage] = (sum(buckets), int(size), seconds, buckets)
        return rows


class Counters:
    """Totals since the connector was opened; every failed call is counted once, by its cause."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: dict[str, Counter[str]] = {}
        self.puts = Tallies()
        self.gets = Tallies()

    def failed(self, cause: str, edge: str = OTHER) -> None:
        """One more call on *edge* ended for *cause*."""
        with self._lock:
            errors = self._errors.get(edge)
            if errors is None:
                name = edge if len(self._errors) < MOST_STAGES else OTHER
                errors = self._errors.setdefault(name, Counter())
            errors[cause] += 1

    def errors(self) -> dict[str, dict[str, int]]:
        """Failed calls by edge, and there by cause."""
        with self._lock:
            return {edge: dict(causes) for edge, causes in self._errors.items()}
