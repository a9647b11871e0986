"""Memory that Mori can be given: pinned host memory, and memory of a GPU.

Each allocation has one page more than it says. There stands a beacon, by which a peer knows that
it reaches the memory that was described to it and no other, and there is room to read it to.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

from stagelink.adapters.mori import hip
from stagelink.core.errors import CapacityError, ConfigError, Reason, TransportError
from stagelink.ports.memory import DeviceSpace, whole_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.memory import DeviceBytes

HOST = "host-private"
DEVICE = "device"
TAIL = 4096
"""Bytes behind the memory proper: the beacon, and half a page on the room to read one to."""

BEACON = 64
SCRATCH = TAIL // 2


class PinnedMemory:
    """Host memory, resident, shared with forked children: a NIC never loses its pages to them."""

    kind = HOST
    name = ""
    device = -1

    def __init__(self, size: int) -> None:
        self.size = size
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
        self._all: mmap.mmap | None = mmap.mmap(-1, size + TAIL, flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._all))

    @property
    def anchor(self) -> object:
        """What keeps the pages, for those that know their address only."""
        return self._all

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable.

        Raises:
            TransportError: the memory is closed.
        """
        if self._all is None:
            raise _closed(self.size)
        return memoryview(self._all)[: self.size]

    def put_tail(self, offset: int, content: bytes) -> None:
        """Write behind the memory proper."""
        ctypes.memmove(self.address + self.size + offset, content, len(content))

    def get_tail(self, offset: int, size: int) -> bytes:
        """Read there."""
        return ctypes.string_at(self.address + self.size + offset, size)

    def close(self) -> None:
        """Let go; the pages go with their last view. Twice is fine."""
        self._all = None


class Place(DeviceSpace, Protocol):
    """The device as whoever makes tensors of its memory knows it."""

    def at(self, address: int, size: int, keep: object) -> DeviceBytes:
        """The *size* bytes at *address*, which are there as long as *keep* is."""
        ...

    def close(self) -> None:
        """Finish what was lent. Twice is fine."""
        ...


class DeviceMemory:
    """Memory of one GPU, an allocation of its own: a handle to it names nothing else.

    Attributes:
        space: the device for copies and tensors; None: the CPU reaches the memory itself.
    """

    kind = DEVICE
    name = ""

    def __init__(
        self, runtime: hip.Hip, size: int, device: int, space: Place | None = None
    ) -> None:
        self.size = size
        self.space = space
        self.device = device
        self._hip = runtime
        self.address = runtime.allocate(whole_pages(size + TAIL), device)
        self._array: Any = _kept(self.address, size, runtime)
        self._visible = hip.host_can_read(self.address)

    @property
    def anchor(self) -> object:
        """What keeps the allocation, for those that know its address only."""
        return self._array

    @property
    def buffer(self) -> Any:  # noqa: ANN401 - a memoryview, or device bytes
        """All bytes: of the device where there is a *space*, else where the CPU reaches them.

        Raises:
            TransportError: the memory is closed, or the CPU cannot reach it.
        """
        if self._array is None:
            raise _closed(self.size)
        if self.space is not None:
            return self.space.at(self.address, self.size, self._array)
        if not self._visible:
            msg = f"the CPU cannot reach the memory of device {self.device}"
            remedy = "enable the large BAR (resizable BAR), or use a pool on the cpu"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
        return memoryview(self._array).cast("B")

    def put_tail(self, offset: int, content: bytes) -> None:
        """Write behind the memory proper."""
        self._hip.put(self.address + self.size + offset, content)

    def get_tail(self, offset: int, size: int) -> bytes:
        """Read there."""
        return self._hip.get(self.address + self.size + offset, size)

    def close(self) -> None:
        """Let go; the memory goes with its last view. Twice is fine."""
        self._array = None
        if self.space is not None:
            self.space.close()


def _kept(address: int, size: int, runtime: hip.Hip) -> Any:  # noqa: ANN401 - a ctypes array
    """An object that views are made of; the allocation is freed when nothing refers to it."""
    array = (ctypes.c_char * size).from_address(address)
    weakref.finalize(array, _free, runtime, address).atexit = False
    return array


def _free(runtime: hip.Hip, address: int) -> None:
    with contextlib.suppress(hip.HipError):  # at the very end the runtime may be gone
        runtime.free(address)


MoriMemory = Union[PinnedMemory, DeviceMemory]


class PinnedMemoryProvider:
    """Allocates :class:`PinnedMemory`."""

    kind = HOST

    def allocate(self, size: int) -> PinnedMemory:
        """Map and populate *size* bytes.

        Raises:
            CapacityError: the host has not that much.
            ConfigError: *size* is not positive.
        """
        _check(size)
        room = _host_room()
        if size + TAIL <= room:
            with contextlib.suppress(OSError):
                return PinnedMemory(size)
        raise _too_little(size, room, "the host")


class DeviceMemoryProvider:
    """Allocates :class:`DeviceMemory` of *device* (``cuda``, ``cuda:1``)."""

    kind = DEVICE

    def __init__(
        self, device: str = "cuda", space: Callable[[int], Place | None] | None = None
    ) -> None:
        """*space* is asked for what is known of the device of that number."""
        self._hip = hip.load()
        self.device = hip.device_of(device, self._hip)
        self._space = space

    def allocate(self, size: int) -> DeviceMemory:
        """Take *size* bytes of the device.

        Raises:
            CapacityError: the device has not that much.
            ConfigError: *size* is not positive.
            TransportError: the runtime failed.
        """
        _check(size)
        try:
            space = None if self._space is None else self._space(self.device)
            return DeviceMemory(self._hip, size, self.device, space)
        except hip.HipError as error:
            if error.code != hip.OUT_OF_MEMORY:
                raise hip.translated(error, f"{size} bytes of device {self.device}") from error
            room = self._hip.room(self.device)[0]
            raise _too_little(size, room, f"device {self.device}") from error


def _check(size: int) -> None:
    if size <= 0:
        msg = f"a memory of {size} bytes"
        raise ConfigError(msg, remedy="give a positive number of bytes")


def _closed(size: int) -> TransportError:
    msg = f"memory of {size} bytes is closed"
    return TransportError(msg, reason=Reason.CLOSED, remedy="allocate another")


def _too_little(size: int, room: int, where: str) -> CapacityError:
    msg = f"wanted {size} bytes of memory, {where} has {room} available"
    numbers = {"requested": float(size), "free": float(room), "capacity": float(room)}
    remedy = "lower the pool's size, or free memory"
    return CapacityError(msg, never_fits=True, numbers=numbers, remedy=remedy)


def _host_room() -> int:
    """Bytes that the kernel could give; boundless where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62
