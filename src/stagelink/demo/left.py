"""What a stage still holds once it has played its part: payloads, sockets, threads."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.connector import Connector

BURIAL_S = 1.0
SETTLE_S = 5.0
"""How long the last releases may take before what is left counts as a leak."""

now = time.monotonic  # one clock for all processes of a Linux host


def settle(connector: Connector, at_start: Mapping[str, int], *, sends: bool) -> dict[str, int]:
    """What the connector still holds beyond *at_start*, once its readers had time to let go."""
    until_s = now() + SETTLE_S
    pause = 0.001
    while True:
        if sends:
            connector.drain(max(0.0, until_s - now()))
        gc.collect()
        left = {name: n - at_start[name] for name, n in figures(connector.health()).items()}
        if now() >= until_s or not any(left.values()):
            return left
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def figures(health: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of the pool in use, and entries of ledger and inbox, out of ``health()``.

    What is lent to senders is at hand whenever somebody wants it.

    Raises:
        ConfigError: the connector reports no such figures, so nothing could be proved.
    """
    try:
        pool = health["pool"]
        used = int(pool["capacity"]) - int(pool["free"]) - int(health["credits"]["lent_bytes"])
        return {
            "pool": used + int(pool["waiting"]),
            "ledger": int(health["ledger"]["entries"]),
            "inbox": int(health["inbox"]["entries"]) + int(health["inbox"]["gets"]),
        }
    except KeyError as error:
        msg = f"health() has no figure called {error}"
        raise ConfigError(msg, remedy="this backend cannot prove that it leaks nothing") from error


def census() -> dict[str, int]:
    """Sockets, descriptors and threads of this process at this moment."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return {
        "sockets": sum(link.startswith("socket:") for link in links),
        "descriptors": len(links),
        "threads": len(os.listdir("/proc/self/task")),
    }


def census_after(before: dict[str, int]) -> dict[str, int]:
    """The census once what has ended is gone: the kernel buries a joined thread a little later."""
    until_s = now() + BURIAL_S
    while any(later > before[name] for name, later in census().items()) and now() < until_s:
        time.sleep(0.005)
    return census()
