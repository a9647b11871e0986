"""A reader's acknowledged cursor into the log of its edge: announcing is moving it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stagelink.core.values import new

WINDOW_RECORDS = 1024
WINDOW_BYTES = 4 << 20

FrozenFeed = tuple[int, int, int, bool, int, tuple["Sent", ...]]


class Sent(NamedTuple):
    """A record on its way: its number, and how many inline bytes it carried."""

    number: int
    inline: int


class Feed:
    """What was sent, what was acknowledged, and how much may be in between.

    ``cursor`` leads ``acknowledged`` by at most 1024 records and 4 MiB of inline bytes, so a slow
    reader costs its sender nothing but a window.
    """

    __slots__ = ("_bytes", "_sent", "acknowledged", "base", "cursor", "subscribed", "sync_at")

    def __init__(self) -> None:
        self.cursor = 0
        self.acknowledged = 0
        self.base = 0
        self.subscribed = False
        self.sync_at = -1
        self._sent: deque[Sent] = deque()
        self._bytes = 0

    def rewind(self, cursor: int, base: int = 0) -> None:
        """Start over at *cursor*, unsubscribed: a new conversation begins.

        What the log had forgotten up to *base* is no loss to the reader: it starts from nothing.
        """
        self.cursor = self.acknowledged = cursor
        self.base = base
        self.subscribed, self.sync_at = False, -1
        self._sent.clear()
        self._bytes = 0

    def subscribe(self, head: int) -> None:
        """Let records flow; the log's *head* is where the reader counts as synced."""
        self.subscribed, self.sync_at = True, head

    def misses(self, trimmed: int) -> bool:
        """Whether a log that has forgotten ends up to *trimmed* owes one to the reader."""
        return trimmed > max(self.cursor, self.base)

    @property
    def open(self) -> bool:
        """Whether one more record may be sent now."""
        return self.subscribed and self._bytes < WINDOW_BYTES and len(self._sent) < WINDOW_RECORDS

    def is_next(self, number: int) -> bool:
        """Whether record *number* follows what was sent, and may be sent now."""
        return (
            self.cursor + 1 == number
            and self.sync_at < 0
            and self.subscribed
            and self._bytes < WINDOW_BYTES
            and len(self._sent) < WINDOW_RECORDS
        )

    def sent(self, number: int, inline: int) -> None:
        """Record *number* has been handed to the channel with *inline* bytes."""
        self.cursor = number
        self._sent.append(new(Sent, (number, inline)))
        self._bytes += inline

    def synced(self) -> None:
        """The reader has been told that it knows all there was.

        That takes no room in the window: there may be no later record whose acknowledgement would
        give it back.
        """
        self.cursor, self.sync_at = max(self.sync_at, self.cursor), -1

    def acknowledge(self, cursor: int) -> None:
        """The reader knows every record up to *cursor*; what we never sent does not count."""
        if not self.acknowledged < cursor <= self.cursor:
            return
        self.acknowledged = cursor
        while self._sent and self._sent[0].number <= cursor:
            self._bytes -= self._sent.popleft().inline

    def freeze(self) -> FrozenFeed:
        """The state as nested tuples."""
        sent = tuple(self._sent)
        return self.cursor, self.acknowledged, self.base, self.subscribed, self.sync_at, sent

    @classmethod
    def thaw(cls, frozen: FrozenFeed) -> Feed:
        """The feed that froze to *frozen*."""
        feed = cls()
        feed.cursor, feed.acknowledged, feed.base, feed.subscribed, feed.sync_at, sent = frozen
        feed._sent.extend(sent)
        feed._bytes = sum(record.inline for record in sent)
        return feed
