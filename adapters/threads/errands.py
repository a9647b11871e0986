"""What may take long and so is done by threads of its own: attach, fence, reset."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.log import EventLog

MOST_AT_ONCE = 8
"""So many peers that do not answer are waited for before others wait behind them."""


class Errand(NamedTuple):
    """Something to do, and what it concerns; without *keys*, everything."""

    do: Callable[[], None]
    keys: frozenset[object]


class Agenda:
    """Which errands may run side by side: those that have no key in common.

    Those that do follow each other as they came. One without keys runs alone, after all before it
    and before all after it.
    """

    def __init__(self) -> None:
        self._waiting: list[Errand] = []
        self._running: list[Errand] = []

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self._waiting or self._running)

    def add(self, errand: Errand) -> None:
        """There is one more to do."""
        self._waiting.append(errand)

    def over(self, errand: Errand) -> None:
        """One that runs is done."""
        self._running.remove(errand)

    def begin(self) -> list[Errand]:
        """Those that can run from now on, oldest first."""
        begun: list[Errand] = []
        taken = {key for errand in self._running for key in errand.keys}
        for errand in list(self._waiting):
            if not self._has_room(errand):
                break
            if taken.isdisjoint(errand.keys):
                self._waiting.remove(errand)
                self._running.append(errand)
                begun.append(errand)
            taken |= errand.keys
        return begun

    def _has_room(self, errand: Errand) -> bool:
        running = self._running
        if not errand.keys:  # it, and with it all that came later, waits until it is alone
            return not running and self._waiting[0] is errand
        return len(running) < MOST_AT_ONCE and all(one.keys for one in running)


class _Over(NamedTuple):
    """An errand has been run, by this thread."""

    errand: Errand
    thread: Thread | None


class Errands:
    """Runs callables in the order of an :class:`Agenda`, each on a thread.

    The thread that is started with the first one owns the agenda, and runs none itself.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._queue: SimpleQueue[Errand | _Over | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting = Lock()

    def run(self, do: Callable[[], None], *keys: object) -> None:
        """Queue *do*, which concerns *keys*; it reports by itself; what it raises is logged."""
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="stagelink-errands", daemon=True)
                self._thread.start()
        self._queue.put(Errand(do, frozenset(keys)))

    def stop(self) -> None:
        """End the threads after what is queued; bounded by half a second."""
        with self._starting:  # a thread that is just being started can be joined only after
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(0.5)

    def _loop(self) -> None:
        agenda, stopping = Agenda(), False
        while not (stopping and agenda.idle):
            told = self._queue.get()
            if told is None:
                stopping = True
            elif isinstance(told, Errand):
                agenda.add(told)
            else:
                agenda.over(told.errand)
                if told.thread is not None:
                    told.thread.join(0.5)  # it has nothing more to do
            for errand in agenda.begin():
                self._start(errand)

    def _start(self, errand: Errand) -> None:
        made: list[Thread] = []
        work = partial(self._do, errand, made)
        thread = Thread(target=work, name="stagelink-errand", daemon=True)
        made.append(thread)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads: then others wait
            self._do(errand, [])

    def _do(self, errand: Errand, made: list[Thread]) -> None:
        try:
            errand.do()
        except Exception as error:  # noqa: BLE001 - whoever waits for the next must get it
            self._log.error("errand_failed", cause=f"{type(error).__name__}: {error}")
        self._queue.put(_Over(errand, made[0] if made else None))


def error_of(call: Callable[[], None]) -> str:
    """The message with which a plane refuses *call*, or empty."""
    try:
        call()
    except StagelinkError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a plane may be anybody's code
        return f"{type(error).__name__}: {error}"
    return ""
