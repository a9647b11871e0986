"""What a receiver knows of a sender's log: a bounded cache that may be lost at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stagelink.core.messages import Announce
    from stagelink.core.values import RegionRef

INBOX_ENTRIES = 65_536
INBOX_BYTES = 64 << 20


class Known(NamedTuple):
    """The newest announcement of a key; ``fetch`` is the get that works on it, 0 for none."""

    generation: int
    key: str
    size: int
    how: int
    where: RegionRef | None
    body: bytes
    fetch: int = 0


FrozenInbox = tuple[tuple[Known, ...], bool]


class Inbox:
    """Announcements by key. Beyond its bounds it forgets the oldest that nobody works on."""

    __slots__ = ("_bytes", "_limit", "by_key", "forgot")

    def __init__(self, limit: int = INBOX_ENTRIES) -> None:
        self.by_key: dict[str, Known] = {}
        self._bytes = 0
        self._limit = limit
        self.forgot = False

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self.by_key)

    @property
    def inline_bytes(self) -> int:
        """Bytes of announced payloads kept here."""
        return self._bytes

    def get(self, key: str) -> Known | None:
        """The newest announcement of *key*."""
        return self.by_key.get(key)

    def known(self) -> list[str]:
        """Every known key, oldest announcement first."""
        return list(self.by_key)

    def add(self, announced: Announce, fetch: int) -> None:
        """Know *announced*; an older generation of its key is forgotten."""
        self.drop(announced.key)
        _, key, generation, size, how, where, body = announced
        self.by_key[key] = Known(generation, key, size, how, where, body, fetch)
        self._bytes += len(body)
        if len(self.by_key) > self._limit or self._bytes > INBOX_BYTES:
            self._evict(key)

    def assign(self, key: str, generation: int, fetch: int) -> None:
        """Let *fetch* (0: nobody) work on *key*, if that generation is still known."""
        known = self.by_key.get(key)
        if known is not None and known.generation == generation:
            self.by_key[key] = known._replace(fetch=fetch)

    def drop(self, key: str, generation: int = 0) -> None:
        """Forget *key* (only that *generation* unless 0)."""
        known = self.by_key.get(key)
        if known is not None and generation in {0, known.generation}:
            del self.by_key[key]
            self._bytes -= len(known.body)

    def clear(self) -> None:
        """Forget everything, as at a fresh start of the log."""
        self.by_key.clear()
        self._bytes, self.forgot = 0, False

    def _evict(self, newest: str) -> None:
        """Forget the oldest, but not *newest*: a get that waits is yet to be given it."""
        for key, known in list(self.by_key.items()):
            if len(self.by_key) <= self._limit and self._bytes <= INBOX_BYTES:
                return
            if not known.fetch and key != newest:
                self.drop(key)
                self.forgot = True

    def freeze(self) -> FrozenInbox:
        """The state as nested tuples."""
        return tuple(self.by_key.values()), self.forgot

    @classmethod
    def thaw(cls, frozen: FrozenInbox, limit: int = INBOX_ENTRIES) -> Inbox:
        """The inbox that froze to *frozen*."""
        inbox = cls(limit)
        known, inbox.forgot = frozen
        inbox.by_key = {entry.key: entry for entry in known}
        inbox._bytes = sum(len(entry.body) for entry in known)
        return inbox
