"""Calls on threads, and looks at connectors, for the contract and for tests of one's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from stagelink.connector import Connector
    from stagelink.payload import Payload

PATIENCE_S = 10.0
POOL = 8 << 20
SMALL = bytes(range(256)) * 4
LARGE = bytes(range(251)) * 4200  # about a megabyte, no multiple of a page
TIMEOUTS = {"transfer_base_s": 20.0, "close_s": 1.0}

Open = Callable[..., "Connector"]


class Waiter:
    """A call on a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: StagelinkError | None = None
        self.took_s = 0.0
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start_s = time.monotonic()
        try:
            self.result = self._call()
        except StagelinkError as error:
            self.error = error
        self.took_s = time.monotonic() - start_s

    def join(self, patience_s: float = PATIENCE_S) -> Waiter:
        """Wait for the call to end."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "the call never ended"
        return self


AT_ONCE_S = 4.0
"""What is promised within a second or less, on a machine that is busy with others: no time-out of
a connector's, and none that we give, is as short."""

LENDS_S = 0.5
"""How soon a reader lends room, if it does: with its next report."""


def eventually(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether *holds* comes true in time."""
    until_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


def polled(receiver: Connector, key: str) -> Payload:
    """What poll finds, sooner or later."""
    found: list[Payload | None] = [None]

    def look() -> bool:
        found[0] = receiver.poll(key, source="thinker")
        return found[0] is not None

    assert eventually(look)
    assert found[0] is not None
    return found[0]


def is_whole(connector: Connector) -> bool:
    """Whether every byte of the pool is free again, or lent, and nothing is under way."""
    health = connector.health()
    pool, ledger, lent = health["pool"], health["ledger"], health["credits"]
    return (
        pool["free"] + lent["lent_bytes"] == pool["capacity"]
        and pool["blocks"] == lent["lent_blocks"]
        and not ledger["leases"]
        and not health["inbox"]["gets"]
    )


def waits(connector: Connector, gets: int = 1) -> bool:
    """Whether so many gets wait at *connector*."""
    return eventually(lambda: connector.health()["inbox"]["gets"] == gets)


def is_linked(connector: Connector) -> bool:
    """Whether *connector* talks with its sender: until then a get just waits for one to start."""
    return eventually(
        lambda: any(row["state"] == "open" for row in connector.health()["sessions"])
    )


def same(value: Any, expected: bytes) -> bool:  # noqa: ANN401 - whatever came
    """Whether *value* is those bytes, in whatever type."""
    return bytes(value) == expected
