"""Copies between mappings, off the driver's threads and without the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections import deque
from threading import Condition, Lock, Thread, current_thread
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance
    from stagelink.ports.plane import WriteOrder

    Done = Callable[[WriteOrder, str], None]

INLINE_BYTES = 256 << 10
"""Up to this a copy is quicker than waking another thread for it (22 against 78 µs, loaded)."""

PIECE_BYTES = 8 << 20
"""A copy can be stopped between pieces of this size (a millisecond or two)."""

STOPPED = "the write was stopped"
CLOSED = "the plane is closed"
JOIN_S = 1.0

_ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

copy_holding = ctypes.PyDLL(None).memmove
"""For small copies: who gives the interpreter's lock away may wait 5 ms to have it back."""
copy_holding.argtypes = _ARGUMENTS

copy_yielding = ctypes.CDLL(None).memmove
"""For large copies: other threads run meanwhile."""
copy_yielding.argtypes = _ARGUMENTS


class Ends(NamedTuple):
    """Two addresses, and what keeps both mapped."""

    source: int
    target: int
    alive: object


class _Job:
    """A write to be done by the thread; *stop* is read between pieces."""

    __slots__ = ("done", "ends", "order", "stop")

    def __init__(self, order: WriteOrder, ends: Ends, done: Done) -> None:
        self.order = order
        self.ends = ends
        self.done = done
        self.stop = False


class Copier:
    """Runs writes in order; a stopped one ends with an error once no byte of it can follow.

    *ends* finds and checks the addresses of an order, or raises TransportError. It is called with
    the lock held that :meth:`stop` takes too, and a small write is copied under it: so whoever
    makes *ends* refuse a peer, and then stops its writes, knows that nothing lands afterwards.
    *done* is always called without the lock.
    """

    def __init__(self, ends: Callable[[WriteOrder], Ends]) -> None:
        self._ends = ends
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._closed = False
        self._thread: Thread | None = None

    def post(self, order: WriteOrder, done: Done) -> None:
        """Copy here and now if it is small, else queue it."""
        with self._lock:
            error = self._begin(order, done)
        if error is not None:
            done(order, error)

    def stop(self, peer: Instance | None) -> None:
        """End every write to *peer* (None: to anybody); returns when none can touch memory."""
        with self._changed:
            stopped = [job for job in self._jobs if peer in {None, job.order.peer}]
            self._jobs = deque(job for job in self._jobs if peer not in {None, job.order.peer})
            running = self._running
            if running is not None and peer in {None, running.order.peer}:
                running.stop = True
                self._changed.wait_for(lambda: self._running is not running)
        for job in stopped:
            job.done(job.order, STOPPED)

    def close(self) -> None:
        """End every write, and the thread. Twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.stop(None)
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(JOIN_S)

    def _begin(self, order: WriteOrder, done: Done) -> str | None:
        """Copy or queue; returns how it ended, None when that is still to come."""
        if self._closed:
            return CLOSED
        try:
            ends = self._ends(order)
        except TransportError as error:
            return str(error)
        size = order.source.size
        if size <= INLINE_BYTES:
            copy_holding(ends.target, ends.source, size)
            return ""
        self._jobs.append(_Job(order, ends, done))
        if self._thread is None:
            self._thread = Thread(target=self._loop, name="stagelink-copier", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return None

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            whole = _copy_in_pieces(job)
            with self._changed:
                self._running = None
                self._changed.notify_all()
            job.done(job.order, "" if whole else STOPPED)
            del job  # or it would keep its mappings until the next one comes

    def _next(self) -> _Job | None:
        """The next job, now running; None when the copier is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            self._running = self._jobs.popleft() if self._jobs else None
            return self._running


def _copy_in_pieces(job: _Job) -> bool:
    """Copy until done (True) or stopped."""
    source, target, _ = job.ends
    size = job.order.source.size
    for start in range(0, size, PIECE_BYTES):
        if job.stop:
            return False
        copy_yielding(target + start, source + start, min(PIECE_BYTES, size - start))
    return True
