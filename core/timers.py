"""Every time-out of an endpoint, in one table.

Machines name what they wait for; only this table knows when. So no machine's state holds a time,
and an explorer may let any timer fire at any moment: safety never depends on a clock.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

TimerKey = tuple[str | int | bytes, ...]
"""What waits: a kind followed by the ids of the thing, for example ``("fetch", 7)``."""


class Timers:
    """Named moments, in seconds of the caller's monotonic clock.

    ``next_s`` is the earliest, infinite when nothing is armed.
    """

    __slots__ = ("_heap", "_when", "next_s")

    def __init__(self) -> None:
        self._when: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, TimerKey]] = []
        self.next_s = inf

    def arm(self, key: TimerKey, when_s: float) -> None:
        """Let *key* be due at *when_s*, whatever was set before."""
        when, heap = self._when, self._heap
        before = when.get(key)
        when[key] = when_s
        heappush(heap, (when_s, key))
        if when_s <= self.next_s:
            self.next_s = when_s
        elif before == self.next_s:
            self._look()
        if len(heap) > 64 + 4 * len(when):
            self._heap = sorted((due, name) for name, due in when.items())

    def arm_once(self, key: TimerKey, when_s: float) -> None:
        """Arm *key* unless it is armed already."""
        if key not in self._when:
            self.arm(key, when_s)

    def disarm(self, key: TimerKey) -> None:
        """Forget *key*; unknown keys are fine."""
        if self._when.pop(key, None) == self.next_s:
            self._look()

    def when(self, key: TimerKey, otherwise: float) -> float:
        """The moment *key* is due, or *otherwise* if it is not armed."""
        return self._when.get(key, otherwise)

    def due(self, now_s: float) -> list[TimerKey]:
        """Disarm and return, earliest first, every key due at or before *now_s*."""
        keys: list[TimerKey] = []
        while self._when and self.next_s <= now_s:
            key = heappop(self._heap)[1]
            del self._when[key]
            keys.append(key)
            self._look()
        return keys

    def armed(self) -> list[TimerKey]:
        """Every armed key, in no particular order."""
        return list(self._when)

    def _look(self) -> None:
        """Forget what was disarmed at the top of the heap, and see what is next."""
        heap, when = self._heap, self._when
        while heap and when.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        self.next_s = heap[0][0] if heap else inf

    def freeze(self, now_s: float | None) -> tuple[tuple[TimerKey, float], ...]:
        """Every armed key with its distance from *now_s*, or 0 when *now_s* is None."""
        if now_s is None:
            return tuple((key, 0.0) for key in sorted(self._when, key=repr))
        ahead = ((key, max(0.0, round(when - now_s, 6))) for key, when in self._when.items())
        return tuple(sorted(ahead, key=repr))

    @classmethod
    def thaw(cls, frozen: tuple[tuple[TimerKey, float], ...], now_s: float = 0.0) -> Timers:
        """Timers equal to the frozen ones, with *now_s* as the present."""
        timers = cls()
        for key, ahead in frozen:
            timers.arm(key, now_s + ahead)
        return timers
