"""What calls did, counted from any thread."""

from __future__ import annotations

from collections import Counter
from threading import Lock


class Counters:
    """Totals since the connector was opened; every failed call is counted once, by its cause."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: Counter[str] = Counter()
        self.puts = self.gets = self.bytes_put = self.bytes_got = 0

    def put(self, size: int) -> None:
        """One more put, of *size* bytes."""
        with self._lock:
            self.puts += 1
            self.bytes_put += size

    def got(self, size: int) -> None:
        """One more get, of *size* bytes."""
        with self._lock:
            self.gets += 1
            self.bytes_got += size

    def failed(self, cause: str) -> None:
        """One more call ended for *cause*."""
        with self._lock:
            self._errors[cause] += 1

    def errors(self) -> dict[str, int]:
        """Failed calls by cause."""
        with self._lock:
            return dict(sorted(self._errors.items()))
