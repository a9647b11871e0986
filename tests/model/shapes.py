"""Values taken apart: what they look like, and the ids in them by the group they belong to."""

from __future__ import annotations

from typing import Any

from tests.model.state import Call, Put, Reading, View, Wire, Write

from stagelink.core import messages as ms
from stagelink.core.events import Delivery
from stagelink.core.handshake.feed import Sent
from stagelink.core.handshake.fetch import Fetch
from stagelink.core.handshake.grants import Spent
from stagelink.core.handshake.inbox import Known
from stagelink.core.handshake.lease import Ended as EndedTransfer
from stagelink.core.handshake.lease import Lease
from stagelink.core.handshake.session import CLOSED, DECLINED, DIALING, IDLE, Session
from stagelink.core.pool import Block
from stagelink.core.shelf import Kept
from stagelink.core.streams import MARK, Progress
from stagelink.core.waits import Wait

OVER = frozenset({IDLE, DIALING, DECLINED, CLOSED})
"""States of a session in which nobody looks at places."""

Group = tuple[Any, ...]

# What each field is, letter by letter: "." stands for itself (or is looked into); g generation,
# n log number, t transfer, f get, b block serial, k ticket, h shelf number, c content, s session,
# K key, B body, L link. A capital after * repeats: "*g" is a tuple of generations.
FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(fields.split())
    for kind, fields in {
        Fetch: "f k . K g . . g . t . . B n . . .",
        Known: "g K . . . B f",
        Block: ". . b .",
        Delivery: "f g . . B . .",
        Kept: "h . K .",
        Wait: "k . *K",
        Lease: ". g . .",
        EndedTransfer: "g .",
        Sent: "n .",
        Spent: "t .",
        ms.Report: "t *t n *g",
        ms.Announce: "n K g . . . B",
        ms.Gone: "n K g . .",
        ms.Query: "K",
        ms.Pull: "t g . .",
        ms.Offer: "t g . B",
        ms.Done: "t g .",
        ms.Refused: "t . .",
        ms.Cancel: "t",
        ms.Granted: "t .",
        ms.Landed: "n K g . t . B",
        ms.Ack: "*g",
        ms.Bye: "*g",
        ms.Synced: "n",
        ms.Lost: "s",
        ms.Declined: "s . .",
        Write: ". . t . . c .",
        View: ". f . g c . . K .",
        Put: ". g K c",
        Call: "k . . K c",
        Wire: ". . l . . . . .",
        Progress: "K g . .",
        Reading: ". . . . .",
    }.items()
}


def _letter(instance: bytes) -> str:
    return instance[:1].decode()


