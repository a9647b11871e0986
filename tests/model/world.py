"""The world around the endpoints: it, not they, knows what is true.

A sender of stage "a" and receivers of stage "b", connections that may be cut, memory whose
contents are known, writes that land whenever they like, processes that die. A :class:`Draft`
is a state while a move changes it.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.model.answers import Answers
from tests.model.machines import PAGE, Machines, Post
from tests.model.names import Names
from tests.model.state import DIALS, PLACES, Left, State, Violation, Wire, Write

from stagelink.core import events as ev
from stagelink.core.messages import Hello, Report
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import Bounds

PHANTOM = b"x0"
"""A second reader that has greeted and never pulls: what is put may be meant for it."""


class Draft(Answers):
    """A state while a move changes it."""

    def __init__(self, world: World, state: State) -> None:
        self.__dict__.update(zip(State._fields, state, strict=True))
        self.todo: list[tuple[str, Any]] = []
        self.world, self.machines = world, world.machines

    def done(self) -> State:
        """The state after the move."""
        fields = self.__dict__
        return State(*[fields[field] for field in State._fields])

    # --- endpoints -----------------------------------------------------------------------

    def handle(self, place: str, event: Any) -> None:
        """Let that endpoint take *event*, and what follows from it at once."""
        self._take(place, self.machines.handle(self.node(place), event))

    def deliver(self, place: str, wire: Wire, mail: int) -> None:
        """Let that endpoint take a message from the present connection."""
        link = f"{wire.dialer}{wire.link}" if place == wire.listener else wire.listener
        self._take(place, self.machines.deliver(self.node(place), link, mail))

    def fire(self, place: str, timer: tuple[Any, ...]) -> None:
        """Let that endpoint's timer be due."""
        self._take(place, self.machines.fire(self.node(place), timer))

    def born(self, place: str) -> None:
        """Let a new endpoint begin there."""
        self.set_node(place, self.world.born(place, self.lives[self.at(place)]))

    def _take(self, place: str, step: tuple[tuple[Any, ...], int]) -> None:
        actions, number = step
        self.set_node(place, number)
        for action in actions:
            self._perform(place, action)
        while self.todo:
            self.handle(*self.todo.pop(0))

    # --- actions -------------------------------------------------------------------------

    def _perform(self, place: str, action: Any) -> None:
        kind = type(action)
        if kind is Post:
            self._send(place, action)
        elif kind is ev.Complete:
            self.complete(place, action)
        elif kind is ev.StartWrite:
            self._start_write(place, action)
        elif kind is ev.Attach:
            if action.link != "phantom":
                told = (action.session, int(action.plane.descriptor))
                self._task(("attach", place, action.peer, action.link, *told))
        elif kind is ev.Probe:
            if self.dead(action.peer):  # an answer "not dead" changes nothing
                self._task(("probe", place, action.peer))
        elif kind is ev.Fence:
            if action.dead and not self.dead(action.peer):
                raise Violation("a living peer is fenced as dead")
            self._task(("fence", place, action.peer))
        elif kind is ev.ResetPlane:
            self._task(("reset", place))
        elif kind is ev.Dial:
            wire = next(w for w in self.wires if (w.dialer, w.listener) == (place, action.link))
            self.set_wire(wire._replace(dialled=True))

    def _task(self, task: tuple[Any, ...]) -> None:
        if task not in self.tasks:
            self.tasks = tuple(sorted((*self.tasks, task)))

    def _send(self, place: str, post: Post) -> None:
        for wire in self.wires:
            if not wire.link:
                continue
            if (wire.dialer, wire.listener) == (place, post.link):
                self.set_wire(wire._replace(to_listener=(*wire.to_listener, post.mail)))
            elif wire.listener == place and post.link == f"{wire.dialer}{wire.link}":
                self.set_wire(wire._replace(to_dialer=(*wire.to_dialer, post.mail)))

    def _start_write(self, place: str, order: ev.StartWrite) -> None:
        write = (self.instance(place), order.peer, order.transfer)
        if write in self.started:
            raise Violation(f"1/4 transfer {order.transfer} starts a second write")
        self.started = tuple(sorted((*self.started, write)))
        content = self.memory[self.at(place)][order.source.offset // PAGE]
        doomed = write[:2] not in self.attached
        posted = Write(*write, order.source.offset, order.target.offset, content, doomed)
        self.writes = tuple(sorted((*self.writes, posted)))

    # --- connections ---------------------------------------------------------------------

    def cut(self, dialer: str) -> None:
        """The connection breaks; who dialled hears of it now, the other some time."""
        wire = self.wire(dialer)
        if not wire.link:
            return
        late = (*wire.late, wire.link) if self.node(wire.listener) else ()
        self.set_wire(wire._replace(link=0, to_listener=(), to_dialer=(), late=late))
        if self.node(dialer):
            self.handle(dialer, ev.Disconnected(wire.listener, "cut"))

    def spend(self, budget: str) -> None:
        """One adversity fewer."""
        self.left = self.left._replace(**{budget: getattr(self.left, budget) - 1})


class World:
    """A bounded world: its machines, its first state, and which of its states are equal."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.places = PLACES[bounds.places]
        self.dials = DIALS[bounds.places]
        self.machines = Machines(bounds)
        self.names = Names(self.machines, dict(self.dials))
        self.listeners = tuple(dict.fromkeys(listener for _, listener in self.dials))

    def stage(self, place: str) -> str:
        """The stage of who is there."""
        return "a" if place == "s" else "b"

    def told(self, place: str) -> str:
        """The stage that is sent to from there."""
        return "b" if place == "s" else "a"

    def first(self) -> State:
        """Living endpoints that have not met."""
        bounds = self.bounds
        left = Left(*[getattr(bounds, field) for field in Left._fields])
        nodes = tuple(self.born(place, 0) for place in self.places)
        pages = {"s": bounds.sender_pages}
        memory = tuple((0,) * pages.get(place, bounds.receiver_pages) for place in self.places)
        wires = tuple(Wire(*dial) for dial in self.dials)
        lives = (0,) * len(self.places)
        return State(
            nodes,
            lives,
            wires,
            None,
            (),
            (),
            (),
            (0,) * len(nodes),
            (),
            memory,
            (),
            (),
            0,
            0,
            (),
            (),
            (),
            (),
            left,
        )

    def born(self, place: str, life: int) -> int:
        """A new endpoint; a second reader has greeted it where offers are to be claimed."""
        number = self.machines.born(place, life)
        if self.bounds.mode != "claim" or place not in self.listeners:
            return number
        planes = (PlaneCard("plane", "map", b"0"),)
        report, us = Report(1, (), 0, ()), Identity(self.told(place), 1)
        hello = Hello(
            1, PHANTOM, us, self.stage(place), b"", report, HostCard("host", "x0"), planes
        )
        return self.machines.handle(number, ev.Received("phantom", hello))[1]


@contextmanager
def limited(limits: tuple[tuple[str, int], ...]) -> Iterator[None]:
    """The core with those limits: ``("share.OPEN_LIMIT", 1)`` is a number of that module."""
    before = []
    for path, value in limits:
        module, _, constant = path.rpartition(".")
        owner = import_module(f"stagelink.core.{module}")
        before.append((owner, constant, getattr(owner, constant)))
        setattr(owner, constant, value)
    try:
        yield
    finally:
        for owner, constant, value in before:
            setattr(owner, constant, value)
