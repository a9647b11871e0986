"""Conversations with senders: dialled, greeted, welcomed, lost and taken up again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Attach
from stagelink.core.handshake.fetch import ANEW, DRAINING, PULLING, QUEUED
from stagelink.core.handshake.session import ATTACHING, DECLINED, GREETING, IDLE, OPEN
from stagelink.core.messages import Ack, Cancel, Subscribe
from stagelink.core.source import DIED, LEFT, Source
from stagelink.core.values import NO_INSTANCE
from stagelink.core.violations import Violation

if TYPE_CHECKING:
    from stagelink.core.endings import Endings
    from stagelink.core.events import Action, Attached, Disconnected
    from stagelink.core.gets import Gets
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.messages import Bye, Declined, Lost, Synced, Welcome
    from stagelink.core.settings import Settings
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance, Link, PlaneCard

GREET_AGAIN_S = 1.0
SIDE = "receiver"


class Senders:
    """Keeps a conversation with every source; ``sessions`` numbers them, across all sources."""

    __slots__ = ("_endings", "_gets", "_peers", "_settings", "_timers", "cards", "sessions")

    def __init__(
        self, settings: Settings, timers: Timers, peers: Peers, gets: Gets, endings: Endings
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._peers = peers
        self._gets = gets
        self._endings = endings
        self.sessions = settings.session_base
        self.cards: tuple[PlaneCard, ...] = ()  # described anew since; empty: as in the settings

    def find(self, address: str, stage: str, out: list[Action]) -> Source:
        """The sender at *address*; a new one is dialled."""
        source = self._gets.sources.get(address)
        if source is None:
            source = self._gets.sources[address] = Source(address, stage)
        if source.session.state == IDLE:
            source.dial(out)
            grace_s = self._settings.policy.suspect_grace_s
            self._timers.arm(("first", address), self._gets.now_s + grace_s)
        elif source.stage != stage and not source.met and not self._awaited(source):
            # Asked by another name before, in vain: the address may well be this stage's.
            source.stage = stage
            if source.session.state in {GREETING, ATTACHING, DECLINED}:
                self.greet(source, self._gets.now_s, out)
        return source

    def _awaited(self, source: Source) -> bool:
        waits = self._gets.waits.at(source.address)
        return bool(waits) or any(f.address == source.address for f in self._gets.fetches.all())

    def follows(self, source: Source, session: int) -> bool:
        """Whether *session* is the conversation that we have with *source*."""
        state, number, _, _ = source.session
        return session == number and state in {GREETING, ATTACHING, OPEN}

    def greet(self, source: Source, now_s: float, out: list[Action]) -> None:
        """Begin a new conversation over the link that is up."""
        self.sessions += 1
        source.greet(self.sessions, self._settings, self._gets.fetches, out)
        self._gets.lending.revoke(source, out)  # it voids them, too
        self._timers.arm(("greet", source.address), now_s + GREET_AGAIN_S)

    # --- the connection ------------------------------------------------------------------

    def connected(self, link: Link, now_s: float, out: list[Action]) -> None:
        """A dialled link is up: greet."""
        source = self._gets.sources.get(link)
        if source is not None:
            if source.session.state in {GREETING, ATTACHING, OPEN}:
                self._lose(source, "reconnected", now_s, out)
            self.greet(source, now_s, out)

    def disconnected(self, event: Disconnected, now_s: float, out: list[Action]) -> None:
        """A dialled link is down; who is refused need not wait: only people can change that."""
        source = self._gets.sources.get(event.link)
        if source is None:
            return
        self._lose(source, event.detail, now_s, out)
        if event.refused and source.session.state != IDLE:
            self._gets.now_s = now_s
            source.decline(event.detail)
            self._endings.fail_waiting(source, Reason.DECLINED, event.detail, out)

    def attached(self, event: Attached, now_s: float, out: list[Action]) -> None:
        """Our plane reaches the sender's regions, or cannot."""
        self._gets.now_s = now_s
        source = self._gets.sources[event.link]
        if source.peer != event.peer:
            return
        waits = source.session[:2] == (ATTACHING, event.session)
        if event.error:
            if waits:
                self._decline(source, event.error, now_s, out)
            return
        source.attached = event.peer
        if waits:
            self._opened(source, out)

    def declined(self, link: Link, message: Declined, now_s: float, out: list[Action]) -> None:
        """The sender refuses the conversation."""
        source = self._gets.sources.get(link)
        if source is not None and self.follows(source, message.session):
            self._decline(source, message.detail, now_s, out)

    def lost(self, link: Link, message: Lost, now_s: float, out: list[Action]) -> None:
        """The sender no longer follows this conversation: greet again."""
        source = self._gets.sources.get(link)
        if source is not None and self.follows(source, message.session):
            self.greet(source, now_s, out)

    # --- messages ------------------------------------------------------------------------

    def welcome(self, source: Source, message: Welcome, out: list[Action]) -> None:
        """The sender answers our greeting: attach to its regions, or go on at once."""
        objection = self._objection(source, message)
        if objection is not None:
            cause, detail = objection
            self._gets.violations[cause] += 1
            self._decline(source, detail, self._gets.now_s, out)
            return
        self._timers.disarm(("greet", source.address))
        self._timers.disarm(("heir", source.address))
        if source.peer != message.instance:
            self._restarted(source, out)
        source.peer, source.peer_name, source.gone = message.instance, str(message.identity), ""
        source.plane = message.plane.name
        source.grants.passed = 0
        source.grants.agreed = message.credits and self._settings.credit_share > 0
        self._meet(message)
        if message.fresh:
            self._gets.lending.forget(source, out)  # what its log does not repeat has gone
            self._start_over(source)
        if message.plane.mode == "map" and source.attached != message.instance:
            source.session = source.session._replace(state=ATTACHING)
            number = source.session.number
            out.append(Attach(message.instance, source.address, number, message.plane))
        else:
            self._opened(source, out)

    def _meet(self, message: Welcome) -> None:
        settings, host = self._settings, message.host
        proof, far = settings.proof_of(host), settings.is_far(host)
        self._peers.up(message.instance, SIDE, proof, far=far)

    def _objection(self, source: Source, message: Welcome) -> tuple[Violation, str] | None:
        """Why the sender cannot be who it says it is, or by that route; None if it may be."""
        instance, ours = message.instance, {plane.card[:2] for plane in self._settings.planes}
        if message.plane[:2] not in ours:
            return Violation.ROUTE, f"it offers plane {message.plane.name!r}, which we have not"
        if not self._peers.knows(instance, self._settings.proof_of(message.host)):
            return Violation.IDENTITY, "it names another proof of life than before"
        for other in self._gets.sources.values():
            if other is not source and other.peer == instance:
                return Violation.IDENTITY, f"it claims to be who is at {other.address}"
        return None

    def synced(self, source: Source, message: Synced, out: list[Action]) -> None:
        """Everything that the log held when we subscribed has been told."""
        source.in_sync(message.number)
        gets, address = self._gets, source.address
        waited = gets.fetches.waiting_keys(address) + gets.waits.keys(address)
        for key in dict.fromkeys(waited):
            source.ask_if_forgotten(key, gets.fetches, out)

    def bye(self, source: Source, message: Bye, out: list[Action]) -> None:
        """The sender was closed: nothing new comes, but what is under way may yet."""
        del message
        source.gone = LEFT
        self._gets.lending.revoke(source, out)
        self._peers.farewell(source.peer)
        self._endings.fail_waiting(source, Reason.PEER_GONE, LEFT, out)

    # --- time and peers ------------------------------------------------------------------

    def greet_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """No answer to our greeting, or a refusal that may have passed: once more."""
        source = self._gets.sources[address]
        if source.session.state in {GREETING, DECLINED}:
            self.greet(source, now_s, out)

    def ack_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """Our books may have changed and no message has said so."""
        self._gets.now_s = now_s
        source = self._gets.sources[address]
        if source.owes(self._gets.fetches):
            source.send(Ack(()), self._gets.fetches, out)
        self._gets.lending.lend_if_due(source, out)

    def expect_successor(self, source: Source) -> None:
        """Somebody waits for a sender that is known to be gone: not for longer than a moment."""
        if source.gone:
            when_s = self._gets.now_s + self._settings.policy.successor_s
            self._timers.arm_once(("heir", source.address), when_s)

    def successor_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """Nobody has come in place of the sender that is gone."""
        self._gets.now_s = now_s
        source = self._gets.sources[address]
        if source.gone:
            self._endings.fail_waiting(source, Reason.PEER_GONE, source.gone, out)

    def first_due(self, address: str, now_s: float, out: list[Action]) -> None:
        """It was dialled long enough ago: who has not reached it by now may say so."""

    def unreachable(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """The grace is over: tell whoever waits for *peer*."""
        self._gets.now_s = now_s
        for source in self._gets.sources.values():
            if source.peer == peer and not source.open:
                self._endings.fail_all(source, Reason.UNREACHABLE, source.detail, out)

    def cut_off(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """The plane was cut off from *peer*, which is back: greet and attach again."""
        for source in self._gets.sources.values():
            if source.peer == peer:
                source.attached = NO_INSTANCE
                if source.session.state in {GREETING, ATTACHING, OPEN}:
                    self.greet(source, now_s, out)

    def redescribe(self, cards: tuple[PlaneCard, ...]) -> set[str]:
        """Our planes are to be reached by other descriptions from the next greeting on.

        Returns the names of those that are written to, and by another description than before.
        """
        old = {plane.card.name: plane for plane in self._settings.planes}
        planes = tuple([old[card.name]._replace(card=card) for card in cards])
        self._settings = self._settings._replace(planes=planes)
        self.cards = cards
        return {
            card.name for card in cards if card.mode == "write" and card != old[card.name].card
        }

    def greet_others(
        self, peer: Instance, planes: set[str], now_s: float, out: list[Action]
    ) -> None:
        """Greet every sender but *peer* that writes by one of these *planes*.

        Where a plane can only cut off everybody, a fence has cut them off as well.
        """
        for source in self._gets.sources.values():
            other = source.peer not in {peer, NO_INSTANCE} and source.plane in planes
            if other and source.session.state in {GREETING, ATTACHING, OPEN}:
                self.greet(source, now_s, out)

    def gone(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """*peer* is fenced: no write of it can land, so its blocks are ours again."""
        gets = self._gets
        gets.now_s = now_s
        for source in gets.sources.values():
            if source.peer == peer:
                self._end_gets(source, out)
        for fetch in gets.fetches.all():
            if fetch.peer == peer and fetch.state == DRAINING:
                gets.drained(fetch, out)
        for source in gets.sources.values():
            if source.peer == peer:
                source.cut_off()
                if source.session.state in {GREETING, ATTACHING, OPEN}:
                    self.greet(source, now_s, out)  # it lives: our last greeting is out of date

    def _end_gets(self, source: Source, out: list[Action]) -> None:
        if not source.gone:  # else who waits has begun since, and expects a successor
            source.gone = DIED
            self._endings.fail_waiting(source, Reason.PEER_GONE, DIED, out)
        self._endings.fail_under_way(source, Reason.PEER_GONE, source.gone, out)

    # --- transitions ---------------------------------------------------------------------

    def _lose(self, source: Source, detail: str, now_s: float, out: list[Action]) -> None:
        source.cut(detail)
        self._gets.now_s = now_s
        self._gets.lending.revoke(source, out)
        self._timers.disarm(("greet", source.address))
        if source.peer:
            self._peers.down(source.peer, SIDE, now_s, out)

    def _decline(self, source: Source, detail: str, now_s: float, out: list[Action]) -> None:
        self._gets.now_s = now_s
        source.decline(detail)
        self._timers.arm(("greet", source.address), now_s + GREET_AGAIN_S)
        self._endings.fail_all(source, Reason.DECLINED, detail, out)

    def _opened(self, source: Source, out: list[Action]) -> None:
        """The conversation is open: subscribe, then say again what may have been lost."""
        gets = self._gets
        source.session = source.session._replace(state=OPEN)
        source.met = True
        source.resume(gets.fetches, out)
        source.send(Subscribe(), gets.fetches, out)
        for fetch in gets.fetches.all():
            if fetch.address == source.address and self._endings.of_another(source, fetch, out):
                continue
            if fetch.peer != source.peer or not fetch.transfer:
                continue
            if fetch.state == PULLING:
                gets.send_pull(source, fetch, out)
            elif fetch.state == DRAINING:
                source.send(Cancel(fetch.transfer), gets.fetches, out)

    def _restarted(self, source: Source, out: list[Action]) -> None:
        """Another instance answers at this address; the old one may still write."""
        gets, old = self._gets, source.peer
        gets.lending.forget(source, out)
        source.inbox.clear()  # nobody may take from it what the old instance had announced
        for number in [fetch.number for fetch in gets.fetches.all()]:
            fetch = gets.fetches.get(number)
            if fetch and old and fetch.peer == old and fetch.address == source.address:
                if fetch.state == QUEUED:
                    gets.back_to_waiting(fetch, out)
                elif fetch.state == PULLING:
                    detail = "the sender was restarted during the transfer"
                    gets.give_up(fetch, Reason.PEER_RESTARTED.value, detail, out)
        source.forget_peer()

    def _start_over(self, source: Source) -> None:
        """The log begins anew: every view of an offer counts as held from now on."""
        source.start_over()
        fetches = self._gets.fetches
        for fetch in fetches.all():
            if fetch.peer == source.peer and fetch.where is not None and not fetch.transfer:
                fetches.set(fetch._replace(relic=ANEW))
