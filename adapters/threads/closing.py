"""The end of a driver: whatever fails, the rest is closed all the same."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Close, Failure

if TYPE_CHECKING:
    from stagelink.adapters.threads.driver import Driver

FLUSH_S = 0.2
HOME_S = 0.25


def shut(driver: Driver, patience_s: float) -> None:
    """End every wait and transfer, then everything else; bounded by *patience_s* + 1 s."""
    with ExitStack() as last:
        last.callback(driver.wakeup.close)
        last.callback(_close_liveness, driver)
        last.callback(driver.parts.memory.close)
        last.callback(_close_channel, driver)
        last.callback(_send_callers_home, driver)
        last.callback(driver.work.errands.stop)
        last.callback(driver.worker.stop)
        last.callback(driver.standby.stop)
        for plane in driver.parts.planes.values():
            last.callback(plane.close)
        last.callback(_send_callers_home, driver)
        driver.submit(Close())
        _settle(driver, patience_s)


def _send_callers_home(driver: Driver) -> None:
    """Answer every open call, and wait a moment until nobody polls any more."""
    until_s = driver.clock() + HOME_S
    while True:
        with driver.state:
            for ticket in driver.tickets.all():
                driver.tickets.resolve(ticket.number, Failure(Reason.CLOSED.value, "closed"))
        if not driver.has_driver or driver.clock() > until_s:
            return
        driver.wakeup.kick()
        driver.standby.nap(0.001)


def _close_liveness(driver: Driver) -> None:
    # A peer that still views our pages, or whose pages we view, asks the kernel about us:
    # the proof of our life goes with the last view, or with the process.
    driver.views.when_none(driver.parts.liveness.close)


def _settle(driver: Driver, patience_s: float) -> None:
    """Flush, and wait while a transfer may still touch memory or a view is open."""
    start_s = driver.clock()
    endpoint = driver.parts.endpoint
    while True:
        driver.pump()
        driver.pass_time()
        passed_s = driver.clock() - start_s
        with driver.state:
            rest = endpoint.at_rest and not driver.exchange.stalled
        if (rest and not len(driver.views)) or passed_s > patience_s:
            return
        if not endpoint.at_rest or passed_s < FLUSH_S or len(driver.views):
            driver.standby.nap(0.005)


def _close_channel(driver: Driver) -> None:
    with driver.io:
        driver.exchange.close()
