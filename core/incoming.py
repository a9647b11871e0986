"""The receiving half of an endpoint: calls, conversations with senders, and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.events import Attach, Complete, Failure, Get, Poll
from stagelink.core.gets import Gets, safe
from stagelink.core.handshake.fetch import DRAINING, HELD, PULLING, QUEUED, WAITING, Fetches
from stagelink.core.handshake.session import (
    ATTACHING,
    DECLINED,
    GREETING,
    IDLE,
    OPEN,
    Session,
)  # fmt: skip
from stagelink.core.messages import (
    INLINE,
    Ack,
    Announce,
    Cancel,
    Declined,
    Done,
    Ended,
    Gone,
    Lost,
    Offer,
    Packet,
    Query,
    Refused,
    Subscribe,
    Synced,
    Welcome,
)  # fmt: skip
from stagelink.core.rejections import reject, reject_announced
from stagelink.core.shelf import SHELF_LIMIT
from stagelink.core.source import Source
from stagelink.core.streams import MARK, stream_of
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action, Attached, Await, CancelKey, Untaken
    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.pool import Block, Grant, Pool
    from stagelink.core.settings import Settings
    from stagelink.core.shelf import Kept, Shelf
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance, Link
    from stagelink.core.waits import Wait, Waits

GREET_AGAIN_S = 1.0
SIDE = "receiver"

_FINAL = frozenset({Reason.EXPIRED.value, Reason.WITHDRAWN.value})
"""Ends of a key that a get waiting for it hears of at once; the others may bring a successor."""

_KEEPS_ENTRY = frozenset({Reason.TRANSFER_FAILED.value, Reason.BUDGET.value})
"""Refusals after which the payload may be asked for again."""


class Incoming:
    """Sources by address and the gets of this receiver."""

    __slots__ = (
        "_gets", "_handlers", "_peers", "_pool", "_settings", "_timers", "late", "sessions",
        "stale", "untaken_lost",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, pool: Pool, timers: Timers, peers: Peers,
        grant: Callable[[Iterable[Grant], list[Action]], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._pool = pool
        self._timers = timers
        self._peers = peers
        self._gets = Gets(pool, timers, settings.policy.ack_delay_s, grant)
        self.sessions = settings.session_base
        self.stale = 0
        self.late = 0
        self.untaken_lost = 0
        self._handlers: dict[type, Callable[..., None]] = {
            Welcome: self._on_welcome,
            Synced: self._on_synced,
            Announce: self._on_announce,
            Ended: self._on_ended,
            Offer: self._on_offer,
            Done: self._on_done,
            Refused: self._on_refused,
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

    # --- calls ---------------------------------------------------------------------------

    def get(self, command: Get, now_s: float, out: list[Action]) -> None:
        """Begin a get, or give it what a poll has fetched already."""
        self._gets.now_s = now_s
        source = self._source(command.address, command.source, out)
        key, ticket = command.key, command.ticket
        source.rejected.pop(key, None)  # who asks for it wants it again
        if self._answered_at_once(source, command, out):
            return
        known = source.inbox.get(key)
        if known is not None:
            newest = not (command.generation or command.size)
            ours = newest and command.instance in {NO_INSTANCE, source.peer}
            if known.how == INLINE and ours and not known.fetch:
                self._gets.hand_out(source, known, ticket, out)
                return
            if self._gets.adopt(source, command, out):
                return
        fetch = self.fetches.start(
            ticket,
            command.address,
            key,
            command.generation,
            want_size=command.size,
            want_instance=command.instance,
        )
        if source.open and self._of_another(source, fetch, out):
            return
        self._timers.arm(("fetch", fetch.number), command.deadline_s)
        self._gets.advance(source, key, out)
        self._ask_if_forgotten(source, key, out)

    def poll(self, command: Poll, now_s: float, out: list[Action]) -> None:
        """Answer at once; what needs a pull is fetched in the background."""
        self._gets.now_s = now_s
        source = self._source(command.address, command.source, out)
        ticket, key = command.ticket, command.key
        if self._answered_at_once(source, command, out):
            return
        if command.instance not in {NO_INSTANCE, source.peer}:
            out.append(Complete(ticket, None))  # what is known is of another instance
            return
        if self._gets.landed(source, key, ticket, out):
            return
        known = source.inbox.get(key)
        if known is None:
            self._ask_if_forgotten(source, key, out)
        elif known.how == INLINE and not known.fetch:
            self._gets.hand_out(source, known, ticket, out)
            return
        elif not known.fetch:
            fetch = self.fetches.start(ticket, source.address, key, 0)
            self._timers.arm(("fetch", fetch.number), command.deadline_s)
            self._gets.take(source, fetch, known, out)
            if not self._goes_on(fetch.number, out):
                return
        out.append(Complete(ticket, None))

    def absent(self, address: str, stage: str, key: str) -> bool:
        """Whether a poll would find nothing and change nothing; a look, from any thread."""
        source = self.sources.get(address)
        return (
            source is not None
            and source.open
            and source.stage == stage
            and not len(self.shelf)
            and not source.inbox.forgot
            and source.inbox.get(key) is None
            and key not in source.recent
            and not len(self.shelf)
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
        source = self._source(command.address, command.source, out)
        refusal = self._refusal(source, command.source)
        ready = [key for key in command.keys if self._gets.is_there(source, key)]
        ended = (key for key in command.keys if self._known_end(source, key)[0])
        key = ready[0] if ready else next(ended, None)
        if refusal is not None or key is not None:
            out.append(Complete(command.ticket, refusal or key))
            return
        self.waits.begin(command)
        for key in command.keys:
            self._ask_if_forgotten(source, key, out)

    def untaken(self, event: Untaken, now_s: float, out: list[Action]) -> None:
        """A delivery reached no caller: whoever waits for its key has it, or the next who asks."""
        self._gets.now_s = now_s
        address, key, delivery = event
        fetch = self.fetches.get(delivery.handle)
        if delivery.handle and (fetch is None or fetch.state != HELD):
            return  # it has been released meanwhile
        if self._gets.hand_on(event, out):
            return
        kept = self.shelf.keep(address, key, delivery)
        self._timers.arm(("kept", kept.number), now_s + self._settings.policy.ttl_s)
        if len(self.shelf) > SHELF_LIMIT:
            self._lose_kept(self.shelf.all()[0], now_s, out)
        self.waits.tell(address, key, out)

    def stop(self, ticket: int, reason: str, now_s: float, out: list[Action]) -> None:
        """The caller of *ticket* no longer waits."""
        self._gets.now_s = now_s
        self.waits.fail(ticket, Failure(reason, "the caller stopped waiting"), out)
        fetch = self.fetches.of_ticket(ticket)
        if fetch is not None:
            self._gets.give_up(fetch, reason, "the caller stopped waiting", out)

    def cancel_key(self, command: CancelKey, now_s: float, out: list[Action]) -> None:
        """End every get of a key; rejecting also counts us as its reader, now or when it comes."""
        self._gets.now_s = now_s
        source = self._source(command.address, command.source, out)
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
                    self._unshelve(kept, now_s, out)
        self._end_all(wanted, Reason.CANCELLED, "cancelled by this side", out)
        out.append(Complete(command.ticket, len(wanted)))

    def release(self, handle: int, now_s: float, out: list[Action]) -> None:
        """The last view of a delivery has gone; unknown handles are fine."""
        self._gets.now_s = now_s
        fetch = self.fetches.get(handle)
        if fetch is None or fetch.state != HELD:
            return
        source = self.sources[fetch.address]
        if fetch.where is not None:
            # Before the table forgets it: the count must not come after the report of its end.
            self._gets.consumed(source, fetch, out)
        self._gets.let_go(fetch, out)
        self._gets.retry_stalled(source, out)

    def close(self, now_s: float, out: list[Action]) -> None:
        """End every get; transfers under way are cancelled and wait for their end."""
        self._gets.now_s = now_s
        self._end_all(self.fetches.all(), Reason.CLOSED, "the connector was closed", out)
        closed = Failure(Reason.CLOSED.value, "the connector was closed")
        self._fail_waits(self.waits.all(), closed, out)
        for kept in self.shelf.all():
            self._unshelve(kept, now_s, out)
        for source in self.sources.values():
            source.send(Ack(()), self.fetches, out)

    # --- the connection ------------------------------------------------------------------

    def connected(self, link: Link, now_s: float, out: list[Action]) -> None:
        """A dialled link is up: greet."""
        source = self.sources.get(link)
        if source is not None:
            if source.session.state in {GREETING, ATTACHING, OPEN}:
                self._lose(source, "reconnected", now_s, out)
            self._greet(source, now_s, out)

    def disconnected(self, link: Link, detail: str, now_s: float, out: list[Action]) -> None:
        """A dialled link is down."""
        source = self.sources.get(link)
        if source is not None:
            self._lose(source, detail, now_s, out)

    def attached(self, event: Attached, now_s: float, out: list[Action]) -> None:
        """Our plane reaches the sender's regions, or cannot."""
        self._gets.now_s = now_s
        source = self.sources[event.link]
        if source.peer != event.peer:
            return
        waits = source.session.state == ATTACHING
        if event.error:
            if waits:
                self._decline(source, event.error, now_s, out)
            return
        source.attached = event.peer
        if waits:
            self._opened(source, out)

    def declined(self, link: Link, message: Declined, now_s: float, out: list[Action]) -> None:
        """The sender refuses the conversation."""
        source = self.sources.get(link)
        if source is not None and self._follows(source, message.session):
            self._decline(source, message.detail, now_s, out)

    def lost(self, link: Link, message: Lost, now_s: float, out: list[Action]) -> None:
        """The sender no longer follows this conversation: greet again."""
        source = self.sources.get(link)
        if source is not None and self._follows(source, message.session):
            self._greet(source, now_s, out)

    def packet(self, link: Link, packet: Packet, now_s: float, out: list[Action]) -> None:
        """Take the next message of the conversation; a gap ends it."""
        self._gets.now_s = now_s
        source = self.sources.get(link)
        session, sequence, _, message = packet
        if source is None or not self._follows(source, session):
            self.stale += 1
            return
        state, _, sent, taken = source.session
        if sequence != taken:
            self.stale += 1
            if sequence > taken:
                self._greet(source, now_s, out)
            return
        source.session = Session(state, session, sent, taken + 1)
        handler = self._handlers.get(type(message))
        if handler is None or (type(message) is Welcome) != (state == GREETING):
            self.stale += 1
            return
        handler(source, message, out)
        self._gets.touch(source, out)

    # --- time and peers ------------------------------------------------------------------

    def fetch_due(self, number: int, now_s: float, out: list[Action]) -> None:
        """A get's deadline."""
        self._gets.now_s = now_s
        fetch = self.fetches.get(number)
        if fetch is None or fetch.state in {HELD, DRAINING}:
            return  # another time-out of this very moment has ended it
        source = self.sources[fetch.address]
        if source.session.state == DECLINED or not source.met:
            reason, detail = Reason.UNREACHABLE, source.detail
        else:
            reason, detail = Reason.DEADLINE, self._explain(source, fetch)
        self._gets.give_up(fetch, reason.value, detail, out)

    def wait_due(self, ticket: int, now_s: float, out: list[Action]) -> None:
        """The deadline of a wait for the first of many keys."""
        del now_s
        wait = self.waits.get(ticket)
        if wait is None:
            return  # another time-out of this very moment has ended it
        source = self.sources[wait.address]
        reason, detail = Reason.DEADLINE, f"none of {len(wait.keys)} keys has been published"
        if source.session.state == DECLINED or not source.met:
            reason, detail = Reason.UNREACHABLE, source.detail
        self.waits.fail(ticket, Failure(reason.value, detail, source.label), out)

    def kept_due(self, number: int, now_s: float, out: list[Action]) -> None:
        """A delivery that reached no caller has been kept for as long as any payload."""
        kept = self.shelf.get(number)
        if kept is not None:
            self._lose_kept(kept, now_s, out)

    def greet_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """No answer to our greeting, or a refusal that may have passed: once more."""
        source = self.sources[address]
        if source.session.state in {GREETING, DECLINED}:
            self._greet(source, now_s, out)

    def ack_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """Our books may have changed and no message has said so."""
        self._gets.now_s = now_s
        source = self.sources[address]
        if source.owes(self.fetches):
            source.send(Ack(()), self.fetches, out)

    def unreachable(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """The grace is over: tell whoever waits for *peer*."""
        self._gets.now_s = now_s
        for source in self.sources.values():
            if source.peer == peer and not source.open:
                self._fail_all(source, Reason.UNREACHABLE, source.detail, out)

    def cut_off(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """The plane was cut off from *peer*, which is back: greet and attach again."""
        for source in self.sources.values():
            if source.peer == peer:
                source.attached = NO_INSTANCE
                if source.session.state in {GREETING, ATTACHING, OPEN}:
                    self._greet(source, now_s, out)

    def gone(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """*peer* is fenced: no write of it can land, so its blocks are ours again."""
        self._gets.now_s = now_s
        for source in self.sources.values():
            if source.peer == peer:
                self._fail_all(source, Reason.PEER_GONE, "the sender is dead or closed", out)
        for fetch in self.fetches.all():
            if fetch.peer == peer and fetch.state == DRAINING:
                self._gets.drained(fetch, out)
        for source in self.sources.values():
            if source.peer == peer:
                source.cut_off()
                if source.session.state in {GREETING, ATTACHING, OPEN}:
                    self._greet(source, now_s, out)  # it lives: our last greeting is out of date

    def space(self, number: int, block: Block, out: list[Action]) -> None:
        """The pool has room for a queued get."""
        fetch = self.fetches.get(number)
        assert fetch is not None
        assert fetch.state == QUEUED
        self._gets.pull(self.sources[fetch.address], fetch, block, out)

    # --- messages ------------------------------------------------------------------------

    def _on_welcome(self, source: Source, message: Welcome, out: list[Action]) -> None:
        self._timers.disarm(("greet", source.address))
        if source.peer != message.instance:
            self._restarted(source, out)
        source.peer, source.peer_name = message.instance, str(message.identity)
        source.plane = message.plane.name
        self._peers.up(message.instance, SIDE, message.host.proof)
        if message.fresh:
            self._start_over(source)
        if message.plane.mode == "map" and source.attached != message.instance:
            source.session = source.session._replace(state=ATTACHING)
            out.append(Attach(message.instance, source.address, message.plane))
        else:
            self._opened(source, out)

    def _on_synced(self, source: Source, message: Synced, out: list[Action]) -> None:
        source.in_sync(message.number)
        waited = self.fetches.waiting_keys(source.address) + self.waits.keys(source.address)
        for key in dict.fromkeys(waited):
            self._ask_if_forgotten(source, key, out)

    def _on_announce(self, source: Source, message: Announce, out: list[Action]) -> None:
        number, key, generation, size, how, _, body = message
        source.cursor = max(source.cursor, number)
        source.owed += 1
        source.owed_bytes += len(body)
        source.recent.pop(key, None)
        if generation in source.consumed:
            source.consumed[generation] = True
            return
        known = source.inbox.get(key)
        if known is not None and known.generation >= generation:
            return
        at_work = self.fetches.working_on(source.peer, generation)
        if how == INLINE and not (known or at_work or source.rejected):
            fetch = self.fetches.first_waiting(source.address, key, generation)
            if fetch is not None and fetch.want_size in {0, size}:  # it need not be known at all
                self._gets.take(source, fetch, message, out)
                return
        source.inbox.add(message, at_work.number if at_work else 0)
        if source.rejected:
            reject_announced(self._gets, source, message, out)
        self._gets.advance(source, key, out)

    def _on_ended(self, source: Source, message: Ended, out: list[Action]) -> None:
        for record in message.records:
            self._on_gone(source, record, out)

    def _on_gone(self, source: Source, message: Gone, out: list[Action]) -> None:
        _, key, generation, reason, detail = message
        source.cursor = max(source.cursor, message.number)
        source.owed += 1
        used = source.consumed.pop(generation, None) is not None
        source.inbox.drop(key, generation)
        fetch = self.fetches.working_on(source.peer, generation)
        stream = stream_of(key)
        if MARK not in key or not (used or safe(fetch)):
            source.remember(stream or key, reason, detail)
        if fetch is not None and fetch.state == QUEUED:
            self._gets.not_that_one(fetch, reason, detail, out)
        elif fetch is not None:
            self.fetches.set(fetch._replace(relic=True))
        final = reason in _FINAL or bool(stream)
        for waiting in self.fetches.waiting_for(source.address, key):
            if waiting.want == generation or (not waiting.want and final):
                self._gets.give_up(waiting, reason, detail, out)
        if final:
            self.waits.tell(source.address, key, out)

    def _on_offer(self, source: Source, message: Offer, out: list[Action]) -> None:
        fetch = self.fetches.of_transfer(source.peer, message.transfer)
        if fetch is None or fetch.state != PULLING or fetch.block is not None:
            self.late += 1
        elif message.generation != fetch.generation:
            self._gets.violated(fetch, "the offer is for another payload", out)
        else:
            fetch = fetch._replace(where=message.where, body=message.body)
            self._gets.deliver(source, fetch, out)

    def _on_done(self, source: Source, message: Done, out: list[Action]) -> None:
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

    def _on_refused(self, source: Source, message: Refused, out: list[Action]) -> None:
        fetch = self._ended(source, message.transfer, out)
        if fetch is None:
            return
        if message.reason == Reason.REPLACED.value and not fetch.want:
            self._gets.back_to_waiting(fetch, out)
        else:
            if message.reason not in _KEEPS_ENTRY:
                source.inbox.drop(fetch.key, fetch.generation)
            self._gets.fail(fetch, message.reason, message.detail, out)
        self._gets.retry_stalled(source, out)

    # --- helpers -------------------------------------------------------------------------

    def _ended(self, source: Source, transfer: int, out: list[Action]) -> Fetch | None:
        """The get that waits for the end of *transfer*; one that drains ends here, uncounted."""
        fetch = self.fetches.of_transfer(source.peer, transfer)
        if fetch is not None and fetch.state == PULLING:
            source.owed += 1  # the id closes, and the sender must hear of it
            return fetch
        self.late += 1
        if fetch is not None and fetch.state == DRAINING:
            self._gets.drained(fetch, out)
            self._gets.retry_stalled(source, out)
        return None

    def _source(self, address: str, stage: str, out: list[Action]) -> Source:
        source = self.sources.get(address)
        if source is None:
            source = self.sources[address] = Source(address, stage)
        if source.session.state == IDLE:
            source.dial(out)
        elif source.stage != stage and not source.met and not self._awaited(source):
            # Asked by another name before, in vain: the address may well be this stage's.
            source.stage = stage
            if source.session.state in {GREETING, ATTACHING, DECLINED}:
                self._greet(source, self._gets.now_s, out)
        return source

    def _awaited(self, source: Source) -> bool:
        waits = self.waits.at(source.address)
        return bool(waits) or any(f.address == source.address for f in self.fetches.all())

    def _follows(self, source: Source, session: int) -> bool:
        state = source.session.state
        return session == source.session.number and state in {GREETING, ATTACHING, OPEN}

    def _greet(self, source: Source, now_s: float, out: list[Action]) -> None:
        self.sessions += 1
        source.greet(self.sessions, self._settings, self.fetches, out)
        self._timers.arm(("greet", source.address), now_s + GREET_AGAIN_S)

    def _lose(self, source: Source, detail: str, now_s: float, out: list[Action]) -> None:
        source.cut(detail)
        self._timers.disarm(("greet", source.address))
        if source.peer:
            self._peers.down(source.peer, SIDE, now_s, out)

    def _decline(self, source: Source, detail: str, now_s: float, out: list[Action]) -> None:
        self._gets.now_s = now_s
        source.decline(detail)
        self._timers.arm(("greet", source.address), now_s + GREET_AGAIN_S)
        self._fail_all(source, Reason.DECLINED, detail, out)

    def _opened(self, source: Source, out: list[Action]) -> None:
        """The conversation is open: subscribe, then say again what may have been lost."""
        source.session = source.session._replace(state=OPEN)
        source.met = True
        source.resume(self.fetches, out)
        source.send(Subscribe(), self.fetches, out)
        for fetch in self.fetches.all():
            if fetch.address == source.address and self._of_another(source, fetch, out):
                continue
            if fetch.peer != source.peer or not fetch.transfer:
                continue
            if fetch.state == PULLING:
                self._gets.send_pull(source, fetch, out)
            elif fetch.state == DRAINING:
                source.send(Cancel(fetch.transfer), self.fetches, out)

    def _of_another(self, source: Source, fetch: Fetch, out: list[Action]) -> bool:
        """End a get that wants the payload of an instance that is not at this address (now)."""
        if fetch.state != WAITING or fetch.want_instance in {NO_INSTANCE, source.peer}:
            return False
        detail = "the payload was published by an instance that is no longer at this address"
        self._gets.fail(fetch, Reason.PEER_RESTARTED.value, detail, out)
        return True

    def _restarted(self, source: Source, out: list[Action]) -> None:
        """Another instance answers at this address; the old one may still write."""
        old = source.peer
        source.inbox.clear()  # nobody may take from it what the old instance had announced
        for number in [fetch.number for fetch in self.fetches.all()]:
            fetch = self.fetches.get(number)
            if fetch and old and fetch.peer == old and fetch.address == source.address:
                if fetch.state == QUEUED:
                    self._gets.back_to_waiting(fetch, out)
                elif fetch.state == PULLING:
                    detail = "the sender was restarted during the transfer"
                    self._gets.give_up(fetch, Reason.PEER_RESTARTED.value, detail, out)
        source.forget_peer()

    def _start_over(self, source: Source) -> None:
        """The log begins anew: every view of an offer counts as held from now on."""
        source.start_over()
        for fetch in self.fetches.all():
            if fetch.peer == source.peer and fetch.where is not None and not fetch.transfer:
                self.fetches.set(fetch._replace(relic=True))

    def _fail_all(self, source: Source, reason: Reason, detail: str, out: list[Action]) -> None:
        """End every get that waits on this sender, at once."""
        ours = [fetch for fetch in self.fetches.all() if fetch.address == source.address]
        self._end_all(ours, reason, detail, out)
        failure = Failure(reason.value, detail, source.label)
        self._fail_waits(self.waits.at(source.address), failure, out)

    def _fail_waits(self, waits: list[Wait], failure: Failure, out: list[Action]) -> None:
        for wait in waits:
            self.waits.fail(wait.ticket, failure, out)

    def _end_all(
        self, fetches: Iterable[Fetch], reason: Reason, detail: str, out: list[Action]
    ) -> None:
        """End those gets. Who waits goes first: the others must not leave it what they had.

        Each is looked up again, for room that one gives back may be granted to the next.
        """
        for old in sorted(fetches, key=lambda fetch: fetch.state != WAITING):
            fetch = self.fetches.get(old.number)
            if fetch is not None and fetch.state not in {HELD, DRAINING}:
                self._gets.give_up(fetch, reason.value, detail, out)

    def _answered_at_once(self, source: Source, command: Get | Poll, out: list[Action]) -> bool:
        """Give a call what was kept for it, or answer it if its end is known already."""
        if len(self.shelf):
            wanted = command
            if isinstance(wanted, Poll):
                wanted = Get(*wanted[:4], 0, 0.0, 0, wanted.instance)
            if self._gets.from_shelf(source, wanted, out):
                return True
        refusal = self._refusal(source, command.source)
        reason, detail = self._known_end(source, command.key, command.instance)
        if refusal is None and reason:
            refusal = Failure(reason, detail, source.label)
        if refusal is not None:
            out.append(Complete(command.ticket, refusal))
        return refusal is not None

    def _refusal(self, source: Source, stage: str) -> Failure | None:
        """Why nothing can be had from *source*, asked for by the name *stage*."""
        if stage != source.stage:
            detail = f"the address is that of stage {source.stage!r}, not {stage!r}"
        elif source.session.state == DECLINED:
            detail = source.detail
        else:
            return None
        return Failure(Reason.DECLINED.value, detail, source.label)

    def _unshelve(self, kept: Kept, now_s: float, out: list[Action]) -> None:
        """Let go of a delivery that has no taker."""
        self.shelf.drop(kept)
        self._timers.disarm(("kept", kept.number))
        self.release(kept.delivery.handle, now_s, out)

    def _lose_kept(self, kept: Kept, now_s: float, out: list[Action]) -> None:
        """Nobody took it in time: a get of its key is told so until there is a new one."""
        self._unshelve(kept, now_s, out)
        self.untaken_lost += 1
        source = self.sources[kept.address]
        if source.inbox.get(kept.key) is None:
            detail = "it was delivered to a call that had been cancelled, and then not taken"
            source.remember(stream_of(kept.key) or kept.key, Reason.EXPIRED.value, detail)

    def _known_end(
        self, source: Source, key: str, instance: Instance = NO_INSTANCE
    ) -> tuple[str, str]:
        """Why *key* of that *instance* will not come, as far as that is known; else empty."""
        stream = stream_of(key)
        reason, detail = source.recent.get(stream or key, ("", ""))
        if reason in _FINAL and not stream:
            return reason, detail
        if reason and stream and source.inbox.get(key) is None:
            return reason, detail  # a lost chunk ends its stream; what came before is still here
        if instance and instance == source.peer and not source.open:
            return self._peers.trouble(source.peer), source.detail
        return "", ""

    def _ask_if_forgotten(self, source: Source, key: str, out: list[Action]) -> None:
        if source.inbox.forgot and source.inbox.get(key) is None:
            source.send(Query(key), self.fetches, out)

    def _explain(self, source: Source, fetch: Fetch) -> str:
        """What is known of a key whose get has reached its deadline."""
        if not source.open:
            return f"the sender is not connected: {source.detail}"
        if fetch.state != WAITING:
            return f"the transfer was still {fetch.state}"
        reason, _ = source.recent.get(fetch.key, ("", ""))
        last = f"; its last publication is {reason}" if reason else ""
        return f"the sender has not published this key{last}"

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        sources = tuple(source.freeze() for source in self.sources.values())
        waits, shelf = self.waits.freeze(), self.shelf.freeze()
        return self.sessions, self.fetches.freeze(), sources, waits, shelf

    def restore(self, frozen: tuple[object, ...]) -> None:
        """Become what froze to *frozen*."""
        state: Any = frozen
        self.sessions, fetches, sources, waits, shelf = state
        self.waits.restore(waits)
        self.shelf.restore(shelf)
        self._gets.fetches = Fetches.thaw(fetches)
        thawed = [Source.thaw(source) for source in sources]
        self._gets.sources = {source.address: source for source in thawed}
