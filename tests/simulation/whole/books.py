"""What was put and who got it: the truth that every answer is compared with."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tests.simulation.whole.clockwork import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.surroundings import Node

    from stagelink.core.errors import StagelinkError

UNDER_WAY, PUBLISHED, REFUSED = "under way", "published", "refused"


class Put:
    """One value handed to a put; ``stream`` is the number of its stream and its place there."""

    def __init__(self, serial: int, by: Node, to: str, key: str, readers: Any) -> None:  # noqa: ANN401
        self.serial, self.by, self.to, self.key, self.readers = serial, by.stage, to, key, readers
        self.instance = by.instance
        self.state = UNDER_WAY
        self.generation = 0
        self.stream: tuple[int, int] | None = None
        self.size = 0
        self.takers: list[str] = []

    def data(self) -> np.ndarray[Any, Any]:
        """Its bytes: nobody else's, from the fourth on."""
        stamp = self.serial.to_bytes(4, "big")
        return np.frombuffer((stamp * (self.size // 4 + 1))[: self.size], np.uint8)

    def __repr__(self) -> str:
        """What matters of it."""
        return (
            f"<put {self.serial} of {self.key} {self.by}->{self.to}, {self.size} bytes, "
            f"{self.state}, generation {self.generation}, taken by {self.takers}>"
        )


class Written(NamedTuple):
    """How a stream ended: chunks put, and whether it was ended properly."""

    chunks: int
    ended: bool


class Books:
    """All puts of a world by their number, and every error by who raised it."""

    def __init__(self) -> None:
        self.puts: dict[int, Put] = {}
        self.failed: dict[int, tuple[str, str, str]] = {}  # number of fail() -> by, to, key
        self.streams: dict[int, Written] = {}
        self.published: Counter[bytes] = Counter()
        self.errors: dict[bytes, Counter[str]] = {}
        self.disturbed = False  # a crash or a fence: a payload may be had again
        self.number = count(1).__next__

    def put(self, by: Node, to: str, key: str, size: int, readers: Any = 1) -> Put:  # noqa: ANN401
        """Before a value is put."""
        put = Put(self.number(), by, to, key, readers)
        put.size = size
        self.puts[put.serial] = put
        return put

    def is_published(self, put: Put, generation: int) -> None:
        """The put has returned."""
        put.state, put.generation = PUBLISHED, generation
        self.published[put.instance] += 1

    def is_refused(self, put: Put) -> None:
        """The put has raised: nobody may ever get it."""
        put.state = REFUSED
        if put.takers:
            msg = f"{put} was refused, and delivered"
            raise Violation(msg)

    def error(self, instance: bytes, error: StagelinkError) -> None:
        """A call has raised."""
        self.errors.setdefault(instance, Counter())[error.cause] += 1

    def delivered(self, node: Node, taker: str, source: str, key: str, value: Any) -> Put:  # noqa: ANN401
        """A caller of the process *taker* was given *value*: look whether it may have it."""
        put = self.puts.get(value["n"])
        if put is None or put.state == REFUSED:
            msg = f"{node.name} was given {value['n']}, which was never published: {put}"
            raise Violation(msg)
        if (put.key, put.by, put.to) != (key, source, node.stage):
            msg = f"{node.name} asked for {key} of {source} and was given {put}"
            raise Violation(msg)
        same(node, put, value["data"], "was given other bytes than")
        self._count(taker, put)
        return put

    def _count(self, taker: str, put: Put) -> None:
        put.takers.append(taker)
        if put.takers.count(taker) > 1:
            msg = f"{taker} was given {put} twice"
            raise Violation(msg)
        names = {taker.partition(".")[0] for taker in put.takers}
        if isinstance(put.readers, int) and len(names) > put.readers and not self.disturbed:
            msg = f"more readers than it has took {put}"
            raise Violation(msg)


def same(node: Node, put: Put, data: Any, what: str) -> None:  # noqa: ANN401
    """Whether *data* are the bytes of *put*, every one."""
    if not np.array_equal(data, put.data()):
        found = bytes(data[:8]).hex()
        msg = f"{node.name} {what} {put} has: {len(data)} bytes, {found}…"
        raise Violation(msg)
