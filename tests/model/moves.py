"""Everything that may happen next in a world, apart from calls and adversities."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tests.model.acts import (
    ADVERSE,
    BENIGN,
    LATER,
    Move,
    attach,
    deliver,
    die,
    doom,
    fence,
    write_fails,
    write_lands,
)  # fmt: skip
from tests.model.adversity import adversity
from tests.model.calls import calls
from tests.model.machines import name
from tests.model.state import Violation
from tests.model.world import PHANTOM, Draft

from stagelink.core import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import State, View, Wire
    from tests.model.world import World


def moves(world: World, state: State) -> Iterator[Move]:
    """Every move from *state*, the kind ones first and always in the same order."""
    yield from _mail(state)
    yield from _driver(state)
    yield from _people(state)
    yield from _timers(world, state)
    yield from calls(world, state)
    yield from adversity(world, state)


def apply(world: World, state: State, move: Move) -> State:
    """The state after *move*.

    Raises:
        Violation: an endpoint raised, or an answer or an order was wrong.
    """
    draft = Draft(world, state)
    try:
        move.do(draft, *move.what[1:])
    except Violation:
        raise
    except Exception as error:
        msg = f"8 an event raises {type(error).__name__}: {error}"
        raise Violation(msg) from error
    return draft.done()


def place_of(move: Move) -> str:
    """Whose process a move is of; empty for what happens between them."""
    return str(move.what[1]) if move.kind != ADVERSE and len(move.what[1]) == 1 else ""


# --- messages and the connection -----------------------------------------------------------


def _mail(state: State) -> Iterator[Move]:
    for wire in state.wires:
        dialer, listener = wire.dialer, wire.listener
        if wire.to_listener:
            yield Move(BENIGN, ("deliver", listener, dialer, wire.to_listener[0]), deliver)
        if wire.to_dialer:
            yield Move(BENIGN, ("deliver", dialer, dialer, wire.to_dialer[0]), deliver)
        if wire.late:
            yield Move(BENIGN, ("hear of a cut", listener, dialer), _hear)
        if not wire.link and wire.dialled and _both(state, wire):
            yield Move(BENIGN, ("connect", dialer), _connect)


def _both(state: State, wire: Wire) -> bool:
    alive = "".join(place for place, node in _placed(state) if node)
    return wire.dialer in alive and wire.listener in alive


def _placed(state: State) -> Iterator[tuple[str, int]]:
    places = "srq"
    return zip(places, state.nodes)  # noqa: B905 - a pair has no third place


def nudge(world: World, state: State) -> Move | None:
    """A cut, where a message was lost and none has followed that would show it."""
    for wire in state.wires:
        if not (wire.link and _both(state, wire)):
            continue
        nodes = dict(_placed(state))
        listener = world.machines.look(nodes[wire.listener])
        source = world.machines.look(nodes[wire.dialer]).incoming.sources[wire.listener]
        here = source.session
        for reader in listener.outgoing.readers.values():
            there = reader.session
            same = (here.number, here.state) == (there.number, there.state)
            if same and (here.sent, here.taken) != (there.taken, there.sent):
                return Move(LATER, ("cut in the end", wire.dialer), Draft.cut)
    return None


def _hear(draft: Draft, place: str, dialer: str) -> None:
    wire = draft.wire(dialer)
    draft.set_wire(wire._replace(late=wire.late[1:]))
    draft.handle(place, ev.Disconnected(f"{dialer}{wire.late[0]}", "cut"))


def _connect(draft: Draft, dialer: str) -> None:
    wire = draft.wire(dialer)
    draft.set_wire(wire._replace(links=wire.links + 1, link=wire.links + 1))
    draft.handle(dialer, ev.Connected(wire.listener))


# --- what drivers and planes do ------------------------------------------------------------


def _driver(state: State) -> Iterator[Move]:
    for task in state.tasks:
        yield Move(BENIGN, ("perform", task[1], task), _perform)
    for write in state.writes:
        place = write.sender[:1].decode()
        if write.doomed:
            yield Move(BENIGN, ("a write ends with an error", place, write), write_fails)
        else:
            yield Move(BENIGN, ("a write lands", place, write), write_lands)


def _perform(draft: Draft, place: str, task: tuple[Any, ...]) -> None:
    what, _, *rest = task
    draft.tasks = tuple([other for other in draft.tasks if other != task])
    if what == "attach":
        attach(draft, place, *rest)
    elif what == "probe":
        draft.handle(place, ev.Probed(rest[0], True))
    elif what == "reset":
        us = draft.instance(place)
        draft.attached = tuple([both for both in draft.attached if both[0] != us])
        doom(draft, lambda write: write.sender == us)
        draft.handle(place, ev.PlaneReset())
    else:
        fence(draft, place, rest[0])


# --- people and time -----------------------------------------------------------------------


def _people(state: State) -> Iterator[Move]:
    for view in state.views:
        yield Move(BENIGN, ("the last view goes", view.place, view), _drop)


def _drop(draft: Draft, place: str, view: View) -> None:
    draft.views = tuple([other for other in draft.views if other != view])
    if view.handle:
        draft.handle(place, ev.Release(view.handle))


def _timers(world: World, state: State) -> Iterator[Move]:
    found: list[tuple[int, int, str, Any]] = []
    living = _living(state)
    for place, number in _placed(state):
        if number:
            for rank, timer in world.machines.armed(number):
                kind = _when(state, timer, living)
                if kind is not None:
                    found.append((kind, rank, place, timer))
    for place, number in _placed(state):
        if number and world.machines.closed(number):
            yield from _exit(world, state, place, number)
    for kind, _, place, timer in sorted(found, key=_first_three):
        yield Move(kind, ("timer", place, timer), _fire)
    for call in state.waiting:
        if call.what == "put":
            yield Move(LATER, ("a put gives up", call.place, call.ticket), _stop_put)


_first_three = itemgetter(0, 1, 2)


def _exit(world: World, state: State, place: str, number: int) -> Iterator[Move]:
    """A closed connector's process ends, at the earliest when nothing touches its memory."""
    looks = any(view.place == place for view in state.views)
    if world.machines.look(number).at_rest and not looks:
        yield Move(LATER, ("the end of", place), die)


