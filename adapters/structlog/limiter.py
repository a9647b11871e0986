"""The same trouble, once in a while."""

from __future__ import annotations

from threading import Lock

EVERY_S = 5.0
"""Seconds between two lines about the same."""

MOST_SUBJECTS = 1024


class Limiter:
    """Lets one line about a subject through in :data:`EVERY_S`, and counts the others."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._lock = Lock()
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def admit(self, subject: tuple[str, str], now_s: float) -> int | None:
        """How many lines about *subject* were kept back since the last one; None: keep this back.

        A line is let through when :data:`EVERY_S` or more have passed since the last one.
        """
        with self._lock:
            last = self._last.get(subject)
            if last is not None and now_s - last[0] < self._every_s:
                self._last[subject] = (last[0], last[1] + 1)
                return None
            self._last.pop(subject, None)  # so that the order is that of the last line
            self._last[subject] = (now_s, 0)
            if len(self._last) > MOST_SUBJECTS:
                del self._last[next(iter(self._last))]
            return 0 if last is None else last[1]
