"""What an unkind world does, as often as its budgets allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.acts import ADVERSE, Move, deliver, die, forget, write_fails
from tests.model.machines import name

from stagelink.core import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import State, Wire, Write
    from tests.model.world import Draft, World


def adversity(world: World, state: State) -> Iterator[Move]:
    """Every adverse move that a budget is left for."""
    left = state.left
    here = {place for place, node in zip(world.places, state.nodes, strict=True) if node}
    for number, wire in enumerate(state.wires):
        yield from _links(state, number, wire, here)
    for place in world.places:
        kind = "sender_crashes" if place == "s" else "receiver_crashes"
        if place not in here:
            yield Move(ADVERSE, ("a new process", place), _reborn)
        elif getattr(left, kind):
            yield Move(ADVERSE, ("death of", place, kind), _die)
    for write in state.writes:
        place = write.sender[:1].decode()
        alive = name(place, state.lives[world.places.index(place)]) == write.sender
        if left.write_failures and not write.doomed and alive and place in here:
            yield Move(ADVERSE, ("write fails", place, write), _write_breaks)
    for task in state.tasks:
        if left.attach_failures and task[0] == "attach":
            yield Move(ADVERSE, ("attach fails", task[1], task), _attach_fails)
        if left.unfenced and task[0] == "fence":
            yield Move(ADVERSE, ("the plane cannot fence", task[1], task), _cannot_fence)


def _links(state: State, number: int, wire: Wire, here: set[str]) -> Iterator[Move]:
    left, dialer = state.left, wire.dialer
    if wire.link and left.cuts:
        yield Move(ADVERSE, ("cut", dialer), _cut)
    if wire.dialled and not wire.link and dialer in here and left.cuts:
        yield Move(ADVERSE, ("not let in", dialer), _refuse)
    for place, queue in ((wire.listener, wire.to_listener), (dialer, wire.to_dialer)):
        if queue and left.losses:
            yield Move(ADVERSE, ("lose", place, dialer, queue[0]), _lose)
        if queue and left.dups and not state.ghost:
            yield Move(ADVERSE, ("deliver and copy", place, dialer, queue[0]), _copy)
            if left.cuts:
                yield Move(ADVERSE, ("cut, and delay", place, dialer, queue[-1]), _delay)
    if state.ghost and state.ghost[0] == number and wire.link and state.ghost[1] in here:
        yield Move(ADVERSE, ("deliver late", state.ghost[1], dialer, state.ghost[2]), _haunt)


def _cut(draft: Draft, dialer: str) -> None:
    draft.spend("cuts")
    draft.cut(dialer)


def _refuse(draft: Draft, dialer: str) -> None:
    draft.spend("cuts")
    draft.handle(dialer, ev.Disconnected(draft.wire(dialer).listener, "unknown key", True))


def _lose(draft: Draft, place: str, dialer: str, _: int) -> None:
    draft.spend("losses")
    forget(draft, place, dialer)


def _haunt_by(draft: Draft, place: str, dialer: str, mail: int) -> None:
    draft.spend("dups")
    wires = [wire.dialer for wire in draft.wires]
    draft.ghost = (wires.index(dialer), place, mail)


def _copy(draft: Draft, place: str, dialer: str, mail: int) -> None:
    _haunt_by(draft, place, dialer, mail)
    deliver(draft, place, dialer, mail)


def _delay(draft: Draft, place: str, dialer: str, mail: int) -> None:
    _haunt_by(draft, place, dialer, mail)
    _cut(draft, dialer)


def _haunt(draft: Draft, place: str, dialer: str, mail: int) -> None:
    draft.ghost = None
    draft.deliver(place, draft.wire(dialer), mail)


def _write_breaks(draft: Draft, place: str, write: Write) -> None:
    draft.spend("write_failures")
    write_fails(draft, place, write)


def _attach_fails(draft: Draft, place: str, task: tuple[Any, ...]) -> None:
    draft.spend("attach_failures")
    draft.tasks = tuple([other for other in draft.tasks if other != task])
    draft.handle(place, ev.Attached(task[2], task[3], task[4], "cannot attach"))


def _cannot_fence(draft: Draft, place: str, task: tuple[Any, ...]) -> None:
    draft.spend("unfenced")
    draft.tasks = tuple([other for other in draft.tasks if other != task])
    draft.handle(place, ev.Fenced(task[2], False))


def _die(draft: Draft, place: str, kind: str) -> None:
    draft.spend(kind)
    die(draft, place)


def _reborn(draft: Draft, place: str) -> None:
    at = draft.at(place)
    draft.lives = (*draft.lives[:at], draft.lives[at] + 1, *draft.lives[at + 1 :])
    draft.born(place)
