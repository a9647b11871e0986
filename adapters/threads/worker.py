"""Work that callers need not wait for: one after the other, in the order given."""

from __future__ import annotations

from collections import deque
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.log import EventLog

QUEUE_LIMIT = 64
"""Jobs that wait, beside the one under way."""

JOIN_S = 0.5


class Job(Protocol):
    """What a worker is given; exactly one of the two is called, once."""

    def run(self) -> None:
        """Do it, and tell whom it concerns how it went; raises nothing."""
        ...

    def drop(self) -> None:
        """It will not be done: the worker has been stopped."""
        ...


class Worker:
    """One thread, started with the first job; the queue is bounded."""

    def __init__(self, log: EventLog, limit: int = QUEUE_LIMIT) -> None:
        self._log = log
        self._limit = limit
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._thread: Thread | None = None
        self._stopped = False

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def give(self, job: Job, timeout_s: float, *, bounded: bool = True) -> bool:
        """Queue *job*; False, and nothing happens, if there is no room within *timeout_s*.

        Not *bounded*: there always is, for callers that wait for their job are a bound themselves.
        """
        with self._changed:
            if bounded and not self._changed.wait_for(self._has_room, timeout_s):
                return False
            if not self._stopped:
                self._jobs.append(job)
                self._start()
                self._changed.notify_all()
                return True
        job.drop()
        return True

    def stop(self) -> None:
        """Drop what waits and end the thread after what it does; bounded by half a second.

        A job, or whom it tells of its end, may call this too: then the thread ends after that.
        """
        with self._changed:
            self._stopped = True
            jobs, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in jobs:
            job.drop()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(JOIN_S)

    def _has_room(self) -> bool:
        return len(self._jobs) < self._limit or self._stopped

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._loop, name="stagelink-worker", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.run()
            except Exception as error:  # noqa: BLE001 - whoever waits for the next must get it
                self._log.error("job_failed", cause=f"{type(error).__name__}: {error}")
            del job  # or it would keep its value until the next one comes

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopped)
            job = self._jobs.popleft() if self._jobs else None
            self._changed.notify_all()
            return job


class Outcome:
    """What will have come of a job: told once, to any number of threads and callbacks."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._changed = Condition()
        self._callbacks: list[Callable[[], object]] = []
        self.done = False
        self.result: object = None
        self.error: BaseException | None = None

    def settle(self, result: object, error: BaseException | None = None) -> None:
        """It has ended; only the first end counts."""
        with self._changed:
            if self.done:
                return
            self.result, self.error, self.done = result, error, True
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it has ended, within *timeout_s* (None: however long that takes)."""
        with self._changed:
            return self._changed.wait_for(lambda: self.done, timeout_s)

    def then(self, callback: Callable[[], object]) -> None:
        """Call *callback* once it has ended, on the thread that ends it; or here, if it has."""
        with self._changed:
            if not self.done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        """A callback is anybody's code: what it raises concerns neither the job nor the others."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - see above
            self._log.error("callback_failed", cause=f"{type(error).__name__}: {error}")
