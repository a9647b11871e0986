"""The receiving half of an endpoint: its calls, and which part answers which message.

Gets go through :mod:`stagelink.core.gets`; conversations are :mod:`stagelink.core.senders`, what
they bring :mod:`stagelink.core.arrivals`, what becomes of a payload that is here
:mod:`stagelink.core.deliveries`, and how calls end without one :mod:`stagelink.core.endings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.arrivals import Arrivals
from stagelink.core.deliveries import Deliveries
from stagelink.core.endings import Endings
from stagelink.core.errors import Reason
from stagelink.core.events import Complete, Failure, Get, Poll
from stagelink.core.gets import Gets
from stagelink.core.handshake.fetch import DRAINING, HELD, QUEUED, WAITING, Fetches
from stagelink.core.handshake.session import GREETING, OPEN, Session
from stagelink.core.messages import (
    INLINE,
    Announce,
    Bye,
    Done,
    Ended,
    Landed,
    Offer,
    Refused,
    Synced,
    Welcome,
)  # fmt: skip
from stagelink.core.prospects import is_there
from stagelink.core.rejections import reject
from stagelink.core.senders import Senders
from stagelink.core.source import Source
from stagelink.core.streams import stream_of
from stagelink.core.values import NO_INSTANCE, new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action, Await, CancelKey
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.messages import Packet
    from stagelink.core.pool import Block, Grant, Pool
    from stagelink.core.settings import Settings
    from stagelink.core.shelf import Shelf
    from stagelink.core.timers import Timers
    from stagelink.core.values import Link
    from stagelink.core.violations import Violations
    from stagelink.core.waits import Waits


class Incoming:
    """Begins gets, polls and waits, and routes what senders say."""

    __slots__ = (
        "_gets", "_handlers", "_peers", "_timers", "arrivals", "deliveries", "endings", "senders",
        "stale",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, pool: Pool, timers: Timers, peers: Peers,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        self._timers = timers
        self._peers = peers
        self._gets = gets = Gets(pool, timers, settings, grant)
        self.deliveries = Deliveries(settings, timers, gets)
        self.endings = Endings(gets)
        self.senders = Senders(settings, timers, peers, gets, self.endings)
        self.arrivals = Arrivals(pool, gets)
        self.stale = 0
        self._handlers: dict[type, Callable[..., None]] = {
            Welcome: self.senders.welcome,
            Synced: self.senders.synced,
            Announce: self.arrivals.announce,
            Landed: self.arrivals.landed,
            Ended: self.arrivals.ended,
            Offer: self.arrivals.offer,
            Done: self.arrivals.done,
            Refused: self.arrivals.refused,
            Bye: self.senders.bye,
        }

    @property
    def fetches(self) -> Fetches:
        """Every get that is not over."""
        return self._gets.fetches

    @property
    def sources(self) -> dict[str, Source]:
        """Every sender we were asked to get from, by address."""
        return self._gets.sources

    @property
    def waits(self) -> Waits:
        """Every call that waits for the first of many keys."""
        return self._gets.waits

    @property
    def shelf(self) -> Shelf:
        """Deliveries that reached no caller."""
        return self._gets.shelf

    @property
    def violations(self) -> Violations:
        """What senders said that they may not."""
        return self._gets.violations

    # --- calls ---------------------------------------------------------------------------

    def get(self, command: Get, now_s: float, out: list[Action]) -> None:
        """Begin a get, or give it what a poll has fetched already."""
        gets = self._gets
        gets.now_s = now_s
        source = self.senders.find(command.address, command.source, out)
        key, ticket = command.key, command.ticket
        source.rejected.pop(key, None)  # who asks for it wants it again
        if self._answered_at_once(source, command, out):
            return
        known = source.inbox.by_key.get(key)
        if known is not None:
            newest = not (command.generation or command.size)
            ours = newest and command.instance in {NO_INSTANCE, source.peer}
            if known.how == INLINE and ours and not known.fetch:
                gets.hand_out(source, known, ticket, out)
                gets.touch(source, out)
                return
            if self.deliveries.adopt(source, command, out):
                return
        fetch = gets.fetches.start(
            ticket,
            command.address,
            key,
            command.generation,
            want_size=command.size,
            want_instance=command.instance,
        )
        if command.instance and source.open and self.endings.of_another(source, fetch, out):
            return
        self._timers.arm(("fetch", fetch.number), command.deadline_s)
        self.senders.expect_successor(source)
        if known is not None:
            gets.fail_replaced(source, key, known.generation, out)
            gets.advance(source, key, out)
        elif source.inbox.forgot:
            source.ask_if_forgotten(key, gets.fetches, out)

    def poll(self, command: Poll, now_s: float, out: list[Action]) -> None:
        """Answer at once; what needs a pull is fetched in the background."""
        gets = self._gets
        gets.now_s = now_s
        source = self.senders.find(command.address, command.source, out)
        ticket, key = command.ticket, command.key
        if self._answered_at_once(source, command, out):
            return
        if command.instance not in {NO_INSTANCE, source.peer}:
            out.append(Complete(ticket, None))  # what is known is of another instance
            return
        if self.deliveries.landed(source, key, ticket, out):
            return
        known = source.inbox.get(key)
        if known is None:
            source.ask_if_forgotten(key, gets.fetches, out)
        elif known.how == INLINE and not known.fetch:
            gets.hand_out(source, known, ticket, out)
            gets.touch(source, out)
            return
        elif not known.fetch:
            fetch = gets.fetches.start(ticket, source.address, key, 0)
            self._timers.arm(("fetch", fetch.number), command.deadline_s)
            gets.take(source, fetch, known, out)
            if not self._goes_on(fetch.number, out):
                return
        out.append(Complete(ticket, None))

    def absent(self, address: str, stage: str, key: str) -> bool:
        """Whether a poll would find nothing and change nothing; a look, from any thread."""
        source = self._gets.sources.get(address)
        return (
            source is not None
            and source.session.state == OPEN
            and source.stage == stage
            and not source.inbox.forgot
            and key not in source.inbox.by_key
            and key not in source.recent
            and not self._gets.shelf.by_number
        )

    def _goes_on(self, number: int, out: list[Action]) -> bool:
        """Whether a poll's get is still under way; it goes on with nobody waiting."""
        fetch = self.fetches.get(number)
        if fetch is None or not fetch.ticket:
            return False
        fetch = self.fetches.set(fetch._replace(ticket=0))
        if fetch.state == WAITING:
            self._gets.let_go(fetch, out)
        return True

    def wait(self, command: Await, now_s: float, out: list[Action]) -> None:
        """Answer with the first key that a get would not wait for, now or when there is one."""
        self._gets.now_s = now_s
        source = self.senders.find(command.address, command.source, out)
        refusal = source.refusal(command.source)
        ready = [key for key in command.keys if is_there(self._gets, source, key)]
        ended = (key for key in command.keys if source.known_end(key)[0])
        key = ready[0] if ready else next(ended, None)
        if refusal is not None or key is not None:
            out.append(Complete(command.ticket, refusal or key))
            return
        for key in command.keys:
            source.rejected.pop(key, None)  # who waits for it wants it again
        self.waits.begin(command)
        self.senders.expect_successor(source)
        for key in command.keys:
            source.ask_if_forgotten(key, self.fetches, out)

    def cancel_key(self, command: CancelKey, now_s: float, out: list[Action]) -> None:
        """End every get of a key; rejecting also counts us as its reader, now or when it comes."""
        self._gets.now_s = now_s
        source = self.senders.find(command.address, command.source, out)
        wanted = [
            fetch
            for fetch in self.fetches.all()
            if fetch.address == command.address
            and command.key in {fetch.key, stream_of(fetch.key)}
            and fetch.state not in {HELD, DRAINING}
        ]
        if command.reject and command.instance in {NO_INSTANCE, source.peer}:
            reject(self._gets, source, command.key, out)
            for kept in self.shelf.all() if len(self.shelf) else ():
                named = {kept.key, stream_of(kept.key)}
                if kept.address == command.address and command.key in named:
                    self.deliveries.unshelve(kept, now_s, out)
        reason = Reason.REJECTED if command.reject else Reason.CANCELLED
        detail = f"{reason.value} by this side"
        self.endings.end_all(wanted, reason, detail, out)
        known = self.waits.keys(source.address)
        unwanted = [key for key in known if command.key in {key, stream_of(key)}]
        failure = Failure(reason.value, detail, source.label)
        ended = self.waits.cancel(source.address, unwanted, failure, out)
        asked = sum(not fetch.lent for fetch in wanted)
        out.append(Complete(command.ticket, asked + ended))

    def lend_no_more(self) -> None:
        """What is closed lends nothing."""
        self._gets.lending.stop()

    def make_room(self, out: list[Action]) -> None:
        """A put found none: what is lent has to come back."""
        self._gets.lending.make_room(out)

    def idle_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """Nothing was written into what is lent for a while."""
        self._gets.lending.idle_due(address, now_s, out)

    def close(self, now_s: float, out: list[Action]) -> None:
        """End every get; transfers under way are cancelled and wait for their end."""
        self._gets.now_s = now_s
        self.endings.close(out)
        for kept in self.shelf.all():
            self.deliveries.unshelve(kept, now_s, out)
        for source in self.sources.values():
            source.leave(self.fetches, out)

    def _answered_at_once(self, source: Source, command: Get | Poll, out: list[Action]) -> bool:
        """Give a call what was kept for it, or answer it if its end is known already."""
        if self._gets.shelf.by_number:
            wanted = command
            if isinstance(wanted, Poll):
                wanted = Get(*wanted[:4], 0, 0.0, 0, wanted.instance)
            if self.deliveries.from_shelf(source, wanted, out):
                return True
        refusal = source.refusal(command.source)
        reason, detail = source.known_end(command.key)
        instance = command.instance
        if not reason and instance and instance == source.peer:
            reason, detail = self._trouble(source)
        if refusal is None and reason:
            refusal = Failure(reason, detail, source.label)
        if refusal is not None:
            out.append(Complete(command.ticket, refusal))
        return refusal is not None

    def _trouble(self, source: Source) -> tuple[str, str]:
        """What is known against the very instance that we know of this sender."""
        if source.gone:
            return Reason.PEER_GONE.value, source.gone
        if source.open:
            return "", ""
        return self._peers.trouble(source.peer), source.detail

    # --- messages and room ---------------------------------------------------------------

    def packet(self, link: Link, packet: Packet, now_s: float, out: list[Action]) -> None:
        """Take the next message of the conversation; a gap ends it."""
        gets = self._gets
        gets.now_s = now_s
        source = gets.sources.get(link)
        session, sequence, _, message = packet
        if source is None or not self.senders.follows(source, session):
            self.stale += 1
            return
        state, _, sent, taken = source.session
        if sequence != taken:
            self.stale += 1
            if sequence > taken:
                self.senders.greet(source, now_s, out)
            return
        source.session = new(Session, (state, session, sent, taken + 1))
        handler = self._handlers.get(type(message))
        if handler is None or (type(message) is Welcome) != (state == GREETING):
            self.stale += 1
            return
        handler(source, message, out)
        gets.touch(source, out)

    def space(self, number: int, block: Block, out: list[Action]) -> None:
        """The pool has room for a queued get."""
        fetch = self.fetches.get(number)
        assert fetch is not None
        assert fetch.state == QUEUED
        self._gets.pull(self.sources[fetch.address], fetch, block, out)

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        sources = tuple(source.freeze() for source in self.sources.values())
        waits, shelf = self.waits.freeze(), self.shelf.freeze()
        mine = (self.senders.sessions, self.senders.cards)
        return *mine, self.fetches.freeze(), sources, waits, shelf

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        self.senders.sessions, cards, fetches, sources, waits, shelf = state
        if cards:
            self.senders.redescribe(cards)
        self.waits.restore(waits)
        self.shelf.restore(shelf)
        self._gets.fetches = Fetches.thaw(fetches, self._gets.debts.unit)
        thawed = [Source.thaw(source) for source in sources]
        self._gets.sources = {source.address: source for source in thawed}
