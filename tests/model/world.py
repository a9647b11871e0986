"""The world around two endpoints: it, not they, knows what is true.

A sender of stage "a" and a receiver of stage "b", a connection that may be cut, memory whose
contents are known, writes that land whenever they like, processes that die. A :class:`Draft`
is a state while a move changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.machines import PAGE, Machines, Post, name, names_for
from tests.model.state import Left, Put, State, View, Violation, Write

from stagelink.core import events as ev
from stagelink.core.errors import Reason
from stagelink.core.messages import Hello, Report
from stagelink.core.pool import Block
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.model.state import Bounds

ADDRESS = "a"
PHANTOM = b"x0"


class Draft:
    """A state while a move changes it."""

    # The fields of State.
    sender: int
    receiver: int
    lives: tuple[int, int]
    link: int
    links: int
    late: tuple[int, ...]
    dialled: bool
    to_sender: tuple[int, ...]
    to_receiver: tuple[int, ...]
    ghost: tuple[str, int] | None
    writes: tuple[Write, ...]
    tasks: tuple[tuple[Any, ...], ...]
    attached: bool
    source: tuple[int, ...]
    target: tuple[int, ...]
    views: tuple[View, ...]
    waiting: tuple[tuple[int, str, str], ...]
    tickets: int
    contents: int
    published: tuple[Put, ...]
    delivered: tuple[tuple[bytes, bytes, int], ...]
    started: tuple[tuple[bytes, bytes, int], ...]
    left: Left

    def __init__(self, world: World, state: State) -> None:
        self.__dict__.update(state._asdict())
        self.todo: list[tuple[str, Any]] = []
        self.world, self.machines = world, world.machines

    def done(self) -> State:
        """The state after the move, in normal form."""
        state = State(*[getattr(self, field) for field in State._fields])
        return self.world.normal(state)

    # --- endpoints -----------------------------------------------------------------------

    def alive(self, role: str) -> bool:
        """Whether that process runs."""
        return bool(self.sender if role == "s" else self.receiver)

    def instance(self, role: str) -> bytes:
        """The instance of that process, or of its last life."""
        return name(role, self.lives[role == "r"])

    def handle(self, role: str, event: Any) -> None:
        """Let that endpoint take *event*, and what follows from it at once."""
        number = self.sender if role == "s" else self.receiver
        self._take(role, self.machines.handle(number, event))

    def deliver(self, role: str, mail: int) -> None:
        """Let that endpoint take a message from the present connection."""
        number, link = (self.sender, f"c{self.link}") if role == "s" else (self.receiver, ADDRESS)
        self._take(role, self.machines.deliver(number, link, mail))

    def fire(self, role: str, timer: tuple[Any, ...]) -> None:
        """Let that endpoint's timer be due."""
        number = self.sender if role == "s" else self.receiver
        self._take(role, self.machines.fire(number, timer))

    def _take(self, role: str, step: tuple[tuple[Any, ...], int]) -> None:
        actions, number = step
        if role == "s":
            self.sender = number
        else:
            self.receiver = number
        for action in actions:
            self._perform(role, action)
        if self.todo:
            self.handle(*self.todo.pop(0))

    # --- actions -------------------------------------------------------------------------

    def _perform(self, role: str, action: Any) -> None:
        kind = type(action)
        if kind is Post:
            self._send(role, action)
        elif kind is ev.Complete:
            self._complete(role, action)
        elif kind is ev.StartWrite:
            self._start_write(action)
        elif kind is ev.Attach:
            if action.link != "phantom":
                self._task(("attach", role, action.peer, action.link))
        elif kind is ev.Probe:
            if self._dead(action.peer):  # an answer "not dead" changes nothing
                self._task(("probe", role, action.peer))
        elif kind is ev.Fence:
            if action.dead and not self._dead(action.peer):
                raise Violation("a living peer is fenced as dead")
            self._task(("fence", role, action.peer))
        elif kind is ev.ResetPlane:
            self._task(("reset", role))
        elif kind is ev.Dial:
            self.dialled = True

    def _task(self, task: tuple[Any, ...]) -> None:
        if task not in self.tasks:
            self.tasks = tuple(sorted((*self.tasks, task)))

    def _dead(self, instance: bytes) -> bool:
        role = instance[:1].decode()
        return instance != PHANTOM and not (self.alive(role) and self.instance(role) == instance)

    def _send(self, role: str, post: Post) -> None:
        if not self.link:
            return
        if role == "r":
            self.to_sender += (post.mail,)
        elif post.link == f"c{self.link}":
            self.to_receiver += (post.mail,)

    def _start_write(self, order: ev.StartWrite) -> None:
        write = (self.instance("s"), order.peer, order.transfer)
        if write in self.started:
            raise Violation(f"1/4 transfer {order.transfer} starts a second write")
        self.started = tuple(sorted((*self.started, write)))
        content = self.source[order.source.offset // PAGE]
        doomed = not self.attached or order.peer != self.instance("r")
        posted = Write(*write, order.source.offset, order.target.offset, content, doomed)
        self.writes = tuple(sorted((*self.writes, posted)))

    # --- answers -------------------------------------------------------------------------

    def _complete(self, role: str, action: ev.Complete) -> None:
        ticket, result = action
        asked = [wait for wait in self.waiting if wait[0] == ticket]
        if not asked:
            raise Violation(f"7 a call is answered twice (or was never made): {action}")
        self.waiting = tuple(wait for wait in self.waiting if wait[0] != ticket)
        _, what, key = asked[0]
        if what == "put":
            self._put(key, result)
        elif what.startswith("publish"):
            if isinstance(result, ev.Published):
                put = Put(self.instance(role), result.generation, key, int(what[7:]))
                self.published += (put,)
        elif isinstance(result, ev.Delivery):
            self._delivered(key, result)
        elif isinstance(result, ev.Failure) and result.reason == Reason.TAKEN.value:
            if not self.delivered and self.left.rejects == self.world.bounds.rejects:
                raise Violation("a get fails as taken, but nobody ever got the payload")

    def call(self, what: str, key: str) -> int:
        """A ticket for a call."""
        self.tickets += 1
        self.waiting = (*self.waiting, (self.tickets, what, key))
        return self.tickets

    def _put(self, key: str, result: Any) -> None:
        if not isinstance(result, Block):
            return
        self.contents += 1
        pages = list(self.source)
        pages[result.offset // PAGE] = self.contents
        self.source = tuple(pages)
        self.publish(key, result, b"")

    def publish(self, key: str, block: Block | None, body: bytes) -> None:
        """Publish the newest content under *key*."""
        bounds = self.world.bounds
        ticket = self.call(f"publish{self.contents}", key)
        size = len(body) if block is None else PAGE
        self.todo.append(
            (
                "s",
                ev.Publish(
                    ticket, "b", key, size, block, body, "", bounds.readers, 1.0, bounds.replace
                ),
            )
        )

    def _delivered(self, key: str, got: ev.Delivery) -> None:
        truth = [p for p in self.published if p[:2] == (got.peer, got.generation)]
        if not truth or truth[0].key != key:
            raise Violation(f"3 {got} was never published as {key!r}")
        content, sender_lives = truth[0].content, self.alive("s")
        if got.body is not None:
            seen = int(got.body)
        elif got.block is not None:
            seen = self.target[got.block.offset // PAGE]
        elif sender_lives and got.peer == self.instance("s"):
            assert got.where is not None
            seen = self.source[got.where.offset // PAGE]
        else:
            seen = content  # the mapping outlives its owner
        if seen != content:
            raise Violation(f"3 {got} holds content {seen}, published was {content}")
        if got.body is None and got.size != PAGE:
            raise Violation(f"3 {got} has not the whole length")
        mark = (self.instance("r"), got.peer, got.generation)
        if mark in self.delivered:
            raise Violation(f"5 {got} is delivered twice to one receiver")
        self.delivered = tuple(sorted((*self.delivered, mark)))
        if got.handle:
            block = -1 if got.block is None else got.block.offset
            where = -1 if got.where is None else got.where.offset
            view = View(got.handle, got.peer, got.generation, content, block, where)
            self.views = tuple(sorted((*self.views, view)))

    # --- the connection ------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks; the receiver hears of it now, the sender some time."""
        if not self.link:
            return
        if self.alive("s"):
            self.late = (*self.late, self.link)
        self.link, self.to_sender, self.to_receiver = 0, (), ()
        if self.alive("r"):
            self.handle("r", ev.Disconnected(ADDRESS, "cut"))

    def spend(self, budget: str) -> None:
        """One adversity fewer."""
        self.left = self.left._replace(**{budget: getattr(self.left, budget) - 1})


class World:
    """A bounded world: its machines and its first state."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.machines = Machines(bounds.kit)

    def first(self) -> State:
        """Two living endpoints that have not met."""
        bounds = self.bounds
        left = Left(*[getattr(bounds, field) for field in Left._fields])
        sender, receiver = self.sender(0), self.machines.born("r", 0)
        return State(
            sender, receiver, (0, 0), 0, 0, (), False, (), (), None, (), (), False,
            (0,) * bounds.sender_pages, (0,) * bounds.receiver_pages, (), (), 0, 0, (), (), (), left,
        )  # fmt: skip

    def sender(self, life: int) -> int:
        """A new sender; a second reader has greeted it where offers are to be claimed."""
        born = self.machines.born("s", life)
        if self.bounds.mode != "claim":
            return born
        planes = (PlaneCard("plane", "map", b""),)
        report = Report(1, (), 0, ())
        hello = Hello(
            1, PHANTOM, Identity("b", 1), "a", b"", report, HostCard("host", "x0"), planes
        )
        return self.machines.handle(born, ev.Received("phantom", hello))[1]

    def normal(self, state: State) -> State:
        """The same state with sessions and places renamed."""
        machines = self.machines
        names = names_for(self._facts(state))
        if names is None:
            return state

        def mail(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([machines.rename(True, number, names) for number in numbers])

        ghost = state.ghost
        return state._replace(
            sender=state.sender and machines.rename(False, state.sender, names),
            receiver=state.receiver and machines.rename(False, state.receiver, names),
            to_sender=mail(state.to_sender),
            to_receiver=mail(state.to_receiver),
            ghost=ghost and (ghost[0], machines.rename(True, ghost[1], names)),
        )

    def _facts(self, state: State) -> Iterable[tuple[int, int, int]]:
        facts = self.machines.facts
        for number in (state.sender, state.receiver):
            if number:
                yield from facts(False, number)
        for number in (*state.to_sender, *state.to_receiver):
            yield from facts(True, number)
        if state.ghost:
            yield from facts(True, state.ghost[1])

    def may_free(self, endpoint: Any, role: str) -> set[int]:
        """Serials of the blocks that a timer alone may free: unleased entries, landed polls."""
        if role == "s":
            found = endpoint.outgoing.ledgers.get("b")
            entries = found.entries.values() if found else ()
            return {entry.block.serial for entry in entries if entry.block and not entry.leases}
        fetches = endpoint.incoming.fetches.all()
        return {fetch.block.serial for fetch in fetches if fetch.block and fetch.state == "landed"}
