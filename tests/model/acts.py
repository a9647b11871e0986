"""Single moves, shared by the kind and the adverse: messages, writes, fences, deaths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core import events as ev
from stagelink.core.values import PlaneCard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.state import Write
    from tests.model.world import Draft

BENIGN, LATER, ADVERSE = 0, 1, 2
"""What a kind world does at once, what it does when nothing else is left, what it never does."""


class Move(NamedTuple):
    """Something that may happen: how kind it is, what to call it, what it does to a draft.

    The name begins with what happens, and then says where; ``do`` takes all but the former.
    """

    kind: int
    what: tuple[Any, ...]
    do: Callable[..., None]


def deliver(draft: Draft, place: str, dialer: str, mail: int) -> None:
    """The first message on its way arrives."""
    wire = draft.wire(dialer)
    forget(draft, place, dialer)
    draft.deliver(place, wire, mail)


def forget(draft: Draft, place: str, dialer: str) -> None:
    """The first message on its way is on it no more."""
    wire = draft.wire(dialer)
    if place == wire.listener:
        draft.set_wire(wire._replace(to_listener=wire.to_listener[1:]))
    else:
        draft.set_wire(wire._replace(to_dialer=wire.to_dialer[1:]))


def doom(draft: Draft, hit: Callable[[Write], bool]) -> None:
    """Those writes can no longer land; a living sender hears of their failure some time."""
    draft.writes = tuple(
        write._replace(doomed=True) if hit(write) else write
        for write in draft.writes
        if not hit(write) or not draft.dead(write.sender)
    )


def attach(
    draft: Draft, place: str, peer: bytes, link: str, session: int, description: int
) -> None:
    """The plane reaches a peer's pool, unless that cut us off since it described itself."""
    ours, error = draft.instance(place), ""
    if any(bar[:2] == (ours, peer) and bar[2] > description for bar in draft.barred):
        error = "cut off since"
    elif draft.world.bounds.mode == "pull" and not draft.dead(peer):
        draft.attached = tuple(sorted({*draft.attached, (ours, peer)}))
    draft.handle(place, ev.Attached(peer, link, session, error))


def fence(draft: Draft, place: str, peer: bytes) -> None:
    """No write between us and *peer* lands any more; a living peer must attach again.

    By a later description of our plane, for it may be about to attach by the present one.
    """
    us = draft.instance(place)
    draft.attached = tuple([both for both in draft.attached if set(both) != {us, peer}])
    doom(draft, lambda write: {write.sender, write.receiver} == {us, peer})
    cards: tuple[PlaneCard, ...] = ()
    if not draft.dead(peer):
        at = draft.at(place)
        edition = draft.editions[at] + 1
        draft.editions = (*draft.editions[:at], edition, *draft.editions[at + 1 :])
        others = [bar for bar in draft.barred if bar[:2] != (peer, us)]
        draft.barred = tuple(sorted([*others, (peer, us, edition)]))
        mode = "write" if draft.world.bounds.mode == "pull" else "map"
        cards = (PlaneCard("plane", mode, b"%d" % edition),)
    draft.handle(place, ev.Fenced(peer, True, cards))


def write_lands(draft: Draft, place: str, write: Write) -> None:
    """All bytes are there, and the sender hears of it."""
    if not draft.dead(write.receiver):
        draft.fill(write.receiver[:1].decode(), write.target, write.content)
    _over(draft, place, write, "")


def write_fails(draft: Draft, place: str, write: Write) -> None:
    """No byte can land any more, and the sender hears of it."""
    _over(draft, place, write, "broken")


def _over(draft: Draft, place: str, write: Write, error: str) -> None:
    draft.writes = tuple([other for other in draft.writes if other != write])
    if not draft.dead(write.sender):
        draft.handle(place, ev.WriteEnded(write.receiver, write.transfer, error))


def die(draft: Draft, place: str) -> None:
    """That process ends, whatever it is doing; posted writes may land all the same."""
    us = draft.instance(place)
    draft.waiting = tuple([call for call in draft.waiting if call.place != place])
    draft.tasks = tuple([task for task in draft.tasks if task[1] != place])
    draft.views = tuple([view for view in draft.views if view.place != place])
    draft.readings = tuple([reading for reading in draft.readings if reading.place != place])
    draft.attached = tuple([both for both in draft.attached if us not in both])
    draft.barred = tuple([bar for bar in draft.barred if us not in bar])
    editions = zip(draft.world.places, draft.editions, strict=True)
    draft.editions = tuple([0 if other == place else edition for other, edition in editions])
    draft.set_node(place, 0)
    draft.writes = tuple([w for w in draft.writes if w.sender != us or not w.doomed])
    at = draft.at(place)
    pages = (0,) * len(draft.memory[at])
    draft.memory = (*draft.memory[:at], pages, *draft.memory[at + 1 :])
    for wire in draft.wires:
        if place in {wire.dialer, wire.listener}:
            draft.cut(wire.dialer)
            now = draft.wire(wire.dialer)
            if place == wire.listener:
                draft.set_wire(now._replace(late=()))
            else:
                draft.set_wire(now._replace(dialled=False))
