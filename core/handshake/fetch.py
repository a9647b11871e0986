"""One get of a receiver, and the table of all of them."""

# WAITING --Known inline--> ended     WAITING --Known offer--> HELD --last view gone--> ended
# WAITING --Known pull--> QUEUED --Space--> PULLING --Done--> HELD (LANDED if nobody waits now)
# WAITING --Known claim--> PULLING (no block) --Offer--> HELD
# WAITING, QUEUED, PULLING without block --Deadline, Cancel, Unreachable--> ended
# PULLING with block --Deadline, Cancel, Unreachable--> DRAINING --Done, Refused, Fenced--> ended
# GRANTED: a block that is lent (grants.py), until a payload is written there

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.pool import whole_units
from stagelink.core.values import NO_INSTANCE, Instance

if TYPE_CHECKING:
    from stagelink.core.pool import Block
    from stagelink.core.values import RegionRef

GRANTED = "granted"
WAITING = "waiting"
QUEUED = "queued"
PULLING = "pulling"
DRAINING = "draining"
LANDED = "landed"
HELD = "held"

_REACHING = frozenset({GRANTED, QUEUED, PULLING, DRAINING})
"""States in which a peer may write to our block, or will when there is one."""

ANEW = -1
"""Where a relic went whose log has begun anew: before all that is in it."""


class Fetch(NamedTuple):
    """A get: who asked (``ticket``, 0 for nobody), for what, and what it holds.

    ``want`` is the generation asked for, 0 for the newest, ``want_size`` and ``want_instance``
    what it must be; ``generation`` and ``size`` are those
    of the announcement it works on. ``transfer`` is its open id, 0 for none. ``relic`` is where in
    the log its generation has gone, 0 for nowhere: the view of such an offer is reported as held.
    ``lent``: its block was lent to the sender, and nobody has asked for what came there.
    """

    number: int
    ticket: int
    address: str
    key: str
    want: int
    state: str = WAITING
    peer: Instance = NO_INSTANCE
    generation: int = 0
    size: int = 0
    transfer: int = 0
    block: Block | None = None
    where: RegionRef | None = None
    body: bytes = b""
    relic: int = 0
    want_size: int = 0
    want_instance: Instance = NO_INSTANCE
    lent: bool = False


FrozenFetches = tuple[int, int, tuple[Fetch, ...]]


