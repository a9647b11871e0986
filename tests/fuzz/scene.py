"""One connector's protocol between two liars and two honest peers, which must never notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core import events as e
from stagelink.core import messages as m
from stagelink.core.endpoint import Endpoint
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard, RegionRef

if TYPE_CHECKING:
    from stagelink.core.events import Action

PAGE = 4096
US = b"u" * 16
LIAR, HONEST = "tcp://liar", "tcp://honest"
GUEST, GOOD = "accepted:liar", "accepted:good"
WHO = {LIAR: b"s" * 16, HONEST: b"h" * 16, GUEST: b"r" * 16, GOOD: b"g" * 16}
STAGE = {LIAR: "talker", HONEST: "thinker", GUEST: "reader", GOOD: "reader"}
WHOLE = RegionRef(1, 0, PAGE)
SMALL = RegionRef(1, 0, 64)
BOOKS = m.Report(1, (), 0, ())
K, HONEST_KEY = 1, 2
"""Tickets of the gets that wait."""


class Scene:
    """Everybody has met; our gets wait for key ``k`` of the liar and ``fine`` of the honest.

    The honest sender's payload is being pulled into our pool. For stage ``reader`` are published
    ``one`` (anybody's), ``named`` (the honest reader's alone); ``secret`` is for another stage.
    """

    def __init__(self, mode: str = "map") -> None:
        self.mode = mode
        settings = Settings(
            instance=US, identity=Identity("us"), host=HostCard("host", "us.lock"),
            planes=(OwnPlane(self.card, False),), policy=TimeoutPolicy(), inline_bytes=1 << 20,
            max_writes=4, session_base=0, can_fence=False,
        )  # fmt: skip
        self.machine = Endpoint(settings, Pool(16 * PAGE, pool_id=1))
        self.answers: dict[int, Any] = {}
        self.sent: list[e.Send] = []
        self.writes: list[e.StartWrite] = []
        self.do(e.Get(K, LIAR, "talker", "k", 0, 100.0))
        self.do(e.Get(HONEST_KEY, HONEST, "thinker", "fine", 0, 100.0))
        for link in (LIAR, HONEST):
            self.do(e.Connected(link))
            self.say(link, self.welcome(link))
        self.blocks = {key: self.publish(key, to, readers) for key, to, readers in (
            ("one", "reader", 2), ("named", "reader", ("reader/1/0",)), ("secret", "other", 1))
        }  # fmt: skip
        self.greet(GUEST)
        self.greet(GOOD, replica=1)

    @property
    def card(self) -> PlaneCard:
        """The one plane."""
        return PlaneCard("shm", self.mode, b"d")

    def welcome(self, link: str, **changes: Any) -> m.Welcome:
        """What the sender at *link* answers."""
        proof = HostCard("host", f"{STAGE[link]}.lock")
        honest = m.Welcome(WHO[link], Identity(STAGE[link]), proof, self.card, True)
        return honest._replace(**changes)

    def hello(self, link: str, replica: int = 0, **changes: Any) -> m.Hello:
        """How the receiver on *link* greets."""
        session = 1 + max((r.session.number for r in self.readers.values()), default=0)
        honest = m.Hello(
            session, WHO[link], Identity(STAGE[link], replica), "us", b"", BOOKS,
            HostCard("host", f"{link}.lock"), (self.card,),
        )  # fmt: skip
        return honest._replace(**changes)

    def greet(self, link: str, replica: int = 0) -> None:
        """The receiver on *link* greets, and subscribes."""
        self.do(e.Received(link, self.hello(link, replica)))
        self.say(link, m.Subscribe())

    def publish(self, key: str, to: str, readers: Any) -> Block:
        """Put a page."""
        block = self.machine.pool.reserve(0, PAGE, 0, 1.0, 0.0)
        assert isinstance(block, Block)
        self.do(e.Publish(0, to, key, PAGE, block, b"", "", readers, 300.0, False))
        return block

    @property
    def readers(self) -> Any:
        """Who gets from us."""
        return self.machine.outgoing.readers

    def session(self, link: str) -> Any:
        """The conversation over *link*."""
        if link in {LIAR, HONEST}:
            return self.machine.incoming.sources[link].session
        return self.readers[WHO[link]].session

    def say(
        self, link: str, message: Any, report: m.Report | None = BOOKS, **changes: Any
    ) -> None:
        """*message* comes over *link* in its place; *changes* are made to its packet."""
        session = self.session(link)
        ours = None if link in {LIAR, HONEST} else report
        packet = m.Packet(session.number, session.taken, ours, message)
        self.do(e.Received(link, packet._replace(**changes)))

    def do(self, event: Any) -> None:
        """Hand in *event*, and answer for the adapters."""
        todo = [event]
        while todo:
            for action in self.machine.handle(todo.pop(), 0.0):
                todo += self._performed(action)

    def _performed(self, action: Action) -> list[Any]:
        if isinstance(action, e.Complete) and action.ticket:
            self.answers[action.ticket] = action.result
        elif isinstance(action, e.Send):
            self.sent.append(action)
        elif isinstance(action, e.StartWrite):
            self.writes.append(action)
        elif isinstance(action, e.Attach):
            return [e.Attached(*action[:3], "")]
        return []

    def pull_of(self, link: str) -> m.Pull:
        """The latest pull that was sent over *link*."""
        return next(
            packet.message for to, packet in reversed(self.sent)
            if to == link and isinstance(packet, m.Packet) and isinstance(packet.message, m.Pull)
        )  # fmt: skip

    def last_said(self) -> Any:
        """The latest message that was sent in a packet."""
        packet = self.sent[-1].message
        assert isinstance(packet, m.Packet)
        return packet.message

    def counted(self) -> dict[str, int]:
        """Every refusal so far, by cause."""
        outgoing, incoming = self.machine.outgoing, self.machine.incoming
        found = outgoing.violations + incoming.violations
        counts = {cause.value: count for cause, count in found.items() if count}
        plain = {
            "late": incoming.arrivals.late, "stale": incoming.stale + outgoing.stale,
            "failed": outgoing.transfers.failed,
        }  # fmt: skip
        return counts | {name: count for name, count in plain.items() if count}
