"""What calls did, counted from any thread."""

from __future__ import annotations

from collections import Counter
from threading import Lock


class Counters:
    """Totals since the connector was opened; every failed call is counted once, by its cause."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._totals: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        """Add to totals by name."""
        with self._lock:
            self._totals.update(amounts)

    def failed(self, cause: str) -> None:
        """One more call ended for *cause*."""
        with self._lock:
            self._errors[cause] += 1

    def total(self, name: str) -> int:
        """One total."""
        return self._totals[name]

    def errors(self) -> dict[str, int]:
        """Failed calls by cause."""
        with self._lock:
            return dict(sorted(self._errors.items()))
