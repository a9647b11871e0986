"""Calls that wait for the first of many keys, and take none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.events import Complete

if TYPE_CHECKING:
    from stagelink.core.events import Action, Await, Failure
    from stagelink.core.timers import Timers


class Wait(NamedTuple):
    """Who waits (``ticket``), at which sender, for the first of which keys."""

    ticket: int
    address: str
    keys: tuple[str, ...]


FrozenWaits = tuple[Wait, ...]


class Waits:
    """Waits by ticket and by key; each is answered once, and its timer is ``("wait", ticket)``."""

    __slots__ = ("_by_key", "_by_ticket", "_timers")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_ticket: dict[int, Wait] = {}
        self._by_key: dict[tuple[str, str], dict[int, None]] = {}

    def __len__(self) -> int:
        """How many calls wait."""
        return len(self._by_ticket)

    def begin(self, command: Await) -> None:
        """Wait from now on, until the deadline (inclusive)."""
        keys = tuple(dict.fromkeys(command.keys))
        self._add(Wait(command.ticket, command.address, keys))
        self._timers.arm(("wait", command.ticket), command.deadline_s)

    def get(self, ticket: int) -> Wait | None:
        """The wait of that ticket, if it is not over."""
        return self._by_ticket.get(ticket)

    def at(self, address: str) -> list[Wait]:
        """Every wait on that sender, oldest first."""
        return [wait for wait in self._by_ticket.values() if wait.address == address]

    def all(self) -> list[Wait]:
        """Every wait, oldest first."""
        return list(self._by_ticket.values())

    def keys(self, address: str) -> list[str]:
        """The keys that some call waits for at *address*."""
        return [key for where, key in self._by_key if where == address]

    def tell(self, address: str, key: str, out: list[Action]) -> None:
        """*key* is there, or will never be: a get of it is answered at once."""
        for ticket in list(self._by_key.get((address, key), ())):
            self._end(ticket)
            out.append(Complete(ticket, key))

    def fail(self, ticket: int, failure: Failure, out: list[Action]) -> None:
        """End the wait of *ticket* without a key; unknown tickets are fine."""
        if self._end(ticket):
            out.append(Complete(ticket, failure))

    def cancel(self, address: str, keys: list[str], failure: Failure, out: list[Action]) -> int:
        """Wait no more for *keys*; how many waits had no other key, and so end with *failure*."""
        ended = 0
        for key in keys:
            for ticket in list(self._by_key.get((address, key), ())):
                wait = self._by_ticket[ticket]
                left = tuple(other for other in wait.keys if other != key)
                if not left:
                    self.fail(ticket, failure, out)
                    ended += 1
                    continue
                self._by_ticket[ticket] = wait._replace(keys=left)
                self._drop(address, key, ticket)
        return ended

    def _add(self, wait: Wait) -> None:
        self._by_ticket[wait.ticket] = wait
        for key in wait.keys:
            self._by_key.setdefault((wait.address, key), {})[wait.ticket] = None

    def _end(self, ticket: int) -> bool:
        wait = self._by_ticket.pop(ticket, None)
        if wait is None:
            return False
        self._timers.disarm(("wait", ticket))
        for key in wait.keys:
            self._drop(wait.address, key, ticket)
        return True

    def _drop(self, address: str, key: str, ticket: int) -> None:
        waiting = self._by_key[address, key]
        del waiting[ticket]
        if not waiting:
            del self._by_key[address, key]

    def freeze(self) -> FrozenWaits:
        """The state as nested tuples."""
        return tuple(self._by_ticket.values())

    def restore(self, frozen: FrozenWaits) -> None:
        """Become what froze to *frozen*; the timers are restored with their own table."""
        self._by_ticket, self._by_key = {}, {}
        for wait in frozen:
            self._add(wait)