def _when(state: State, timer: tuple[Any, ...], living: set[bytes]) -> int | None:
    """How kind it is that the timer fires; None if it costs a budget that is spent, or does nothing."""
    what = timer[0]
    if what == "stuck":
        return ADVERSE if state.left.resets else None
    if what == "fence" and timer[1] in living:
        return ADVERSE if state.left.fences else None
    if what == "probe" and timer[1] in living:
        return None  # the answer would change nothing
    if what == "greet" and _answer_may_come(state):
        return ADVERSE if state.left.greets else None
    return LATER


def _answer_may_come(state: State) -> bool:
    return bool(state.tasks) or any(w.to_listener or w.to_dialer for w in state.wires)


def _living(state: State) -> set[bytes]:
    lives = dict(zip("srq", state.lives))  # noqa: B905 - a pair has no third place
    return {PHANTOM, *(name(place, lives[place]) for place, node in _placed(state) if node)}


def _fire(draft: Draft, place: str, timer: tuple[Any, ...]) -> None:
    living = timer[0] == "fence" and not draft.dead(timer[1])
    budget = "fences" if living else {"stuck": "resets"}.get(timer[0], "")
    waits = draft.tasks or any(w.to_listener or w.to_dialer for w in draft.wires)
    if timer[0] == "greet" and waits:
        budget = "greets"
    if budget:
        draft.spend(budget)
    draft.fire(place, timer)


def _stop_put(draft: Draft, place: str, ticket: int) -> None:
    draft.waiting = tuple([call for call in draft.waiting if call.ticket != ticket])
    draft.handle(place, ev.StopGet(ticket, "cancelled"))
