"""The writes to one peer: begun at once while few are under way, in batches when they queue up.

Whoever posts a write begins it. One thread per peer waits for what does not end at once, so that
a peer that has stopped holds up no other, and makes a broken connection anew.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Condition, Lock, Thread, current_thread
from typing import TYPE_CHECKING

from stagelink.adapters.mori.jobs import Flight, Job, begin, tell
from stagelink.adapters.mori.library import outcome
from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.mori.library import Status
    from stagelink.adapters.mori.link import Link

STOPPED = "the write was stopped"
DEPTH = 16
"""Calls under way at once; beyond, writes queue up, and the next call takes several of them."""

BATCH_BYTES = 1 << 20
"""A batch ends as one: longer writes go alone, so as not to be waited for by others."""

BATCH_WRITES = 128
PLACE_S = 1e-3
"""Whoever has nothing else to do waits where it is for a write that takes no longer than this:
another thread would tell of its end some 0.2 ms later."""

FIRST_RATE = 25e9
"""Bytes a second that a write is taken to move before one was seen."""

TOLD_BYTES = 1 << 20
"""Shorter writes say nothing of the rate."""

ROUNDS = 4
"""So many calls whoever posts makes, for others too; then the thread takes over."""

RETRY_S = 0.2
"""A connection that could not be made is not tried again for so long."""

JOIN_S = 1.0


class Lane:
    """Writes to one peer.

    Args:
        link: the connection; None: it is made with the first write, on the thread.
        connect: makes another, or raises; may take long.
        breaks: after an error the connection is of no use any more.
        inline_bytes: writes of up to this much are waited for where they are posted: that takes
            less time than to wake the thread.
        settle: called after an error, before it is told: then nothing of the write can land.
    """

    def __init__(
        self, link: Link | None, connect: Callable[[], Link], *, breaks: bool, inline_bytes: int,
        settle: Callable[[], None],
    ) -> None:  # fmt: skip
        self.link = link
        self._connect = connect
        self._breaks = breaks
        self._inline_bytes = inline_bytes
        self._settle = settle
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._queue: deque[Job] = deque()
        self._flights: set[Flight] = set()
        self._waiting: deque[Flight] = deque()
        # The engine stores a status's code, at which Wait() returns, before its thread has left
        # the status: destroyed at once it would be touched after that. Nothing tells when that
        # thread is out. A later end would prove it if only one thread ended them; but those that
        # post tell of failures, and each public call makes a status of its own, so none
        # can be used again. This is a bound and no proof: one thread would have to stand still
        # between two instructions while others carry as much as is ever under way at once.
        self._kept: deque[Status] = deque(maxlen=DEPTH)
        self._beginning = self._connecting = self._held = self._stopped = False
        self._cause = ""
        self._rate = FIRST_RATE
        self._retry_s = 0.0
        self._thread: Thread | None = None

    def post(self, job: Job) -> None:
        """Begin *job*, or queue it."""
        found = None
        with self._lock:
            refusal = self._refusal()
            if not refusal:
                self._queue.append(job)
                found = self._next()
        if refusal:
            job.done(job.order, refusal)
        elif found is not None:
            self._begin(found)

    def use(self, link: Link) -> None:
        """Begin the next writes over *link*; returns when those over the one before have ended."""
        with self._lock:
            before, self.link = self.link, link
            self._cause = ""
            self._changed.notify_all()
        self._begin()
        if before is not None and before is not link:
            with self._lock:
                self._changed.wait_for(lambda: not self._uses(before))
            before.close()

    def hold(self, *, flush: bool = False) -> None:
        """Begin nothing more until :meth:`resume`; *flush*: end what is queued with an error."""
        with self._lock:
            self._held = True
            jobs = self._queue if flush else deque[Job]()
            self._queue = deque() if flush else self._queue
            self._changed.wait_for(lambda: not (self._beginning or self._connecting))
        tell(jobs, STOPPED)

    def is_idle(self, patience_s: float | None = None) -> bool:
        """Whether nothing is under way, within so long (None: however long that takes)."""
        with self._lock:
            return self._changed.wait_for(self._idle, patience_s)

    def abandon(self) -> None:
        """What is under way cannot land any more, and nobody will say so: have it end."""
        with self._lock:
            flights = list(self._flights)
        for flight in flights:
            flight.link.abandon(flight.status)

    def resume(self) -> None:
        """Go on, over a new connection; nothing is under way."""
        with self._lock:
            link, self.link, self._held = self.link, None, False
            if self._queue:
                self._wake()
        if link is not None:
            link.close()

    def stop(self) -> None:
        """End every write and the thread; returns when nothing can land any more."""
        with self._lock:
            self._stopped = True
            jobs, self._queue = self._queue, deque()
            self._changed.notify_all()
        tell(jobs, STOPPED)
        if self._thread is current_thread():
            self._finish()  # a callback closes us: nobody else waits for the rest
        with self._lock:
            self._changed.wait_for(self._idle)
            link, self.link = self.link, None
        if link is not None:
            link.close()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(JOIN_S)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or under way."""
        with self._changed:
            return self._idle() and not self._queue

    # --- with the lock held --------------------------------------------------------------

    def _idle(self) -> bool:
        return not (self._flights or self._beginning or self._connecting)

    def _uses(self, link: Link) -> bool:
        return self._beginning or any(flight.link is link for flight in self._flights)

    def _refusal(self) -> str:
        """Why nothing can be posted now; empty if it can."""
        if self._stopped:
            return STOPPED
        if self.link is None and not self._held and time.monotonic() < self._retry_s:
            return self._cause
        return ""

    def _may_begin(self) -> bool:
        full = len(self._flights) >= DEPTH
        return bool(self._queue) and not (self._beginning or self._held or full)

    def _next(self) -> tuple[Link, list[Job]] | None:
        """What to begin now, which nobody else begins meanwhile."""
        if not self._may_begin():
            return None
        if self.link is None:
            self._wake()
            return None
        jobs = [self._queue.popleft()]
        size = jobs[0].order.source.size
        while self._queue and len(jobs) < BATCH_WRITES:
            job = self._queue[0]
            size += job.order.source.size
            if size > BATCH_BYTES or job.pair != jobs[0].pair:
                break
            jobs.append(self._queue.popleft())
        self._beginning = True
        return self.link, jobs

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._loop, name="stagelink-mori", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _break(self, link: Link, cause: str) -> None:
        """*link* has failed: the first error is the one that tells why."""
        if self._breaks and self.link is link:
            self.link = None
            self._cause = cause

    # --- without it ----------------------------------------------------------------------

    def _begin(self, found: tuple[Link, list[Job]] | None = None) -> None:
        """Begin *found* and what else can be begun; if that never ends, the thread goes on."""
        for _ in range(ROUNDS):
            if found is not None:
                flight = self._launch(*found)
                if flight is not None:
                    self._end(flight)
            with self._lock:
                found = self._next()
            if found is None:
                return
        flight = self._launch(*found) if found else None
        if flight is not None:
            self._end(flight)
        with self._lock:
            if self._may_begin():
                self._wake()

    def _launch(self, link: Link, jobs: list[Job]) -> Flight | None:
        """Begin *jobs*; returns them if they are to be waited for here."""
        begun_s = time.monotonic()
        try:
            status, size = begin(link, jobs)
        except StagelinkError as error:
            self._failed(link, jobs, str(error))
            return None
        flight = Flight(link, jobs, status, size, begun_s)
        here = size <= self._inline_bytes or self._is_awaited(jobs, size)
        with self._lock:
            self._beginning = False
            self._flights.add(flight)
            if here:
                self._changed.notify_all()
            else:
                self._waiting.append(flight)
                self._wake()
        return flight if here else None

    def _is_awaited(self, jobs: list[Job], size: int) -> bool:
        """Whether who posted *jobs* may be kept until they have ended."""
        most = self._rate * PLACE_S if self._inline_bytes else 0.0
        return len(jobs) == 1 and jobs[0].order.awaited and size <= most

    def _failed(self, link: Link, jobs: list[Job], error: str) -> None:
        """Mori could not even begin."""
        self._settle()
        with self._lock:
            self._beginning = False
            self._break(link, error)
            self._changed.notify_all()
        tell(jobs, error)

    def _end(self, flight: Flight) -> None:
        """Wait for *flight* and tell how it ended."""
        flight.status.Wait()
        self._kept.append(flight.status)
        error = outcome(flight.status)
        if flight.size >= TOLD_BYTES:
            self._rate = flight.size / (time.monotonic() - flight.begun_s)
        if error:
            self._settle()
        with self._lock:
            self._flights.discard(flight)
            if error and self._cause and self.link is not flight.link:
                error = error if error == self._cause else f"{error}; before it: {self._cause}"
            elif error:
                self._break(flight.link, error)
            self._changed.notify_all()
        tell(flight.jobs, error)

    def _finish(self) -> None:
        """Wait for all that the thread was to wait for."""
        while True:
            with self._lock:
                flight = self._waiting.popleft() if self._waiting else None
            if flight is None:
                return
            self._end(flight)

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(self._has_work)
                flight = self._waiting.popleft() if self._waiting else None
                if flight is None and self._stopped:
                    return
                self._connecting = flight is None and self.link is None
                connects = self._connecting
            if flight is not None:
                self._end(flight)
            elif connects:
                self._reconnect()
            del flight  # or it would keep its connection until the next one comes
            self._begin()

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._stopped or self._may_begin()

    def _reconnect(self) -> None:
        """Make the connection anew, or tell those who wait for it that it cannot be made."""
        error, link, jobs = "", None, deque[Job]()
        try:
            link = self._connect()
        except StagelinkError as failure:
            error = str(failure)
        with self._lock:
            self._connecting = False
            if self.link is None and link is not None:
                self.link, self._cause, link = link, "", None
            elif self.link is None:
                self._cause, self._retry_s = error, time.monotonic() + RETRY_S
                jobs, self._queue = self._queue, jobs
            self._changed.notify_all()
        tell(jobs, error)
        if link is not None:
            link.close()  # the peer has been attached anew meanwhile
