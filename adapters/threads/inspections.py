"""Answers to whoever asks for a connector's figures; so few that asking can starve nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.messages import Figures, Inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.messages import Aside

MOST_A_SECOND = 20.0
"""Answers of one connector, to all askers together; it may give as many at once after a pause."""

SHARE = 0.05
"""The part of the time that answering may take: a long answer is followed by a pause."""


class Inspections:
    """Read-only questions beside the protocol; one thread at a time may call it.

    Attributes:
        figures: what an answer holds, at most ``FIGURES_LIMIT`` bytes; None: nothing is answered.
        answered: how many questions were answered.
        refused: how many came too fast, or were none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.figures: Callable[[], bytes] | None = None
        self.answered = 0
        self.refused = 0
        self._clock = clock
        self._allowed = MOST_A_SECOND
        self._counted_at_s = clock()

    def answer(self, message: Aside) -> Figures | None:
        """What to send back, or None: not now, or not to that."""
        start_s = self._clock()
        if not isinstance(message, Inspect) or self.figures is None or self._left(start_s) < 1.0:
            self.refused += 1
            return None
        body = self.figures()
        took_s = self._clock() - start_s
        self._allowed -= max(1.0, took_s / SHARE * MOST_A_SECOND)
        self.answered += 1
        return Figures(message.number, body)

    def _left(self, now_s: float) -> float:
        """How many answers may be given now; below 0 after one that took long."""
        regained = (now_s - self._counted_at_s) * MOST_A_SECOND
        self._allowed = min(MOST_A_SECOND, self._allowed + regained)
        self._counted_at_s = now_s
        return self._allowed
