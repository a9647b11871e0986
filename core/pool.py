"""Who owns which bytes of one memory region, and who waits for some.

A pure machine: time is an argument, every change is returned.
"""
# FREE --reserve--> RESERVED --hold--> HELD --free--> FREE
#                   RESERVED --free--> FREE
#                   RESERVED --quarantine(ids)--> QUARANTINED --ended(last id)--> FREE
# A waiter: reserve without room --> WAITING --room--> Grant
#                                    WAITING --deadline at or before now--> Refusal
#                                    WAITING --leave--> gone

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.allocator import Allocator
from stagelink.core.blocks import RECEIVE, SEND, Block, Blocks
from stagelink.core.errors import ConfigError, ProtocolViolationError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEAD_PATIENCE_S", "RECEIVE", "SEND", "Block", "Grant", "Pool", "PoolStats", "Refusal"]

HEAD_PATIENCE_S = 0.05
"""How long the first waiter lets later ones pass when it does not fit."""


class Refusal(NamedTuple):
    """Why there is no block; sizes in bytes, ``oldest_lease_s`` an age."""

    never_fits: bool
    requested: int
    alignment: int
    free: int
    largest_free: int
    capacity: int
    leases: int
    oldest_lease_s: float


class Grant(NamedTuple):
    """``waiter`` has left the queue with ``blocks``, in the order of the sizes it asked for."""

    waiter: int
    blocks: tuple[Block, ...]


class PoolStats(NamedTuple):
    """Bytes by state (``free`` and the last three add up to ``capacity``), then two counts."""

    capacity: int
    free: int
    largest_free: int
    reserved: int
    held: int
    quarantined: int
    blocks: int
    waiting: int


class _Wait(NamedTuple):
    sizes: tuple[int, ...]
    total: int  # in whole units, unlike the sizes
    use: int
    deadline_s: float
    patient_until_s: float


