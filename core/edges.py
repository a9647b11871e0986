"""What each stage is told: the log of its edge, the readers that follow it, and their leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.handshake.lease import OFFERED
from stagelink.core.ledger import Ledger
from stagelink.core.messages import (
    CLAIM,
    ENDED_LIMIT,
    ERROR,
    INLINE,
    OFFER,
    PULL,
    Ack,
    Announce,
    Ended,
    Gone,
    Landed,
    Query,
    Subscribe,
    Synced,
)  # fmt: skip
from stagelink.core.pool import SEND
from stagelink.core.reader import Reader
from stagelink.core.values import RegionRef, new
from stagelink.core.violations import Violation, Violations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action
    from stagelink.core.ledger import Entry
    from stagelink.core.pool import Grant, Pool
    from stagelink.core.share import Share
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance


class Edges:
    """Ledgers by stage, and readers by instance and by stage.

    ``inline`` counts the published bytes that travel inside their announcement; ``newest`` is the
    generation put last.
    """

    __slots__ = (
        "_grant", "_pool", "_share", "_timers", "inline", "ledgers", "newest", "readers", "stages",
        "violations",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, timers: Timers, share: Share,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        self._pool = pool
        self._share = share
        self._timers = timers
        self._grant = grant
        self.inline = 0
        self.newest = 0
        self.ledgers: dict[str, Ledger] = {}
        self.readers: dict[Instance, Reader] = {}
        self.stages: dict[str, list[Reader]] = {}
        self.violations = Violations()

    def ledger(self, reader: Reader) -> Ledger:
        """The log that *reader* follows."""
        return self.ledger_of(reader.identity.stage)

    def ledger_of(self, stage: str) -> Ledger:
        """The log of the edge to *stage*; empty at first."""
        ledger = self.ledgers.get(stage)
        if ledger is None:
            ledger = self.ledgers[stage] = Ledger()
        return ledger

    def is_foreign(self, reader: Reader, generation: int) -> bool:
        """Whether *generation* was never put, or is live in the log of another stage."""
        if not 0 < generation <= self.newest:
            return True
        ours = reader.identity.stage
        return any(generation in led.entries for to, led in self.ledgers.items() if to != ours)

    def know(self, reader: Reader) -> Reader:
        """Count *reader* among those of its stage."""
        self.readers[reader.instance] = reader
        self.stages.setdefault(reader.identity.stage, []).append(reader)
        return reader

    def forget(self, peer: Instance) -> Reader | None:
        """Take a reader out of the tables; its leases are for the caller to end."""
        reader = self.readers.pop(peer, None)
        if reader is not None:
            self.stages[reader.identity.stage].remove(reader)
        return reader

    # --- messages ------------------------------------------------------------------------

    def subscribe(self, reader: Reader, _: Subscribe, out: list[Action]) -> None:
        """Let the log flow to a reader that has been welcomed."""
        del out
        if not reader.feed.subscribed:
            reader.feed.subscribe(self.ledger(reader).head)

    def query(self, reader: Reader, message: Query, out: list[Action]) -> None:
        """Say again what is published under a key that the reader had to forget."""
        entry = self.ledger(reader).live(message.key)
        if entry is not None and entry.number <= reader.feed.cursor:
            self.announce_entry(reader, entry, out)

    def ack(self, reader: Reader, message: Ack, out: list[Action]) -> None:
        """Count what the reader has consumed, and tell of all that has left by it together."""
        left = [g for g in message.consumed if self._consumed(reader, g, out)]
        if left:
            self._tell(reader.identity.stage, out)

    # --- announcing ----------------------------------------------------------------------

    def announce(self, reader: Reader, out: list[Action], last: int = 0) -> None:
        """Move the reader's cursor as far as its window allows.

        The entry at the end of the log (number *last*; 0: at its present end) that is being
        written into a lent block is told when it is there, or when something follows it.
        """
        feed, ledger = reader.feed, self.ledger(reader)
        if not feed.open or feed.misses(ledger.trimmed):
            return
        ends: list[Gone] = []
        last = last or ledger.head
        for number, record in ledger.records_after(feed.cursor):
            if 0 <= feed.sync_at < number:
                self._tell_ends(reader, ends, out)
                self._synced(reader, out)
            if (number == last and reader.grants.is_writing(record)) or not feed.open:
                break
            if isinstance(record, Gone):
                ends.append(record)
                feed.sent(number, 0)
                if len(ends) == ENDED_LIMIT:
                    self._tell_ends(reader, ends, out)
            else:
                self._tell_ends(reader, ends, out)
                feed.sent(number, self.announce_entry(reader, ledger.entries[record], out))
        self._tell_ends(reader, ends, out)
        if feed.sync_at >= 0 and feed.open:
            self._synced(reader, out)

    def _tell_ends(self, reader: Reader, ends: list[Gone], out: list[Action]) -> None:
        if ends:
            reader.send(Ended(tuple(ends)), out)
            ends.clear()

    def _synced(self, reader: Reader, out: list[Action]) -> None:
        reader.send(Synced(reader.feed.sync_at), out)
        reader.feed.synced()

    def announce_entry(self, reader: Reader, entry: Entry, out: list[Action]) -> int:
        """Say what there is, with a lease if only this reader can be meant; inline bytes sent."""
        said = (entry.number, entry.key, entry.generation, entry.size)
        spent = reader.grants.spent
        if spent and entry.generation in spent:
            landed = new(Landed, (*said, *spent.pop(entry.generation), entry.body))
            reader.send(landed, out)
            return len(entry.body)
        if entry.error:
            how, where, body = ERROR, None, entry.error.encode()
        else:
            how, where, body = self._offer(reader, entry)
        reader.send(new(Announce, (*said, how, where, body)), out)
        return len(body)

    def _offer(self, reader: Reader, entry: Entry) -> tuple[int, RegionRef | None, bytes]:
        """How this reader gets at the bytes, and the lease that goes with an offer."""
        block, stage, name, readers = (
            entry.block, reader.identity.stage, reader.name, entry.readers,
        )  # fmt: skip
        if block is not None and not reader.maps:
            return PULL, None, entry.body
        if type(readers) is int and len(self.stages[stage]) > readers > 0:
            names = {fellow.name for fellow in self.stages[stage]}
            if len(names) > readers:  # an offer to one could take it from another
                return CLAIM, None, b""
        if not entry.admits(name):
            return CLAIM, None, b""
        generation, leases = entry.generation, reader.leases
        if generation not in leases.offers:
            if block is not None and not self._may_pin(reader, block.size):
                return CLAIM, None, b""
            self.ledgers[stage].lease(generation, name)
            leases.offer(generation, block.size if block is not None else 0)
        if block is None:
            return INLINE, None, entry.body
        return OFFER, RegionRef(block.pool, block.offset, entry.size), entry.body

    def _may_pin(self, reader: Reader, size: int) -> bool:
        """Whether *reader*, should it fall silent, may keep *size* bytes more of our pool."""
        own = reader.leases.pinned
        everybody = own and sum([one.leases.pinned for one in self.readers.values()])
        return self._share.admits(SEND, size, own, everybody)

    # --- ends ----------------------------------------------------------------------------

    def leave(
        self, to: str, generation: int, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        """Take an entry back and tell its readers; what is leased stays until the leases end."""
        self._retire(to, generation, reason, detail, out)
        self._tell(to, out)

    def _retire(
        self, to: str, generation: int, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        self._timers.disarm(("ttl", to, generation))
        removed = self.ledgers[to].leave(generation, reason, detail)
        if removed is not None:
            self._removed(removed, out)

    def _tell(self, to: str, out: list[Action]) -> None:
        """Let the log flow on to the readers of stage *to*."""
        for reader in self.stages.get(to, ()):
            self.announce(reader, out)
        self.trim(to)

    def acknowledge(self, reader: Reader, cursor: int, out: list[Action]) -> None:
        """The reader knows the log up to *cursor*: what it was told of there is over."""
        before = reader.feed.acknowledged
        reader.feed.acknowledge(cursor)
        if reader.feed.acknowledged != before:
            self._recalled(reader, out)
            self.trim(reader.identity.stage)
        elif reader.leases.offers:
            self._recalled(reader, out)

    def unlease(self, reader: Reader, generation: int, out: list[Action]) -> None:
        """One lease of *reader* fewer: its slot, and perhaps the entry's bytes, are free."""
        self.end_lease(reader.identity.stage, generation, reader.name, out)

    def end_lease(self, to: str, generation: int, name: str, out: list[Action]) -> None:
        """One lease of whoever is called *name* fewer, as for :meth:`unlease`."""
        removed = self.ledgers[to].unlease(generation)
        if removed is not None:
            self._removed(removed, out)
        else:
            self._vacate(to, generation, name)

    def vacate(self, reader: Reader, generation: int) -> None:
        """Give the slot of *reader* back, unless something still stands for it."""
        self._vacate(reader.identity.stage, generation, reader.name)

    def _vacate(self, to: str, generation: int, name: str) -> None:
        same = (r for r in self.stages.get(to, ()) if r.name == name)
        if not any(r.leases.holds_slot(generation) for r in same):
            self.ledger_of(to).vacate(generation, name)

    def trim(self, to: str) -> None:
        """Forget what every reader of that stage knows, and the stage if there never was any."""
        ledger = self.ledger_of(to)
        readers = self.stages.get(to, ())
        if not readers and not ledger.head:
            del self.ledgers[to]
            self.stages.pop(to, None)
            return
        ledger.trim(min((r.feed.acknowledged for r in readers), default=ledger.head))

    def _consumed(self, reader: Reader, generation: int, out: list[Action]) -> bool:
        """Count the reader, and end its leases; whether the entry leaves, which is yet to tell."""
        ledger, stage = self.ledger(reader), reader.identity.stage
        entry = ledger.entries.get(generation)
        if entry is None:
            return False
        if isinstance(entry.readers, tuple) and reader.name not in entry.readers:
            self.violations[Violation.CONSUMED] += 1
            return False
        leaves = ledger.count(generation, reader.name)
        if leaves:
            self._retire(stage, generation, Reason.TAKEN, "every reader has it", out)
        if generation in reader.leases.offers:
            reader.leases.end_offer(generation)
            self.unlease(reader, generation, out)
        claims = [
            transfer
            for transfer, lease in reader.leases.transfers.items()
            if lease.generation == generation and lease.state == OFFERED
        ]
        for transfer in claims:
            del reader.leases.transfers[transfer]
            self.unlease(reader, generation, out)
        return leaves

    def _recalled(self, reader: Reader, out: list[Action]) -> None:
        """Offers of leaving entries end once their Gone is known and no view is left."""
        entries, known = self.ledger(reader).entries, reader.feed.acknowledged
        held = frozenset(reader.report.held)
        over = [
            generation
            for generation in reader.leases.offers
            if 0 < entries[generation].gone_number <= known and generation not in held
        ]
        for generation in over:
            reader.leases.end_offer(generation)
            self.unlease(reader, generation, out)

    def _removed(self, entry: Entry, out: list[Action]) -> None:
        self.inline -= len(entry.body)
        if entry.block is not None:
            self._grant(self._pool.free(entry.block), out)

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        return (
            self.inline,
            tuple((to, ledger.freeze()) for to, ledger in self.ledgers.items()),
            tuple(reader.freeze() for reader in self.readers.values()),
        )

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        self.inline, ledgers, readers = state
        self.ledgers = {to: Ledger.thaw(ledger) for to, ledger in ledgers}
        for reader in readers:
            self.know(Reader.thaw(reader))
