"""What an unkind world does, as often as its budgets allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.acts import ADVERSE, Move, deliver, write_fails
from tests.model.world import ADDRESS

from stagelink.core import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import State, Write
    from tests.model.world import Draft


def adversity(state: State) -> Iterator[Move]:
    """Every adverse move that a budget is left for."""
    left = state.left
    if state.link and left.cuts:
        yield Move(ADVERSE, ("cut",), _cut)
    if state.dialled and not state.link and state.receiver and left.cuts:
        yield Move(ADVERSE, ("the receiver is not let in",), _refuse)
    for role, queue in (("s", state.to_sender), ("r", state.to_receiver)):
        if queue and left.losses:
            yield Move(ADVERSE, ("lose", role, queue[0]), _lose)
        if queue and left.dups and not state.ghost:
            yield Move(ADVERSE, ("deliver and keep a copy of", role, queue[0]), _copy)
            if left.cuts and state.link:
                yield Move(ADVERSE, ("cut, and delay", role, queue[-1]), _delay)
    if state.ghost and state.link and (state.sender if state.ghost[0] == "s" else state.receiver):
        yield Move(ADVERSE, ("deliver late", *state.ghost), _haunt)
    if state.sender and left.sender_crashes:
        yield Move(ADVERSE, ("the sender dies", "s"), _die)
    if state.receiver and left.receiver_crashes:
        yield Move(ADVERSE, ("the receiver dies", "r"), _die)
    if not state.sender:
        yield Move(ADVERSE, ("a new sender",), _new_sender)
    if not state.receiver:
        yield Move(ADVERSE, ("a new receiver",), _new_receiver)
    for write in state.writes:
        if left.write_failures and not write.doomed:
            yield Move(ADVERSE, ("write fails", write), _write_breaks)
    for task in state.tasks:
        if left.attach_failures and task[0] == "attach":
            yield Move(ADVERSE, ("attach fails", task), _attach_fails)


def _cut(draft: Draft) -> None:
    draft.spend("cuts")
    draft.cut()


def _refuse(draft: Draft) -> None:
    draft.spend("cuts")
    draft.handle("r", ev.Disconnected(ADDRESS, "unknown key", True))


def _lose(draft: Draft, role: str, _: int) -> None:
    draft.spend("losses")
    if role == "s":
        draft.to_sender = draft.to_sender[1:]
    else:
        draft.to_receiver = draft.to_receiver[1:]


def _copy(draft: Draft, role: str, mail: int) -> None:
    draft.spend("dups")
    draft.ghost = (role, mail)
    deliver(draft, role, mail)


def _delay(draft: Draft, role: str, mail: int) -> None:
    draft.spend("dups")
    draft.ghost = (role, mail)
    _cut(draft)


def _haunt(draft: Draft, role: str, mail: int) -> None:
    draft.ghost = None
    draft.deliver(role, mail)


def _write_breaks(draft: Draft, write: Write) -> None:
    draft.spend("write_failures")
    write_fails(draft, write)


def _attach_fails(draft: Draft, task: tuple[Any, ...]) -> None:
    draft.spend("attach_failures")
    draft.tasks = tuple(other for other in draft.tasks if other != task)
    draft.handle(task[1], ev.Attached(task[2], task[3], "cannot attach"))


def _die(draft: Draft, role: str) -> None:
    draft.spend("sender_crashes" if role == "s" else "receiver_crashes")
    gone = {wait[0] for wait in draft.waiting if (wait[1] == "put") == (role == "s")}
    draft.waiting = tuple(wait for wait in draft.waiting if wait[0] not in gone)
    draft.tasks = tuple(task for task in draft.tasks if task[1] != role)
    if role == "s":
        draft.sender, draft.late = 0, ()
        draft.writes = tuple(write for write in draft.writes if not write.doomed)
        draft.source = (0,) * len(draft.source)
    else:
        draft.receiver, draft.views, draft.dialled = 0, (), False
        draft.target = (0,) * len(draft.target)
    draft.attached = False
    draft.cut()


def _new_sender(draft: Draft) -> None:
    draft.lives = (draft.lives[0] + 1, draft.lives[1])
    draft.sender = draft.world.sender(draft.lives[0])


def _new_receiver(draft: Draft) -> None:
    draft.lives = (draft.lives[0], draft.lives[1] + 1)
    draft.receiver = draft.machines.born("r", draft.lives[1])
