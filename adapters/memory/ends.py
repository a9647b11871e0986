"""The two ends of a connection in memory. Every function needs the hub's lock held."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from stagelink.adapters.memory.channel import MemoryChannel
    from stagelink.ports.channel import Arrival


class End:
    """One channel's end: what arrived on it, and the other end while connected.

    Attributes:
        late: how many messages to this end are delayed.
        due_s: when the last of those is due; later mail waits as long, so that order is kept.
        held: a message that the next one is to overtake.
        known: whether the reader has had mail from here, and so must hear of the end.
    """

    __slots__ = ("channel", "dialled", "due_s", "held", "inbox", "known", "late", "name", "other")

    def __init__(self, channel: MemoryChannel, name: str, *, dialled: bool) -> None:
        self.channel = channel
        self.name = name
        self.dialled = dialled
        self.other: End | None = None
        self.inbox: deque[Arrival] = deque()
        self.late = 0
        self.due_s = 0.0
        self.held: Mail | None = None
        self.known = dialled

    def push(self, arrival: Arrival) -> None:
        """Let *arrival* come in, and wake the reader."""
        if not self.inbox:
            self.channel.queue(self)
        self.inbox.append(arrival)

    def undelivered(self) -> int:
        """How many arrivals are under way to here or unread."""
        return len(self.inbox) + self.late + (self.held is not None)

    def forget_under_way(self) -> None:
        """The connection has ended: what has not arrived by now never will."""
        self.late, self.due_s, self.held = 0, 0.0, None

    def end(self, down: LinkDown, *, lose_mail: bool) -> None:
        """Let *down* come in last, and nothing pile up while nobody reads.

        A connection that ended unread tells nothing that the end of its successor does not.
        """
        kept = [one for one in self.inbox if not (lose_mail and isinstance(one, Mail))]
        if any(isinstance(one, LinkDown) for one in kept):
            kept = []
        if not (self.known or kept):
            self.channel.unqueue(self)
            self.inbox.clear()
        elif self.inbox:
            self.inbox = deque([*kept, down])
        else:
            self.push(down)


def join(dialled: End, accepted: End) -> None:
    """Connect two ends; only the one that dialled is told."""
    dialled.other, accepted.other = accepted, dialled
    dialled.push(LinkUp(dialled.name))


def part(end: End, detail: str, *, lose_mail: bool = False) -> None:
    """Disconnect *end* from the other; both are told, after what has arrived (or in its place)."""
    if end.other is None:
        return
    for one in (end, end.other):
        one.other = None
        one.forget_under_way()
        if not one.dialled:
            one.channel.disown(one)
        one.end(LinkDown(one.name, detail), lose_mail=lose_mail)
