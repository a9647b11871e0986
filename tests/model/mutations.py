"""Mistakes that the explorer must find: each breaks one rule of the real machines, in a few lines.

A mutation names the world that shows it and patches one method; ``original`` is what it replaces.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.state import Bounds
from tests.model.worlds import LARGE

from stagelink.core.arrivals import Arrivals
from stagelink.core.deliveries import Deliveries
from stagelink.core.edges import Edges
from stagelink.core.endings import Endings
from stagelink.core.endpoint import Endpoint
from stagelink.core.events import StartWrite
from stagelink.core.gets import Gets
from stagelink.core.handshake.feed import Feed
from stagelink.core.handshake.fetch import DRAINING, Fetches
from stagelink.core.handshake.inbox import Inbox
from stagelink.core.handshake.lease import WRITING, Leases
from stagelink.core.handshake.watch import Peers
from stagelink.core.incoming import Incoming
from stagelink.core.ledger import Entry, Ledger
from stagelink.core.messages import Done, Refused
from stagelink.core.outgoing import Outgoing
from stagelink.core.pool import Pool
from stagelink.core.receivers import Receivers
from stagelink.core.senders import Senders
from stagelink.core.source import Source
from stagelink.core.transfers import Transfers
from stagelink.core.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Mutation(NamedTuple):
    """Where to break what, and the smallest world in which it shows."""

    bounds: Bounds
    owner: type
    method: str
    broken: Callable[..., Any]  # takes the original and returns its replacement


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The machines with that mistake in them."""
    original = getattr(mutation.owner, mutation.method)
    setattr(mutation.owner, mutation.method, mutation.broken(original))
    try:
        yield
    finally:
        setattr(mutation.owner, mutation.method, original)


def _free_instead_of_quarantine(_: Any) -> Any:
    return lambda pool, block, ids: pool.free(block)


def refuse_while_writing(original: Any) -> Any:
    def cancel(self: Transfers, reader: Any, message: Any, out: Any) -> None:
        lease = reader.leases.transfers.get(message.transfer)
        if lease is not None and lease.state == WRITING:
            reader.send(Refused(message.transfer, "cancelled", ""), out)
        original(self, reader, message, out)

    return cancel


def _no_record(original: Any) -> Any:
    def end(self: Leases, transfer: int, answer: Any) -> Any:
        lease = original(self, transfer, answer)
        del self.ended[transfer]
        return lease

    return end


def _offer_without_lease(original: Any) -> Any:
    def offer(self: Edges, reader: Any, entry: Any) -> Any:
        how = original(self, reader, entry)
        if reader.leases.offers.pop(entry.generation, None) is not None:
            self.ledger(reader).unlease(entry.generation)
        return how

    return offer


def _free_offers_on_disconnect(original: Any) -> Any:
    def cut(self: Receivers, reader: Any, now_s: float, out: Any) -> None:
        original(self, reader, now_s, out)
        for generation in list(reader.leases.offers):
            del reader.leases.offers[generation]
            self._edges.unlease(reader, generation, out)

    return cut


def _generation_per_key(original: Any) -> Any:
    def publish(self: Outgoing, command: Any, now_s: float, out: Any) -> None:
        ledger = self.ledgers.get(command.to)
        if ledger is not None and ledger.live(command.key) is None:
            self.generation = 0
        original(self, command, now_s, out)

    return publish


def _deliver_a_late_done(original: Any) -> Any:
    def ended(self: Arrivals, source: Any, transfer: int, out: Any) -> Any:
        fetch = self._gets.fetches.of_transfer(source.peer, transfer)
        if fetch is not None and fetch.state == DRAINING:
            return fetch
        return original(self, source, transfer, out)

    return ended


def _ttl_frees_leased(_: Any) -> Any:
    def removed(self: Ledger, generation: int) -> Any:
        return self.entries.pop(generation) if self.entries[generation].leaving else None

    return removed


def _no_places(original: Any) -> Any:
    def packet(self: Incoming, link: str, message: Any, now_s: float, out: Any) -> None:
        source = self.sources.get(link)
        if source is not None:
            source.session = source.session._replace(taken=message.sequence)
        original(self, link, message, now_s, out)

    return packet


def _consumed_is_told_once(_: Any) -> Any:
    return lambda source, fetches, out: source.notices.clear()


def _views_are_not_held(_: Any) -> Any:
    return lambda fetches, peer: ()