class Fetches:
    """All gets of a receiver by number, with the indexes that its messages need.

    ``active`` has the number of the get that is queued, pulling, landed or held on a payload, by
    peer and generation. ``reached`` has the bytes of our pool that a peer may write to or waits
    for room to, ``everywhere`` those of all peers, in whole units of *unit*. ``lent_bytes`` are
    those of blocks that are lent, or were and hold what nobody has asked for.
    """

    __slots__ = (
        "_lent", "_numbers", "_open", "_relics", "_tickets", "_unit", "_waiting", "active",
        "everywhere", "lent_bytes", "next_number", "next_transfer", "reached",
    )  # fmt: skip

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self.everywhere = 0
        self.lent_bytes = 0
        self._lent: dict[Instance, dict[int, int]] = {}
        self.reached: dict[Instance, int] = {}
        self.next_number = 1
        self.next_transfer = 1
        self._numbers: dict[int, Fetch] = {}
        self._tickets: dict[int, int] = {}
        self._waiting: dict[tuple[str, str], dict[int, None]] = {}
        self._open: dict[Instance, dict[int, int]] = {}
        self.active: dict[tuple[Instance, int], int] = {}
        self._relics: dict[Instance, dict[int, int]] = {}

    def __len__(self) -> int:
        """How many gets are not over."""
        return len(self._numbers)

    def all(self) -> list[Fetch]:
        """Every get that is not over, oldest first."""
        return list(self._numbers.values())

    def start(
        self, ticket: int, address: str, key: str, want: int, *,
        want_size: int = 0, want_instance: Instance = NO_INSTANCE,
    ) -> Fetch:  # fmt: skip
        """A new get, WAITING."""
        number = self.next_number
        fetch = Fetch(
            number, ticket, address, key, want, want_size=want_size, want_instance=want_instance
        )
        self.next_number = number + 1
        self._numbers[number] = fetch
        if ticket:
            self._tickets[ticket] = number
        self._waiting.setdefault((address, key), {})[number] = None
        return fetch

    def mint_transfer(self) -> int:
        """The next transfer id; never the same again."""
        self.next_transfer += 1
        return self.next_transfer - 1

    def set(self, fetch: Fetch) -> Fetch:
        """Replace the get of that number."""
        old = self._numbers[fetch.number]
        self._unindex(old)
        self._numbers[fetch.number] = fetch
        self._index(fetch)
        before, now = self._reaches(old), self._reaches(fetch)
        if before != now:
            self._reach(fetch if now else old, 1 if now else -1)
        return fetch

    def end(self, fetch: Fetch) -> None:
        """The get is over."""
        old = self._numbers.pop(fetch.number)
        self._unindex(old)
        if old.state in _REACHING and self._reaches(old):
            self._reach(old, -1)

    def get(self, number: int) -> Fetch | None:
        """The get of that number, if it is not over."""
        return self._numbers.get(number)

    def of_ticket(self, ticket: int) -> Fetch | None:
        """The get that answers *ticket*."""
        return self._numbers.get(self._tickets.get(ticket, 0))

    def of_transfer(self, peer: Instance, transfer: int) -> Fetch | None:
        """The get whose open id towards *peer* is *transfer*."""
        return self._numbers.get(self._open.get(peer, {}).get(transfer, 0))

    def working_on(self, peer: Instance, generation: int) -> Fetch | None:
        """The get that is queued, pulling, landed or held on that payload."""
        return self._numbers.get(self.active.get((peer, generation), 0))

    def first_waiting(self, address: str, key: str, generation: int) -> Fetch | None:
        """The oldest WAITING get that would take *generation* of *key*."""
        waiting = self._waiting.get((address, key))
        if waiting is None:
            return None
        for number in sorted(waiting) if len(waiting) > 1 else waiting:
            fetch = self._numbers[number]
            if fetch.want in {0, generation}:
                return fetch
        return None

    def waiting_for(self, address: str, key: str) -> list[Fetch]:
        """Every WAITING get of *key*, oldest first."""
        return [self._numbers[n] for n in sorted(self._waiting.get((address, key), ()))]

    def waiting_keys(self, address: str) -> list[str]:
        """The keys that some get WAITs for at *address*."""
        return [key for where, key in self._waiting if where == address]

    @property
    def borrowers(self) -> tuple[Instance, ...]:
        """Every peer for which :meth:`lent_to` has something."""
        return tuple(self._lent)

    def lent_count(self, peer: Instance) -> int:
        """How many blocks :meth:`lent_to` tells of."""
        return len(self._lent.get(peer, ()))

    def lent_to(self, peer: Instance) -> list[Fetch]:
        """What is lent to *peer*, oldest first, with what came there and nobody asked for."""
        return [self._numbers[number] for number in self._lent.get(peer, ())]

    def open_ids(self, peer: Instance) -> tuple[int, ...]:
        """Ids still pulling, draining or viewed towards *peer*."""
        return tuple(self._open.get(peer, ()))

    def relics(self, peer: Instance) -> tuple[int, ...]:
        """Generations of *peer* that have gone from the log but are still viewed."""
        return tuple(self._relics.get(peer, ()))

    def first_relics(self, peer: Instance, limit: int) -> tuple[tuple[int, ...], int]:
        """Those that went first, about *limit*, and the log number at which the next one went."""
        ordered = sorted((number, gone) for gone, number in self._relics[peer].items())
        while ordered[limit][0] == ANEW:
            limit += 1
        return tuple([gone for _, gone in ordered[:limit]]), ordered[limit][0]

    def viewed(self, peer: Instance) -> tuple[int, ...]:
        """Generations of *peer* that are in its log, and viewed where they lie."""
        held = (f for f in self._numbers.values() if f.state == HELD and f.peer == peer)
        return tuple(f.generation for f in held if f.where is not None and not f.relic)

    def _index(self, fetch: Fetch) -> None:
        peer, number = fetch.peer, fetch.number
        if fetch.ticket:
            self._tickets[fetch.ticket] = number
        if fetch.state == WAITING:
            self._waiting.setdefault((fetch.address, fetch.key), {})[number] = None
        elif fetch.state not in {DRAINING, GRANTED}:
            self.active[peer, fetch.generation] = number
        if fetch.transfer:
            self._open.setdefault(peer, {})[fetch.transfer] = number
        if fetch.relic:
            self._relics.setdefault(peer, {})[fetch.generation] = fetch.relic
        if fetch.lent and fetch.block is not None:
            self._lent.setdefault(peer, {})[number] = fetch.block.size
            self.lent_bytes += fetch.block.size

    def _unindex(self, fetch: Fetch) -> None:
        number, ticket, address, key, _, state = fetch[:6]
        if ticket:
            self._tickets.pop(ticket, None)
        if state == WAITING:  # and so for nothing in particular yet
            group = (address, key)
            waiting = self._waiting[group]
            del waiting[number]
            if not waiting:
                del self._waiting[group]
            return
        peer = fetch.peer
        if state != DRAINING and self.active.get((peer, fetch.generation)) == number:
            del self.active[peer, fetch.generation]
        if fetch.transfer:
            _discard(self._open, peer, fetch.transfer)
        if fetch.relic:
            _discard(self._relics, peer, fetch.generation)
        if fetch.lent and fetch.block is not None:
            self.lent_bytes -= fetch.block.size
            _discard(self._lent, peer, number)

    def _reaches(self, fetch: Fetch) -> bool:
        """Whether its sender may write to a block of ours, or will when there is one."""
        return fetch.state in _REACHING and (fetch.block is not None or fetch.state == QUEUED)

    def _reach(self, fetch: Fetch, sign: int) -> None:
        """Count the block of *fetch*, or (-1) count it no more."""
        size = fetch.size if fetch.block is None else fetch.block.size
        peer, whole = fetch.peer, sign * whole_units((size,), self._unit)
        self.everywhere += whole
        now = self.reached.get(peer, 0) + whole
        if now:
            self.reached[peer] = now
        else:
            del self.reached[peer]

    def freeze(self) -> FrozenFetches:
        """The state as nested tuples."""
        return self.next_number, self.next_transfer, tuple(self._numbers.values())

    @classmethod
    def thaw(cls, frozen: FrozenFetches, unit: int = 1) -> Fetches:
        """The table that froze to *frozen*."""
        table = cls(unit)
        table.next_number, table.next_transfer, fetches = frozen
        for fetch in fetches:
            table._numbers[fetch.number] = fetch
            table._index(fetch)
            if table._reaches(fetch):
                table._reach(fetch, 1)
        return table


def _discard(index: dict[Any, Any], group: object, member: object) -> None:
    """Take *member* out of *group*, and the group out when it was the last."""
    members = index[group]
    members.pop(member, None)
    if not members:
        del index[group]
