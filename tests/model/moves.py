"""Everything that may happen next in a world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.acts import (
    ADVERSE,
    BENIGN,
    LATER,
    Move,
    deliver,
    doom,
    write_fails,
    write_lands,
)  # fmt: skip
from tests.model.adversity import adversity
from tests.model.machines import FAR, PAGE, name
from tests.model.state import Violation
from tests.model.world import ADDRESS, PHANTOM, Draft

from stagelink.core import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import State
    from tests.model.world import World


TIMERS = ("ack", "greet", "probe", "settle", "grace", "fence", "heir", "fetch", "budget", "ttl")
"""In the order in which a kind world lets them fire; a stuck write costs a budget."""


def moves(world: World, state: State) -> Iterator[Move]:
    """Every move from *state*, the kind ones first and always in the same order."""
    yield from _mail(state)
    yield from _driver(state)
    yield from _people(state)
    yield from _timers(world, state)
    yield from _calls(world, state)
    yield from adversity(state)


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


# --- messages and the connection -----------------------------------------------------------


def _mail(state: State) -> Iterator[Move]:
    for role, queue in (("s", state.to_sender), ("r", state.to_receiver)):
        if queue:
            yield Move(BENIGN, ("deliver", role, queue[0]), deliver)
    for link in state.late[:1]:
        yield Move(BENIGN, ("sender hears that a link is down", link), _hear)
    if not state.link and state.dialled and state.sender and state.receiver:
        yield Move(BENIGN, ("connect",), _connect)


def nudge(world: World, state: State) -> Move | None:
    """A cut, where a message was lost and none has followed that would show it."""
    if not (state.link and state.sender and state.receiver):
        return None
    sender, receiver = world.machines.look(state.sender), world.machines.look(state.receiver)
    ours = [source.session for source in receiver.incoming.sources.values()]
    theirs = [reader.session for reader in sender.outgoing.readers.values()]
    for here in ours:
        for there in theirs:
            places = (here.sent, here.taken) == (there.taken, there.sent)
            if here.number == there.number and here.state == there.state and not places:
                return Move(LATER, ("cut in the end",), Draft.cut)
    return None


def _put_inline(draft: Draft, key: str) -> None:
    draft.contents += 1
    draft.publish(key, None, b"%d" % draft.contents)
    role, event = draft.todo.pop()
    draft.handle(role, event)


def _hear(draft: Draft, link: int) -> None:
    draft.late = draft.late[1:]
    draft.handle("s", ev.Disconnected(f"c{link}", "cut"))


def _connect(draft: Draft) -> None:
    draft.links += 1
    draft.link = draft.links
    draft.handle("r", ev.Connected(ADDRESS))


# --- what drivers and planes do ------------------------------------------------------------


def _driver(state: State) -> Iterator[Move]:
    for task in state.tasks:
        yield Move(BENIGN, ("perform", task), _perform)
    for write in state.writes:
        if write.doomed:
            yield Move(BENIGN, ("write ends with an error", write), write_fails)
        else:
            yield Move(BENIGN, ("write lands", write), write_lands)


def _perform(draft: Draft, task: tuple[Any, ...]) -> None:
    what, role, *rest = task
    draft.tasks = tuple(other for other in draft.tasks if other != task)
    if what == "attach":
        if role == "s" and rest[0] == draft.instance("r") and draft.alive("r"):
            draft.attached = True
        draft.handle(role, ev.Attached(rest[0], rest[1], ""))
    elif what == "probe":
        draft.handle(role, ev.Probed(rest[0], True))
    elif what == "reset":
        draft.attached = False
        doom(draft, lambda write: write.sender == draft.instance("s"))
        draft.handle(role, ev.PlaneReset())
    else:
        _fence(draft, role, rest[0])


def _fence(draft: Draft, role: str, peer: bytes) -> None:
    """No write between us and *peer* lands any more; a living peer must attach again."""
    ours = draft.instance(role)
    draft.attached = draft.attached and peer not in {draft.instance("r"), draft.instance("s")}
    doom(draft, lambda write: {write.sender, write.receiver} == {ours, peer})
    draft.handle(role, ev.Fenced(peer, True))


# --- people and time -----------------------------------------------------------------------


def _people(state: State) -> Iterator[Move]:
    for view in state.views:
        yield Move(BENIGN, ("the last view goes", view.handle), _drop)


def _drop(draft: Draft, handle: int) -> None:
    draft.views = tuple(view for view in draft.views if view.handle != handle)
    draft.handle("r", ev.Release(handle))


def _timers(world: World, state: State) -> Iterator[Move]:
    found = []
    for role, number in (("s", state.sender), ("r", state.receiver)):
        if number:
            for timer in world.machines.look(number).timers.armed():
                rank, kind = _when(state, timer)
                if rank >= 0:
                    found.append((kind, rank, role, timer))
    for kind, _, role, timer in sorted(found, key=repr):
        yield Move(kind, ("timer", role, timer), _fire)
    for wait in state.waiting:
        if wait[1] == "put":
            yield Move(LATER, ("a put gives up", wait[0]), _stop_put)


def _when(state: State, timer: tuple[Any, ...]) -> tuple[int, int]:
    what, kind = timer[0], LATER
    if what == "first":
        return -1, ADVERSE  # it changes the words of a deadline only
    if what == "stuck":
        return (len(TIMERS), ADVERSE) if state.left.resets else (-1, ADVERSE)
    if what == "fence" and timer[1] in _living(state):
        kind = ADVERSE
        if not state.left.fences:
            return -1, ADVERSE
    if what == "probe" and (timer[1] in _living(state) or ("probe",) in state.tasks):
        return -1, ADVERSE  # the answer would change nothing
    if what == "greet" and (state.to_sender or state.to_receiver or state.tasks):
        kind = ADVERSE
        if not state.left.greets:
            return -1, ADVERSE
    return TIMERS.index(what), kind


def _living(state: State) -> set[bytes]:
    roles = (("s", state.sender, state.lives[0]), ("r", state.receiver, state.lives[1]))
    return {PHANTOM, *(name(role, life) for role, number, life in roles if number)}


def _fire(draft: Draft, role: str, timer: tuple[Any, ...]) -> None:
    living = timer[0] == "fence" and not draft._dead(timer[1])
    budget = "fences" if living else {"stuck": "resets"}.get(timer[0], "")
    if timer[0] == "greet" and (draft.to_sender or draft.to_receiver or draft.tasks):
        budget = "greets"
    if budget:
        draft.spend(budget)
    before = draft.machines.look(draft.sender if role == "s" else draft.receiver)
    allowed = draft.world.may_free(before, role)
    draft.fire(role, timer)
    after = draft.machines.look(draft.sender if role == "s" else draft.receiver)
    freed = {r[2] for r in before.pool.freeze(0.0)[2]} - {r[2] for r in after.pool.freeze(0.0)[2]}
    if freed - allowed:
        raise Violation(f"14 the timer {timer} frees the blocks {freed - allowed}")


def _stop_put(draft: Draft, ticket: int) -> None:
    draft.waiting = tuple(wait for wait in draft.waiting if wait[0] != ticket)
    draft.handle("s", ev.StopGet(ticket, "cancelled"))


# --- calls ---------------------------------------------------------------------------------


def _calls(world: World, state: State) -> Iterator[Move]:
    left, keys = state.left, world.bounds.keys
    if state.sender and left.puts:
        for key in keys:
            yield Move(ADVERSE, ("put", key), _put)
    if state.sender and left.withdraws:
        for key in keys:
            yield Move(ADVERSE, ("withdraw", key), _withdraw)
    if not state.receiver:
        return
    for key in keys:
        for what in ("get", "poll"):
            if getattr(left, what + "s"):
                yield Move(ADVERSE, (what, key), _get if what == "get" else _poll)
        for what in ("cancel", "reject"):
            if getattr(left, what + "s") and state.dialled:
                yield Move(ADVERSE, (what, key), _cancel if what == "cancel" else _reject)
    if left.stops:
        for ticket, what, _ in state.waiting:
            if what == "get":
                yield Move(ADVERSE, ("stop", ticket), _stop)


def _put(draft: Draft, key: str) -> None:
    draft.spend("puts")
    bounds = draft.world.bounds
    if bounds.mode == "eager":
        _put_inline(draft, key)
        return
    deadline_s = FAR if bounds.wait_for_room else 0.0
    draft.handle("s", ev.Reserve(draft.call("put", key), PAGE, deadline_s))


def _withdraw(draft: Draft, key: str) -> None:
    draft.spend("withdraws")
    draft.handle("s", ev.Withdraw(draft.call("withdraw", "b"), "b", key))


def _get(draft: Draft, key: str) -> None:
    draft.spend("gets")
    draft.handle("r", ev.Get(draft.call("get", key), ADDRESS, "a", key, 0, FAR))


def _poll(draft: Draft, key: str) -> None:
    draft.spend("polls")
    ticket = draft.call("poll", key)
    draft.handle("r", ev.Poll(ticket, ADDRESS, "a", key, FAR))
    if any(wait[0] == ticket for wait in draft.waiting):
        raise Violation("7 a poll is not answered at once")


def _cancel(draft: Draft, key: str) -> None:
    draft.spend("cancels")
    draft.handle("r", ev.CancelKey(draft.call("cancel", key), ADDRESS, "a", key, False))


def _reject(draft: Draft, key: str) -> None:
    draft.spend("rejects")
    draft.handle("r", ev.CancelKey(draft.call("reject", key), ADDRESS, "a", key, True))


def _stop(draft: Draft, ticket: int) -> None:
    draft.spend("stops")
    draft.handle("r", ev.StopGet(ticket, "cancelled"))
    if any(wait[0] == ticket for wait in draft.waiting):
        raise Violation("7 a stopped get is not answered")
