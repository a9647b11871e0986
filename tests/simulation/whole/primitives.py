"""Stand-ins for what threads wait on, and how the driver comes to use them."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagelink.adapters.threads import driver, errands, standby, tickets, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.whole.clockwork import Actor, Clockwork, Process


class SimLock:
    """A ``threading.Lock`` that is waited for in virtual time."""

    def __init__(self, works: Clockwork) -> None:
        self._works = works
        self._held = False
        self._waiters: deque[Actor] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, perhaps after others had their turn."""
        works = self._works
        works.stumble()
        until_s = None if timeout < 0 else works.now_s + timeout
        while self._held:
            if not blocking or (until_s is not None and works.now_s >= until_s):
                return False
            assert works.current is not None
            self._waiters.append(works.current)
            works.block(None if until_s is None else until_s - works.now_s)
        self._held = True
        return True

    def release(self) -> None:
        """Let it go; others may run at once, or while it is still held."""
        if not self._held:
            msg = "release unlocked lock"
            raise RuntimeError(msg)
        self._works.stumble()
        self._let_go()
        self._works.stumble()

    def _let_go(self) -> None:
        self._held = False
        while self._waiters:
            waiter = self._waiters.popleft()
            if waiter.asleep:
                self._works.wake(waiter)
                break

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._held

    def __enter__(self) -> None:
        """Take it."""
        self.acquire()

    def __exit__(self, *args: object) -> None:
        """Let it go."""
        self.release()


class SimCondition(SimLock):
    """A ``threading.Condition``."""

    def __init__(self, works: Clockwork) -> None:
        super().__init__(works)
        self._sleepers: list[Actor] = []

    def wait_for(self, holds: Callable[[], object], timeout: float | None = None) -> bool:
        """Sleep until *holds*, with the lock let go."""
        works = self._works
        until_s = None if timeout is None else works.now_s + timeout
        while not holds():
            if until_s is not None and works.now_s >= until_s:
                return False
            assert works.current is not None
            self._sleepers.append(works.current)
            self._let_go()
            try:
                works.block(None if until_s is None else until_s - works.now_s)
            finally:
                self.acquire()
        return True

    def notify_all(self) -> None:
        """Let all look again."""
        sleepers, self._sleepers = self._sleepers, []
        for one in sleepers:
            self._works.wake(one)


class SimQueue:
    """A ``queue.SimpleQueue`` with one reader."""

    def __init__(self, works: Clockwork) -> None:
        self._works = works
        self._items: deque[Any] = deque()
        self._reader: Actor | None = None

    def put(self, item: object) -> None:
        """Add one."""
        self._items.append(item)
        if self._reader is not None:
            self._works.wake(self._reader)

    def get(self) -> Any:
        """Take one, or sleep until there is one."""
        self._reader = self._works.current
        while not self._items:
            self._works.block(None)
        return self._items.popleft()


class SimThread:
    """A ``threading.Thread`` of the process that makes it."""

    def __init__(
        self, works: Clockwork, process: Process, target: Callable[[], object], name: str
    ) -> None:
        self._works, self._process, self._target, self._name = works, process, target, name
        self._actor: Actor | None = None

    def start(self) -> None:
        """Begin."""
        name = f"{self._process.name} {self._name.removeprefix('stagelink-')}"
        self._actor = self._works.spawn(name, self._process, self._target)

    def join(self, timeout: float) -> None:
        """Wait for its end."""
        actor, works = self._actor, self._works
        until_s = works.now_s + timeout
        while actor is not None and not actor.over and works.now_s < until_s:
            assert works.current is not None
            actor.joiners.append(works.current)
            works.block(until_s - works.now_s)


class SimWakeup:
    """The driver's Wakeup: polls a channel that tells its watchers when it becomes readable."""

    def __init__(self, works: Clockwork, descriptor: int) -> None:
        self._works = works
        self._channel = CHANNELS[descriptor]
        self._channel.watchers.append(self)
        self._kicked = False
        self._sleeper: Actor | None = None

    def peek(self, timeout: int) -> list[int]:
        """What is readable."""
        del timeout
        return [1] if self._channel.readable else []

    def wait(self, timeout_s: float) -> None:
        """Sleep until the channel is readable, somebody kicks, or for *timeout_s*."""
        self._works.stumble()
        if not (self._kicked or self._channel.readable) and timeout_s > 0:
            self._sleeper = self._works.current
            self._works.block(timeout_s)
            self._sleeper = None
        self._kicked = False

    def kick(self) -> None:
        """Wake who waits, now or at its next wait."""
        self._kicked = True
        self.look()

    def look(self) -> None:
        """There is something to see."""
        if self._sleeper is not None:
            self._works.wake(self._sleeper)

    def close(self) -> None:
        """No more kicks."""


CHANNELS: dict[int, Any] = {}
"""Of the present world, by descriptor."""


@contextmanager
def simulated(works: Clockwork) -> Iterator[None]:
    """Within, drivers are made of stand-ins; one world at a time."""

    def thread(*, target: Callable[[], object], name: str, daemon: bool) -> SimThread:
        del daemon
        assert works.current is not None, "threads are started by actors"
        return SimThread(works, works.current.process, target, name)

    def lock() -> SimLock:
        return SimLock(works)

    def queue() -> SimQueue:
        return SimQueue(works)

    def condition() -> SimCondition:
        return SimCondition(works)

    def wakeup(descriptor: int) -> SimWakeup:
        return SimWakeup(works, descriptor)

    stand_ins: dict[Any, dict[str, object]] = {
        driver: {"Lock": lock, "Wakeup": wakeup},
        standby: {"Lock": lock, "Thread": thread, "Wakeup": wakeup},
        tickets: {"Lock": lock},
        errands: {"Lock": lock, "Thread": thread, "SimpleQueue": queue},
        worker: {"Condition": condition, "Thread": thread},
    }
    before = {module: {name: getattr(module, name) for name in names}
              for module, names in stand_ins.items()}  # fmt: skip
    try:
        _set(stand_ins)
        yield
    finally:
        _set(before)
        CHANNELS.clear()


def _set(names: dict[Any, dict[str, object]]) -> None:
    for module, values in names.items():
        for name, value in values.items():
            setattr(module, name, value)