class Pool:
    """``capacity`` bytes, shared by sending and receiving, with one FIFO for those who wait.

    ``send_floor`` and ``receive_floor`` are fractions of the capacity, rounded down to whole units
    of the alignment, and places: the first bytes are for sending only, the last ones for
    receiving only, so that no block of one side can break what the other's floor must hold. A
    middle stage that holds what it got until it has put what it made of it depends on that. The
    rest is common.

    A waiter that does not fit may be passed by those that do, until the first one has waited
    :data:`HEAD_PATIENCE_S`; then space is kept for it and nobody passes, but for the other side
    within its own floor. Those bytes are never the head's, and keeping them would let puts that
    wait for room stop the gets that make room. ``limits`` are the bytes that each use may have.

    Raises:
        ConfigError: capacity, alignment or floors make no sense.
    """

    __slots__ = ("_allocator", "_blocks", "_config", "_now_s", "alignment", "limits", "waits")

    def __init__(
        self,
        capacity: int,
        alignment: int = 4096,
        send_floor: float = 0.25,
        receive_floor: float = 0.25,
        pool_id: int = 0,
    ) -> None:
        # Written so that NaN fails too.
        if not (send_floor >= 0 and receive_floor >= 0 and send_floor + receive_floor <= 1):
            msg = f"floors {send_floor} (send) and {receive_floor} (receive) do not share one pool"
            raise ConfigError(msg, remedy="choose floors of 0 or more that add up to at most 1")
        self._allocator: Allocator | None = Allocator(capacity, alignment)
        units = self._allocator.capacity // alignment
        # The sliver keeps 0.29 of 100 units at 29.
        send, receive = (int(floor * units + 1e-9) for floor in (send_floor, receive_floor))
        self.alignment = alignment
        self.limits = ((units - receive) * alignment, (units - send) * alignment)
        self._config = (self._allocator.capacity, alignment, self.limits, pool_id)
        self._blocks = Blocks(pool_id)
        self.waits: dict[int, _Wait] = {}  # in the order of arrival
        self._now_s = -inf  # the latest time told, for the calls that are not told

    @property
    def capacity(self) -> int:
        """All bytes."""
        return self._config[0]

    def reserve(
        self, waiter: int, size: int, use: int, deadline_s: float, now_s: float
    ) -> Block | Refusal | None:
        """Reserve one block; :meth:`reserve_all` of a single size."""
        got = self.reserve_all(waiter, (size,), use, deadline_s, now_s)
        return got if got is None or isinstance(got, Refusal) else got[0]

    def reserve_all(
        self, waiter: int, sizes: tuple[int, ...], use: int, deadline_s: float, now_s: float
    ) -> tuple[Block, ...] | Refusal | None:
        """Reserve a block for each of *sizes*, or none at all.

        Returns:
            The blocks, at once, if they fit and nobody who waits must go first; a refusal if they
            can never fit beside the other side's floor, or if the deadline is at or before
            *now_s*; otherwise None: *waiter* has joined the queue, for a :class:`Grant` to come.

        Raises:
            ConfigError: there is no size, one is negative, or the use is unknown.
            ProtocolViolationError: this waiter is waiting already.
        """
        total = self._check(waiter, sizes, use)
        self._now_s = max(self._now_s, now_s)
        if total > self.limits[use]:
            return self.refusal(sum(sizes), now_s)._replace(never_fits=True)
        blocks = self._place(sizes, total, use, self._head() if self.waits else None)
        if blocks is not None:
            return blocks
        if not deadline_s > now_s:  # so that NaN does not wait for ever
            return self.refusal(sum(sizes), now_s)
        patient_until_s = now_s + HEAD_PATIENCE_S
        self.waits[waiter] = _Wait(tuple(sizes), total, use, deadline_s, patient_until_s)
        return None

    def hold(self, block: Block) -> None:
        """Note that the bytes of a RESERVED block are there: it is HELD until freed.

        Raises:
            LeaseError: the block is not live, not of this pool or not RESERVED.
        """
        self._blocks.hold(block)

    def quarantine(self, block: Block, ids: Iterable[int]) -> list[Grant]:
        """Keep a RESERVED block from everyone until each transfer of *ids* has ended.

        Returns:
            Waiters that have space now: none, unless *ids* is empty, which frees the block.

        Raises:
            LeaseError: the block is not live, not of this pool or not RESERVED.
        """
        return self._free_at(*self._blocks.quarantine(block, set(ids)))

    def ended(self, transfer_id: int) -> list[Grant]:
        """Note that no write of this transfer can come any more; unknown ids are fine.

        Returns:
            Waiters served from the blocks whose last transfer this was.
        """
        return self._free_at(*self._blocks.ended(transfer_id))

    def free(self, block: Block) -> list[Grant]:
        """Take a RESERVED or HELD block back and return the waiters served from it.

        Raises:
            LeaseError: the block is not live, not of this pool, or in quarantine.
        """
        return self._free_at(self._blocks.remove(block))

    def leave(self, waiter: int) -> list[Grant]:
        """Let *waiter* leave the queue (unknown ones are fine); return those it held up."""
        return self._serve() if self.waits.pop(waiter, None) else []

    def expire(self, now_s: float) -> tuple[list[tuple[int, Refusal]], list[Grant]]:
        """Dismiss every waiter whose deadline is at or before *now_s*, and serve those behind.

        From here on space is kept for a first waiter that has waited :data:`HEAD_PATIENCE_S`.
        """
        self._now_s = max(self._now_s, now_s)
        due = [(name, wait) for name, wait in self.waits.items() if wait.deadline_s <= now_s]
        if not due:
            return [], []
        refused = [(name, self.refusal(sum(wait.sizes), now_s)) for name, wait in due]
        for name, _ in due:
            del self.waits[name]
        return refused, self._serve()

    def next_deadline(self) -> float | None:
        """When to call :meth:`expire` next; None if nobody waits.

        A deadline, or the moment from which space is kept for the first waiter.
        """
        if not self.waits:
            return None
        first = min(wait.deadline_s for wait in self.waits.values())
        patience = self._head().patient_until_s
        return first if patience <= self._now_s else min(first, patience)

    def refusal(self, size: int, now_s: float) -> Refusal:
        """The numbers to tell someone who asked for *size* bytes and gets none now."""
        space, blocks = self._space(), self._blocks
        return Refusal(
            never_fits=False,
            requested=size,
            alignment=space.alignment,
            free=space.free_bytes,
            largest_free=space.largest_free,
            capacity=space.capacity,
            leases=len(blocks),
            oldest_lease_s=blocks.oldest_s(now_s),
        )

    def stats(self) -> PoolStats:
        """Bytes by state, which add up to the capacity, and counts."""
        space = self._space()
        bytes_now = (space.capacity, space.free_bytes, space.largest_free)
        reserved, held, quarantined = self._blocks.in_state
        counts = (len(self._blocks), len(self.waits))
        return PoolStats(*bytes_now, reserved, held, quarantined, *counts)

    def freeze(self, now_s: float) -> tuple[Any, ...]:
        """The pool as if told *now_s*, in nested tuples of numbers: equal for equal pools.

        Waits are frozen as distances from now. The ages of blocks are left out: they are only
        reported, and would tell apart pools that behave alike.
        """
        blocks = self._blocks
        waits = self._freeze_waits(max(self._now_s, now_s)) if self.waits else ()
        return (self._config, blocks.serial, blocks.freeze(), waits)

    @classmethod
    def thaw(cls, frozen: tuple[Any, ...], now_s: float = 0.0) -> Pool:
        """A pool equal to the frozen one, with *now_s* as the present."""
        pool = cls.__new__(cls)
        pool._thaw(frozen, now_s)
        return pool

    def _thaw(self, frozen: tuple[Any, ...], now_s: float) -> None:
        self._config, serial, rows, waits = frozen
        _, self.alignment, self.limits, pool_id = self._config
        self._blocks = Blocks(pool_id, serial, rows)
        self._allocator = None  # built when first needed: an explorer thaws more than it changes
        self._now_s = now_s
        self.waits = {}
        for waiter, sizes, use, life_s, patience_s in waits:
            total = whole_units(sizes, self.alignment)
            self.waits[waiter] = _Wait(sizes, total, use, now_s + life_s, now_s + patience_s)

    def _freeze_waits(self, now_s: float) -> tuple[Any, ...]:
        return tuple(
            (
                waiter,
                sizes,
                use,
                max(0.0, round(deadline_s - now_s, 6)),
                max(0.0, round(patient_until_s - now_s, 6)),
            )
            for waiter, (sizes, _, use, deadline_s, patient_until_s) in self.waits.items()
        )

    def _space(self) -> Allocator:
        if self._allocator is None:
            capacity, alignment, _, _ = self._config
            live = [row[:2] for row in self._blocks.freeze()]
            self._allocator = Allocator.holding(capacity, alignment, live)
        return self._allocator

    def _check(self, waiter: int, sizes: tuple[int, ...], use: int) -> int:
        """Refuse what makes no sense; return the bytes that *sizes* take."""
        if use not in (SEND, RECEIVE):
            msg = f"use {use} is neither SEND ({SEND}) nor RECEIVE ({RECEIVE})"
            raise ConfigError(msg, remedy="say what the block is for")
        if not sizes or min(sizes) < 0:
            msg = f"sizes {sizes} are not one or more sizes of 0 bytes or more"
            raise ConfigError(msg, remedy="ask for at least one block of 0 bytes or more")
        if waiter in self.waits:
            msg, remedy = f"waiter {waiter} is waiting already", "let it leave the queue first"
            raise ProtocolViolationError(msg, reason=Reason.DUPLICATE, remedy=remedy)
        return whole_units(sizes, self.alignment)

    def _head(self) -> _Wait:
        return next(iter(self.waits.values()))

    def _place(
        self, sizes: tuple[int, ...], total: int, use: int, head: _Wait | None
    ) -> tuple[Block, ...] | None:
        """Reserve a block for each of *sizes*, or change nothing.

        A *head* that does not fit lets others be served before it, until it has lost patience:
        then only bytes of the other side's floor are left to them, which it can never have.
        """
        space, blocks, limits = self._allocator or self._space(), self._blocks, self.limits
        passes = head is not None and head.patient_until_s <= self._now_s
        if passes and head is not None and head.use == use:
            return None
        capacity = space.capacity
        # Sending goes up from the first byte, receiving down from the last.
        reach = capacity - limits[1 - use] if passes else limits[use]
        if total > min(space.free_bytes, reach - (blocks.used[use] if passes else 0)):
            return None
        low, at_end = capacity - reach, use == RECEIVE
        if len(sizes) == 1:  # nearly always, and worth a third of the time
            extent = space.allocate(sizes[0], low, reach, at_end=at_end)
            return None if extent is None else (blocks.add(*extent, use, self._now_s),)
        extents = space.allocate_all(sizes, low, reach, at_end=at_end)
        if extents is None:
            return None
        return tuple([blocks.add(*extent, use, self._now_s) for extent in extents])

    def _free_at(self, *offsets: int) -> list[Grant]:
        # A thawed pool builds its allocator from the blocks, where these are gone already.
        if self._allocator is not None:
            for offset in offsets:
                self._allocator.free(offset)
        return self._serve() if self.waits and offsets else []

    def _serve(self) -> list[Grant]:
        """Give space to waiters in their order, as far as the first allows."""
        grants: list[Grant] = []
        space = self._space()
        head: _Wait | None = None  # the first that does not fit
        for waiter, wait in tuple(self.waits.items()):
            if not space.free_bytes:
                break
            blocks = self._place(wait.sizes, wait.total, wait.use, head)
            if blocks is not None:
                del self.waits[waiter]
                grants.append(Grant(waiter, blocks))
            elif head is None:
                head = wait
        return grants


def whole_units(sizes: tuple[int, ...], alignment: int) -> int:
    """The bytes that *sizes* take: whole units, at least one each."""
    return sum([(size + alignment - 1) & -alignment or alignment for size in sizes])