def _fence_without_record(original: Any) -> Any:
    def hello(self: Receivers, *rest: Any) -> None:
        self.floors.clear()
        original(self, *rest)

    return hello


def nothing(_: Any) -> Any:
    return lambda *_: None


def _free_on_suspicion(original: Any) -> Any:
    def disconnected(self: Endpoint, event: Any, now_s: float, out: Any) -> None:
        original(self, event, now_s, out)
        for source in self.incoming.sources.values():
            self.incoming.senders.gone(source.peer, now_s, out)

    return disconnected


def _closing_is_not_owed(original: Any) -> Any:
    def ended(self: Arrivals, source: Any, transfer: int, out: Any) -> Any:
        owed = source.owed
        fetch = original(self, source, transfer, out)
        source.owed = owed if fetch is not None else source.owed
        return fetch

    return ended


def _done_too_early(original: Any) -> Any:
    def start(self: Transfers, out: Any) -> None:
        known = len(out)
        original(self, out)
        for order in [action for action in out[known:] if isinstance(action, StartWrite)]:
            reader = self._edges.readers[order.peer]
            lease = reader.leases.transfers[order.transfer]
            reader.send(Done(order.transfer, lease.generation, order.target.size), out)

    return start


def _every_session_is_ours(_: Any) -> Any:
    return lambda self, source, session: source.session.state != "dialing"


def _first_of_a_batch(original: Any) -> Any:
    def tell(self: Edges, reader: Any, ends: Any, out: Any) -> None:
        del ends[1:]
        original(self, reader, ends, out)

    return tell


def _bye_ends_leases(original: Any) -> Any:
    def bye(self: Receivers, reader: Any, message: Any, out: Any) -> None:
        original(self, reader, message, out)
        for generation in list(reader.leases.offers):
            del reader.leases.offers[generation]
            self._edges.unlease(reader, generation, out)

    return bye


def _always(*_: Any) -> bool:
    return True


def _hear_without_consuming(_: Any) -> Any:
    return lambda self, source, fetch, known, out: self.fail(fetch, "failed", "broken", out)


def _in_sync_owes_nothing(original: Any) -> Any:
    def in_sync(self: Source, number: int) -> None:
        owed = self.owed
        original(self, number)
        self.owed = owed

    return in_sync


def _every_fence_holds(original: Any) -> Any:
    return lambda self, peer, really, now_s: original(self, peer, True, now_s)


def _synced_takes_room(original: Any) -> Any:
    def synced(self: Feed) -> None:
        number = max(self.sync_at, self.cursor)
        original(self)
        self.sent(number, 0)

    return synced


def _offered_first_is_kept(original: Any) -> Any:
    def admits(self: Entry, reader: str) -> bool:
        taken = self.readers == 0 and self.holders and reader not in self.holders
        return not taken and original(self, reader)

    return admits


def _counted_for_nothing(original: Any) -> Any:
    def count(self: Ledger, generation: int, reader: str) -> bool:
        return bool(original(self, generation, reader) and self.entries[generation].readers)

    return count


_PULL = Bounds()
_CUT, _OFFER, _FENCE = Bounds(cuts=1), Bounds(mode="offer"), Bounds(cuts=1, fences=1, met=True)
_HALF_READ = ("put a chunk s", "read r", "mail", "read r")

