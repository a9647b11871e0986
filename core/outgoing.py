"""The sending half of an endpoint: its calls, and which part answers which message.

The logs and their readers are :mod:`stagelink.core.edges`, the pulls and writes
:mod:`stagelink.core.transfers`, the conversations :mod:`stagelink.core.receivers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.edges import Edges
from stagelink.core.errors import Reason
from stagelink.core.events import Complete, Failure, Published, Send
from stagelink.core.handshake.session import CLOSED
from stagelink.core.ledger import Entry
from stagelink.core.loans import Loans
from stagelink.core.messages import Ack, Bye, Cancel, Grants, Lost, Pull, Query, Subscribe
from stagelink.core.receivers import Receivers
from stagelink.core.share import Share
from stagelink.core.transfers import Transfers
from stagelink.core.values import new
from stagelink.core.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action, Publish, Withdraw
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.ledger import Ledger
    from stagelink.core.messages import Packet
    from stagelink.core.pool import Grant, Pool
    from stagelink.core.reader import Reader
    from stagelink.core.settings import Settings
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance, Link
    from stagelink.core.violations import Violations


class Outgoing:
    """Puts entries into the logs of edges, and routes what receivers say."""

    __slots__ = (
        "_edges", "_grant", "_handlers", "_pool", "_settings", "_stale", "_timers", "generation",
        "loans", "receivers", "transfers",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, pool: Pool, timers: Timers, peers: Peers,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._pool = pool
        self._timers = timers
        self._grant = grant
        self._stale = 0
        self._edges = edges = Edges(pool, timers, Share(settings.peer_share, pool), grant)
        self.transfers = Transfers(settings, timers, edges)
        self.receivers = Receivers(settings, peers, edges, self.transfers)
        self.loans = Loans(edges)
        self.generation = 0
        self._handlers: dict[type, Callable[..., None]] = {
            Subscribe: edges.subscribe,
            Query: edges.query,
            Pull: self.transfers.pull,
            Cancel: self.transfers.cancel,
            Grants: self.transfers.granted,
            Ack: edges.ack,
            Bye: self.receivers.bye,
        }

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """The logs of our edges, by the stage they lead to."""
        return self._edges.ledgers

    @property
    def readers(self) -> dict[Instance, Reader]:
        """Every receiver that we have met and that is not fenced."""
        return self._edges.readers

    @property
    def inline_bytes(self) -> int:
        """Bytes of published payloads that travel inside their announcement."""
        return self._edges.inline

    def has_several(self, to: str) -> bool:
        """Whether more than one reader of stage *to* is known."""
        return len(self._edges.stages.get(to, ())) > 1

    @property
    def violations(self) -> Violations:
        """What receivers said that they may not."""
        return self._edges.violations

    @property
    def stale(self) -> int:
        """Messages and news of writes that came too late to mean anything."""
        return self._stale + self.receivers.stale + self.transfers.stale

    def undone_by_all(self, to: str, codec: str) -> bool:
        """Whether every reader that stage *to* has can undo *codec*, and one of them is there."""
        readers = [r for r in self.readers.values() if r.identity.stage == to]
        return any(r.open for r in readers) and all(codec in r.codecs for r in readers)

    # --- calls ---------------------------------------------------------------------------

    def publish(self, command: Publish, now_s: float, out: list[Action]) -> None:
        """Put an entry into the log of its edge and move the feeds."""
        ticket, to, key, size, block, body, error, readers, ttl_s, _ = command
        edges = self._edges
        ledger = edges.ledgers.get(to)
        older = ledger.by_key.get(key) if ledger else None
        room = edges.inline + len(body) <= self._settings.inline_bytes
        if (older is not None or not room) and self._refused(command, out):
            return
        if not room:
            body = b""  # of what lies in a block the beginning need not be told
        if ledger is None:
            ledger = edges.ledger_of(to)
        if older is not None:
            edges.leave(to, older, Reason.REPLACED, "published again", out)
        if block is not None:
            self._pool.hold(block)
        self.generation = edges.newest = generation = self.generation + 1
        edges.inline += len(body)
        number = ledger.head + 1
        self.transfers.now_s = now_s
        self._flush(to, number, out)
        entry = Entry(generation, number, key, size, block, body, error, readers, ttl_s=ttl_s)
        ledger.publish(entry)
        self._timers.arm(("ttl", to, generation), now_s + ttl_s)
        out.append(new(Complete, (ticket, new(Published, (generation,)))))
        self._tell(to, entry, out)

    def _flush(self, to: str, last: int, out: list[Action]) -> None:
        """Entry *last* is about to follow: what is being written waits no longer to be told."""
        for reader in self._edges.stages.get(to, ()):
            if reader.grants.spent:
                self._edges.announce(reader, out, last)

    def _tell(self, to: str, entry: Entry, out: list[Action]) -> None:
        """Announce the newest entry; or write it first, where a reader has lent a block for it."""
        edges, number = self._edges, entry.number
        for reader in edges.stages.get(to, ()):
            if not reader.feed.is_next(number):
                edges.announce(reader, out)
            elif not (reader.grants.free and self.transfers.spend(reader, entry, out)):
                reader.feed.sent(number, edges.announce_entry(reader, entry, out))

    def _refused(self, command: Publish, out: list[Action]) -> bool:
        refusal = self.refuses(command)
        if refusal is None:
            return False
        if command.block is not None:
            self._grant(self._pool.free(command.block), out)
        out.append(Complete(command.ticket, refusal))
        return True

    def refuses(self, command: Publish) -> Failure | None:
        """Why *command* cannot be published now: its key is live, or the inline bytes are many."""
        edges = self._edges
        ledger = edges.ledgers.get(command.to)
        live = ledger.by_key.get(command.key) if ledger else None
        if live is not None and not command.replace:
            detail = f"generation {live} of this key is live"
            return Failure(Reason.DUPLICATE.value, detail, generation=live)
        full = edges.inline + len(command.body) > self._settings.inline_bytes
        if full and command.block is None:
            return Failure(Reason.NO_ROOM.value, f"{edges.inline} inline bytes are published")
        return None

    def withdraw(self, command: Withdraw, now_s: float, out: list[Action]) -> None:
        """Take the live entry of a key back."""
        del now_s
        ledger = self.ledgers.get(command.to)
        entry = ledger.live(command.key) if ledger else None
        if entry is not None:
            self._edges.leave(command.to, entry.generation, Reason.WITHDRAWN, "withdrawn", out)
        out.append(Complete(command.ticket, entry is not None))

    def expire(self, to: str, generation: int, now_s: float, out: list[Action]) -> None:
        """An entry's life is over; what is leased stays until the leases end."""
        del now_s
        entry = self.ledgers[to].entries.get(generation)
        life = f" of {entry.ttl_s:g} s" if entry is not None else ""
        detail = f"its time to live{life} is over"
        self._edges.leave(to, generation, Reason.EXPIRED, detail, out)

    def close(self, out: list[Action]) -> None:
        """Take every live entry back, so that readers hear of it; queued writes are refused."""
        for to, ledger in self.ledgers.items():
            for entry in [e for e in ledger.entries.values() if not e.leaving]:
                detail = "the sender closed"
                self._edges.leave(to, entry.generation, Reason.WITHDRAWN, detail, out)
        self.transfers.close(out)
        for reader in self.readers.values():
            reader.send(Bye(), out)

    # --- messages ------------------------------------------------------------------------

    def packet(self, link: Link, packet: Packet, now_s: float, out: list[Action]) -> None:
        """Take the next message of the conversation; a gap ends it."""
        self.transfers.now_s = now_s
        reader = self.receivers.at(link)
        if reader is None or packet.session != reader.session.number or not reader.open:
            self._stale += 1
            if reader is None or reader.session.state == CLOSED:
                out.append(Send(link, Lost(packet.session)))
            return
        taken = reader.session.taken
        handler = self._handlers.get(type(packet.message))
        if packet.sequence != taken or packet.report is None or handler is None:
            self._stale += 1
            if packet.sequence >= taken:
                self.receivers.lose(reader, out)
            return
        reader.session = reader.session._replace(taken=taken + 1)
        handler(reader, packet.message, out)
        self.violations[Violation.CURSOR] += packet.report.cursor > reader.feed.cursor
        self.transfers.apply(reader, packet.report, out)
        if reader.feed.misses(self._edges.ledger(reader).trimmed):
            self.receivers.lose(reader, out)  # the log has forgotten an end that it is owed
        else:
            self._edges.announce(reader, out)

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        parts = (self._edges, self.transfers, self.receivers)
        return (self.generation, *(part.freeze() for part in parts))

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        self.generation, edges, transfers, receivers = state
        self._edges.restore(edges)
        self._edges.newest = self.generation
        self.transfers.restore(transfers)
        self.receivers.restore(receivers)
