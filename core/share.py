"""How much of the pool one peer may keep from all others, and how to say that it does.

A peer that is alive but silent, on a plane that cannot cut it off, keeps what it may still touch
for as long as it is silent. So what it may touch is bounded before it falls silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.handshake.fetch import DRAINING
from stagelink.core.messages import OPEN_LIMIT, PULL
from stagelink.core.pool import RECEIVE, whole_units

if TYPE_CHECKING:
    from stagelink.core.handshake.fetch import Fetch, Fetches
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


class Debts:
    """The ends of transfers that senders owe us, and what they keep of our pool until then.

    ``since`` has the moment at which a transfer's block went into quarantine. It is told to
    people, and only decides when to wait no longer: it is not part of the frozen state.
    """

    __slots__ = ("_share", "_silence_s", "since", "unit")

    def __init__(self, share: Share, silence_s: float) -> None:
        self._share = share
        self._silence_s = silence_s
        self.unit = share.unit
        self.since: dict[int, float] = {}

    def is_full(self, fetches: Fetches, fetch: Fetch, how: int) -> bool:
        """Whether its sender has so much under way that *fetch* must wait for an end of it."""
        if len(fetches.open_ids(fetch.peer)) >= OPEN_LIMIT:
            return True
        own = fetches.reached.get(fetch.peer, 0)
        return how == PULL and not self._share.admits(RECEIVE, fetch.size, own, fetches.everywhere)

    def kept(self, fetches: Fetches, peer: Instance, now_s: float) -> Kept:
        """What is in quarantine because of *peer*."""
        found = [fetches.of_transfer(peer, transfer) for transfer in fetches.open_ids(peer)]
        kept = [fetch for fetch in found if fetch and fetch.block and fetch.state == DRAINING]
        ages = [now_s - self.since.get(fetch.transfer, now_s) for fetch in kept]
        size = sum(fetch.block.size for fetch in kept if fetch.block)
        return Kept(len(kept), size, max(ages, default=0.0))

    def is_silent(self, kept: Kept, connected: bool) -> bool:
        """Whether a sender that keeps something of ours is not expected to speak soon."""
        return kept.blocks > 0 and (not connected or kept.oldest_s >= self._silence_s)

    def in_vain(
        self, fetches: Fetches, fetch: Fetch, connected: bool, now_s: float
    ) -> Kept | None:
        """What keeps *fetch* waiting for ever, should its sender be silent for ever."""
        kept = self.kept(fetches, fetch.peer, now_s)
        if not self.is_silent(kept, connected):
            return None
        others = fetches.everywhere - fetches.reached.get(fetch.peer, 0)
        room = self._share.admits(RECEIVE, fetch.size, kept.bytes, others + kept.bytes)
        return None if room and kept.blocks < OPEN_LIMIT else kept
