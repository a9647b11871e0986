"""The live blocks of a pool: what each is for, its state, and who may still write into it."""
# reserve --> RESERVED --hold--> HELD --free--> gone
#             RESERVED --free--> gone
#             RESERVED --quarantine(ids)--> QUARANTINED --ended(last id)--> gone
# Anything else, and any block not of this pool or no longer live: LeaseError, nothing changed.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Iterable

SEND, RECEIVE = 0, 1
"""What a block is for."""

RESERVED, HELD, QUARANTINED = 0, 1, 2
"""The states of a live block."""

_STATES = ("reserved", "held", "quarantined")

# A plain tuple, so that freezing copies nothing and a frozen pool holds only numbers:
# offset, size, serial, pool, state, use, sorted ids of the transfers that may still write.
Row = tuple[int, int, int, int, int, int, tuple[int, ...]]


class Block(NamedTuple):
    """``size`` usable bytes at ``offset`` of the pool; ``serial`` is never reused."""

    offset: int
    size: int
    serial: int
    pool: int = 0


class Blocks:
    """Every live block by its serial, with bytes counted by use and by state.

    Attributes:
        serial: the serial given last; the next block has the one after it.
        used: bytes by use.
        in_state: bytes by state.
    """

    __slots__ = ("_born", "_pool", "_reaching", "_rows", "in_state", "serial", "used")

    def __init__(self, pool: int, serial: int = 0, rows: Iterable[Row] = ()) -> None:
        self._pool = pool
        self.serial = serial
        self._rows = {row[2]: row for row in rows}  # in the order of birth
        self._born: dict[int, float] = {}
        self._reaching: dict[int, set[int]] = {}  # transfer id -> serials
        self.used = used = [0, 0]
        self.in_state = in_state = [0, 0, 0]
        for _, size, name, _, state, use, ids in self._rows.values():
            used[use] += size
            in_state[state] += size
            for transfer_id in ids:
                self._reaching.setdefault(transfer_id, set()).add(name)

    def __len__(self) -> int:
        """How many blocks are live."""
        return len(self._rows)

    def freeze(self) -> tuple[Row, ...]:
        """Every live block, oldest first; the constructor takes it back."""
        return tuple(self._rows.values())

    def oldest_s(self, now_s: float) -> float:
        """The age of the oldest block; 0 if there is none or its birth is not known."""
        oldest = next(iter(self._rows), None)
        return 0.0 if oldest is None else max(0.0, now_s - self._born.get(oldest, now_s))

    def add(self, offset: int, size: int, use: int, now_s: float) -> Block:
        """A new RESERVED block."""
        self.serial = serial = self.serial + 1
        self._rows[serial] = (offset, size, serial, self._pool, RESERVED, use, ())
        self._born[serial] = now_s
        self.used[use] += size
        self.in_state[RESERVED] += size
        return Block(offset, size, serial, self._pool)

    def hold(self, block: Block) -> None:
        """RESERVED to HELD, or :exc:`LeaseError`."""
        self._move(self._only_reserved(block, "held"), HELD, ())

    def quarantine(self, block: Block, ids: set[int]) -> list[int]:
        """RESERVED to QUARANTINED by *ids*, or :exc:`LeaseError`.

        Without ids there is nothing to wait for: the block is forgotten and its offset returned.
        """
        row = self._only_reserved(block, "quarantined")
        if not ids:
            return [self._forget(row)]
        self._move(row, QUARANTINED, tuple(sorted(ids)))
        for transfer_id in ids:
            self._reaching.setdefault(transfer_id, set()).add(block.serial)
        return []

    def remove(self, block: Block) -> int:
        """Forget a RESERVED or HELD block and return its offset, or :exc:`LeaseError`."""
        row = self._live(block, "freed")
        if row[4] == QUARANTINED:
            raise _misused(
                block, "freed", f"it is quarantined until transfers {row[6]} have ended"
            )
        return self._forget(row)

    def ended(self, transfer_id: int) -> list[int]:
        """Forget the blocks that this id was the last to reach, and return their offsets."""
        gone = []
        for serial in sorted(self._reaching.pop(transfer_id, ())):
            row = self._rows[serial]
            ids = tuple([x for x in row[6] if x != transfer_id])
            if ids:
                self._rows[serial] = (*row[:6], ids)
            else:
                gone.append(self._forget(row))
        return gone

    def _only_reserved(self, block: Block, what: str) -> Row:
        row = self._live(block, what)
        if row[4] != RESERVED:
            raise _misused(block, what, f"it is {_STATES[row[4]]}")
        return row

    def _live(self, block: Block, what: str) -> Row:
        row = self._rows.get(block.serial)
        if row is not None and row[:4] == block:
            return row
        if block.pool != self._pool:
            why = f"it is of pool {block.pool}, this is pool {self._pool}"
        elif row is None and 0 < block.serial <= self.serial:
            why = "it was freed before"
        else:
            why = "this pool never handed it out"
        raise _misused(block, what, why)

    def _move(self, row: Row, state: int, ids: tuple[int, ...]) -> None:
        offset, size, serial, pool, before, use, _ = row
        self._rows[serial] = (offset, size, serial, pool, state, use, ids)
        self.in_state[before] -= size
        self.in_state[state] += size

    def _forget(self, row: Row) -> int:
        offset, size, serial, _, state, use, _ = row
        del self._rows[serial]
        self._born.pop(serial, None)
        self.used[use] -= size
        self.in_state[state] -= size
        return offset


def _misused(block: Block, what: str, why: str) -> LeaseError:
    msg = f"block {block.serial} ({block.size} bytes at {block.offset}) cannot be {what}: {why}"
    return LeaseError(msg, remedy="use each block once, with the pool that it came from")
