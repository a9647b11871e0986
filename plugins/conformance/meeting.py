"""Two ends of a data plane that know each other, and writes between them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import DataPlane

PAGE = 4096
SIZE = 16 * PAGE
LONG = 64 << 20
REGION = 1
PATIENCE_S = 10.0


class Party(NamedTuple):
    """One process's end of the plane under test."""

    instance: bytes
    plane: DataPlane
    memory: Memory


MakeParty = Callable[[int], Party]


def filled(memory: memoryview, byte: int) -> bool:
    """Whether every byte is that one."""
    return bytes(memory) == bytes([byte]) * len(memory)


def difference(found: bytes | memoryview, expected: bytes) -> str:
    """Where they first differ, empty if nowhere: pytest's own diff of megabytes takes minutes."""
    found = bytes(found)
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{len(found)} bytes, expected {len(expected)}"
    pairs = zip(found, expected, strict=True)
    where = [index for index, pair in enumerate(pairs) if pair[0] != pair[1]]
    first = where[0]
    told = f"byte {first} is {found[first]:#04x}, expected {expected[first]:#04x}"
    return f"{told}; {len(where)} of {len(expected)} bytes differ"


def comes(holds: Callable[[], object]) -> bool:
    """Whether *holds* comes true in time."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


class Outcome:
    """A ``done`` callback that keeps what it was told, and shows if it was told twice."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._told = threading.Event()

    def __call__(self, order: WriteOrder, error: str) -> None:
        """Note how the write ended."""
        del order
        self.errors.append(error)
        self._told.set()

    def wait(self) -> str:
        """The one error (empty: all bytes are there), once it has been told."""
        assert self._told.wait(PATIENCE_S), "done was never called"
        assert len(self.errors) == 1
        return self.errors[0]


class Meeting:
    """Two parties that know each other; ``owner`` has the data, ``peer`` wants it."""

    def __init__(self, owner: Party, peer: Party, *, register_owner: bool = True) -> None:
        self.owner = owner
        self.peer = peer
        self.writes = owner.plane.capabilities.mode == "write"
        for party in (owner, peer) if register_owner else (peer,):
            party.plane.register(REGION, party.memory)
        self.introduce()

    def introduce(self) -> None:
        """Let each attach what the other describes now."""
        self.owner.plane.attach(self.peer.instance, self.peer.plane.describe())
        self.peer.plane.attach(self.owner.instance, self.owner.plane.describe())

    def fill(self) -> bytes:
        """Put random bytes into the owner's memory, and return them."""
        content = random.Random(7).randbytes(self.owner.memory.size)  # noqa: S311 - a pattern
        self.owner.memory.buffer[:] = content
        return content

    def post(
        self, size: int, target: RegionRef | None = None, source: RegionRef | None = None
    ) -> Outcome:
        """Write *size* bytes from the start of the owner's memory to the peer's, or as told."""
        source = source or RegionRef(REGION, 0, size)
        order = WriteOrder(self.peer.instance, 1, source, target or RegionRef(REGION, 0, size))
        outcome = Outcome()
        self.owner.plane.post(order, outcome)
        return outcome

    def move(self, offset: int, size: int) -> bytes:
        """The bytes at *offset* of the owner's memory, as the peer gets them."""
        where = RegionRef(REGION, offset, size)
        if not self.writes:
            return bytes(self.peer.plane.view(self.owner.instance, where))
        assert not self.post(size, source=where, target=where).wait()
        return bytes(self.peer.memory.buffer[offset : offset + size])

    def refuse(self, where: RegionRef) -> None:
        """Reaching *where* at the other side is refused, with nothing touched."""
        before = bytes(self.peer.memory.buffer)
        if self.writes:
            source = RegionRef(REGION, 0, max(0, min(where.size, self.owner.memory.size)))
            assert self.post(0, source=source, target=where).wait()
        else:
            with pytest.raises(TransportError):
                self.peer.plane.view(self.owner.instance, where)
        assert bytes(self.peer.memory.buffer) == before

    def close(self) -> None:
        """Close both ends."""
        for party in (self.owner, self.peer):
            party.plane.close()
            party.memory.close()
