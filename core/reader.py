"""A sender's side of the conversation with one receiver instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.events import Send
from stagelink.core.handshake.feed import Feed
from stagelink.core.handshake.grants import GrantsOut
from stagelink.core.handshake.lease import Leases
from stagelink.core.handshake.session import CLOSED, OPEN, Session
from stagelink.core.messages import Packet, Report, Welcome
from stagelink.core.values import new

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.handshake.session import OwnPlane
    from stagelink.core.messages import ToReceiver
    from stagelink.core.values import Identity, Instance, Link


class Reader:
    """One receiver: its conversation, its cursor into the log, its leases.

    ``name`` is its identity: what readers are counted by. ``fresh`` says that its replay starts
    from nothing; ``plane`` is the route we took. Transfer ids below ``floor`` ended when it was
    fenced; ``codecs`` are the compressors it can undo; ``viewed`` what it had in use as it closed.
    """

    __slots__ = (
        "codecs", "feed", "floor", "fresh", "grants", "identity", "instance", "leases", "link",
        "name", "plane", "report", "session", "viewed",
    )  # fmt: skip

    def __init__(self, instance: Instance, identity: Identity) -> None:
        self.instance = instance
        self.identity = identity
        self.name = str(identity)
        self.link: Link = ""
        self.plane: OwnPlane | None = None
        self.session = Session(CLOSED)
        self.report = Report(0, (), 0, ())
        self.fresh = True
        self.floor = 0
        self.codecs: tuple[str, ...] = ()
        self.viewed: tuple[int, ...] = ()
        self.feed = Feed()
        self.leases = Leases()
        self.grants = GrantsOut()

    @property
    def open(self) -> bool:
        """Whether messages can be sent now."""
        return self.session.state == OPEN

    @property
    def maps(self) -> bool:
        """Whether it uses our pages where they lie."""
        return self.plane is not None and self.plane.card.mode == "map"

    def send(self, message: ToReceiver, out: list[Action]) -> None:
        """Send *message*, or nothing while the conversation is down (resuming asks again)."""
        state, number, sent, taken = self.session
        if state != OPEN and not isinstance(message, Welcome):
            return
        out.append(new(Send, (self.link, new(Packet, (number, sent, None, message)))))
        self.session = new(Session, (state, number, sent + 1, taken))

    def cut(self) -> None:
        """The conversation is over; leases stay until their end is proved."""
        self.session = Session(CLOSED, self.session.number)
        self.feed.subscribed = False
        self.grants.void()
        self.link = ""

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples."""
        return (
            self.instance, self.identity, self.link, self.plane, self.session, self.report,
            self.fresh, self.feed.freeze(), self.leases.freeze(), self.floor,
            self.codecs, self.viewed, self.grants.freeze(),
        )  # fmt: skip

    @classmethod
    def thaw(cls, frozen: tuple[object, ...]) -> Reader:
        """The reader that froze to *frozen*."""
        state: Any = frozen
        instance, identity, *rest = state
        reader = cls(instance, identity)
        (
            reader.link, reader.plane, reader.session, reader.report, reader.fresh, feed, leases,
            reader.floor, reader.codecs, reader.viewed, grants,
        ) = rest  # fmt: skip
        reader.feed, reader.leases = Feed.thaw(feed), Leases.thaw(leases)
        reader.grants = GrantsOut.thaw(grants)
        return reader
