"""A connector's protocol in conversation with liars: a sender that it gets from, and a receiver.

A script is MessagePack: steps of ``[from the sender?, kind, fields, in order?]``. Whatever it says,
nothing but our own errors may come of it, every byte of the pool has one owner afterwards, and once
both liars are fenced all of it is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import DecodeError
from msgspec.msgpack import decode as unpack
from msgspec.msgpack import encode as pack

from stagelink.adapters.msgspec.wire import KINDS, WireCodec, header
from stagelink.core import events as e
from stagelink.core import messages as m
from stagelink.core.endpoint import Endpoint
from stagelink.core.errors import ProtocolViolationError
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from stagelink.core.events import Action

WHERE, GUEST = "tcp://liar", "accepted:liar"
SENDER, RECEIVER, US = b"s" * 16, b"r" * 16, b"u" * 16
HOST = ["host", "proof"]
KEYS = ("k", "l", "m\x1f0")
PAGE = 4096
REGION = [1, 0, PAGE]
REPORT = [1, [], 0, []]
LIMIT = 400
"""Actions performed for one script; a loop of orders and answers would be found by it."""


def number(kind: type[tuple[object, ...]]) -> int:
    """The kind's number on the wire."""
    return KINDS[kind]


def plane(mode: str) -> PlaneCard:
    """The one plane."""
    return PlaneCard("shm", mode, b"d")


def step(kind: type[tuple[object, ...]], *fields: object) -> list[object]:
    """One honest step; what a receiver says begins with a report in the third place."""
    ours = kind in {
        m.Welcome,
        m.Synced,
        m.Announce,
        m.Ended,
        m.Offer,
        m.Done,
        m.Refused,
        m.Declined,
        m.Lost,
    }
    return [ours, number(kind), list(fields), True]


def scripts() -> list[list[bytes]]:
    """Conversations as they go, for a map plane and for a write plane."""
    made = []
    for mode in ("map", "write"):
        card = ["shm", mode, b"d"]
        welcome = step(m.Welcome, 0, 0, None, SENDER, ["talker", 0, 0], HOST, card, True)
        hello = step(m.Hello, 5, RECEIVER, ["reader", 0, 0], "us", b"", REPORT, HOST, [card], [])
        made += [
            [mode, [
                welcome, step(m.Synced, 0, 0, None, 0),
                step(m.Announce, 0, 0, None, 1, "k", 1, 3, m.INLINE, None, b"abc"),
                step(m.Announce, 0, 0, None, 2, "l", 2, PAGE, m.PULL, None, b""),
                step(m.Done, 0, 0, None, 1, 2, PAGE), step(m.Bye, 0, 0, None, []),
            ]],
            [mode, [
                welcome, step(m.Announce, 0, 0, None, 1, "k", 1, PAGE, m.OFFER, REGION, b""),
                step(m.Announce, 0, 0, None, 2, "l", 2, PAGE, m.CLAIM, None, b""),
                step(m.Offer, 0, 0, None, 1, 2, REGION, b""), step(m.Refused, 0, 0, None, 1, "taken", "so"),
                step(m.Announce, 0, 0, None, 3, "m\x1f0", 3, 0, m.ERROR, None, b"\x1fend 0 0"),
                step(m.Ended, 0, 0, None, [[4, "k", 1, "expired", "so"], [5, "l", 2, "replaced", ""]]),
                step(m.Lost, 0), step(m.Declined, 0, "declined", "no"),
            ]],
            [mode, [
                hello, step(m.Subscribe, 5, 0, REPORT), step(m.Query, 5, 1, REPORT, "small"),
                step(m.Pull, 5, 2, [1, [1], 0, []], 1, 2, REGION if mode == "write" else None, 1.5),
                step(m.Pull, 5, 2, [1, [1, 2], 3, [2]], 2, 3, REGION if mode == "write" else None, 0.0),
                step(m.Cancel, 5, 3, [1, [2], 0, []], 1), step(m.Ack, 5, 4, [9, [], 3, [1]], [1, 2, 3]),
                [False, number(m.Bye), [5, 5, REPORT, [1, 2]], True],
            ]],
        ]  # fmt: skip
    return [[pack(script)] for script in made]


