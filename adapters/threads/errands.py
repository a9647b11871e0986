"""What may take long and so is done by a thread of its own: attach, fence, reset."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.log import EventLog


class Errands:
    """Runs callables one after the other, on a thread started with the first."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting = Lock()

    def run(self, errand: Callable[[], None]) -> None:
        """Queue *errand*; it reports by itself; what it raises is logged."""
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="stagelink-errands", daemon=True)
                self._thread.start()
        self._queue.put(errand)

    def stop(self) -> None:
        """End the thread after what it is doing; bounded by half a second."""
        with self._starting:  # a thread that is just being started can be joined only after
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(0.5)

    def _loop(self) -> None:
        while (errand := self._queue.get()) is not None:
            try:
                errand()
            except Exception as error:  # noqa: BLE001, PERF203 - whoever waits for the next must get it
                self._log.error("errand_failed", cause=f"{type(error).__name__}: {error}")


def error_of(call: Callable[[], None]) -> str:
    """The message with which a plane refuses *call*, or empty."""
    try:
        call()
    except StagelinkError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a plane may be anybody's code
        return f"{type(error).__name__}: {error}"
    return ""
