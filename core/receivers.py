"""Conversations with receivers: who may talk with us, by which route, and from where on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Attach, Send
from stagelink.core.handshake.session import ATTACHING, CLOSED, OPEN, Session, choose, why_no_route
from stagelink.core.messages import Ack, Declined, Lost, Welcome
from stagelink.core.reader import Reader
from stagelink.core.violations import Violation

if TYPE_CHECKING:
    from stagelink.core.edges import Edges
    from stagelink.core.events import Action, Attached
    from stagelink.core.handshake.watch import Peers
    from stagelink.core.messages import Bye, Hello
    from stagelink.core.settings import Settings
    from stagelink.core.transfers import Transfers
    from stagelink.core.values import Instance, Link, PlaneCard

SIDE = "sender"

READERS_LIMIT = 4096
"""Receivers known at once, with those that are away and may yet come back."""

FENCED_PEERS = 1024
"""Fenced receivers whose used transfer ids are remembered, should they be alive."""


class Receivers:
    """Who talks over which link; the readers themselves are in the tables of ``edges``."""

    __slots__ = ("_edges", "_links", "_peers", "_settings", "_transfers", "floors", "stale")

    def __init__(
        self, settings: Settings, peers: Peers, edges: Edges, transfers: Transfers
    ) -> None:
        self._settings = settings
        self._peers = peers
        self._edges = edges
        self._transfers = transfers
        self._links: dict[Link, Instance] = {}
        self.floors: dict[Instance, int] = {}
        self.stale = 0

    def at(self, link: Link) -> Reader | None:
        """The reader that talks over *link*."""
        peer = self._links.get(link)
        return None if peer is None else self._edges.readers[peer]

    # --- the connection ------------------------------------------------------------------

    def hello(self, link: Link, hello: Hello, out: list[Action]) -> None:
        """A receiver greets: reconcile what it has open, choose the route, welcome it."""
        refusal = self._cannot_talk(hello) or self._is_nobody(link, hello, out)
        if refusal:
            out.append(Send(link, Declined(hello.session, Reason.DECLINED.value, refusal)))
            return
        reader = self._edges.readers.get(hello.instance)
        if reader is None:
            reader = self._edges.know(Reader(hello.instance, hello.identity))
            reader.floor = self.floors.pop(hello.instance, 0)
        elif hello.session <= reader.session.number:
            self.stale += 1
            return
        self._forget_link(reader)
        reader.link, self._links[link] = link, hello.instance
        self._agree(reader, hello)
        self._reconcile(reader, hello, out)
        assert reader.plane is not None
        card = reader.plane.card
        reader.session = Session(ATTACHING, hello.session)
        host = hello.host
        proof, far = self._settings.proof_of(host), self._settings.is_far(host)
        self._peers.up(hello.instance, SIDE, proof, far=far)
        if card.mode == "map":
            self._welcome(reader, out)
        else:
            theirs = [c for c in hello.planes if (c.name, c.mode) == (card.name, card.mode)]
            out.append(Attach(hello.instance, link, hello.session, theirs[0]))

    def attached(self, event: Attached, now_s: float, out: list[Action]) -> None:
        """Our plane reaches the receiver's pool, or cannot."""
        reader = self._edges.readers.get(event.peer)
        if reader is None or reader.link != event.link or reader.session.state != ATTACHING:
            return
        if event.session != reader.session.number:
            return  # it has greeted again meanwhile, and that is answered for itself
        if event.error:
            refused = Declined(reader.session.number, Reason.DECLINED.value, event.error)
            out.append(Send(event.link, refused))
            self._cut(reader, now_s, out)
        else:
            self._welcome(reader, out)

    def disconnected(self, link: Link, now_s: float, out: list[Action]) -> None:
        """A receiver's connection is down; its leases stay until their end is proved."""
        reader = self.at(link)
        if reader is not None:
            self._cut(reader, now_s, out)

    def lose(self, reader: Reader, out: list[Action]) -> None:
        """Leave a conversation that cannot go on; the receiver greets again."""
        out.append(Send(reader.link, Lost(reader.session.number)))
        reader.session = reader.session._replace(state=CLOSED)
        reader.feed.subscribed = False
        reader.grants.void()

    def bye(self, reader: Reader, message: Bye, out: list[Action]) -> None:
        """A receiver was closed; its leases stay until their end is proved."""
        del out
        self._peers.farewell(reader.instance)
        slots = reader.leases.slots()
        viewed = [g for g in message.viewed if g in slots]
        reader.viewed = tuple(dict.fromkeys((*reader.viewed, *viewed)))

    # --- plane and peers -----------------------------------------------------------------

    def plane_reset(self, out: list[Action]) -> None:
        """The plane is new: every receiver must greet, so that it is attached again."""
        for reader in self._edges.readers.values():
            if reader.open and not reader.maps:
                self.lose(reader, out)

    def cut_off(self, peer: Instance, out: list[Action]) -> None:
        """The plane was cut off from *peer*, which is back: it must be attached again."""
        reader = self._edges.readers.get(peer)
        if reader is not None and reader.link:
            self.lose(reader, out)

    def gone(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """*peer* is fenced: nothing of ours is read by it, no write to it is under way."""
        reader = self._edges.forget(peer)
        if reader is None:
            return
        self._forget_link(reader)
        used = max(reader.leases.transfers, default=0) + 1
        self.floors[peer] = max(reader.floor, reader.report.low_water, used)
        if len(self.floors) > FENCED_PEERS:
            del self.floors[next(iter(self.floors))]
        self._edges.ack(reader, Ack(reader.viewed), out)  # no successor comes back for those
        self._transfers.gone(reader, now_s, out)

    # --- helpers -------------------------------------------------------------------------

    def _cannot_talk(self, hello: Hello) -> str:
        ours = self._settings.identity.stage
        if hello.source != ours:
            return f"this is stage {ours!r}, not {hello.source!r}"
        same = self._same_host(hello)
        if choose(self._settings.planes, hello.planes, same) is None:
            return why_no_route(self._settings.planes, hello.planes, same)
        return ""

    def _is_nobody(self, link: Link, hello: Hello, out: list[Action]) -> str:
        """Why the greeting cannot be of the instance that it names."""
        violations = self._edges.violations
        if self._links.get(link, hello.instance) != hello.instance:
            violations[Violation.IDENTITY] += 1
            return "this connection is that of another instance"
        if not self._peers.knows(hello.instance, self._settings.proof_of(hello.host)):
            violations[Violation.IDENTITY] += 1
            return "this instance has named another proof of life before"
        known = self._edges.readers
        if hello.instance not in known and not self._has_room(out):
            violations[Violation.READERS] += 1
            return f"{READERS_LIMIT} receivers are known already"
        return ""

    def _has_room(self, out: list[Action]) -> bool:
        """Whether one more may be known: one that is away, and nothing is kept for, gives way."""
        known = self._edges.readers
        if len(known) < READERS_LIMIT:
            return True
        for reader in list(known.values()):
            spare = not reader.link and reader.leases.empty
            if spare and self._peers.forget(reader.instance, SIDE):
                self.gone(reader.instance, self._transfers.now_s, out)
                return True
        return False

    def _agree(self, reader: Reader, hello: Hello) -> None:
        """The route to this reader, and what it can undo."""
        reader.codecs = hello.codecs
        reader.plane = choose(self._settings.planes, hello.planes, self._same_host(hello))

    def _same_host(self, hello: Hello) -> bool:
        return bool(hello.host.host) and hello.host.host == self._settings.host.host

    def _reconcile(self, reader: Reader, hello: Hello, out: list[Action]) -> None:
        """Set the books of a returning receiver against ours before anything is attached."""
        ledger = self._edges.ledger(reader)
        known = hello.wanted == self._settings.instance
        cursor = hello.report.cursor if known else 0
        reader.fresh = not known or not ledger.trimmed <= cursor <= ledger.head
        self._transfers.reconcile(reader, hello.report, out)
        # Which other ids it has closed counts from its first packet on: there, what it consumed is
        # said first, and so no reader's slot is given away that it has used.
        before = reader.report
        report = hello.report._replace(low_water=before.low_water, open_ids=before.open_ids)
        if not known:  # it has forgotten our log, yet its transfer ids are its own
            report = report._replace(cursor=0, held=tuple(reader.leases.offers))
        self._transfers.apply(reader, report, out)
        if reader.fresh:
            reader.feed.rewind(0, ledger.trimmed)
        else:
            reader.feed.rewind(cursor)

    def _welcome(self, reader: Reader, out: list[Action]) -> None:
        assert reader.plane is not None
        settings = self._settings
        card: PlaneCard = reader.plane.card
        welcome = Welcome(
            settings.instance, settings.identity, settings.host, card, reader.fresh,
            settings.credit_share > 0 and not reader.maps,
        )  # fmt: skip
        reader.session = reader.session._replace(state=OPEN)
        reader.send(welcome, out)

    def _cut(self, reader: Reader, now_s: float, out: list[Action]) -> None:
        self._forget_link(reader)
        self._peers.down(reader.instance, SIDE, now_s, out)

    def _forget_link(self, reader: Reader) -> None:
        self._links.pop(reader.link, None)
        reader.cut()

    # --- state ---------------------------------------------------------------------------

    def freeze(self) -> tuple[tuple[Instance, int], ...]:
        """The state as nested tuples; the readers freeze with their edges."""
        return tuple(self.floors.items())

    def restore(self, frozen: tuple[tuple[Instance, int], ...]) -> None:
        """Become what froze to *frozen*, once the edges have their readers."""
        self.floors = dict(frozen)
        linked = (reader for reader in self._edges.readers.values() if reader.link)
        self._links = {reader.link: reader.instance for reader in linked}
