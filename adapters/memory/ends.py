"""The two ends of a connection in memory. Every function needs the hub's lock held."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stagelink.ports.channel import LinkDown, LinkUp

if TYPE_CHECKING:
    from stagelink.adapters.memory.channel import MemoryChannel
    from stagelink.ports.channel import Arrival, Mail


class End:
    """One channel's end: what arrived on it, and the other end while connected.

    Attributes:
        late: how many messages to this end are delayed.
        due_s: when the last of those is due; later mail waits as long, so that order is kept.
        held: a message that the next one is to overtake.
    """

    __slots__ = ("channel", "dialled", "due_s", "held", "inbox", "late", "name", "other")

    def __init__(self, channel: MemoryChannel, name: str, *, dialled: bool) -> None:
        self.channel = channel
        self.name = name
        self.dialled = dialled
        self.other: End | None = None
        self.inbox: deque[Arrival] = deque()
        self.late = 0
        self.due_s = 0.0
        self.held: Mail | None = None

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


def join(dialled: End, accepted: End) -> None:
    """Connect two ends; only the one that dialled is told."""
    dialled.other, accepted.other = accepted, dialled
    dialled.push(LinkUp(dialled.name))


def part(end: End, detail: str) -> None:
    """Disconnect *end* from the other; both are told, after all that has arrived."""
    if end.other is None:
        return
    for one in (end, end.other):
        one.other = None
        one.forget_under_way()
        if not one.dialled:
            one.channel.disown(one)
        one.push(LinkDown(one.name, detail))
