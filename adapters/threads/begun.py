"""Calls under way that no thread waits for, and calls whose caller has gone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import Reason
from stagelink.core.events import Abandon, Delivery, Failure, Get, Poll, StopGet, Untaken
from stagelink.core.pool import Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.threads.tickets import Ticket
    from stagelink.core.events import Event


class Left(NamedTuple):
    """A call whose caller has gone without a chance to say so."""

    event: Event
    ticket: Ticket


def undoing(event: Event, ticket: Ticket) -> Event | None:
    """What ends the call that *event* began, or takes back what it was answered with."""
    if not ticket.done:
        return StopGet(ticket.number, Reason.CANCELLED.value)
    if isinstance(ticket.result, Block):
        return Abandon(ticket.result)
    if isinstance(ticket.result, Delivery) and isinstance(event, (Get, Poll)):
        return Untaken(event.address, event.key, ticket.result)
    return None


class Begun:
    """The tickets of calls that no thread waits for: somebody must serve the channel for them.

    ``open`` are the numbers of those under way.
    """

    def __init__(self) -> None:
        self.open: dict[int, None] = {}

    def add(self, ticket: Ticket) -> None:
        """From now on until it is answered or dropped."""
        self.open[ticket.number] = None
        ticket.then(partial(self.drop, ticket))

    def drop(self, ticket: Ticket) -> None:
        """Nobody needs it any more; unknown ones are fine."""
        self.open.pop(ticket.number, None)


def when_over(tickets: list[Ticket], call: Callable[[], object]) -> None:
    """Call *call* as soon as all of *tickets* are answered, and at each that failed."""
    left = list(tickets)

    def answered(ticket: Ticket) -> None:
        left.pop()
        if not left or isinstance(ticket.result, Failure):
            call()

    for ticket in tickets:
        ticket.then(partial(answered, ticket))
