"""Who may touch the bytes of an entry: one reader's leases and what became of them."""

# offer:    OFFERED --Consumed | Gone known and not held | reader gone--> ended
# claim:    OFFERED --id closed in the reader's report | Consumed | reader gone--> ended
# transfer: QUEUED --slot--> WRITING --WriteEnded--> ended        QUEUED --Cancel--> ended
#           WRITING --Cancel | reader gone--> DRAINING --WriteEnded | Fenced--> ended
# "OFFERED while the entry is LEAVING" is the recall; the end of a transfer id is an answer on
# record (Done or Refused) until the reader's report closes the id.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.messages import Done, Refused, Report

if TYPE_CHECKING:
    from stagelink.core.values import RegionRef

OFFERED = "offered"
QUEUED = "queued"
WRITING = "writing"
DRAINING = "draining"


class Lease(NamedTuple):
    """A claim on an entry's bytes: a claimed offer, or a transfer with its target.

    ``pinned`` are the bytes of our pool that only its reader can set free.
    """

    state: str
    generation: int
    target: RegionRef | None = None
    pinned: int = 0


class Ended(NamedTuple):
    """The end of a transfer id: what to answer, for ever."""

    generation: int
    answer: Done | Refused


FrozenLeases = tuple[
    tuple[tuple[int, int], ...], tuple[tuple[int, Lease], ...], tuple[tuple[int, Ended], ...]
]


class Leases:
    """One reader's offers (by generation), transfers and ended transfers (by id).

    An offer's value are the bytes of our pool that it pins.
    """

    __slots__ = ("_offered", "ended", "offers", "transfers")

    def __init__(self) -> None:
        self._offered = 0
        self.offers: dict[int, int] = {}
        self.transfers: dict[int, Lease] = {}
        self.ended: dict[int, Ended] = {}

    @property
    def pinned(self) -> int:
        """Bytes of our pool that only this reader can set free."""
        claimed = sum([lease.pinned for lease in self.transfers.values()])
        return self._offered + claimed

    def offer(self, generation: int, pinned: int) -> None:
        """The reader is offered *generation*, which pins so many bytes of our pool."""
        self.offers[generation] = pinned
        self._offered += pinned

    def end_offer(self, generation: int) -> None:
        """The offer of *generation* is over."""
        self._offered -= self.offers.pop(generation)

    def holds_slot(self, generation: int) -> bool:
        """Whether anything here still stands for *generation*: a lease, or a Done not counted."""
        if generation in self.offers:
            return True
        if any(lease.generation == generation for lease in self.transfers.values()):
            return True
        return any(
            ended.generation == generation and isinstance(ended.answer, Done)
            for ended in self.ended.values()
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is leased, and no answer on record."""
        return not (self.offers or self.transfers or self.ended)

    def slots(self) -> set[int]:
        """Every generation for which :meth:`holds_slot` says yes."""
        done = {e.generation for e in self.ended.values() if isinstance(e.answer, Done)}
        return {*self.offers, *(lease.generation for lease in self.transfers.values()), *done}

    def end(self, transfer: int, answer: Done | Refused) -> Lease | None:
        """End a transfer with *answer* on record; return its lease, or None if it had none."""
        lease = self.transfers.pop(transfer, None)
        generation = lease.generation if lease else 0
        self.ended[transfer] = Ended(generation, answer)
        return lease

    def closed_by(self, report: Report) -> list[tuple[int, Lease]]:
        """Drop what the reader's report closes; return the leases that ended thereby.

        Those are queued or claimed transfers whose id is below low water and not open. A write
        under way is not among them: it ends when the plane says so.
        """
        low, still = report.low_water, report.open_ids
        for transfer in [t for t in self.ended if t < low and t not in still]:
            del self.ended[transfer]
        closed = [
            (transfer, lease)
            for transfer, lease in self.transfers.items()
            if transfer < low and transfer not in still and lease.state in {OFFERED, QUEUED}
        ]
        for transfer, _ in closed:
            del self.transfers[transfer]
        return closed

    def unbegun(self, report: Report) -> list[tuple[int, Lease]]:
        """Drop and return the queued transfers that *report* closes, and nothing else."""
        closed = [
            (transfer, lease)
            for transfer, lease in self.transfers.items()
            if lease.state == QUEUED
            and transfer < report.low_water
            and transfer not in report.open_ids
        ]
        for transfer, _ in closed:
            del self.transfers[transfer]
        return closed

    def freeze(self) -> FrozenLeases:
        """The state as nested tuples."""
        return (
            tuple(sorted(self.offers.items())),
            tuple(sorted(self.transfers.items())),
            tuple(sorted(self.ended.items())),
        )

    @classmethod
    def thaw(cls, frozen: FrozenLeases) -> Leases:
        """The leases that froze to *frozen*."""
        leases = cls()
        offers, transfers, ended = frozen
        leases.offers = dict(offers)
        leases._offered = sum(leases.offers.values())
        leases.transfers, leases.ended = dict(transfers), dict(ended)
        return leases
