"""Calls that wait for an answer of the core."""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.events import Result


class Ticket:
    """One call: its number, and its result once ``done``."""

    __slots__ = ("_callbacks", "_turn", "done", "number", "result")

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = False
        self.result: Result = None
        self._callbacks: list[Callable[[], object]] = []
        self._turn = Lock()
        self._turn.acquire()

    def resolve(self, result: Result) -> None:
        """Answer the call; only the first answer counts."""
        if not self.done:
            self.result = result
            self.done = True
            self.nudge()
            if self._callbacks:
                self._call_back()

    def then(self, callback: Callable[[], object]) -> None:
        """Call *callback* once the call is answered, or now if it is: exactly once.

        It runs on any thread, perhaps with the driver's state locked: it may wake somebody up
        (``loop.call_soon_threadsafe``, ``queue.put``), and may neither wait nor call the driver.
        """
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return  # the thread that answers and the one that asks met: it is being called
            callback()

    def nudge(self) -> None:
        """Wake the caller, to see its answer or to take its turn at driving."""
        try:
            self._turn.release()
        except RuntimeError:
            pass  # it is awake already

    def sleep(self) -> None:
        """Block until somebody nudges."""
        self._turn.acquire()


class Tickets:
    """Open tickets by number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, Ticket] = {}

    def new(self) -> Ticket:
        """A ticket with a number never used before."""
        ticket = Ticket(next(self._numbers))
        self._open[ticket.number] = ticket
        return ticket

    def resolve(self, number: int, result: Result) -> Ticket | None:
        """Answer ticket *number*; None if nobody waits for it (any more)."""
        ticket = self._open.pop(number, None)
        if ticket is not None:
            ticket.resolve(result)
        return ticket

    def forget(self, number: int) -> None:
        """Nobody waits for that answer any more; unknown numbers are fine."""
        self._open.pop(number, None)

    def all(self) -> list[Ticket]:
        """Every ticket that has no answer yet."""
        return list(self._open.values())