class Walk:
    """Takes a value apart; ``giver`` and ``taker`` own the ids that it meets."""

    def __init__(self) -> None:
        self.ids: list[tuple[Group, int]] = []
        self.giver = self.taker = ""

    # --- ids -----------------------------------------------------------------------------

    def hole(self, kind: str, owner: str, value: int) -> Any:
        """An id; what is not above 0 is none, and stands for itself."""
        if value <= 0:
            return value
        self.ids.append(((kind, owner) if owner else (kind,), value))
        return "?" + kind + owner

    def id(self, kind: str, value: int) -> Any:
        """An id of that kind, of whom it concerns here."""
        if kind in "gn":
            return self.hole(kind, self.giver, value)
        if kind in "tfbh":
            return self.hole(kind, self.taker, value)
        if kind == "s":
            return self.session(value)
        return self.hole(kind, "", value)

    def session(self, number: int) -> Any:
        """A session's number; each instance of a receiver has a thousand of its own."""
        if not number:
            return 0
        self.ids.append((("s", number // 1000), number))
        return "?s", number // 1000

    def place(self, session: int, way: int, place: int) -> str:
        """A place in a session, on one of its two ways."""
        self.ids.append((("place", session, way), place))
        return "?p"

    def key(self, key: str) -> Any:
        """A key; the names of streams and chunks hold the generation of chunk 0."""
        if MARK not in key:
            return key
        name, *rest = key.split(MARK)
        if len(rest) == 1 and rest[0] == "0":
            return key
        return name, self.hole("g", self.giver, int(rest[0])), *rest[1:]

    def body(self, body: Any) -> Any:
        """Inline bytes: a content's number, or an error's words."""
        return self.hole("c", "", int(body)) if body and body.isdigit() else body

    def link(self, link: str) -> Any:
        """A listener's name of a connection: the dialer's letter and a number."""
        return (link[0], self.hole("l", link[0], int(link[1:]))) if link[1:].isdigit() else link

    # --- values --------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Anything, by its type."""
        kind = type(value)
        fields = FIELDS.get(kind)
        if fields is not None:
            return (kind.__name__, *map(self._field, fields, value))
        if kind is Session:
            return self._session(value)
        if kind is ms.Packet:
            way = value.report is None
            session = self.session(value.session)
            place = self.place(value.session, way, value.sequence)
            return session, place, self.value(value.report), self.value(value.message)
        if kind is ms.Hello:  # a conversation that may begin yet counts from 0
            self.place(value.session, 0, 0)
            self.place(value.session, 1, 0)
            return (self.session(value.session), *map(self.value, value[1:]))
        if isinstance(value, tuple):
            return (kind.__name__, *map(self.value, value))
        return value

    def _field(self, what: str, value: Any) -> Any:
        if what == ".":
            return self.value(value)
        if what == "K":
            return self.key(value)
        if what == "B":
            return self.body(value)
        if what[0] == "*":
            return tuple([self._field(what[1], one) for one in value])
        return self.id(what, value)

    def many(self, kind: str, values: Any) -> tuple[Any, ...]:
        """Ids of one kind."""
        return tuple([self.id(kind, value) for value in values])

    def _session(self, value: Session) -> Any:
        number = self.session(value.number)
        if value.state in OVER:
            return value.state, number
        out = self.sending
        sent = self.place(value.number, out, value.sent)
        return value.state, number, sent, self.place(value.number, not out, value.taken)

    sending = False
    """Whether the sessions met are those of a sender, whose way out is the receiver's way in."""

    # --- an endpoint ---------------------------------------------------------------------

    def endpoint(self, me: str, frozen: Any) -> Any:
        """What Endpoint.freeze() says of the endpoint at place *me*."""
        closed, pool, timers, peers, outgoing, incoming = frozen
        self.taker = self.giver = me
        _, serial, rows, waits = pool
        shape = [
            closed, self.id("b", serial + 1),
            tuple([(r[0], r[1], self.id("b", r[2]), *r[3:6], self.many("t", r[6])) for r in rows]),
            tuple([(self._waiter(wait[0]), *wait[1:]) for wait in waits]),
        ]  # fmt: skip
        shape.append(tuple([self._timer(key) for key, _ in timers]))
        shape.append(peers)
        shape.append(self._outgoing(me, outgoing))
        self.sending = False
        shape.append(self._incoming(me, incoming))
        return tuple(shape)

    def _waiter(self, waiter: int) -> Any:
        return waiter % 2, self.id("f" if waiter % 2 else "k", waiter // 2)

    def _timer(self, key: Any) -> Any:
        what, *rest = key
        if what in {"fetch", "wait", "kept"}:
            return what, self.id({"fetch": "f", "wait": "k", "kept": "h"}[what], rest[0])
        if what == "ttl":
            return what, rest[0], self.id("g", rest[1])
        if what in {"budget", "stuck"}:
            return what, rest[0], self.hole("t", _letter(rest[0]), rest[1])
        return key

    def _outgoing(self, me: str, outgoing: Any) -> Any:
        generation, edges, transfers, floors = outgoing
        self.giver, self.sending = me, True
        shape: list[Any] = [self.id("g", generation + 1), edges[0]]
        for stage, (head, trimmed, gone, entries) in edges[1]:
            shape += [stage, self.id("n", head), self.id("n", trimmed), self.value(gone)]
            shape += [self._entry(entry) for entry in entries]
        for reader in edges[2]:
            self.taker = _letter(reader[0])
            shape.append(self._reader(reader))
        for peer, transfer in transfers[0]:
            shape.append((peer, self.hole("t", _letter(peer), transfer)))
        shape.append(transfers[1])
        for peer, floor in floors:
            shape.append((peer, self.hole("t", _letter(peer), floor)))
        return tuple(shape)

    def _entry(self, entry: Any) -> Any:
        generation, number, key, size, block, body, *rest = entry
        self.taker = self.giver  # the block is of our own pool
        return (
            self.id("g", generation), self.id("n", number), self.key(key), size,
            self.value(block), self.body(body), *rest[:-2], self.id("n", rest[-2]), rest[-1],
        )  # fmt: skip

    def _reader(self, reader: Any) -> Any:
        instance, identity, link, plane, session, report, fresh, feed, leases, floor, *rest = (
            reader
        )
        cursor, acknowledged, base, subscribed, sync_at, sent = feed
        offers, transfers, ended = leases
        return (
            instance, identity, self.link(link), plane, self.value(session), self.value(report),
            fresh, self.many("n", (cursor, acknowledged, base, sync_at)), subscribed, self.value(sent),
            tuple([(self.id("g", generation), pinned) for generation, pinned in offers]),
            tuple([(self.id("t", t), self.value(lease)) for t, lease in transfers]),
            tuple([(self.id("t", t), self.value(end)) for t, end in ended]),
            self.id("t", floor), rest[0], self.many("g", rest[1]),
            tuple([(self.id("t", transfer), target) for transfer, target in rest[2][0]]),
            tuple([(self.id("g", g), self.value(spent)) for g, spent in rest[2][1]]),
        )  # fmt: skip

    def _incoming(self, me: str, incoming: Any) -> Any:
        sessions, cards, fetches, sources, waits, shelf = incoming
        self.taker = me
        shape: list[Any] = [self.session(sessions + 1), cards]
        shape += [self.id("f", fetches[0]), self.id("t", fetches[1])]
        for fetch in fetches[2]:
            self.giver = fetch.address
            shape.append(self.value(fetch))
        for source in sources:
            self.giver = source[0]
            shape.append(self._source(source))
        return (*shape, self.value(waits), self.id("h", shelf[0]), self.value(shelf[1]))

    def _source(self, source: Any) -> Any:
        (
            address, stage, session, peer, name, attached, met, gone, inbox, cursor, synced,
            fresh, consumed, notices, owed_bytes, owed, reported, rejected, recent, stalled,
            grants,
        ) = source  # fmt: skip
        return (
            address, stage, self.value(session), peer, name, attached, met, gone,
            self.value(inbox), self.id("n", cursor), synced, fresh,
            tuple([(self.id("g", generation), again) for generation, again in consumed]),
            self.many("g", notices), owed_bytes, owed, self.value(reported),
            tuple([self.key(key) for key in rejected]),
            tuple([(self.key(key), why) for key, why in recent]),
            tuple([self.key(key) for key in stalled]), grants,
        )  # fmt: skip

    # --- the world -----------------------------------------------------------------------

    def wires(self, wires: Any) -> Any:
        """Connections; their mail is counted elsewhere."""
        return tuple([self._wire(wire) for wire in wires])

    def _wire(self, wire: Any) -> Any:
        letter = wire.dialer
        late = tuple([self.hole("l", letter, link) for link in wire.late])
        now = self.hole("l", letter, wire.link)
        return letter, now, self.hole("l", letter, wire.links + 1), late, wire.dialled

    def tasks(self, tasks: Any) -> Any:
        """Orders to drivers: what, where, and of whom."""
        return tuple([self._attach(task) if task[0] == "attach" else task for task in tasks])

    def _attach(self, task: Any) -> Any:
        what, place, peer, link, session, description = task
        return what, place, peer, self.link(link), self.session(session), description

    def writes(self, writes: Any) -> Any:
        """Posted writes."""
        return self._owned(writes, lambda write: (_letter(write.sender), _letter(write.receiver)))

    def views(self, views: Any) -> Any:
        """Deliveries that somebody looks at."""
        return self._owned(views, lambda view: (_letter(view.peer), view.place))

    def readings(self, readings: Any) -> Any:
        """How far streams were written and read."""
        return self._owned(readings, lambda reading: (reading.giver, reading.place))

    def memory(self, memory: Any) -> Any:
        """The content of every page."""
        return tuple([self.many("c", pages) for pages in memory])

    def published(self, puts: Any) -> Any:
        """What was published."""
        return self._owned(puts, lambda put: (_letter(put.peer), ""))

    def delivered(self, marks: Any) -> Any:
        """Who got what."""
        return tuple([(r, s, self.hole("g", _letter(s), g)) for r, s, g in marks])

    def started(self, marks: Any) -> Any:
        """Which transfers were begun."""
        return tuple([(s, r, self.hole("t", _letter(r), t)) for s, r, t in marks])

    def _owned(self, values: Any, owners: Any) -> Any:
        found = []
        for value in values:
            self.giver, self.taker = owners(value)
            found.append(self.value(value))
        return tuple(found)