class Talk:
    """Performs scripts, each from the beginning."""

    def __init__(self) -> None:
        self._codec = WireCodec()

    def hear(self, frames: list[bytes]) -> None:
        """Perform a script.

        Raises:
            ProtocolViolationError: a step is no message; those before it were performed.
        """
        try:
            mode, steps = unpack(frames[0])
            steps = list(steps)[:60]
        except (DecodeError, ValueError, TypeError, IndexError, RecursionError):
            return
        world = World("write" if mode == "write" else "map")
        refused = None
        for one in steps:
            try:
                world.say(*self._read(world, one))
            except ProtocolViolationError as error:
                refused = error
            except (ValueError, TypeError, IndexError):
                continue  # no step at all
        world.end()
        if refused is not None:
            raise refused

    def _read(self, world: World, one: Any) -> tuple[str, Any]:
        ours, kind, fields, in_order = one
        link = WHERE if ours else GUEST
        fields = list(fields)
        if not isinstance(kind, int) or not 0 <= kind < 256:
            raise TypeError
        if in_order is True and fields:
            world.number(link, kind, fields)
        message = self._codec.decode([header(kind) + pack(fields)])
        if isinstance(message, (m.Inspect, m.Figures)):
            raise TypeError
        return link, message


class World:
    """One endpoint that puts and gets, and answers in place of its adapters."""

    def __init__(self, mode: str) -> None:
        settings = Settings(
            instance=US, identity=Identity("us"), host=HostCard("host", "mine"),
            planes=(OwnPlane(plane(mode), False),), policy=TimeoutPolicy(), inline_bytes=1 << 20,
            max_writes=1, session_base=0, can_fence=True,
        )  # fmt: skip
        self.machine = Endpoint(settings, Pool(8 * PAGE, pool_id=1))
        self.now_s = 0.0
        self.budget = LIMIT
        self.guests: dict[str, list[int]] = {}
        for ticket, key in enumerate(KEYS, 1):
            self.do(e.Get(ticket, WHERE, "talker", key, 0, 100.0))
        self.do(e.Await(9, WHERE, "talker", ("k", "z"), 100.0))
        self.do(e.Connected(WHERE))
        self.publish("small", None, b"abc", 1)
        for key, readers in (
            ("one", 1),
            ("named", ("reader",)),
            ("all", None),
            ("theirs", ("other",)),
        ):
            block = self.machine.pool.reserve(0, PAGE, 0, 1.0, 0.0)
            assert isinstance(block, Block)
            self.publish(key, block, b"", readers)

    def publish(self, key: str, block: Block | None, body: bytes, readers: Any) -> None:
        """Put something for the receiver's stage."""
        size = block.size if block else len(body)
        self.do(e.Publish(0, "reader", key, size, block, body, "", readers, 300.0, False))

    def number(self, link: str, kind: int, fields: list[Any]) -> None:
        """Put the session and the sequence that the listener expects into *fields*."""
        if kind == number(m.Hello):
            return
        if link == WHERE:
            session = self.machine.incoming.sources[WHERE].session
        else:
            reader = self.machine.outgoing.receivers.at(link)
            if reader is None:
                return
            session = reader.session
        fields[0] = session.number
        if kind >= 16 and len(fields) > 1:
            fields[1] = session.taken

    def say(self, link: str, message: Any) -> None:
        """Take *message* from *link*."""
        self.do(e.Received(link, message))

    def do(self, event: Any) -> None:
        """Hand in *event* and perform what follows."""
        todo = [event]
        while todo:
            self.budget -= 1
            assert self.budget > 0, "orders and answers without end"
            for action in self.machine.handle(todo.pop(), self.now_s):
                todo += self.answered(action)

    def answered(self, action: Action) -> list[Any]:
        """What the adapters say to it."""
        if isinstance(action, e.Attach):
            return [e.Attached(*action[:3], "")]
        if isinstance(action, e.StartWrite):
            assert action.peer != US
            return [e.WriteEnded(action.peer, action.transfer, "")]
        if isinstance(action, e.Probe):
            return [e.Probed(action.peer, True)]
        if isinstance(action, e.Fence):
            return [e.Fenced(action.peer, True)]
        if isinstance(action, e.Complete) and isinstance(action.result, e.Delivery):
            return [e.Release(action.result.handle)] if action.result.handle else []
        return []

    def end(self) -> None:
        """Both liars leave, and time passes: all that is left is what nobody has taken."""
        self.budget = LIMIT
        stats = self.machine.pool.stats()
        assert stats.free + stats.reserved + stats.held + stats.quarantined == stats.capacity
        self.do(e.Disconnected(WHERE, "cut"))
        self.do(e.Disconnected(GUEST, "cut"))
        for self.now_s in (50.0, 200.0, 1000.0, 2000.0):
            self.do(e.TimePassed())
        self.do(e.Close())
        stats = self.machine.pool.stats()
        assert stats.free == stats.capacity, stats
        assert not self.machine.incoming.fetches, self.machine.incoming.fetches.all()
