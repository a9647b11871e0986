"""The thread that serves the channel while no caller does."""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from stagelink.adapters.threads.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.log import EventLog


RETRY_S = 0.05


class Served(Protocol):
    """What the standby thread needs of the driver."""

    @property
    def has_driver(self) -> bool:
        """Whether a caller drives."""
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
    """Parks while a caller drives, polls otherwise.

    A caller that comes does not chase it away: it parks at its next wake-up by itself. A caller
    that leaves, and leaves nobody driving, unparks it.
    """

    def __init__(self, driver: Served, channel_fd: int, log: EventLog) -> None:
        self._driver = driver
        self._log = log
        self._wakeup = Wakeup(channel_fd)
        self._parked = Lock()
        self._parked.acquire()
        self._napping = Lock()
        self._napping.acquire()
        self._stopped = False
        self._thread = Thread(target=self._run, name="stagelink-standby", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def kick(self) -> None:
        """Let it look again now, if it polls."""
        self._wakeup.kick()

    def unpark(self) -> None:
        """Nobody drives any more: serve."""
        try:
            self._parked.release()
        except RuntimeError:
            pass  # it is about to look by itself

    def nap(self, seconds: float) -> None:
        """Let the calling thread wait a little, for the end of something that others do."""
        self._napping.acquire(timeout=seconds)

    def stop(self) -> None:
        """End the thread; bounded by half a second."""
        self._stopped = True
        self._wakeup.kick()
        self.unpark()
        self._thread.join(0.5)
        self._wakeup.close()

    def _run(self) -> None:
        driver = self._driver
        while not self._stopped:
            if driver.has_driver:
                self._parked.acquire()
                continue
            try:
                self._serve(driver)
            except Exception as error:  # noqa: BLE001 - without this thread every wait would hang
                self._log.error("standby_failed", cause=f"{type(error).__name__}: {error}")
                self.nap(RETRY_S)

    def _serve(self, driver: Served) -> None:
        driver.pump()
        driver.pass_time()
        timeout_s = driver.poll_until() - driver.clock()
        if driver.idle() and not driver.has_driver and not self._stopped:
            self._wakeup.wait(timeout_s)
