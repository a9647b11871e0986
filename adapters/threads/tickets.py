"""Calls that wait for an answer of the core."""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.events import Result


class Ticket:
    """One call: its number, and its result once ``done``.

    ``turn`` is what its caller sleeps on, made when it first does: most drive, or need not wait.
    """

    __slots__ = ("_nudged", "callbacks", "done", "number", "result", "turn")

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = False
        self.result: Result = None
        self.callbacks: list[Callable[[], object]] | None = None
        self._nudged = False
        self.turn: Lock | None = None

    def then(self, callback: Callable[[], object]) -> None:
        """Call *callback* once the call is answered, or now if it is: exactly once.

        It runs on any thread, perhaps with the driver's state locked: it may wake somebody up
        (``loop.call_soon_threadsafe``, ``queue.put``), and may neither wait nor call the driver.
        """
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.done:
            self.call_back()

    def call_back(self) -> None:
        """Call what was handed to :meth:`then` and has not been called."""
        while self.callbacks:
            try:
                callback = self.callbacks.pop()
            except IndexError:
                return  # the thread that answers and the one that asks met: it is being called
            callback()

    def nudge(self) -> None:
        """Wake the caller, to see its answer or to take its turn at driving."""
        self._nudged = True  # said first: who is about to sleep sees it, or is seen to sleep
        turn = self.turn
        if turn is not None:
            try:
                turn.release()
            except RuntimeError:
                pass  # it is awake already

    def sleep(self) -> None:
        """Block until the answer is there or somebody nudges, unless one has since the last time.

        Only the caller itself may, and looks afterwards for what has changed.
        """
        turn = self.turn
        if turn is None:
            turn = Lock()
            turn.acquire()
            self.turn = turn
        if not (self._nudged or self.done):
            turn.acquire()
        self._nudged = False


class Tickets:
    """Open tickets by number; ``number()`` is one never used before."""

    def __init__(self) -> None:
        self.number = count(1).__next__
        self._open: dict[int, Ticket] = {}

    def new(self, number: int = 0) -> Ticket:
        """A ticket of this *number*, which :attr:`number` gave; or else of the next one."""
        number = number or self.number()
        ticket = self._open[number] = Ticket(number)
        return ticket

    def resolve(self, number: int, result: Result) -> Ticket | None:
        """Answer ticket *number*; None if nobody waits for it (any more)."""
        ticket = self._open.pop(number, None)  # once: only the first answer counts
        if ticket is not None:
            ticket.result = result
            ticket.done = True
            if ticket.turn is not None:
                ticket.nudge()
            if ticket.callbacks:
                ticket.call_back()
        return ticket

    def forget(self, number: int) -> None:
        """Nobody waits for that answer any more; unknown numbers are fine."""
        self._open.pop(number, None)

    def all(self) -> list[Ticket]:
        """Every ticket that has no answer yet."""
        return list(self._open.values())
