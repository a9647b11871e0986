"""Blocks that a receiver lends a sender, so that a put may write at once: credits."""

# Receiver: GRANTED --Landed--> LANDED --a get takes it--> HELD
#           GRANTED --Landed, not there yet--> PULLING --Done--> LANDED
#           GRANTED --revoked, cut--> DRAINING --Landed, Done, Refused, Fenced--> free
# Sender:   FREE --put--> QUEUED, WRITING (a lease like any other) --WriteEnded--> Landed or Done
#           FREE --Cancel--> Refused      FREE --cut--> (forgotten)
# A grant is a transfer id like that of a Pull, and ends as such: once, and on record.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.values import new

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.core.ledger import Record
    from stagelink.core.values import RegionRef

GRANTS_LIMIT = 16
"""Blocks lent to one sender at once, with those that landed and nobody has asked for."""

PASSED_LIMIT = 8
"""Payloads in a row that a sender may announce although what is lent would hold them."""

HISTORY = 64
"""Payloads of a sender that say how large the next ones will be."""

FrozenGrantsOut = tuple[tuple[tuple[int, "RegionRef"], ...], tuple[tuple[int, "Spent"], ...]]


class Spent(NamedTuple):
    """The grant that an entry is written into, before its reader was told; ``over`` once it is."""

    transfer: int
    over: bool


class GrantsOut:
    """What one reader has lent us: ``free`` blocks by id, ``spent`` ones by generation.

    An entry stays in ``spent`` until it is announced.
    """

    __slots__ = ("free", "spent")

    def __init__(self) -> None:
        self.free: dict[int, RegionRef] = {}
        self.spent: dict[int, Spent] = {}

    def take(self, generation: int, size: int) -> tuple[int, RegionRef] | None:
        """Spend the smallest block that holds *size* bytes on *generation*, if there is one."""
        chosen = least = 0
        for transfer, ref in self.free.items():
            if ref.size >= size and (not least or ref.size < least):
                chosen, least = transfer, ref.size
        if not least:
            return None
        transfer = chosen
        target = self.free.pop(transfer)._replace(size=size)
        self.spent[generation] = new(Spent, (transfer, False))
        return transfer, target

    def is_writing(self, record: Record) -> bool:
        """Whether *record* is an entry whose write is not over, and its reader was not told."""
        spent = self.spent.get(record) if isinstance(record, int) else None
        return spent is not None and not spent.over

    def void(self) -> tuple[int, ...]:
        """Start nothing more with what was lent, and return the ids of what was still free."""
        free = tuple(self.free)
        self.free.clear()
        self.spent.clear()
        return free

    def freeze(self) -> FrozenGrantsOut:
        """The state as nested tuples."""
        return tuple(self.free.items()), tuple(self.spent.items())

    @classmethod
    def thaw(cls, frozen: FrozenGrantsOut) -> GrantsOut:
        """The grants that froze to *frozen*."""
        grants = cls()
        free, spent = frozen
        grants.free, grants.spent = dict(free), dict(spent)
        return grants


class GrantsIn:
    """How large a block to lend to one sender, by the sizes of what it sent last.

    ``agreed``: it takes credits, and we lend; ``passed``: payloads in a row without one; ``due``:
    something was published since we last thought of lending.
    """

    __slots__ = ("agreed", "due", "passed", "sizes")

    def __init__(
        self, agreed: bool = False, passed: int = 0, sizes: Iterable[int] = (), due: bool = False
    ) -> None:
        self.agreed = agreed
        self.passed = passed
        self.due = due
        self.sizes: deque[int] = deque(sizes, HISTORY)

    def size(self, unit: int) -> int:
        """The size that 95 % of them fit into, rounded up by an eighth at most or to *unit*.

        0: nothing was sent, so nothing is to be lent.
        """
        if not self.sizes:
            return 0
        wanted = sorted(self.sizes)[(95 * len(self.sizes) - 1) // 100]
        step = max(unit, 1 << max(0, wanted.bit_length() - 4))
        return -(-max(1, wanted) // step) * step

    def freeze(self) -> tuple[bool, int, tuple[int, ...], bool]:
        """The state as nested tuples."""
        return self.agreed, self.passed, tuple(self.sizes), self.due
