"""A party of a data plane in another process."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Any

from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.meeting import REGION, Outcome
from stagelink.ports.memory import space_of
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.plugins.conformance.meeting import MakeParty, Party

SHARED = "/dev/shm"  # noqa: S108 - where killed processes leave their memory


class Host:
    """What stands in the other process: a party whose memory holds one byte over and over."""

    def __init__(self, make_party: MakeParty, size: int, byte: int) -> None:
        self._party = make_party(size)
        self._party.memory.buffer[:] = bytes([byte]) * size
        self._party.plane.register(REGION, self._party.memory)

    def introduce(self) -> tuple[bytes, bytes, str, int]:
        """Its instance, its description, the name of its memory and where that lies."""
        memory = self._party.memory
        address = getattr(memory, "address", 0)  # of a device: then nobody looks there
        if space_of(memory) is None:
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory.buffer))
        return self._party.instance, self._party.plane.describe(), memory.name, address

    def attach(self, peer: bytes, descriptor: bytes) -> None:
        """Know *peer*."""
        self._party.plane.attach(peer, descriptor)

    def write(self, peer: bytes, size: int, times: int) -> None:
        """Begin so many writes of *size* bytes to *peer*."""
        where = RegionRef(REGION, 0, size)
        for transfer in range(times):
            self._party.plane.post(WriteOrder(peer, transfer, where, where), Outcome())

    def holds(self, byte: int, size: int) -> bool:
        """Whether the first *size* bytes of its memory are all *byte*."""
        return bytes(self._party.memory.buffer[:size]) == bytes([byte]) * size


class FarParty:
    """A party in another process that knows *near*, and *near* knows it."""

    def __init__(self, make_party: MakeParty, near: Party, size: int, byte: int = 0) -> None:
        self.process = Elsewhere(Host, make_party, size, byte)
        self.instance, descriptor, self._name, self._address = self.process.ask("introduce")
        self._near = near
        near.plane.attach(self.instance, descriptor)
        self.process.ask("attach", near.instance, near.plane.describe())

    def post(self, size: int, done: Callable[[WriteOrder, str], None] | None = None) -> Outcome:
        """Write *size* bytes of the near party's memory to this one."""
        where, outcome = RegionRef(REGION, 0, size), Outcome()
        order = WriteOrder(self.instance, 1, where, where)
        self._near.plane.post(order, done or outcome)
        return outcome

    def peek(self, size: int) -> bytes:
        """The first *size* bytes of its memory, whether it runs or not."""
        return self.process.peek(self._address, size)

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Have the other process do something."""
        return self.process.ask(method, *arguments)

    def end(self) -> None:
        """Kill it, and remove the memory that it leaves, as the next connector would."""
        self.process.end()
        if self._name and "/" not in self._name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(SHARED, self._name))
