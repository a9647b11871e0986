"""Blocks of our pool that senders may write into unasked: when, how many, and how they come back.

The states are drawn in :mod:`stagelink.core.handshake.grants`. What is lent is a get that nobody
has asked for (``Fetch.lent``): it ends as any other, and losing it costs a pull and no payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.handshake.fetch import DRAINING, GRANTED
from stagelink.core.handshake.grants import GRANTS_LIMIT, PASSED_LIMIT
from stagelink.core.messages import OPEN_LIMIT, Granted, Grants
from stagelink.core.pool import RECEIVE, Block
from stagelink.core.values import RegionRef

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.gets import Gets
    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.pool import Pool
    from stagelink.core.settings import Settings
    from stagelink.core.share import Share
    from stagelink.core.source import Source
    from stagelink.core.timers import Timers


class Lending:
    """Lends at most ``credit_share`` of the pool, and to one of n senders 1/(n+1) of that.

    What landed and nobody has asked for counts as lent, so a backlog ends the lending by itself.
    """

    __slots__ = ("_gets", "_idle_s", "_pool", "_share", "_timers", "_whole")

    def __init__(
        self, gets: Gets, pool: Pool, timers: Timers, share: Share, settings: Settings
    ) -> None:
        self._gets = gets
        self._pool = pool
        self._timers = timers
        self._share = share
        self._idle_s = settings.policy.credit_idle_s
        self._whole = int(settings.credit_share * pool.capacity)

    def stop(self) -> None:
        """Lend nothing from now on."""
        self._whole = 0

    def noted(self, source: Source, size: int, *, lent: bool, out: list[Action]) -> None:
        """*source* has published so many bytes, into what is *lent* to it or not.

        More is lent with the next release or report: a caller that waits is not kept waiting.
        """
        source.grants.sizes.append(size)
        source.grants.due = True
        if lent:
            source.grants.passed = 0
        else:
            self._not_used(source, size, out)

    def _not_used(self, source: Source, size: int, out: list[Action]) -> None:
        """Take back what is too small by now, or all if it is large enough and not used."""
        grants, wanted = source.grants, source.grants.size(self._share.unit)
        mine = self._gets.fetches.lent_to(source.peer)
        free = [fetch for fetch in mine if fetch.state == GRANTED]
        if any(fetch.size >= size for fetch in free):
            grants.passed += 1
            if grants.passed == PASSED_LIMIT:  # it has another reader, who could be meant
                self.revoke(source, out)
        for fetch in free:
            if fetch.size < wanted:
                self.discard(fetch, out)

    def lend_if_due(self, source: Source, out: list[Action]) -> None:
        """As :meth:`lend`, if there is news of *source*: what comes back idle stays here."""
        if source.grants.due:
            self.lend(source, out)

    def lend(self, source: Source, out: list[Action]) -> None:
        """Lend *source* what it may have, if that is half of it or more."""
        source.grants.due = False
        have = self._gets.fetches.lent_count(source.peer)
        if 2 * have > GRANTS_LIMIT or not self._is_willing(source):
            return
        size, limit = source.grants.size(self._share.unit), self._limit()
        if 2 * have > min(GRANTS_LIMIT, limit // size):
            return  # a message is worth more than one or two
        granted: list[Granted] = []
        while self._may_lend(source, size, limit):
            number = self._gets.fetches.next_number
            now_s = self._gets.now_s
            block = self._pool.reserve(2 * number + 1, size, RECEIVE, now_s, now_s)
            if not isinstance(block, Block):
                break
            granted.append(self._grant(source, block))
        if granted:
            source.send(Grants(tuple(granted)), self._gets.fetches, out)
            self.used(source)

    def used(self, source: Source) -> None:
        """Grants of *source* are in use: they stay with it for a while."""
        self._timers.arm(("idle", source.address), self._gets.now_s + self._idle_s)

    def revoke(self, source: Source, out: list[Action]) -> None:
        """Ask for what *source* has not spent; the blocks drain until it answers."""
        for fetch in self._gets.fetches.lent_to(source.peer):
            if fetch.state == GRANTED:
                self.discard(fetch, out)

    def forget(self, source: Source, out: list[Action]) -> None:
        """Keep nothing that landed, and wait for nothing that is still written."""
        for fetch in self._gets.fetches.lent_to(source.peer):
            self.discard(fetch, out)

    def make_room(self, out: list[Action]) -> None:
        """A get waits for room: ask for all that is lent, and let go of what landed unasked."""
        for source in self._gets.sources.values():
            self.forget(source, out)

    def discard(self, fetch: Fetch, out: list[Action]) -> None:
        """Take one grant back, whatever has become of it; one that drains comes back by itself."""
        if fetch.state != DRAINING and self._gets.fetches.get(fetch.number) is fetch:
            self._gets.give_up(fetch, Reason.CANCELLED.value, "no longer lent", out)

    def idle_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """Nothing has been written into what is lent for a while."""
        self._gets.now_s = now_s
        source = self._gets.sources[address]
        source.grants.passed = 0  # it may be alone by now
        self.revoke(source, out)

    def _is_willing(self, source: Source) -> bool:
        """Whether to lend to *source* at all: it takes credits, and nobody waits for room."""
        grants = source.grants
        use = grants.agreed and grants.sizes and grants.passed < PASSED_LIMIT
        return bool(use and source.open and not source.gone and not source.stalled) and (
            not self._pool.waits
        )

    def _limit(self) -> int:
        """The most bytes for one sender."""
        peers = sum(1 for source in self._gets.sources.values() if source.peer)
        return self._whole // (peers + 1)

    def _may_lend(self, source: Source, size: int, limit: int) -> bool:
        """Whether *source* may have one block more."""
        fetches, peer = self._gets.fetches, source.peer
        mine = [fetch.block.size for fetch in fetches.lent_to(peer) if fetch.block]
        everywhere = fetches.everywhere
        return (
            len(mine) < GRANTS_LIMIT
            and len(fetches.open_ids(peer)) < OPEN_LIMIT // 2
            and sum(mine) + size <= limit
            and fetches.lent_bytes + size <= self._whole
            and self._share.admits(RECEIVE, size, fetches.reached.get(peer, 0), everywhere)
        )

    def _grant(self, source: Source, block: Block) -> Granted:
        fetches = self._gets.fetches
        transfer = fetches.mint_transfer()
        fetch = fetches.start(0, source.address, "", 0)
        fetches.set(
            fetch._replace(
                state=GRANTED, peer=source.peer, size=block.size, transfer=transfer, block=block,
                lent=True,
            )
        )  # fmt: skip
        return Granted(transfer, RegionRef(block.pool, block.offset, block.size))
