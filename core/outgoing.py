"""The sending half of an endpoint: puts, logs, readers and the writes they ask for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.events import (
    Attach,
    Complete,
    Failure,
    Published,
    ResetPlane,
    Send,
    StartWrite,
)
from stagelink.core.handshake.lease import (
    DRAINING,
    OFFERED,
    QUEUED,
    WRITING,
    Lease,
)  # fmt: skip
from stagelink.core.handshake.session import ATTACHING, CLOSED, OPEN, Session, choose, why_no_route
from stagelink.core.ledger import Entry, Ledger
from stagelink.core.messages import (
    CLAIM,
    ENDED_LIMIT,
    ERROR,
    INLINE,
    OFFER,
    PULL,
    Ack,
    Announce,
    Cancel,
    Declined,
    Done,
    Ended,
    Gone,
    Hello,
    Lost,
    Offer,
    Packet,
    Pull,
    Query,
    Refused,
    Report,
    Subscribe,
    Synced,
    Welcome,
)  # fmt: skip
from stagelink.core.reader import Reader
from stagelink.core.values import PlaneCard, RegionRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action, Attached, Publish, Withdraw, WriteEnded
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.pool import Grant, Pool
    from stagelink.core.settings import Settings
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance, Link

SIDE = "sender"

FENCED_PEERS = 1024
"""Fenced receivers whose used transfer ids are remembered, should they be alive."""


class Outgoing:
    """Ledgers by stage, readers by instance, and the queue of writes."""

    __slots__ = (
        "_grant", "_handlers", "_inline", "_links", "_now", "_peers", "_pool", "_settings",
        "_stages", "_timers", "floors", "generation", "ledgers", "queue", "readers", "stale",
        "writing",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, pool: Pool, timers: Timers, peers: Peers,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._pool = pool
        self._timers = timers
        self._peers = peers
        self._grant = grant
        self._now = 0.0
        self._inline = 0
        self._links: dict[Link, Instance] = {}
        self._stages: dict[str, list[Reader]] = {}
        self.floors: dict[Instance, int] = {}
        self.generation = 0
        self.ledgers: dict[str, Ledger] = {}
        self.readers: dict[Instance, Reader] = {}
        self.queue: deque[tuple[Instance, int]] = deque()
        self.writing = 0
        self.stale = 0
        self._handlers: dict[type, Callable[..., None]] = {
            Subscribe: self._on_subscribe,
            Query: self._on_query,
            Pull: self._on_pull,
            Cancel: self._on_cancel,
            Ack: self._on_ack,
        }

    @property
    def inline_bytes(self) -> int:
        """Bytes of published payloads that travel inside their announcement."""
        return self._inline

    def undone_by_all(self, to: str, codec: str) -> bool:
        """Whether every reader that stage *to* has can undo *codec*, and one of them is there."""
        readers = [r for r in self.readers.values() if r.identity.stage == to]
        return any(r.open for r in readers) and all(codec in r.codecs for r in readers)

    # --- calls ---------------------------------------------------------------------------

    def publish(self, command: Publish, now_s: float, out: list[Action]) -> None:
        """Put an entry into the log of its edge and move the feeds."""
        self._now = now_s
        refusal = self.refuses(command)
        if refusal is not None:
            if command.block is not None:
                self._grant(self._pool.free(command.block), out)
            out.append(Complete(command.ticket, refusal))
            return
        ledger = self._ledger_of(command.to)
        older = ledger.live(command.key)
        if older is not None:
            self._leave(command.to, older.generation, Reason.REPLACED, "published again", out)
        if command.block is not None:
            self._pool.hold(command.block)
        self.generation += 1
        self._inline += len(command.body)
        entry = Entry(
            self.generation, ledger.head + 1, command.key, command.size, command.block,
            command.body, command.error, command.readers, ttl_s=command.ttl_s,
        )  # fmt: skip
        ledger.publish(entry)
        self._timers.arm(("ttl", command.to, self.generation), now_s + command.ttl_s)
        out.append(Complete(command.ticket, Published(self.generation)))
        for reader in self._stages.get(command.to, ()):
            feed = reader.feed
            if feed.cursor + 1 == entry.number and feed.sync_at < 0 and feed.open:
                feed.sent(entry.number, self._announce_entry(reader, entry, out))
            else:
                self._announce(reader, out)

    def refuses(self, command: Publish) -> Failure | None:
        """Why *command* cannot be published now: its key is live, or the inline bytes are many."""
        ledger = self.ledgers.get(command.to)
        older = ledger.live(command.key) if ledger else None
        if older is not None and not command.replace:
            detail = f"generation {older.generation} of this key is live"
            return Failure(Reason.DUPLICATE.value, detail, generation=older.generation)
        if self._inline + len(command.body) > self._settings.inline_bytes:
            return Failure(Reason.NO_ROOM.value, f"{self._inline} inline bytes are published")
        return None

    def withdraw(self, command: Withdraw, now_s: float, out: list[Action]) -> None:
        """Take the live entry of a key back."""
        self._now = now_s
        ledger = self.ledgers.get(command.to)
        entry = ledger.live(command.key) if ledger else None
        if entry is not None:
            self._leave(command.to, entry.generation, Reason.WITHDRAWN, "withdrawn", out)
        out.append(Complete(command.ticket, entry is not None))

    def close(self, now_s: float, out: list[Action]) -> None:
        """Take every live entry back, so that readers hear of it; queued writes are refused."""
        self._now = now_s
        for to, ledger in self.ledgers.items():
            for entry in [e for e in ledger.entries.values() if not e.leaving]:
                self._leave(to, entry.generation, Reason.WITHDRAWN, "the sender closed", out)
        for peer, transfer in list(self.queue):
            self._refuse_queued(peer, transfer, Reason.CLOSED, "the sender closed", out)

    # --- the connection ------------------------------------------------------------------

    def hello(self, link: Link, hello: Hello, now_s: float, out: list[Action]) -> None:
        """A receiver greets: reconcile what it has open, choose the route, welcome it."""
        self._now = now_s
        refusal = self._cannot_talk(hello)
        if refusal:
            out.append(Send(link, Declined(hello.session, Reason.DECLINED.value, refusal)))
            return
        reader = self.readers.get(hello.instance)
        if reader is None:
            reader = self._know(Reader(hello.instance, hello.identity))
            reader.floor = self.floors.pop(hello.instance, 0)
        elif hello.session <= reader.session.number:
            self.stale += 1
            return
        self._forget_link(reader)
        reader.link, self._links[link] = link, hello.instance
        self._agree(reader, hello)
        self._reconcile(reader, hello, out)
        assert reader.plane is not None
        card = reader.plane.card
        reader.session = Session(ATTACHING, hello.session)
        self._peers.up(hello.instance, SIDE, hello.host.proof)
        if card.mode == "map":
            self._welcome(reader, out)
        else:
            theirs = [c for c in hello.planes if (c.name, c.mode) == (card.name, card.mode)]
            out.append(Attach(hello.instance, link, theirs[0]))

    def attached(self, event: Attached, now_s: float, out: list[Action]) -> None:
        """Our plane reaches the receiver's pool, or cannot."""
        self._now = now_s
        reader = self.readers.get(event.peer)
        if reader is None or reader.link != event.link or reader.session.state != ATTACHING:
            return
        if event.error:
            refused = Declined(reader.session.number, Reason.DECLINED.value, event.error)
            out.append(Send(event.link, refused))
            self._cut(reader, out)
        else:
            self._welcome(reader, out)

    def disconnected(self, link: Link, now_s: float, out: list[Action]) -> None:
        """A receiver's connection is down; its leases stay until their end is proved."""
        self._now = now_s
        peer = self._links.get(link)
        if peer is not None:
            self._cut(self.readers[peer], out)

    def packet(self, link: Link, packet: Packet, now_s: float, out: list[Action]) -> None:
        """Take the next message of the conversation; a gap ends it."""
        self._now = now_s
        peer = self._links.get(link)
        reader = self.readers[peer] if peer is not None else None
        if reader is None or packet.session != reader.session.number or not reader.open:
            self.stale += 1
            if reader is None or reader.session.state == CLOSED:
                out.append(Send(link, Lost(packet.session)))
            return
        taken = reader.session.taken
        handler = self._handlers.get(type(packet.message))
        if packet.sequence != taken or packet.report is None or handler is None:
            self.stale += 1
            if packet.sequence >= taken:
                self._lose(reader, out)
            return
        reader.session = reader.session._replace(taken=taken + 1)
        handler(reader, packet.message, out)
        self._apply(reader, packet.report, out)
        self._announce(reader, out)

    # --- time, plane and peers -----------------------------------------------------------

    def expire(self, to: str, generation: int, now_s: float, out: list[Action]) -> None:
        """An entry's life is over; what is leased stays until the leases end."""
        self._now = now_s
        entry = self.ledgers[to].entries.get(generation)
        life = f" of {entry.ttl_s:g} s" if entry is not None else ""
        self._leave(to, generation, Reason.EXPIRED, f"its time to live{life} is over", out)

    def budget_due(self, peer: Instance, transfer: int, now_s: float, out: list[Action]) -> None:
        """The receiver no longer waits for a write that has not begun."""
        self._now = now_s
        self._refuse_queued(peer, transfer, Reason.BUDGET, "not begun within its budget", out)

    def stuck(self, peer: Instance, transfer: int, out: list[Action]) -> None:
        """A write has been under way for too long: only breaking the plane ends it."""
        reader = self.readers.get(peer)
        lease = reader.leases.transfers.get(transfer) if reader else None
        if lease is not None and lease.state in {WRITING, DRAINING}:
            out.append(ResetPlane())

    def write_ended(self, event: WriteEnded, now_s: float, out: list[Action]) -> None:
        """The plane is through with a write: tell the receiver, for ever."""
        self._now = now_s
        reader = self.readers.get(event.peer)
        lease = reader.leases.transfers.get(event.transfer) if reader else None
        if reader is None or lease is None or lease.state not in {WRITING, DRAINING}:
            self.stale += 1
            return
        answer: Done | Refused
        if event.error:
            answer = Refused(event.transfer, Reason.TRANSFER_FAILED.value, event.error)
        else:
            size = 0 if lease.target is None else lease.target.size
            answer = Done(event.transfer, lease.generation, size)
        self._end(reader, event.transfer, answer, out)
        self._start_writes(out)

    def plane_reset(self, out: list[Action]) -> None:
        """The plane is new: every receiver must greet, so that it is attached again."""
        for reader in self.readers.values():
            if reader.open and not reader.maps:
                self._lose(reader, out)

    def cut_off(self, peer: Instance, out: list[Action]) -> None:
        """The plane was cut off from *peer*, which is back: it must be attached again."""
        reader = self.readers.get(peer)
        if reader is not None and reader.link:
            self._lose(reader, out)

    def gone(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """*peer* is fenced: nothing of ours is read by it, no write to it is under way."""
        self._now = now_s
        reader = self.readers.pop(peer, None)
        if reader is None:
            return
        self._stages[reader.identity.stage].remove(reader)
        self._forget_link(reader)
        used = max(reader.leases.transfers, default=0) + 1
        self.floors[peer] = max(reader.floor, reader.report.low_water, used)
        if len(self.floors) > FENCED_PEERS:
            del self.floors[next(iter(self.floors))]
        self.queue = deque(item for item in self.queue if item[0] != peer)
        leases = reader.leases
        generations = list(leases.offers)
        for transfer, lease in leases.transfers.items():
            self._disarm(peer, transfer)
            generations.append(lease.generation)
            self.writing -= lease.state in {WRITING, DRAINING}
        slots = {ended.generation for ended in leases.ended.values()} | set(generations)
        reader.leases = type(leases)()
        for generation in generations:
            self._unlease(reader, generation, out)
        for generation in slots:
            self._vacate(reader, generation)
        self._trim(reader.identity.stage)
        self._start_writes(out)

    # --- messages ------------------------------------------------------------------------

    def _on_subscribe(self, reader: Reader, _: Subscribe, out: list[Action]) -> None:
        del out
        if not reader.feed.subscribed:
            reader.feed.subscribe(self._ledger(reader).head)

    def _on_query(self, reader: Reader, message: Query, out: list[Action]) -> None:
        entry = self._ledger(reader).live(message.key)
        if entry is not None and entry.number <= reader.feed.cursor:
            self._announce_entry(reader, entry, out)

    def _on_pull(self, reader: Reader, message: Pull, out: list[Action]) -> None:
        transfer = message.transfer
        ended = reader.leases.ended.get(transfer)
        lease = reader.leases.transfers.get(transfer)
        if ended is not None:
            reader.send(ended.answer, out)
        elif lease is not None:
            if lease.state == OFFERED:
                self._send_offer(reader, transfer, lease.generation, out)
        elif transfer < reader.floor:
            detail = "the transfer ended when this receiver was cut off"
            refused = Refused(transfer, Reason.TRANSFER_FAILED.value, detail)
            self._end(reader, transfer, refused, out)
        else:
            self._accept(reader, message, out)

    def _on_cancel(self, reader: Reader, message: Cancel, out: list[Action]) -> None:
        transfer = message.transfer
        ended = reader.leases.ended.get(transfer)
        lease = reader.leases.transfers.get(transfer)
        if ended is not None:
            reader.send(ended.answer, out)
        elif lease is not None and lease.state in {WRITING, DRAINING}:
            reader.leases.transfers[transfer] = lease._replace(state=DRAINING)
        else:
            self._unqueue(reader, transfer)
            answer = Refused(transfer, Reason.CANCELLED.value, "cancelled by the receiver")
            self._end(reader, transfer, answer, out)

    def _on_ack(self, reader: Reader, message: Ack, out: list[Action]) -> None:
        for generation in message.consumed:
            self._consumed(reader, generation, out)

    # --- transitions ---------------------------------------------------------------------

    def _accept(self, reader: Reader, message: Pull, out: list[Action]) -> None:
        """Check a new transfer id, and lease in the same step."""
        transfer, generation, target, budget_s = message
        refusal = self._cannot_give(reader, message)
        if refusal is not None:
            self._end(reader, transfer, refusal, out)
            return
        state = OFFERED if target is None else QUEUED
        self._ledger(reader).lease(generation, reader.name)
        reader.leases.transfers[transfer] = Lease(state, generation, target)
        if target is None:
            self._send_offer(reader, transfer, generation, out)
            return
        self.queue.append((reader.instance, transfer))
        self._timers.arm(("budget", reader.instance, transfer), self._now + budget_s)
        self._start_writes(out)

    def _cannot_give(self, reader: Reader, message: Pull) -> Refused | None:
        transfer, generation, target, _ = message
        ledger = self._ledger(reader)
        entry = ledger.entries.get(generation)
        if entry is None or entry.leaving:
            gone = ledger.why_gone(generation)
            reason = Reason.UNKNOWN.value if gone is None else gone.reason
            return Refused(transfer, reason, "" if gone is None else gone.detail)
        if not entry.admits(reader.name):
            return Refused(transfer, Reason.TAKEN.value, "every reader's slot is taken")
        if target is not None and (entry.block is None or reader.maps):
            return Refused(transfer, Reason.MISMATCH.value, "this payload is not to be written")
        if target is not None and target.size != entry.size:
            detail = f"the target has {target.size} bytes, the payload {entry.size}"
            return Refused(transfer, Reason.MISMATCH.value, detail)
        if target is None and entry.block is not None and not reader.maps:
            return Refused(transfer, Reason.MISMATCH.value, "this payload needs a target")
        return None

    def _start_writes(self, out: list[Action]) -> None:
        """Post queued writes while the plane has room for them, oldest first."""
        while self.queue and self.writing < self._settings.max_writes:
            peer, transfer = self.queue.popleft()
            reader = self.readers[peer]
            lease = reader.leases.transfers[transfer]
            entry = self._ledger(reader).entries[lease.generation]
            assert entry.block is not None
            assert lease.target is not None
            reader.leases.transfers[transfer] = lease._replace(state=WRITING)
            self.writing += 1
            self._timers.disarm(("budget", peer, transfer))
            stuck_s = self._settings.policy.stuck_write_s(entry.size)
            self._timers.arm(("stuck", peer, transfer), self._now + stuck_s)
            source = RegionRef(entry.block.pool, entry.block.offset, entry.size)
            out.append(StartWrite(peer, transfer, source, lease.target))

    def _end(
        self, reader: Reader, transfer: int, answer: Done | Refused, out: list[Action]
    ) -> None:
        """The one end of a transfer id: on record first, then told."""
        lease = reader.leases.end(transfer, answer)
        if transfer < reader.report.low_water and transfer not in reader.report.open_ids:
            reader.leases.ended.pop(transfer, None)  # the receiver is through with that id
        reader.send(answer, out)
        if lease is not None:
            self.writing -= lease.state in {WRITING, DRAINING}
            self._disarm(reader.instance, transfer)
            self._unlease(reader, lease.generation, out)

    def _refuse_queued(
        self, peer: Instance, transfer: int, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        reader = self.readers.get(peer)
        lease = reader.leases.transfers.get(transfer) if reader else None
        if reader is not None and lease is not None and lease.state == QUEUED:
            self._unqueue(reader, transfer)
            self._end(reader, transfer, Refused(transfer, reason.value, detail), out)

    def _consumed(self, reader: Reader, generation: int, out: list[Action]) -> None:
        """Count the reader, and end the leases under which it read in place."""
        ledger, stage = self._ledger(reader), reader.identity.stage
        entry = ledger.entries.get(generation)
        if entry is None:
            return
        if ledger.count(generation, reader.name):
            self._leave(stage, generation, Reason.TAKEN, "every reader has it", out)
        if generation in reader.leases.offers:
            del reader.leases.offers[generation]
            self._unlease(reader, generation, out)
        claims = [
            transfer
            for transfer, lease in reader.leases.transfers.items()
            if lease.generation == generation and lease.state == OFFERED
        ]
        for transfer in claims:
            del reader.leases.transfers[transfer]
            self._unlease(reader, generation, out)

    def _apply(self, reader: Reader, report: Report, out: list[Action]) -> None:
        """End what the receiver's books show as over."""
        slots = {ended.generation for ended in reader.leases.ended.values()}
        reader.report = report
        for transfer, lease in reader.leases.closed_by(report):
            if lease.state == QUEUED:
                self._unqueue(reader, transfer)
            self._disarm(reader.instance, transfer)
            self._unlease(reader, lease.generation, out)
        for generation in slots:
            self._vacate(reader, generation)
        before = reader.feed.acknowledged
        reader.feed.acknowledge(report.cursor)
        if reader.feed.acknowledged != before:
            self._recalled(reader, out)
            self._trim(reader.identity.stage)
        elif reader.leases.offers:
            self._recalled(reader, out)

    def _recalled(self, reader: Reader, out: list[Action]) -> None:
        """Offers of leaving entries end once their Gone is known and no view is left."""
        entries, known = self._ledger(reader).entries, reader.feed.acknowledged
        over = [
            generation
            for generation in reader.leases.offers
            if 0 < entries[generation].gone_number <= known
            and generation not in reader.report.held
        ]
        for generation in over:
            del reader.leases.offers[generation]
            self._unlease(reader, generation, out)

    def _unlease(self, reader: Reader, generation: int, out: list[Action]) -> None:
        """One lease of *reader* fewer: its slot, and perhaps the entry's bytes, are free."""
        removed = self._ledger(reader).unlease(generation)
        self._vacate(reader, generation)
        if removed is not None:
            self._removed(removed, out)

    def _vacate(self, reader: Reader, generation: int) -> None:
        name = reader.name
        same = (r for r in self._stages.get(reader.identity.stage, ()) if r.name == name)
        if not any(r.leases.holds_slot(generation) for r in same):
            self._ledger(reader).vacate(generation, name)

    def _leave(
        self, to: str, generation: int, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        self._timers.disarm(("ttl", to, generation))
        removed = self.ledgers[to].leave(generation, reason, detail)
        if removed is not None:
            self._removed(removed, out)
        self._feed(to, out)
        self._trim(to)

    def _removed(self, entry: Entry, out: list[Action]) -> None:
        self._inline -= len(entry.body)
        if entry.block is not None:
            self._grant(self._pool.free(entry.block), out)

    # --- announcing ----------------------------------------------------------------------

    def _feed(self, to: str, out: list[Action]) -> None:
        for reader in self._stages.get(to, ()):
            self._announce(reader, out)

    def _announce(self, reader: Reader, out: list[Action]) -> None:
        """Move the reader's cursor as far as its window allows."""
        feed, ledger = reader.feed, self._ledger(reader)
        if not feed.open:
            return
        ends: list[Gone] = []
        for number, record in ledger.records_after(feed.cursor):
            if 0 <= feed.sync_at < number:
                self._tell_ends(reader, ends, out)
                self._synced(reader, out)
            if not feed.open:
                break
            if isinstance(record, Gone):
                ends.append(record)
                feed.sent(number, 0)
                if len(ends) == ENDED_LIMIT:
                    self._tell_ends(reader, ends, out)
            else:
                self._tell_ends(reader, ends, out)
                feed.sent(number, self._announce_entry(reader, ledger.entries[record], out))
        self._tell_ends(reader, ends, out)
        if feed.sync_at >= 0 and feed.open:
            self._synced(reader, out)

    def _tell_ends(self, reader: Reader, ends: list[Gone], out: list[Action]) -> None:
        if ends:
            reader.send(Ended(tuple(ends)), out)
            ends.clear()

    def _synced(self, reader: Reader, out: list[Action]) -> None:
        feed = reader.feed
        reader.send(Synced(feed.sync_at), out)
        feed.sent(max(feed.sync_at, feed.cursor), 0)
        feed.sync_at = -1

    def _announce_entry(self, reader: Reader, entry: Entry, out: list[Action]) -> int:
        """Say what there is, with a lease if only this reader can be meant; inline bytes sent."""
        if entry.error:
            how, where, body = ERROR, None, entry.error.encode()
        else:
            how, where, body = self._offer(reader, entry)
        announce = Announce(
            entry.number, entry.key, entry.generation, entry.size, how, where, body
        )
        reader.send(announce, out)
        return len(body)

    def _offer(self, reader: Reader, entry: Entry) -> tuple[int, RegionRef | None, bytes]:
        """How this reader gets at the bytes, and the lease that goes with an offer."""
        in_place = entry.block is None or reader.maps
        if not in_place:
            return PULL, None, b""
        if not self._meant(reader, entry):
            return CLAIM, None, b""
        if entry.generation not in reader.leases.offers:
            self._ledger(reader).lease(entry.generation, reader.name)
            reader.leases.offers[entry.generation] = None
        if entry.block is None:
            return INLINE, None, entry.body
        return OFFER, RegionRef(entry.block.pool, entry.block.offset, entry.size), b""

    def _meant(self, reader: Reader, entry: Entry) -> bool:
        """Whether an offer to this reader can take the payload from nobody else."""
        if not entry.admits(reader.name):
            return False
        if entry.readers is None or isinstance(entry.readers, tuple):
            return True
        fellows = self._stages[reader.identity.stage]
        return len(fellows) <= entry.readers or len({r.name for r in fellows}) <= entry.readers

    def _send_offer(
        self, reader: Reader, transfer: int, generation: int, out: list[Action]
    ) -> None:
        entry = self._ledger(reader).entries[generation]
        where = None
        if entry.block is not None:
            where = RegionRef(entry.block.pool, entry.block.offset, entry.size)
        reader.send(Offer(transfer, generation, where, entry.body), out)

    # --- helpers -------------------------------------------------------------------------

    def _cannot_talk(self, hello: Hello) -> str:
        ours = self._settings.identity.stage
        if hello.source != ours:
            return f"this is stage {ours!r}, not {hello.source!r}"
        same = self._same_host(hello)
        if choose(self._settings.planes, hello.planes, same) is None:
            return why_no_route(self._settings.planes, hello.planes, same)
        return ""

    def _agree(self, reader: Reader, hello: Hello) -> None:
        """The route to this reader, and what it can undo."""
        reader.codecs = hello.codecs
        reader.plane = choose(self._settings.planes, hello.planes, self._same_host(hello))

    def _same_host(self, hello: Hello) -> bool:
        return bool(hello.host.host) and hello.host.host == self._settings.host.host

    def _reconcile(self, reader: Reader, hello: Hello, out: list[Action]) -> None:
        """Set the books of a returning receiver against ours before anything is attached."""
        ledger = self._ledger(reader)
        known = hello.wanted == self._settings.instance
        cursor = hello.report.cursor if known else 0
        reader.fresh = not known or not ledger.trimmed <= cursor <= ledger.head
        # Which ids it has closed counts from its first packet on: there, what it consumed is said
        # first, and so no reader's slot is given away that it has used.
        before = reader.report
        report = hello.report._replace(low_water=before.low_water, open_ids=before.open_ids)
        if not known:  # it has forgotten our log, yet its transfer ids are its own
            report = report._replace(cursor=0, held=tuple(reader.leases.offers))
        self._apply(reader, report, out)
        reader.feed.rewind(0 if reader.fresh else cursor)

    def _welcome(self, reader: Reader, out: list[Action]) -> None:
        assert reader.plane is not None
        settings = self._settings
        card: PlaneCard = reader.plane.card
        welcome = Welcome(settings.instance, settings.identity, settings.host, card, reader.fresh)
        reader.session = reader.session._replace(state=OPEN)
        reader.send(welcome, out)

    def _lose(self, reader: Reader, out: list[Action]) -> None:
        """Leave a conversation that cannot go on; the receiver greets again."""
        out.append(Send(reader.link, Lost(reader.session.number)))
        reader.session = reader.session._replace(state=CLOSED)
        reader.feed.subscribed = False

    def _cut(self, reader: Reader, out: list[Action]) -> None:
        self._forget_link(reader)
        self._peers.down(reader.instance, SIDE, self._now, out)

    def _know(self, reader: Reader) -> Reader:
        self.readers[reader.instance] = reader
        self._stages.setdefault(reader.identity.stage, []).append(reader)
        return reader

    def _forget_link(self, reader: Reader) -> None:
        self._links.pop(reader.link, None)
        reader.cut()

    def _unqueue(self, reader: Reader, transfer: int) -> None:
        item = (reader.instance, transfer)
        if item in self.queue:
            self.queue.remove(item)

    def _disarm(self, peer: Instance, transfer: int) -> None:
        self._timers.disarm(("budget", peer, transfer))
        self._timers.disarm(("stuck", peer, transfer))

    def _ledger(self, reader: Reader) -> Ledger:
        return self._ledger_of(reader.identity.stage)

    def _ledger_of(self, stage: str) -> Ledger:
        ledger = self.ledgers.get(stage)
        if ledger is None:
            ledger = self.ledgers[stage] = Ledger()
        return ledger

    def _trim(self, to: str) -> None:
        ledger = self._ledger_of(to)
        readers = self._stages.get(to, ())
        ledger.trim(min((r.feed.acknowledged for r in readers), default=ledger.head))

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        return (
            self.generation,
            self._inline,
            tuple((to, ledger.freeze()) for to, ledger in self.ledgers.items()),
            tuple(reader.freeze() for reader in self.readers.values()),
            tuple(self.queue),
            self.writing,
            tuple(self.floors.items()),
        )

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        self.generation, self._inline, ledgers, readers, queue, self.writing, floors = state
        self.floors = dict(floors)
        self.ledgers = {to: Ledger.thaw(ledger) for to, ledger in ledgers}
        for frozen_reader in readers:
            self._know(Reader.thaw(frozen_reader))
        linked = (reader for reader in self.readers.values() if reader.link)
        self._links = {reader.link: reader.instance for reader in linked}
        self.queue = deque(queue)
