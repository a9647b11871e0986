"""How much of the pool one peer may keep from all others, and how to say that it does.

A peer that is alive but silent, on a plane that cannot cut it off, keeps what it may still touch
for as long as it is silent. So what it may touch is bounded before it falls silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.handshake.fetch import DRAINING
from stagelink.core.pool import whole_units

if TYPE_CHECKING:
    from stagelink.core.handshake.fetch import Fetches
    from stagelink.core.pool import Pool
    from stagelink.core.values import Instance


class Share:
    """A *part* of what all other peers leave of a direction's memory; 1 or more: no bound.

    One payload is always admitted to a peer that has nothing, however large. So nobody waits but
    for a peer's own transfers, and every payload that fits into the pool can be moved.
    """

    __slots__ = ("_limits", "_part", "unit")

    def __init__(self, part: float, pool: Pool) -> None:
        self._part = part
        self._limits = pool.limits
        self.unit = pool.alignment

    def admits(self, use: int, size: int, own: int, everybody: int) -> bool:
        """Whether a peer that has *own* of *everybody*'s bytes may have *size* more."""
        if self._part >= 1 or not own:
            return True
        return own + whole_units((size,), self.unit) <= self.limit(use, everybody - own)

    def limit(self, use: int, others: int) -> int:
        """The most bytes for one peer while all others have *others*."""
        return int(self._part * (self._limits[use] - others))


class Kept(NamedTuple):
    """What a silent peer keeps in quarantine: blocks, their bytes, the age of the oldest."""

    blocks: int
    bytes: int
    oldest_s: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"{self.bytes} bytes of this pool are in quarantine, in {self.blocks} blocks that the "
            f"sender may still write to, the oldest for {self.oldest_s:.1f} s"
        )


def kept_by(peer: Instance, fetches: Fetches, pool: Pool, now_s: float) -> Kept:
    """What of the pool is in quarantine because of *peer*."""
    found = [fetches.of_transfer(peer, transfer) for transfer in fetches.open_ids(peer)]
    blocks = [f.block for f in found if f and f.block and f.state == DRAINING]
    oldest_s = max((pool.age_s(block, now_s) for block in blocks), default=0.0)
    return Kept(len(blocks), sum(block.size for block in blocks), oldest_s)
