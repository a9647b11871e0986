"""What an open conversation brings: announcements, ends of payloads, ends of transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.handshake.fetch import ANEW, DRAINING, GRANTED, LANDED, PULLING, QUEUED
from stagelink.core.messages import INLINE, PULL, Announce
from stagelink.core.prospects import safe
from stagelink.core.rejections import reject_announced
from stagelink.core.source import FINAL
from stagelink.core.streams import MARK, stream_of
from stagelink.core.violations import ENDS, REFUSALS, Violation

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.gets import Gets
    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.messages import Done, Ended, Gone, Landed, Offer, Refused
    from stagelink.core.pool import Pool
    from stagelink.core.source import Source

_KEEPS_ENTRY = frozenset({Reason.TRANSFER_FAILED.value, Reason.BUDGET.value})
"""Refusals after which the payload may be asked for again."""


class Arrivals:
    """News of one sender's log and of our transfers; ``late`` counts what nobody waits for."""

    __slots__ = ("_gets", "_pool", "late")

    def __init__(self, pool: Pool, gets: Gets) -> None:
        self._pool = pool
        self._gets = gets
        self.late = 0

    # --- the log -------------------------------------------------------------------------

    def announce(self, source: Source, message: Announce, out: list[Action]) -> None:
        """A payload is published: to the get that waits for it, or into the inbox."""
        number, key, generation, size, how, where, body = message
        source.cursor = max(source.cursor, number)
        source.owed += 1
        source.owed_bytes += len(body)
        source.recent.pop(key, None)
        if generation in source.consumed:
            source.consumed[generation] = True
            return
        known = source.inbox.by_key.get(key)
        if known is not None and known.generation >= generation:
            return
        gets = self._gets
        fetches = gets.fetches
        at_work = fetches.active.get((source.peer, generation), 0)
        if (where is not None and where.size != size) or not (number and generation) or (
            at_work and not self._is_of(at_work, key)
        ):  # fmt: skip
            self._forged(source, message, out)
            return
        if how == INLINE and not (known or at_work or source.rejected):
            fetch = fetches.first_waiting(source.address, key, generation)
            if fetch is not None and fetch.want_size in {0, size}:  # it need not be known at all
                gets.answer(source, fetch, message, out)
                return
        self._keep(source, message, at_work, out)
        if how == PULL:
            gets.lending.noted(source, size, lent=bool(at_work), out=out)

    def landed(self, source: Source, message: Landed, out: list[Action]) -> None:
        """A payload is published, which is written into a block that we have lent."""
        number, key, generation, size, transfer, there, body = message
        fetches, lending = self._gets.fetches, self._gets.lending
        fetch = fetches.of_transfer(source.peer, transfer)
        fits = self._fits(fetch, message)
        if there and fits and self._hand_over(source, fetch, message, out):  # type: ignore[arg-type]
            return
        announced = Announce(number, key, generation, size, PULL, None, body)
        if not fits:
            self._misses(source, fetch, message, out)
            self.announce(source, announced, out)
            return
        assert fetch is not None
        assert fetch.block is not None
        if there:
            self._pool.hold(fetch.block)
        state = LANDED if there else PULLING
        fetch = fetch._replace(state=state, key=key, generation=generation, size=size, body=body)
        fetches.set(fetch)
        lending.used(source)
        self.announce(source, announced, out)
        known = source.inbox.get(key)
        if fetches.get(fetch.number) is fetch and (known is None or known.fetch != fetch.number):
            lending.discard(fetch, out)  # known to be of no use: rejected, or older than another

    def _hand_over(self, source: Source, lent: Fetch, message: Landed, out: list[Action]) -> bool:
        """Give what has landed to the get that waits for it: it need not be known at all."""
        number, key, generation, size, _, _, body = message
        if key in source.inbox.by_key or generation in source.consumed or source.rejected:
            return False
        gets = self._gets
        fetch = gets.fetches.first_waiting(source.address, key, generation)
        if fetch is None or fetch.want_size not in {0, size} or not number:
            return False
        assert lent.block is not None
        self._pool.hold(lent.block)
        source.cursor = max(source.cursor, number)
        source.owed += 1
        source.recent.pop(key, None)
        gets.fetches.end(lent)
        had = fetch._replace(
            peer=source.peer, generation=generation, size=size, block=lent.block, body=body
        )
        gets.deliver(source, had, out)
        gets.fail_replaced(source, key, generation, out)
        gets.lending.used(source)
        gets.lending.noted(source, size, lent=True, out=out)
        return True

    def _fits(self, fetch: Fetch | None, message: Landed) -> bool:
        """Whether *message* names a block that is lent, and can be what is written there."""
        if fetch is None or fetch.block is None or fetch.state != GRANTED:
            return False
        taken = (fetch.peer, message.generation) in self._gets.fetches.active
        return message.size <= fetch.block.size and message.generation > 0 and not taken

    def _misses(
        self, source: Source, fetch: Fetch | None, message: Landed, out: list[Action]
    ) -> None:
        """We have asked for that block back meanwhile, and this may be the answer; or it lies."""
        if fetch is None or fetch.state != DRAINING:
            self._gets.violations[Violation.ANSWER] += 1
        elif message.there:
            self._ended(source, message.transfer, out)

    def _keep(self, source: Source, message: Announce, at_work: int, out: list[Action]) -> None:
        """Know *message*, on which the get *at_work* (0: none) works."""
        gets = self._gets
        viewed = gets.fetches.get(at_work)
        if viewed is not None and viewed.relic == ANEW:
            # Viewed since before the log began anew, and still in it: so its end will be counted.
            gets.fetches.set(viewed._replace(relic=0))
        source.inbox.add(message, at_work)
        if source.rejected:
            reject_announced(gets, source, message, out)
        gets.fail_replaced(source, message.key, message.generation, out)
        gets.advance(source, message.key, out)

    def _is_of(self, number: int, key: str) -> bool:
        fetch = self._gets.fetches.get(number)
        return fetch is not None and fetch.key == key

    def _forged(self, source: Source, message: Announce, out: list[Action]) -> None:
        """No payload can be like that: whoever waits for it need not wait any longer."""
        gets, where = self._gets, message.where
        misplaced = where is not None and where.size != message.size
        gets.violations[Violation.REGION if misplaced else Violation.GENERATION] += 1
        detail = f"{message.size} bytes, generation {message.generation}, announced at {where}"
        for waiting in gets.fetches.waiting_for(source.address, message.key):
            gets.give_up(waiting, Reason.PROTOCOL.value, detail, out)

    def ended(self, source: Source, message: Ended, out: list[Action]) -> None:
        """Payloads have left the log."""
        for record in message.records:
            if record.reason in ENDS:
                self._gone(source, record, out)
            else:
                self._gets.violations[Violation.REASON] += 1

    def _gone(self, source: Source, message: Gone, out: list[Action]) -> None:
        _, key, generation, reason, detail = message
        source.cursor = max(source.cursor, message.number)
        source.owed += 1
        used = source.consumed.pop(generation, None) is not None
        source.inbox.drop(key, generation)
        gets = self._gets
        fetch = gets.fetches.working_on(source.peer, generation)
        if fetch is not None and fetch.key != key:
            gets.violations[Violation.GENERATION] += 1
            return
        stream = stream_of(key)
        # Of a chunk that we had, no end is news: who asks for its key now means the next stream.
        news = MARK not in key or not (used or safe(fetch))
        if news:
            source.remember(stream or key, reason, detail)
        if fetch is not None:
            self._left(fetch, message, out)
        final = news and (reason in FINAL or bool(stream))
        for waiting in gets.fetches.waiting_for(source.address, key):
            if waiting.want == generation or (not waiting.want and final):
                gets.give_up(waiting, reason, detail, out)
        if final:
            gets.waits.tell(source.address, key, out)

    def _left(self, fetch: Fetch, message: Gone, out: list[Action]) -> None:
        """The payload that a get works on has left the log."""
        if fetch.lent:
            self._gets.lending.discard(fetch, out)
        elif fetch.state == QUEUED:
            self._gets.not_that_one(fetch, message.reason, message.detail, out)
        else:
            self._gets.fetches.set(fetch._replace(relic=message.number))

    # --- transfers -----------------------------------------------------------------------

    def offer(self, source: Source, message: Offer, out: list[Action]) -> None:
        """What we claimed is ours, where it lies."""
        fetch = self._gets.fetches.of_transfer(source.peer, message.transfer)
        if fetch is None or fetch.state != PULLING or fetch.block is not None:
            self.late += 1
            return
        size = len(message.body) if message.where is None else message.where.size
        if (message.generation, size) != (fetch.generation, fetch.size):
            self._gets.violated(fetch, "the offer is of another payload or size", out)
        else:
            fetch = fetch._replace(where=message.where, body=message.body)
            self._gets.deliver(source, fetch, out)

    def done(self, source: Source, message: Done, out: list[Action]) -> None:
        """A write into our block has ended well."""
        fetch = self._ended(source, message.transfer, out)
        if fetch is None:
            return
        told = (message.generation, message.size)
        if fetch.block is None or told != (fetch.generation, fetch.size):
            self._gets.violated(fetch, "done names another generation or length", out)
            return
        self._pool.hold(fetch.block)
        self._gets.deliver(source, fetch, out)
        self._gets.retry_stalled(source, out)

    def refused(self, source: Source, message: Refused, out: list[Action]) -> None:
        """Nothing comes of a transfer, nor will anything be written for it."""
        fetch = self._ended(source, message.transfer, out)
        if fetch is None:
            return
        if message.reason not in REFUSALS:
            self._gets.violations[Violation.REASON] += 1
            self._gets.fail(fetch, Reason.PROTOCOL.value, f"refused as {message.reason!r}", out)
        elif message.reason == Reason.CLOSED.value:  # it, and not we
            self._gets.fail(fetch, Reason.PEER_GONE.value, message.detail, out)
        elif message.reason == Reason.REPLACED.value and not fetch.want:
            self._gets.back_to_waiting(fetch, out)
        else:
            if message.reason not in _KEEPS_ENTRY:
                source.inbox.drop(fetch.key, fetch.generation)
            self._gets.fail(fetch, message.reason, message.detail, out)
        self._gets.retry_stalled(source, out)

    def _ended(self, source: Source, transfer: int, out: list[Action]) -> Fetch | None:
        """The get that waits for the end of *transfer*; one that drains ends here, uncounted."""
        fetch = self._gets.fetches.of_transfer(source.peer, transfer)
        if fetch is not None and fetch.state in {PULLING, GRANTED}:
            source.owed += 1  # the id closes, and the sender must hear of it
            return fetch
        self.late += 1
        if fetch is not None and fetch.state == DRAINING:
            self._gets.drained(fetch, out)
            self._gets.retry_stalled(source, out)
        return None
