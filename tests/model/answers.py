"""A state while it changes: who is where, and whether what callers are told is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.machines import PAGE, name
from tests.model.state import Call, Put, Reading, View, Violation

from stagelink.core import events as ev
from stagelink.core.errors import Reason
from stagelink.core.pool import Block
from stagelink.core.prospects import is_there
from stagelink.core.streams import Progress, parse_end

if TYPE_CHECKING:
    from tests.model.machines import Machines
    from tests.model.state import Left, Wire, Write
    from tests.model.world import World

BROKEN = "broken"
"""The words of an error that is published."""


class Answers:
    """The fields of State, who is where, and the calls that wait for an answer."""

    nodes: tuple[int, ...]
    lives: tuple[int, ...]
    wires: tuple[Wire, ...]
    ghost: tuple[int, str, int] | None
    writes: tuple[Write, ...]
    tasks: tuple[tuple[Any, ...], ...]
    attached: tuple[tuple[bytes, bytes], ...]
    editions: tuple[int, ...]
    barred: tuple[tuple[bytes, bytes, int], ...]
    memory: tuple[tuple[int, ...], ...]
    views: tuple[View, ...]
    waiting: tuple[Call, ...]
    tickets: int
    contents: int
    published: tuple[Put, ...]
    delivered: tuple[tuple[bytes, bytes, int], ...]
    started: tuple[tuple[bytes, bytes, int], ...]
    readings: tuple[Reading, ...]
    left: Left
    world: World
    machines: Machines
    todo: list[tuple[str, Any]]

    # --- who is where --------------------------------------------------------------------

    def at(self, place: str) -> int:
        """The position of *place* in tuples by place."""
        return self.world.places.index(place)

    def node(self, place: str) -> int:
        """The endpoint there, 0 for none."""
        return self.nodes[self.at(place)]

    def set_node(self, place: str, number: int) -> None:
        """Another endpoint is there now."""
        at = self.at(place)
        self.nodes = (*self.nodes[:at], number, *self.nodes[at + 1 :])

    def instance(self, place: str) -> bytes:
        """The instance of that process, or of its last life."""
        return name(place, self.lives[self.at(place)])

    def dead(self, instance: bytes) -> bool:
        """Whether that instance runs no more; a phantom always does."""
        place = instance[:1].decode()
        return place != "x" and not (self.node(place) and self.instance(place) == instance)

    def wire(self, dialer: str) -> Wire:
        """The connection that is dialled from there."""
        return next(wire for wire in self.wires if wire.dialer == dialer)

    def set_wire(self, wire: Wire) -> None:
        """That connection is as *wire* says."""
        self.wires = tuple([wire if old.dialer == wire.dialer else old for old in self.wires])

    def page(self, place: str, offset: int) -> int:
        """The content of a page."""
        return self.memory[self.at(place)][offset // PAGE]

    def fill(self, place: str, offset: int, content: int) -> None:
        """Write a page."""
        at, page = self.at(place), offset // PAGE
        pages = (*self.memory[at][:page], content, *self.memory[at][page + 1 :])
        self.memory = (*self.memory[:at], pages, *self.memory[at + 1 :])

    def reading(self, place: str, giver: str) -> Reading:
        """How far the stream of *giver* has got at *place*."""
        for reading in self.readings:
            if (reading.place, reading.giver) == (place, giver):
                return reading
        return Reading(place, giver, Progress(self.world.bounds.keys[0]))

    def set_reading(self, reading: Reading) -> None:
        """The stream has got as far as *reading* says."""
        same = (reading.place, reading.giver)
        others = [r for r in self.readings if (r.place, r.giver) != same]
        self.readings = tuple(sorted([*others, reading]))

    # --- calls ---------------------------------------------------------------------------

    def call(self, place: str, what: str, key: str, content: int = 0) -> int:
        """A ticket for a call."""
        self.tickets += 1
        self.waiting = (*self.waiting, Call(self.tickets, place, what, key, content))
        return self.tickets

    def waits_for(self, ticket: int) -> bool:
        """Whether that call has no answer yet."""
        return any(call.ticket == ticket for call in self.waiting)

    def complete(self, place: str, action: ev.Complete) -> None:
        """A call is answered."""
        ticket, result = action
        asked = [call for call in self.waiting if call.ticket == ticket]
        if not asked:
            raise Violation(f"7 a call is answered twice (or was never made): {action}")
        self.waiting = tuple([call for call in self.waiting if call.ticket != ticket])
        call = asked[0]
        if isinstance(result, Block):
            self.contents += 1
            self.fill(place, result.offset, self.contents)
            self.publish(place, call.key, result, b"", "", self.contents)
        elif isinstance(result, ev.Published):
            self._published(call, result.generation)
        elif isinstance(result, ev.Delivery):
            self._delivered(call, result)
        elif call.what == "wait" and isinstance(result, str):
            self._found(call, result)
        elif isinstance(result, ev.Failure):
            self._failed(call, result)

    def publish(
        self, place: str, key: str, block: Block | None, body: bytes, error: str, content: int
    ) -> None:
        """Publish a content, or the words of an error, once the present step is over."""
        bounds = self.world.bounds
        stream = "\x1f" in key
        ticket = self.call(place, "publish", key, content)
        size = len(body) if block is None else PAGE
        told = self.world.told(place)
        replace = bounds.replace and not stream
        if block is not None:
            body = str(content).encode()  # it begins with that
        order = ev.Publish(
            ticket, told, key, size, block, body, error, bounds.readers, 1.0, replace
        )
        self.todo.append((place, order))

    def _published(self, call: Call, generation: int) -> None:
        put = Put(self.instance(call.place), generation, call.key, call.content)
        self.published += (put,)
        if "\x1f" in call.key:
            writing = self.reading(call.place, call.place)
            if call.content:
                writing = writing._replace(progress=writing.progress.after(generation, 1))
            else:
                writing = writing._replace(state="over")
            self.set_reading(writing)

    def _failed(self, call: Call, failure: ev.Failure) -> None:
        # Another reader may hold the slot, and give it back later.
        may_be = self.world.bounds.places == "two" or bool(self.delivered)
        may_be = may_be or self.left.rejects < self.world.bounds.rejects
        if failure.reason == Reason.TAKEN.value and not may_be:
            raise Violation("a get fails as taken, but nobody ever got the payload")
        if failure.reason == Reason.FAILED.value:
            self._told(call, failure)
        if call.what == "read":
            reading = self.reading(call.place, self.wire(call.place).listener)
            end = parse_end(failure.detail) if failure.reason == Reason.FAILED.value else None
            if end is not None and end.chunks != reading.progress.chunks:
                raise Violation(f"3 a stream ends with {end} after {reading.progress}")
            self.set_reading(reading._replace(state="over" if end else "broken"))

    def _told(self, call: Call, failure: ev.Failure) -> None:
        """An error that was published has reached its reader, and counts as delivered."""
        errors = [p for p in self.published if p.key == call.key and not p.content]
        if not errors:
            raise Violation(f"3 the get of {call.key!r} is told of a failure that never was")
        us = self.instance(call.place)
        marks = [(us, *p[:2]) for p in errors if p.generation == failure.generation]
        self.delivered = tuple(sorted({*self.delivered, *marks}))

    def _found(self, call: Call, key: str) -> None:
        """A wait is answered: at this moment a get of that key would be, too."""
        incoming = self.machines.look(self.node(call.place)).incoming
        source = next(iter(incoming.sources.values()))
        if key not in self.world.bounds.keys:
            raise Violation(f"7 a wait is answered by {key!r}, which it does not want")
        if not is_there(incoming._gets, source, key) and not source.known_end(key)[0]:
            raise Violation(f"7 a wait is answered by {key!r}, which is not there")

    # --- deliveries ----------------------------------------------------------------------

    def _delivered(self, call: Call, got: ev.Delivery) -> None:
        truth = [p for p in self.published if p[:2] == (got.peer, got.generation)]
        if not truth or truth[0].key != call.key:
            raise Violation(f"3 {got} was never published as {call.key!r}")
        content, place = truth[0].content, call.place
        seen = self._seen(place, got, content)
        if seen != content:
            raise Violation(f"3 {got} holds content {seen}, published was {content}")
        if not got.inline and got.size != PAGE:
            raise Violation(f"3 {got} has not the whole length")
        mark = (self.instance(place), got.peer, got.generation)
        if mark in self.delivered:
            raise Violation(f"5 {got} is delivered twice to one receiver")
        self.delivered = tuple(sorted((*self.delivered, mark)))
        readers = self.world.bounds.readers
        takers = [d for d in self.delivered if d[1:] == mark[1:]]
        if readers and len({taker[:1] for taker, *_ in takers}) > readers:
            raise Violation(f"5 {got} is delivered to more than {readers} readers: {takers}")
        if call.what == "read":
            reading = self.reading(place, self.wire(place).listener)
            if reading.instance not in {b"", got.peer}:
                raise Violation(f"3 {got} is a chunk of another stream than {reading}")
            progress = reading.progress.after(got.generation, 1)
            self.set_reading(reading._replace(progress=progress, instance=got.peer))
        kept = got if self.left.untaken and call.what == "get" else None
        if got.handle or kept:
            block = -1 if got.block is None else got.block.offset
            where = -1 if got.where is None else got.where.offset
            rest = (got.peer, got.generation, content, block, where, call.key, kept)
            self.views = (*self.views, View(place, got.handle, *rest))

    def _seen(self, place: str, got: ev.Delivery, content: int) -> int:
        """What a caller finds where the delivery points to."""
        if got.inline:
            return int(got.body)
        if got.body and int(got.body) != content:
            raise Violation(f"3 {got} begins otherwise than what was published, {content}")
        if got.block is not None:
            return self.page(place, got.block.offset)
        assert got.where is not None
        if self.dead(got.peer):
            return content  # the mapping outlives its owner
        return self.page(got.peer[:1].decode(), got.where.offset)
