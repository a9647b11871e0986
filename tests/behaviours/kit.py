"""What the tests of behaviours share: connectors of one edge, and writes with a fate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink.adapters.memory import Faults, MemoryWritePlane, WriteFault
from stagelink.plugins.conformance.connector import eventually, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector
    from stagelink.ports.plane import WriteOrder

MIB = 1 << 20
POOL = 8 * MIB
PATIENCE_S = 10.0
TIMEOUTS = {"close_s": 1.0}
ALL_OF_IT = {"send_share": 0.0, "receive_share": 0.0}
"""Settings of a pool that either direction may fill."""

Open = Callable[..., "Connector"]


class Fates(Faults):
    """What becomes of each write in turn; those after the last one are fine.

    Attributes:
        sizes: of every write that was posted, in order.
    """

    def __init__(self, *fates: WriteFault) -> None:
        super().__init__(Random(0))
        self.sizes: list[int] = []
        self._fates = list(fates)

    def write_fault(self, order: WriteOrder) -> WriteFault:
        """The next fate."""
        self.sizes.append(order.source.size)
        return self._fates.pop(0) if self._fates else WriteFault.NONE


def write_plane(sender: Connector) -> MemoryWritePlane:
    """The plane of a connector with backend ``memory-write``."""
    plane = sender._driver.parts.planes["memory-write"]
    assert isinstance(plane, MemoryWritePlane)
    return plane


def doom(sender: Connector, *fates: WriteFault) -> Fates:
    """Let the next writes of *sender* meet these *fates*."""
    plane, made = write_plane(sender), Fates(*fates)
    plane._faults = made
    return made


def finish_all(sender: Connector) -> None:
    """Let every write that waits go on to its end."""
    plane = write_plane(sender)
    for order in plane.pending():
        plane.finish(order)


def whole(*connectors: Connector, within_s: float = PATIENCE_S) -> bool:
    """Whether every byte of every pool is free, in time."""
    return eventually(lambda: all(map(is_whole, connectors)), within_s)


def linked(sender: Connector, receiver: Connector) -> None:
    """Have the two talk, so that later gets are not slowed by their first meeting."""
    sender.put("warm", b"up", to=receiver.stage)
    receiver.get("warm", source=sender.stage, timeout=PATIENCE_S).close()


@contextmanager
def opening(backend: str) -> Iterator[Open]:
    """Opens connectors, and closes those that are left, receivers first."""
    made: list[Connector] = []

    def open_(**settings: Any) -> Connector:
        timeouts = {**TIMEOUTS, **settings.pop("timeouts", {})}
        settings = {"backend": backend, "pool_bytes": POOL, "timeouts": timeouts, **settings}
        made.append(stagelink.open(**settings))
        return made[-1]

    try:
        yield open_
    finally:
        for connector in sorted(made, key=lambda one: one.config.role != "receiver"):
            connector.close()


def pair(open_: Open, **settings: Any) -> tuple[Connector, Connector]:
    """Stages ``thinker`` and ``talker``, with the same *settings*."""
    sender = open_(stage="thinker", role="sender", **settings)
    receiver = open_(stage="talker", role="receiver", sender=sender.endpoint, **settings)
    return sender, receiver


def body(number: int, size: int) -> memoryview:
    """Bytes that tell *number* apart from any other below 251; travels as a view."""
    return memoryview(bytes([number % 251]) * size)


def is_body(value: Any, number: int, size: int) -> bool:
    """Whether *value* is exactly that body."""
    return len(value) == size and bytes(value) == bytes([number % 251]) * size
