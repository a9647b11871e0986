"""What callers may do next: put, get, poll, wait, cancel, close, write and read streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.acts import ADVERSE, Move
from tests.model.answers import BROKEN
from tests.model.machines import FAR, PAGE
from tests.model.state import Violation

from stagelink.core import events as ev
from stagelink.core.streams import End
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.state import State, View
    from tests.model.world import Draft, World


def calls(world: World, state: State) -> Iterator[Move]:
    """Every call that a budget is left for."""
    nodes = {
        place: node
        for place, node in zip(world.places, state.nodes, strict=True)
        if node and not world.machines.closed(node)
    }
    for place in world.listeners:
        if place in nodes:
            yield from _of_a_giver(world, state, place)
    for wire in state.wires:
        if wire.dialer in nodes:
            yield from _of_a_taker(world, state, wire.dialer, wire.dialled)
    if state.left.stops:
        for call in state.waiting:
            if call.what in {"get", "read", "wait"}:
                yield Move(ADVERSE, ("stop", call.place, call.ticket), _stop)
    for view in state.views:
        if view.delivery is not None and state.left.untaken:
            yield Move(ADVERSE, ("nobody takes", view.place, view), _untaken)
    if state.left.closes:
        for place in nodes:
            yield Move(ADVERSE, ("close", place), _close)


def _of_a_giver(world: World, state: State, place: str) -> Iterator[Move]:
    left, bounds = state.left, world.bounds
    for key in bounds.keys:
        if left.puts:
            yield Move(ADVERSE, ("put", place, key), _put)
        if left.withdraws:
            yield Move(ADVERSE, ("withdraw", place, key), _withdraw)
        if left.errors:
            yield Move(ADVERSE, ("fail", place, key), _fail)
    if bounds.chunks:
        yield from _of_a_writer(state, place)


def _of_a_writer(state: State, place: str) -> Iterator[Move]:
    mine = [r for r in state.readings if (r.place, r.giver) == (place, place)]
    busy = any(c.place == place and c.what in {"put", "publish"} for c in state.waiting)
    begun = bool(mine) and not mine[0].state
    if busy:
        return
    if state.left.chunks:
        yield Move(ADVERSE, ("put a chunk", place), _put_chunk)
    if begun:
        yield Move(ADVERSE, ("end the stream", place), _end_stream)
        if state.left.aborts:
            yield Move(ADVERSE, ("abort the stream", place), _abort_stream)


def _of_a_taker(world: World, state: State, place: str, dialled: bool) -> Iterator[Move]:
    left, bounds = state.left, world.bounds
    for key in bounds.keys:
        if left.gets:
            yield Move(ADVERSE, ("get", place, key), _get)
        if left.polls:
            yield Move(ADVERSE, ("poll", place, key), _poll)
        if left.cancels and dialled:
            yield Move(ADVERSE, ("cancel", place, key), _cancel)
        if left.rejects and dialled:
            yield Move(ADVERSE, ("reject", place, key), _reject)
    if left.waits:
        yield Move(ADVERSE, ("wait", place), _wait)
    if bounds.chunks:
        mine = [r for r in state.readings if r.place == place and r.giver != place]
        reads = any(call.place == place and call.what == "read" for call in state.waiting)
        if not reads and not (mine and mine[0].state):
            yield Move(ADVERSE, ("read", place), _read)


def greet(draft: Draft, place: str) -> None:
    """Ask for what nobody publishes, so that a conversation begins."""
    ticket = draft.call(place, "poll", "?")
    draft.handle(place, ev.Poll(ticket, *_sender_of(draft, place), "?", FAR))


# --- those who give ------------------------------------------------------------------------


def _put(draft: Draft, place: str, key: str) -> None:
    draft.spend("puts")
    _begin(draft, place, key)


def _begin(draft: Draft, place: str, key: str) -> None:
    bounds = draft.world.bounds
    if bounds.mode == "eager":
        draft.contents += 1
        draft.publish(place, key, None, b"%d" % draft.contents, "", draft.contents)
        _publish_now(draft)
        return
    deadline_s = FAR if bounds.wait_for_room else 0.0
    draft.handle(place, ev.Reserve(draft.call(place, "put", key), PAGE, deadline_s))


def _publish_now(draft: Draft) -> None:
    draft.handle(*draft.todo.pop())


def _withdraw(draft: Draft, place: str, key: str) -> None:
    draft.spend("withdraws")
    told = draft.world.told(place)
    draft.handle(place, ev.Withdraw(draft.call(place, "withdraw", key), told, key))


def _fail(draft: Draft, place: str, key: str) -> None:
    draft.spend("errors")
    draft.publish(place, key, None, b"", BROKEN, 0)
    _publish_now(draft)


def _put_chunk(draft: Draft, place: str) -> None:
    draft.spend("chunks")
    writing = draft.reading(place, place)
    if writing.state:
        writing = writing._replace(progress=writing.progress._replace(first=0, chunks=0), state="")
    draft.set_reading(writing)
    _begin(draft, place, writing.progress.next_key)


def _end_stream(draft: Draft, place: str) -> None:
    progress = draft.reading(place, place).progress
    _last(draft, place, End(progress.chunks, progress.size).text)


def _abort_stream(draft: Draft, place: str) -> None:
    draft.spend("aborts")
    _last(draft, place, BROKEN)


def _last(draft: Draft, place: str, words: str) -> None:
    key = draft.reading(place, place).progress.next_key
    draft.publish(place, key, None, b"", words, 0)
    _publish_now(draft)


# --- those who take ------------------------------------------------------------------------


def _sender_of(draft: Draft, place: str) -> tuple[str, str]:
    listener = draft.wire(place).listener
    return listener, draft.world.stage(listener)


def _get(draft: Draft, place: str, key: str) -> None:
    draft.spend("gets")
    call = draft.call(place, "get", key)
    draft.handle(place, ev.Get(call, *_sender_of(draft, place), key, 0, FAR))


def _read(draft: Draft, place: str) -> None:
    reading = draft.reading(place, draft.wire(place).listener)
    draft.set_reading(reading)
    key = reading.progress.next_key
    call = draft.call(place, "read", key)
    asked = ev.Get(call, *_sender_of(draft, place), key, 0, FAR, 0, reading.instance)
    draft.handle(place, asked)


def _poll(draft: Draft, place: str, key: str) -> None:
    draft.spend("polls")
    ticket = draft.call(place, "poll", key)
    draft.handle(place, ev.Poll(ticket, *_sender_of(draft, place), key, FAR))
    if draft.waits_for(ticket):
        raise Violation("7 a poll is not answered at once")


def _wait(draft: Draft, place: str) -> None:
    draft.spend("waits")
    keys = tuple(draft.world.bounds.keys)
    ticket = draft.call(place, "wait", "")
    draft.handle(place, ev.Await(ticket, *_sender_of(draft, place), keys, FAR))


def _cancel(draft: Draft, place: str, key: str) -> None:
    draft.spend("cancels")
    call = draft.call(place, "cancel", key)
    draft.handle(place, ev.CancelKey(call, *_sender_of(draft, place), key, False))


def _reject(draft: Draft, place: str, key: str) -> None:
    """Reject a key; of a stream what is yet to come, as its reader does when it is closed."""
    draft.spend("rejects")
    instance = NO_INSTANCE
    if draft.world.bounds.chunks:
        reading = draft.reading(place, draft.wire(place).listener)
        key, instance = reading.progress.name, reading.instance
        draft.set_reading(reading._replace(state="broken"))
    call = draft.call(place, "reject", key)
    draft.handle(place, ev.CancelKey(call, *_sender_of(draft, place), key, True, instance))


def _stop(draft: Draft, place: str, ticket: int) -> None:
    draft.spend("stops")
    draft.handle(place, ev.StopGet(ticket, "cancelled"))
    if draft.waits_for(ticket):
        raise Violation("7 a stopped call is not answered")


def _untaken(draft: Draft, place: str, view: View) -> None:
    """A delivery turns out to have reached no caller: another may have it."""
    draft.spend("untaken")
    draft.views = tuple([other for other in draft.views if other != view])
    mark = (draft.instance(place), view.peer, view.generation)
    draft.delivered = tuple([other for other in draft.delivered if other != mark])
    address, _ = _sender_of(draft, place)
    draft.handle(place, ev.Untaken(address, view.key, view.delivery))


def _close(draft: Draft, place: str) -> None:
    draft.spend("closes")
    draft.handle(place, ev.Close())
    if any(call.place == place for call in draft.waiting if call.what != "put"):
        raise Violation("7 a call outlives the end of its connector")
