"""What receivers pull: claims that are answered with an offer, and the queue of writes.

The states are drawn in :mod:`stagelink.core.handshake.lease`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.events import ResetPlane, StartWrite
from stagelink.core.handshake.grants import Spent
from stagelink.core.handshake.lease import (
    DRAINING,
    OFFERED,
    QUEUED,
    WRITING,
    Lease,
    Leases,
)  # fmt: skip
from stagelink.core.messages import OPEN_LIMIT, Done, Offer, Refused
from stagelink.core.values import RegionRef, new
from stagelink.core.violations import Violation

if TYPE_CHECKING:
    from stagelink.core.edges import Edges
    from stagelink.core.events import Action, WriteEnded
    from stagelink.core.ledger import Entry
    from stagelink.core.messages import Cancel, Grants, Pull, Report
    from stagelink.core.reader import Reader
    from stagelink.core.settings import Settings
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance


class Transfers:
    """The writes that wait (``queue``), how many are under way, and the end of every id."""

    __slots__ = (
        "_edges", "_settings", "_timers", "credited", "failed", "now_s", "queue", "stale",
        "writing",
    )  # fmt: skip

    def __init__(self, settings: Settings, timers: Timers, edges: Edges) -> None:
        self._settings = settings
        self._timers = timers
        self._edges = edges
        self.now_s = 0.0
        self.queue: deque[tuple[Instance, int]] = deque()
        self.writing = 0
        self.stale = 0
        self.failed = 0
        self.credited = 0

    # --- messages ------------------------------------------------------------------------

    def pull(self, reader: Reader, message: Pull, out: list[Action]) -> None:
        """A receiver asks, perhaps once more, for a payload under a transfer id."""
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
        elif not self._too_many(reader):
            self._accept(reader, message, out)

    def cancel(self, reader: Reader, message: Cancel, out: list[Action]) -> None:
        """A receiver gives a transfer up; a write under way is answered when it has ended."""
        transfer = message.transfer
        ended = reader.leases.ended.get(transfer)
        lease = reader.leases.transfers.get(transfer)
        if ended is not None:
            reader.send(ended.answer, out)
        elif lease is not None and lease.state in {WRITING, DRAINING}:
            reader.leases.transfers[transfer] = lease._replace(state=DRAINING)
        elif lease is not None or not self._too_many(reader):
            self._unqueue(reader, transfer)
            reader.grants.free.pop(transfer, None)
            answer = Refused(transfer, Reason.CANCELLED.value, "cancelled by the receiver")
            self._end(reader, transfer, answer, out)

    def apply(self, reader: Reader, report: Report, out: list[Action]) -> None:
        """End what the receiver's books show as over."""
        slots = {ended.generation for ended in reader.leases.ended.values()}
        reader.report = report
        for transfer, lease in reader.leases.closed_by(report):
            if lease.state == QUEUED:
                self._unqueue(reader, transfer)
            self._disarm(reader.instance, transfer)
            self._edges.unlease(reader, lease.generation, out)
        for generation in slots:
            self._edges.vacate(reader, generation)
        self._edges.acknowledge(reader, report.cursor, out)

    def reconcile(self, reader: Reader, report: Report, out: list[Action]) -> None:
        """Forget the queued writes that a greeting receiver has open no more.

        It has cut us off, and their blocks may be another's by now: none may begin once we are
        attached again.
        """
        for transfer, lease in reader.leases.unbegun(report):
            self._unqueue(reader, transfer)
            self._disarm(reader.instance, transfer)
            self._edges.unlease(reader, lease.generation, out)

    # --- lent blocks ---------------------------------------------------------------------

    def granted(self, reader: Reader, message: Grants, out: list[Action]) -> None:
        """A receiver lends blocks; what nobody may lend is refused by its Cancel, as unknown."""
        del out
        leases, free = reader.leases, reader.grants.free
        willing = self._settings.credit_share > 0 and not reader.maps
        for transfer, target in message.blocks:
            known = transfer in leases.ended or transfer in leases.transfers or transfer in free
            if willing and not known and transfer >= reader.floor and len(free) < OPEN_LIMIT:
                free[transfer] = target
            else:
                self._edges.violations[Violation.TRANSFERS] += 1

    def spend(self, reader: Reader, entry: Entry, out: list[Action]) -> bool:
        """Write *entry* into a block that *reader* has lent, if one fits and only it is meant."""
        alone = len(self._edges.stages[reader.identity.stage]) == 1
        if entry.block is None or not (reader.open and alone and entry.admits(reader.name)):
            return False
        grant = reader.grants.take(entry.generation, entry.size)
        if grant is None:
            return False
        transfer, target = grant
        self.credited += 1
        self._edges.ledger(reader).lease(entry.generation, reader.name)
        lease = Lease(QUEUED, entry.generation, target)
        if self.queue or self.writing >= self._settings.max_writes:
            reader.leases.transfers[transfer] = lease
            self.queue.append((reader.instance, transfer))
        else:
            self._start(reader, transfer, lease, out, awaited=True)
        return True

    # --- time, plane and peers -----------------------------------------------------------

    def budget_due(self, peer: Instance, transfer: int, now_s: float, out: list[Action]) -> None:
        """The receiver no longer waits for a write that has not begun."""
        del now_s
        self._refuse_queued(peer, transfer, Reason.BUDGET, "not begun within its budget", out)

    def stuck(self, peer: Instance, transfer: int, out: list[Action]) -> None:
        """A write has been under way for too long: only breaking the plane ends it."""
        reader = self._edges.readers.get(peer)
        lease = reader.leases.transfers.get(transfer) if reader else None
        if lease is not None and lease.state in {WRITING, DRAINING}:
            out.append(ResetPlane())

    def write_ended(self, event: WriteEnded, now_s: float, out: list[Action]) -> None:
        """The plane is through with a write: tell the receiver, for ever."""
        self.now_s = now_s
        reader = self._edges.readers.get(event.peer)
        lease = reader.leases.transfers.get(event.transfer) if reader else None
        if reader is None or lease is None or lease.state not in {WRITING, DRAINING}:
            self.stale += 1
            return
        answer: Done | Refused
        entry = self._edges.ledger(reader).entries[lease.generation]
        if event.error:
            self.failed += 1
            answer = Refused(event.transfer, Reason.TRANSFER_FAILED.value, event.error)
        elif entry.leaving and self._is_untold(reader, event.transfer, lease):
            answer = Refused(event.transfer, entry.leaving, "it left the log while it was written")
        else:
            size = 0 if lease.target is None else lease.target.size
            answer = Done(event.transfer, lease.generation, size)
        self._end(reader, event.transfer, answer, out)
        self._start_writes(out)

    def gone(self, reader: Reader, now_s: float, out: list[Action]) -> None:
        """*reader* is fenced: every lease of it ends, and so do the writes to it."""
        self.now_s = now_s
        peer, leases, edges = reader.instance, reader.leases, self._edges
        self.queue = deque(item for item in self.queue if item[0] != peer)
        generations = list(leases.offers)
        for transfer, lease in leases.transfers.items():
            self._disarm(peer, transfer)
            generations.append(lease.generation)
            self.writing -= lease.state in {WRITING, DRAINING}
        slots = {ended.generation for ended in leases.ended.values()} | set(generations)
        reader.leases = Leases()
        for generation in generations:
            edges.unlease(reader, generation, out)
        for generation in slots:
            edges.vacate(reader, generation)
        edges.trim(reader.identity.stage)
        self._start_writes(out)

    def close(self, out: list[Action]) -> None:
        """Refuse every write that has not begun."""
        for peer, transfer in list(self.queue):
            self._refuse_queued(peer, transfer, Reason.CLOSED, "the sender closed", out)
        for reader in self._edges.readers.values():
            for transfer in reader.grants.void():
                refused = Refused(transfer, Reason.CLOSED.value, "the sender closed")
                self._end(reader, transfer, refused, out)

    # --- transitions ---------------------------------------------------------------------

    def _accept(self, reader: Reader, message: Pull, out: list[Action]) -> None:
        """Check a new transfer id, and lease in the same step."""
        transfer, generation, target, budget_s = message
        refusal = self._cannot_give(reader, message)
        if refusal is not None:
            self._end(reader, transfer, refusal, out)
            return
        state = OFFERED if target is None else QUEUED
        entry = self._edges.ledger(reader).lease(generation, reader.name)
        pinned = entry.block.size if target is None and entry.block is not None else 0
        reader.leases.transfers[transfer] = Lease(state, generation, target, pinned)
        if target is None:
            self._send_offer(reader, transfer, generation, out)
            return
        self.queue.append((reader.instance, transfer))
        self._timers.arm(("budget", reader.instance, transfer), self.now_s + budget_s)
        self._start_writes(out)

    def _too_many(self, reader: Reader) -> bool:
        """Whether *reader* has more transfers on record than all that it may have open."""
        most = 2 * OPEN_LIMIT + self._settings.max_writes  # some it has closed, and not yet told
        if len(reader.leases.transfers) + len(reader.leases.ended) < most:
            return False
        self._edges.violations[Violation.TRANSFERS] += 1
        return True

    def _cannot_give(self, reader: Reader, message: Pull) -> Refused | None:
        transfer, generation, target, _ = message
        violations = self._edges.violations
        ledger = self._edges.ledger(reader)
        entry = ledger.entries.get(generation)
        if entry is None or entry.leaving:
            gone = ledger.why_gone(generation)
            foreign = entry is None and self._edges.is_foreign(reader, generation)
            violations[Violation.UNKNOWN] += foreign
            reason = Reason.UNKNOWN.value if gone is None else gone.reason
            return Refused(transfer, reason, "" if gone is None else gone.detail)
        if not entry.admits(reader.name):
            return Refused(transfer, Reason.TAKEN.value, "every reader's slot is taken")
        if target is not None and (entry.block is None or reader.maps):
            violations[Violation.ROUTE] += 1
            return Refused(transfer, Reason.MISMATCH.value, "this payload is not to be written")
        if target is not None and target.size != entry.size:
            violations[Violation.REGION] += 1
            detail = f"the target has {target.size} bytes, the payload {entry.size}"
            return Refused(transfer, Reason.MISMATCH.value, detail)
        if target is None and entry.block is not None and not reader.maps:
            violations[Violation.ROUTE] += 1
            return Refused(transfer, Reason.MISMATCH.value, "this payload needs a target")
        return None

    def _send_offer(
        self, reader: Reader, transfer: int, generation: int, out: list[Action]
    ) -> None:
        entry = self._edges.ledger(reader).entries[generation]
        where = None
        if entry.block is not None:
            where = RegionRef(entry.block.pool, entry.block.offset, entry.size)
        reader.send(Offer(transfer, generation, where, entry.body), out)

    def _start_writes(self, out: list[Action]) -> None:
        """Post queued writes while the plane has room for them, oldest first."""
        while self.queue and self.writing < self._settings.max_writes:
            peer, transfer = self.queue.popleft()
            reader = self._edges.readers[peer]
            self._timers.disarm(("budget", peer, transfer))
            self._start(reader, transfer, reader.leases.transfers[transfer], out)

    def _start(
        self, reader: Reader, transfer: int, lease: Lease, out: list[Action], *,
        awaited: bool = False,
    ) -> None:  # fmt: skip
        """Post one write; *awaited*: by the put that is under way."""
        peer, entry = reader.instance, self._edges.ledger(reader).entries[lease.generation]
        block, target = entry.block, lease.target
        assert block is not None
        assert target is not None
        reader.leases.transfers[transfer] = lease._replace(state=WRITING)
        self.writing += 1
        stuck_s = self._settings.policy.stuck_write_s(entry.size)
        self._timers.arm(("stuck", peer, transfer), self.now_s + stuck_s)
        source = new(RegionRef, (block.pool, block.offset, entry.size))
        out.append(new(StartWrite, (peer, transfer, source, target, awaited)))

    def _end(
        self, reader: Reader, transfer: int, answer: Done | Refused, out: list[Action]
    ) -> None:
        """The one end of a transfer id: on record first, then told.

        Of what was written into a lent block and not announced, the announcement tells it.
        """
        lease = reader.leases.end(transfer, answer)
        untold = lease is not None and self._is_untold(reader, transfer, lease)
        if lease is not None and untold:
            if isinstance(answer, Done):
                reader.grants.spent[lease.generation] = Spent(transfer, over=True)
            else:
                del reader.grants.spent[lease.generation]
        if transfer < reader.report.low_water and transfer not in reader.report.open_ids:
            reader.leases.ended.pop(transfer, None)  # the receiver is through with that id
        if not (untold and isinstance(answer, Done)):
            reader.send(answer, out)
        if lease is not None:
            self.writing -= lease.state in {WRITING, DRAINING}
            self._disarm(reader.instance, transfer)
            self._edges.unlease(reader, lease.generation, out)
        if untold:
            self._edges.announce(reader, out)

    def _is_untold(self, reader: Reader, transfer: int, lease: Lease) -> bool:
        """Whether *lease* writes into a lent block what its reader has not been told of."""
        return reader.grants.spent.get(lease.generation) == (transfer, False)

    def _refuse_queued(
        self, peer: Instance, transfer: int, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        reader = self._edges.readers.get(peer)
        lease = reader.leases.transfers.get(transfer) if reader else None
        if reader is not None and lease is not None and lease.state == QUEUED:
            self._unqueue(reader, transfer)
            self._end(reader, transfer, Refused(transfer, reason.value, detail), out)

    def _unqueue(self, reader: Reader, transfer: int) -> None:
        item = (reader.instance, transfer)
        if item in self.queue:
            self.queue.remove(item)

    def _disarm(self, peer: Instance, transfer: int) -> None:
        self._timers.disarm(("budget", peer, transfer))
        self._timers.disarm(("stuck", peer, transfer))

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        return tuple(self.queue), self.writing

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        queue, self.writing = state
        self.queue = deque(queue)
