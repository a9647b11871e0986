"""The thread that serves the channel while no caller does."""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from stagelink.adapters.threads.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.log import EventLog


NAP_S = 0.02
"""How long after a caller's turn the thread leaves the channel to the next one."""

RETRY_S = 0.05


class Served(Protocol):
    """What the standby thread needs of the driver."""

    @property
    def has_driver(self) -> bool:
        """Whether a caller drives."""
        ...

    @property
    def turns(self) -> int:
        """How often a caller has begun or ended to drive."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        ...

    def pump(self) -> None:
        """Send and receive what there is."""
        ...

    def pass_time(self) -> None:
        """Let due time-outs happen."""
        ...

    def poll_until(self) -> float:
        """When to be back at the latest."""
        ...

    def idle(self) -> bool:
        """Whether nothing waits that no descriptor announces."""
        ...


class Standby:
    """Serves, naps after a caller's turn, and sleeps while one caller drives for long.

    Two threads that wait for one message wake together and fight for the interpreter. So a caller
    that begins to drive ends the poll of this thread, which comes back only when nobody has
    driven for a while, or when it is asked to. ``asleep`` says that only a ring wakes it.
    """

    def __init__(self, driver: Served, channel_fd: int, log: EventLog) -> None:
        self._driver = driver
        self._log = log
        self._wakeup = Wakeup(channel_fd)
        self._bell = Lock()
        self._bell.acquire()
        self._napping = Lock()
        self._napping.acquire()
        self._polling = False
        self.asleep = False
        self._wanted = False
        self._seen = 0
        self._stopped = False
        self._thread = Thread(target=self._run, name="stagelink-standby", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def kick(self) -> None:
        """Let it look again now, if it polls."""
        self._wakeup.kick()

    def step_back(self) -> None:
        """A caller drives: leave the channel to it."""
        if self._polling:
            self._wakeup.kick()

    def relieve(self, *, now: bool) -> None:
        """Nobody drives any more: serve *now*, or if that stays so for a while."""
        if now:
            self._wanted = True
        if now or self.asleep:
            self._ring()

    def nap(self, seconds: float) -> None:
        """Let the calling thread wait a little, for the end of something that others do."""
        self._napping.acquire(timeout=seconds)

    def stop(self) -> None:
        """End the thread; bounded by half a second."""
        self._stopped = True
        self._wakeup.kick()
        self._ring()
        self._thread.join(0.5)
        self._wakeup.close()

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    def _run(self) -> None:
        while not self._stopped:
            if self._left_to_callers():
                continue
            try:
                self._serve(self._driver)
            except Exception as error:  # noqa: BLE001 - without this thread every wait would hang
                self._log.error("standby_failed", cause=f"{type(error).__name__}: {error}")
                self.nap(RETRY_S)

    def _left_to_callers(self) -> bool:
        """Wait while callers serve the channel; False when it is this thread's."""
        driver = self._driver
        turns, driven = driver.turns, driver.has_driver
        if not driven and (self._wanted or turns == self._seen):
            self._wanted = False
            return False
        steady = driven and turns == self._seen
        self._seen = turns
        if not steady:
            self._bell.acquire(timeout=NAP_S)
            return True
        self.asleep = True
        # Said first, then looked once more: a caller that leaves now either sees it or is seen.
        if driver.has_driver and driver.turns == turns and not self._stopped:
            self._bell.acquire()
        self.asleep = False
        return True

    def _serve(self, driver: Served) -> None:
        turns = driver.turns
        driver.pump()
        driver.pass_time()
        timeout_s = driver.poll_until() - driver.clock()
        self._polling = True
        try:
            # A caller that came meanwhile kept us from looking, and may have left mail unread.
            alone = not driver.has_driver and driver.turns == turns
            if alone and driver.idle() and not self._stopped:
                self._wakeup.wait(timeout_s)
        finally:
            self._polling = False
