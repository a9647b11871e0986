"""Single moves, shared by the kind and the adverse: messages and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.machines import PAGE

from stagelink.core import events as ev

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.state import Write
    from tests.model.world import Draft

BENIGN, LATER, ADVERSE = 0, 1, 2
"""What a kind world does at once, what it does when nothing else is left, what it never does."""


class Move(NamedTuple):
    """Something that may happen: how kind it is, what to call it, what it does to a draft."""

    kind: int
    what: tuple[Any, ...]
    do: Callable[..., None]


def deliver(draft: Draft, role: str, mail: int) -> None:
    """The first message on its way arrives."""
    if role == "s":
        draft.to_sender = draft.to_sender[1:]
    else:
        draft.to_receiver = draft.to_receiver[1:]
    draft.deliver(role, mail)


def doom(draft: Draft, hit: Callable[[Write], bool]) -> None:
    """Those writes can no longer land; a living sender hears of their failure some time."""
    sender = draft.instance("s") if draft.alive("s") else b""
    draft.writes = tuple(
        write._replace(doomed=True) if hit(write) else write
        for write in draft.writes
        if write.sender == sender or not hit(write)
    )


def write_lands(draft: Draft, write: Write) -> None:
    """All bytes are there, and the sender hears of it."""
    if draft.alive("r") and draft.instance("r") == write.receiver:
        pages = list(draft.target)
        pages[write.target // PAGE] = write.content
        draft.target = tuple(pages)
    _over(draft, write, "")


def write_fails(draft: Draft, write: Write) -> None:
    """No byte can land any more, and the sender hears of it."""
    _over(draft, write, "broken")


def _over(draft: Draft, write: Write, error: str) -> None:
    draft.writes = tuple(other for other in draft.writes if other != write)
    if draft.alive("s") and draft.instance("s") == write.sender:
        draft.handle("s", ev.WriteEnded(write.receiver, write.transfer, error))
