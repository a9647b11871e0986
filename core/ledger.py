"""The log of one edge: what was published to a stage, and what became of it."""

# Entry:  (reserved block) --publish--> LIVE --withdraw, expire, replace, counted--> LEAVING
#          LIVE, LEAVING: a lease pins the bytes      LEAVING without a lease --> removed
# A record is either a live publish or a Gone; the publish's record ends when the entry leaves.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from stagelink.core.messages import Gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.core.errors import Reason
    from stagelink.core.pool import Block

Record = Union[int, Gone]
"""A live publish, by its generation, or the end of one."""

FrozenEntry = tuple[Any, ...]
FrozenLedger = tuple[int, int, tuple[Gone, ...], tuple[FrozenEntry, ...]]

GONE_LIMIT = 65_536
"""Gone records kept for readers that lag; a reader further behind starts over."""


@dataclass(slots=True)
class Entry:
    """One publish: its bytes, who may read it, who has, and who is reading now.

    Its ledger changes it in place, and nobody else does.

    ``body`` is all of it, or what lies in ``block`` begins with it.
    ``readers`` is how many identities may read it, or which (by name), None for any number until
    its life ends, or 0 for whoever takes it first. ``holders`` are identities that hold a reader's
    slot without having been counted; ``counted`` those that have consumed it. ``leases`` pins the
    bytes.
    ``ttl_s`` is how long it may live, for those who hear that it no longer does.
    """

    generation: int
    number: int
    key: str
    size: int
    block: Block | None
    body: bytes
    error: str
    readers: int | tuple[str, ...] | None
    holders: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    leases: int = 0
    leaving: str = ""
    gone_number: int = 0
    ttl_s: float = 0.0

    def admits(self, reader: str) -> bool:
        """Whether *reader* may take it: not yet counted, and a slot is free or its own."""
        readers, holders, counted = self.readers, self.holders, self.counted
        if reader in counted:
            return False
        if not readers or reader in holders:
            return True
        if isinstance(readers, tuple):
            return reader in readers
        return len(holders) + len(counted) < readers

    def freeze(self) -> FrozenEntry:
        """The state as a tuple."""
        return (
            self.generation, self.number, self.key, self.size, self.block, self.body, self.error,
            self.readers, self.holders, self.counted, self.leases, self.leaving,
            self.gone_number, self.ttl_s,
        )  # fmt: skip

    @property
    def exhausted(self) -> bool:
        """Whether every declared reader has been counted."""
        if self.readers is None:
            return False
        declared = len(self.readers) if isinstance(self.readers, tuple) else self.readers or 1
        return len(self.counted) >= declared


class Ledger:
    """Entries by generation, and the numbered log of one edge.

    ``by_key`` has the generation of the live entry of every key that has one.
    """

    __slots__ = ("_gone", "_live", "by_key", "entries", "head", "trimmed")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.head = 0
        self.trimmed = 0
        self.by_key: dict[str, int] = {}
        self._live: dict[int, int] = {}
        self._gone: dict[int, Gone] = {}

    def live(self, key: str) -> Entry | None:
        """The live entry of *key*."""
        generation = self.by_key.get(key)
        return None if generation is None else self.entries[generation]

    def publish(self, entry: Entry) -> None:
        """Append *entry*, which has the number after ``head``; its key must not be live."""
        generation, number = entry.generation, entry.number
        assert entry.key not in self.by_key
        assert number == self.head + 1
        self.head = number
        self.entries[generation] = entry
        self.by_key[entry.key] = self._live[number] = generation

    def leave(self, generation: int, reason: Reason, detail: str) -> Entry | None:
        """Let a live entry leave, with a Gone in the log; return it if its bytes are free now."""
        entry = self.entries.get(generation)
        if entry is None or entry.leaving:
            return None
        self.head += 1
        del self._live[entry.number], self.by_key[entry.key]
        self._gone[self.head] = Gone(self.head, entry.key, generation, reason.value, detail)
        entry.leaving, entry.gone_number = reason.value, self.head
        return self._removed_if_free(generation)

    def lease(self, generation: int, reader: str) -> Entry:
        """One more lease of *reader* pins the entry and holds a reader's slot."""
        entry = self.entries[generation]
        entry.leases += 1
        holders = entry.holders
        if reader not in holders:
            entry.holders = (*holders, reader) if holders else (reader,)
        return entry

    def unlease(self, generation: int) -> Entry | None:
        """One lease fewer; return the entry if its bytes are free now."""
        self.entries[generation].leases -= 1
        return self._removed_if_free(generation)

    def vacate(self, generation: int, reader: str) -> None:
        """*reader* no longer holds a slot; a removed entry is fine."""
        entry = self.entries.get(generation)
        if entry is not None and reader in entry.holders:
            entry.holders = tuple([name for name in entry.holders if name != reader])

    def count(self, generation: int, reader: str) -> bool:
        """Count *reader*, once; True if that was the last one the entry waited for."""
        entry = self.entries.get(generation)
        if entry is None or reader in entry.counted:
            return False
        self.vacate(generation, reader)
        entry.counted = (*entry.counted, reader)
        return entry.exhausted and not entry.leaving

    def records_after(self, cursor: int) -> Iterator[tuple[int, Record]]:
        """The records numbered above *cursor*, in order."""
        live, gone = self._live, self._gone
        if cursor == self.head:
            return
        if self.head - cursor <= 2 * (len(live) + len(gone)):
            numbers = [n for n in range(cursor + 1, self.head + 1) if n in live or n in gone]
        else:
            numbers = sorted(n for part in (live, gone) for n in part if n > cursor)
        for number in numbers:
            yield number, live[number] if number in live else gone[number]

    def why_gone(self, generation: int) -> Gone | None:
        """What the log still says about the end of *generation*."""
        for record in reversed(self._gone.values()):
            if record.generation == generation:
                return record
        return None

    def trim(self, acknowledged: int) -> None:
        """Forget Gone records that every reader knows: those up to *acknowledged*."""
        spare = len(self._gone) - GONE_LIMIT
        known: list[int] = []
        for number in self._gone:
            if number > acknowledged and len(known) >= spare:
                break
            known.append(number)
        for number in known:
            del self._gone[number]
            self.trimmed = number

    def _removed_if_free(self, generation: int) -> Entry | None:
        entry = self.entries[generation]
        if entry.leases or not entry.leaving:
            return None
        return self.entries.pop(generation)

    def freeze(self) -> FrozenLedger:
        """The state as nested tuples."""
        entries = tuple([entry.freeze() for entry in self.entries.values()])
        return self.head, self.trimmed, tuple(self._gone.values()), entries

    @classmethod
    def thaw(cls, frozen: FrozenLedger) -> Ledger:
        """The ledger that froze to *frozen*."""
        ledger = cls()
        ledger.head, ledger.trimmed, gone, frozen_entries = frozen
        entries = [Entry(*fields) for fields in frozen_entries]
        ledger._gone = {record.number: record for record in gone}
        ledger.entries = {entry.generation: entry for entry in entries}
        live = [entry for entry in entries if not entry.leaving]
        ledger._live = {entry.number: entry.generation for entry in live}
        ledger.by_key = {entry.key: entry.generation for entry in live}
        return ledger
