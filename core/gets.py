"""The transitions of a get: where the inbox, the pool and the messages meet.

The states are drawn in :mod:`stagelink.core.handshake.fetch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Complete, Delivery, Failure
from stagelink.core.handshake.fetch import (
    DRAINING,
    GRANTED,
    HELD,
    LANDED,
    PULLING,
    QUEUED,
    Fetch,
    Fetches,
)  # fmt: skip
from stagelink.core.handshake.session import OPEN
from stagelink.core.lending import Lending
from stagelink.core.messages import (
    CLAIM,
    ERROR,
    INLINE,
    OFFER,
    PULL,
    Ack,
    Cancel,
    Pull,
)
from stagelink.core.pool import RECEIVE, Block, Refusal
from stagelink.core.refusals import describe
from stagelink.core.share import Debts, Share
from stagelink.core.shelf import Shelf
from stagelink.core.source import FLUSH_BYTES, FLUSH_CHANGES
from stagelink.core.streams import MARK
from stagelink.core.values import NO_INSTANCE, RegionRef, new
from stagelink.core.violations import Violation, Violations
from stagelink.core.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action
    from stagelink.core.handshake.inbox import Known
    from stagelink.core.messages import Announce
    from stagelink.core.pool import Grant, Pool
    from stagelink.core.settings import Settings
    from stagelink.core.source import Source
    from stagelink.core.timers import Timers


class Gets:
    """Every get of a receiver, from the call to the last view."""

    __slots__ = (
        "_grant", "_timers", "ack_delay_s", "debts", "fetches", "lending", "now_s", "pool",
        "shelf", "sources", "violations", "waits",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, timers: Timers, settings: Settings,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        policy, share = settings.policy, Share(settings.peer_share, pool)
        self.pool = pool
        self._timers = timers
        self._grant = grant
        self.ack_delay_s = policy.ack_delay_s
        self.debts = Debts(share, policy.silence_s)
        self.lending = Lending(self, pool, timers, share, settings)
        self.now_s = 0.0
        self.fetches = Fetches(share.unit)
        self.sources: dict[str, Source] = {}
        self.waits = Waits(timers)
        self.shelf = Shelf()
        self.violations = Violations()

    def is_young(self, source: Source) -> bool:
        """Whether *source* was dialled for the first time only a moment ago."""
        return self._timers.when(("first", source.address), -1.0) >= 0.0

    def hand_out(
        self, source: Source, known: Known | Announce, ticket: int, out: list[Action]
    ) -> None:
        """Deliver inline bytes that nobody works on: all of the get in one step."""
        key, generation, size, body = known.key, known.generation, known.size, known.body
        said = (0, generation, size, source.peer, body, None, None)
        out.append(new(Complete, (ticket, new(Delivery, said))))
        source.consume(key, generation, size)

    def answer(
        self, source: Source, fetch: Fetch, known: Known | Announce, out: list[Action]
    ) -> None:
        """Deliver inline bytes that nobody works on to a get that has waited for them."""
        self._timers.disarm(("fetch", fetch.number))
        self.fetches.end(fetch)
        self.hand_out(source, known, fetch.ticket, out)

    def advance(self, source: Source, key: str, out: list[Action]) -> None:
        """Give the newest announcement of *key* to the oldest get that waits for it.

        If none does, those hear of it who wait for the first of many keys.
        """
        known = source.inbox.get(key)
        at_work = self.fetches.get(known.fetch) if known else None
        if known is None or (at_work is not None and not at_work.lent):
            return
        fetch = self.fetches.first_waiting(source.address, key, known.generation)
        if fetch is not None:
            self.take(source, fetch, known, out)
        else:
            self.waits.tell(source.address, key, out)

    def fail_replaced(self, source: Source, key: str, newest: int, out: list[Action]) -> None:
        """End the gets that wait for an older generation of *key*: they only ever grow."""
        for fetch in self.fetches.waiting_for(source.address, key):
            here = fetch.want_instance in {NO_INSTANCE, source.peer}
            if here and 0 < fetch.want < newest:
                detail = f"generation {newest} has taken its place"
                self.give_up(fetch, Reason.REPLACED.value, detail, out)

    def take(
        self, source: Source, fetch: Fetch, known: Known | Announce, out: list[Action]
    ) -> None:
        """Let *fetch* work on an announcement that nobody works on."""
        if fetch.want_size not in {0, known.size}:
            detail = f"{fetch.want_size} bytes were asked for, {known.size} are published"
            self.fail(fetch, Reason.MISMATCH.value, detail, out)
            return
        if known.how == INLINE:
            self.answer(source, fetch, known, out)
            self.touch(source, out)
            return
        self._begin(source, fetch, known, out)

    def _begin(
        self, source: Source, fetch: Fetch, known: Known | Announce, out: list[Action]
    ) -> None:
        """Go the way on which the payload is had."""
        fetch = fetch._replace(
            peer=source.peer, generation=known.generation, size=known.size, where=known.where,
            body=known.body,
        )  # fmt: skip
        if known.how == ERROR:
            self._hear(source, fetch, known, out)
        elif known.how == OFFER:
            source.inbox.assign(known.key, known.generation, fetch.number)
            self.deliver(source, fetch, out)
        elif known.how == PULL and self._take_over(source, fetch, known, out):
            return
        elif self.debts.is_full(self.fetches, fetch, known.how):
            self._stall(source, fetch, out)
        elif known.how == CLAIM:
            source.inbox.assign(known.key, known.generation, fetch.number)
            self.pull(source, fetch, None, out)
        else:
            assert known.how == PULL
            source.inbox.assign(known.key, known.generation, fetch.number)
            self._queue(source, fetch, out)

    def _take_over(
        self, source: Source, fetch: Fetch, known: Known | Announce, out: list[Action]
    ) -> bool:
        """Let *fetch* have what is in a block that we have lent, or is being written there."""
        lent = self.fetches.working_on(source.peer, known.generation)
        if lent is None or not lent.lent:
            return False
        self.fetches.end(lent)
        fetch = fetch._replace(state=lent.state, transfer=lent.transfer, block=lent.block)
        self.fetches.set(fetch)
        source.inbox.assign(known.key, known.generation, fetch.number)
        if fetch.state == LANDED:
            self.deliver(source, fetch, out)
        return True

    def _stall(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        """Wait for the end of an earlier transfer, if one is to be expected."""
        source.stalled[fetch.key] = None
        self.lending.revoke(source, out)
        kept = self.debts.in_vain(self.fetches, fetch, source.open, self.now_s)
        if kept is not None:
            self.fail(fetch, Reason.QUARANTINED.value, str(kept), out)

    def _hear(
        self, source: Source, fetch: Fetch, known: Known | Announce, out: list[Action]
    ) -> None:
        """The news is that nothing comes: the producer failed, or a stream is over."""
        source.consume(known.key, known.generation, 0)
        if MARK in known.key:  # the sender may use the stream's key again
            source.send(Ack(()), self.fetches, out)
        self.fail(fetch, Reason.FAILED.value, known.body.decode("utf-8", "replace"), out)

    def _queue(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        fetch = self.fetches.set(fetch._replace(state=QUEUED))
        deadline_s = self._timers.when(("fetch", fetch.number), self.now_s)
        waiter = 2 * fetch.number + 1
        room = self.pool.reserve(waiter, fetch.size, RECEIVE, deadline_s, self.now_s)
        if isinstance(room, Block):
            self.pull(source, fetch, room, out)
        elif isinstance(room, Refusal):
            reason = Reason.NEVER_FITS if room.never_fits else Reason.NO_ROOM
            self.fail(fetch, reason.value, describe(room), out)
        else:
            self.lending.make_room(out)

    def pull(self, source: Source, fetch: Fetch, block: Block | None, out: list[Action]) -> None:
        """Ask for the payload under a new id: into *block*, or where it lies (None)."""
        transfer = self.fetches.mint_transfer()
        fetch = fetch._replace(state=PULLING, transfer=transfer, block=block, where=None)
        self.send_pull(source, self.fetches.set(fetch), out)

    def send_pull(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        """Say (again) what a PULLING get wants."""
        budget_s = self._timers.when(("fetch", fetch.number), self.now_s) - self.now_s
        target = None
        if fetch.block is not None:
            target = RegionRef(fetch.block.pool, fetch.block.offset, fetch.size)
        pull = Pull(fetch.transfer, fetch.generation, target, max(0.0, budget_s))
        source.send(pull, self.fetches, out)

    def deliver(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        """The payload is here: to the caller, or kept for the next one who asks."""
        if not fetch.ticket:
            self.fetches.set(fetch._replace(state=LANDED))
            return
        if fetch.block is not None:  # until it has a taker, the open id keeps the reader's slot
            fetch = fetch._replace(transfer=0)
        inline = fetch.block is None and fetch.where is None
        said = (
            0 if inline else fetch.number, fetch.generation, fetch.size, fetch.peer, fetch.body,
            fetch.block, fetch.where,
        )  # fmt: skip
        out.append(new(Complete, (fetch.ticket, new(Delivery, said))))
        self._timers.disarm(("fetch", fetch.number))
        if inline:
            self.fetches.set(fetch)
            self.fetches.end(fetch)
        else:
            self.fetches.set(fetch._replace(state=HELD, ticket=0, body=b""))
        if fetch.where is None:
            self.consumed(source, fetch, out)

    def give_up(self, fetch: Fetch, reason: str, detail: str, out: list[Action]) -> None:
        """End a get from our side; a block that a write may still reach goes into quarantine."""
        if fetch.state not in {PULLING, GRANTED} or fetch.block is None:
            self.fail(fetch, reason, detail, out)
            return
        self._answer(fetch, reason, detail, out)
        self.pool.quarantine(fetch.block, {fetch.transfer})
        self.debts.since[fetch.transfer] = self.now_s
        source = self.sources[fetch.address]
        self.fetches.set(fetch._replace(state=DRAINING, ticket=0))
        self._timers.disarm(("fetch", fetch.number))
        source.send(Cancel(fetch.transfer), self.fetches, out)
        self.free_entry(source, fetch, out)

    def fail(self, fetch: Fetch, reason: str, detail: str, out: list[Action]) -> None:
        """End a get whose block, if it has one, no write can reach."""
        self._answer(fetch, reason, detail, out)
        source = self.sources[fetch.address]
        self.let_go(fetch, out)
        self.free_entry(source, fetch, out)

    def _answer(self, fetch: Fetch, reason: str, detail: str, out: list[Action]) -> None:
        if fetch.ticket:
            peer = self.sources[fetch.address].label
            failure = Failure(reason, detail, peer, fetch.transfer, fetch.generation)
            out.append(Complete(fetch.ticket, failure))

    def let_go(self, fetch: Fetch, out: list[Action]) -> None:
        """Take a get out of the table, and its memory or its place in the queue with it."""
        self._timers.disarm(("fetch", fetch.number))
        self.fetches.end(fetch)
        if fetch.state == QUEUED:
            self._grant(self.pool.leave(2 * fetch.number + 1), out)
        elif fetch.block is not None:
            self._grant(self.pool.free(fetch.block), out)
        self._books_changed(fetch, out)
        self.retry_stalled(self.sources[fetch.address], out)

    def drained(self, fetch: Fetch, out: list[Action]) -> None:
        """No write of this transfer can follow: its block leaves quarantine."""
        self.fetches.end(fetch)
        self.debts.since.pop(fetch.transfer, None)
        self._grant(self.pool.ended(fetch.transfer), out)
        self._books_changed(fetch, out)

    def _books_changed(self, fetch: Fetch, out: list[Action]) -> None:
        source = self.sources[fetch.address]
        source.owed += 1
        self.touch(source, out)

    def free_entry(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        """Nobody works on that announcement any more; the next get may."""
        known = source.inbox.get(fetch.key)
        if known is not None and known.fetch == fetch.number:
            source.inbox.assign(fetch.key, known.generation, 0)
        self.advance(source, fetch.key, out)

    def back_to_waiting(self, fetch: Fetch, out: list[Action]) -> None:
        """What it worked on was replaced: free what it holds and wait for the successor."""
        source = self.sources[fetch.address]
        source.inbox.drop(fetch.key, fetch.generation)
        if fetch.state == QUEUED:
            self._grant(self.pool.leave(2 * fetch.number + 1), out)
        elif fetch.block is not None:
            self._grant(self.pool.free(fetch.block), out)
        if not fetch.ticket:
            self._timers.disarm(("fetch", fetch.number))
            self.fetches.end(fetch)
        else:
            anew = Fetch(
                fetch.number, fetch.ticket, fetch.address, fetch.key, fetch.want,
                want_size=fetch.want_size, want_instance=fetch.want_instance,
            )  # fmt: skip
            self.fetches.set(anew)
        self.advance(source, fetch.key, out)
        self.retry_stalled(source, out)

    def not_that_one(self, fetch: Fetch, reason: str, detail: str, out: list[Action]) -> None:
        """A queued get's payload has gone from the log."""
        if reason == Reason.REPLACED.value and not fetch.want:
            self.back_to_waiting(fetch, out)
        else:
            self.fail(fetch, reason, detail, out)

    def violated(self, fetch: Fetch, detail: str, out: list[Action]) -> None:
        """The answer does not fit what was asked; it ends the transfer id all the same."""
        self.violations[Violation.ANSWER] += 1
        self.fail(fetch, Reason.PROTOCOL.value, detail, out)

    def consumed(self, source: Source, fetch: Fetch, out: list[Action]) -> None:
        """The payload of *fetch* has been used; a relic's sender counts no more readers."""
        if not fetch.relic and source.peer == fetch.peer:
            source.consume(fetch.key, fetch.generation, fetch.size)
        self.touch(source, out)

    def touch(self, source: Source, out: list[Action]) -> None:
        """Our books have changed: a report is due soon, or now if much memory waits for it."""
        if source.session.state != OPEN:
            return
        if source.owed_bytes >= FLUSH_BYTES or source.owed >= FLUSH_CHANGES:
            source.send(Ack(()), self.fetches, out)
        elif source.owed or source.notices:
            self._timers.arm_once(("ack", source.address), self.now_s + self.ack_delay_s)

    def retry_stalled(self, source: Source, out: list[Action]) -> None:
        """A transfer id has closed: whoever waited for one may try."""
        keys = list(source.stalled)
        source.stalled.clear()
        for key in keys:
            self.advance(source, key, out)
