"""From many measured times to the few that are reported."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of *values* that *share* of them do not exceed; 0.0 of none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Times(NamedTuple):
    """Times of one kind in microseconds, a list for each repeat of the measurement."""

    repeats: list[list[float]]

    @property
    def p50_us(self) -> float:
        """Median of all."""
        return percentile([time for repeat in self.repeats for time in repeat], 0.5)

    @property
    def p99_us(self) -> float:
        """What one of a hundred exceeds."""
        return percentile([time for repeat in self.repeats for time in repeat], 0.99)

    @property
    def best_us(self) -> float:
        """The lowest median of a repeat: the machine when others left it alone."""
        return min(self._medians(), default=0.0)

    @property
    def spread(self) -> float:
        """How far the medians of the repeats lie apart, as a part of the best one."""
        medians = self._medians()
        best = min(medians, default=0.0)
        return (max(medians) - best) / best if best else 0.0

    def _medians(self) -> list[float]:
        return [percentile(repeat, 0.5) for repeat in self.repeats if repeat]


def ratio(ours: float, floor: float) -> float:
    """How many times *floor* is *ours*; 0.0 without a floor."""
    return round(ours / floor, 3) if floor else 0.0