MUTATIONS = {
    "free instead of quarantine": Mutation(_PULL, Pool, "quarantine", _free_instead_of_quarantine),
    "refuse while writing": Mutation(_PULL, Transfers, "cancel", refuse_while_writing),
    "no record of an end": Mutation(_CUT, Leases, "end", _no_record),
    "offer without lease": Mutation(_OFFER, Edges, "_offer", _offer_without_lease),
    "free offers on disconnect": Mutation(
        _OFFER._replace(cuts=1), Receivers, "_cut", _free_offers_on_disconnect
    ),
    "generation per key": Mutation(
        _OFFER._replace(puts=2, keys="kl"), Outgoing, "publish", _generation_per_key
    ),
    "deliver a late done": Mutation(_PULL, Arrivals, "_ended", _deliver_a_late_done),
    "ttl frees what is leased": Mutation(_OFFER, Ledger, "_removed_if_free", _ttl_frees_leased),
    "no places in a session": Mutation(
        _OFFER._replace(losses=1), Incoming, "packet", _no_places
    ),
    "consumed is told once": Mutation(_CUT, Source, "resume", _consumed_is_told_once),
    "views are not held": Mutation(_OFFER, Fetches, "relics", _views_are_not_held),
    "fence without record": Mutation(_FENCE, Receivers, "hello", _fence_without_record),
    "lost is ignored": Mutation(Bounds(losses=1), Senders, "lost", nothing),
    "cancel is ignored": Mutation(_CUT, Transfers, "cancel", nothing),
    "free on suspicion": Mutation(_CUT, Endpoint, "_disconnected", _free_on_suspicion),
    "one announcement, two gets": Mutation(Bounds(gets=2), Inbox, "assign", nothing),
    "closing an id is not told": Mutation(_PULL, Arrivals, "_ended", _closing_is_not_owed),
    "done before the write ends": Mutation(_PULL, Transfers, "_start_writes", _done_too_early),
    "every session is ours": Mutation(
        Bounds(cuts=1, dups=1), Senders, "follows", _every_session_is_ours
    ),
    "waits are not told": Mutation(Bounds(mode="offer", waits=1), Waits, "tell", nothing),
    "untaken is forgotten": Mutation(
        _OFFER._replace(untaken=1), Deliveries, "untaken", nothing
    ),
    "the shelf is for ever": Mutation(
        _OFFER._replace(untaken=1), Deliveries, "kept_due", nothing
    ),
    "what was forgotten is not asked for": Mutation(
        Bounds(mode="eager", puts=2, keys="kl", inbox=1, met=True),
        Source, "ask_if_forgotten", nothing,
    ),
    "synced takes room in the window": Mutation(
        Bounds(mode="eager", puts=1, limits=(("handshake.feed.WINDOW_RECORDS", 1),)),
        Feed, "synced", _synced_takes_room,
    ),
    "what a short log skips is not told": Mutation(
        LARGE["eager: short log, cut"]._replace(gets=1, puts=1),
        Source, "in_sync", _in_sync_owes_nothing,
    ),
    "one end of a batch is told": Mutation(
        Bounds(
            mode="eager", puts=2, gets=2, keys="kl", met=True,
            start=("put s k", "put s l", "mail", "get r k", "get r l"),
        ),
        Edges, "_tell_ends", _first_of_a_batch,
    ),
    "bye ends leases": Mutation(
        _OFFER._replace(closes=1, met=True), Receivers, "bye", _bye_ends_leases
    ),
    "closing leaves gets": Mutation(_PULL._replace(closes=1), Endings, "close", nothing),
    "any reader is admitted": Mutation(
        _PULL._replace(places="two", gets=2, met=True), Entry, "admits", lambda _: _always
    ),
    "who was offered it first keeps it": Mutation(
        LARGE["offer: two readers, the first, replace"]._replace(puts=1),
        Entry, "admits", _offered_first_is_kept,
    ),
    "the first does not end it": Mutation(
        LARGE["offer: two readers, the first, replace"]._replace(puts=1),
        Ledger, "count", _counted_for_nothing,
    ),
    "what cannot be fenced counts as fenced": Mutation(
        _FENCE._replace(unfenced=1), Peers, "fenced", _every_fence_holds
    ),
    "an error is not consumed": Mutation(
        Bounds(mode="eager", puts=0, errors=1, met=True), Gets, "_hear", _hear_without_consuming
    ),
    "stalled gets are left": Mutation(
        Bounds(
            gets=2, puts=2, keys="kl", receiver_pages=2, met=True,
            limits=(("share.OPEN_LIMIT", 1),),
        ),
        Gets, "retry_stalled", nothing,
    ),
    "a stream goes on with another sender": Mutation(
        Bounds(mode="eager", puts=0, gets=0, chunks=3, sender_crashes=1, met=True, start=_HALF_READ),
        Endings, "of_another", lambda _: lambda *_: False,
    ),
    "queued writes outlive a fence": Mutation(
        LARGE["pull: late attach"], Transfers, "reconcile", nothing
    ),
    "a forgotten end is owed to nobody": Mutation(
        LARGE["claim: short log, cut"], Feed, "misses", lambda _: lambda *_: False
    ),
    "planes describe themselves once": Mutation(_FENCE, Senders, "redescribe", nothing),
    "forget what was consumed at a fence": Mutation(
        _FENCE, Source, "cut_off", lambda _: Source.forget_peer
    ),
}  # fmt: skip
