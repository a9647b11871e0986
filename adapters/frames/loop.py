"""The one thread of a plane: it waits for sockets and lets each do a little."""

from __future__ import annotations

import contextlib
import os
import select
import time
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Protocol

from stagelink.adapters.frames.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 1.0
JOIN_S = 1.0
PAUSE_S = 0.05


class Handler(Protocol):
    """Whoever has a socket here."""

    def __call__(self, events: int) -> None:
        """Do a little; the plane's lock is held."""
        ...


class Loop:
    """Calls handlers when their sockets are ready; the lock is held for each call.

    Args:
        turns: the plane's lock; all methods but :meth:`end` and :meth:`is_me` are called under it.
        settle: called without it after each round: tells whom it concerns how writes ended.
        tick: called under it every second while ``ticks`` is set; says whether to go on.
    """

    def __init__(self, turns: Turns, settle: Callable[[], None], tick: Callable[[], bool]) -> None:
        self._turns = turns
        self._settle = settle
        self._tick = tick
        self._handlers: dict[int, Handler] = {}
        self._writes: set[int] = set()
        self._epoll: select.epoll | None = None
        self._event = -1
        self._thread: Thread | None = None
        self._ended = False
        self.ticks = False

    def add(self, descriptor: int, handler: Handler, *, writes: bool = False) -> None:
        """Watch a socket; the first one starts the thread."""
        if self._epoll is None:
            self._start()
        assert self._epoll is not None
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, _mask(writes))
        if writes:
            self._writes.add(descriptor)

    def wants(self, descriptor: int, *, writes: bool) -> None:
        """Whether room to write is of interest as well."""
        if self._epoll is None or descriptor not in self._handlers:
            return
        if writes != (descriptor in self._writes):
            self._epoll.modify(descriptor, _mask(writes))
            (self._writes.add if writes else self._writes.discard)(descriptor)

    def drop(self, descriptor: int) -> None:
        """Watch it no more; before it is closed, for the number may be given away again."""
        if self._handlers.pop(descriptor, None) is not None and self._epoll is not None:
            self._writes.discard(descriptor)
            self._epoll.unregister(descriptor)

    def kick(self) -> None:
        """Let the thread look again."""
        if self._event >= 0:
            os.eventfd_write(self._event, 1)

    def is_me(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return current_thread() is self._thread

    def end(self) -> None:
        """Stop the thread and close what is ours. Twice is fine."""
        with self._turns:
            self._ended = True
            self.kick()
        if self._thread is not None and not self.is_me():
            self._thread.join(JOIN_S)

    def let_go(self) -> None:
        """In a forked child: close our copies; the thread is the parent's."""
        self._turns = Turns()
        self._ended = True
        self._handlers.clear()
        self._close()

    def _start(self) -> None:
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._event, select.EPOLLIN)
        self._thread = Thread(target=self._run, name="stagelink-frames", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._epoll is not None
        next_s = 0.0
        while not self._ended:
            timeout = TICK_S if self.ticks else None
            for descriptor, events in self._epoll.poll(timeout):
                self._serve(descriptor, events)
            if self.ticks and time.monotonic() >= next_s:
                next_s = time.monotonic() + TICK_S
                with self._turns:
                    self.ticks = self._tick()
                self._settle()
        with self._turns:
            self._close()

    def _serve(self, descriptor: int, events: int) -> None:
        if descriptor == self._event:
            with contextlib.suppress(OSError):
                os.eventfd_read(descriptor)
            return
        with self._turns:
            handler = self._handlers.get(descriptor)
            if handler is None or self._ended:
                return  # closed meanwhile
            handler(events)
        self._settle()

    def _close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._event)
        self._epoll, self._event = None, -1


def _mask(writes: bool) -> int:
    return select.EPOLLIN | (select.EPOLLOUT if writes else 0)


def pause() -> None:
    """What cannot be served now (no descriptor is left) is asked for again a little later."""
    time.sleep(PAUSE_S)
