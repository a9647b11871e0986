"""A device that is host memory: what the adapters need of a GPU's runtime, without one.

Allocations are anonymous files, and a handle names one of a living process, so that another one
can open it. Every tensor on the CPU counts as one of the device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stagelink.adapters.device import DevicePoolProvider, RuntimeIpc, Space, dlpack
from stagelink.adapters.device.streams import NoStreams
from stagelink.adapters.device_ipc import DeviceIpcPlane
from stagelink.core.errors import Reason, TransportError
from stagelink.plugins.hookspecs import Backend, BackendContext, hookimpl

HANDLE = struct.Struct("!QQQ40x")  # process, descriptor, size
ROOM = 1 << 30


class HostMemories:
    """Implements :class:`stagelink.adapters.device.runtime.Memories`; counts its calls."""

    name = "host"

    def __init__(self) -> None:
        self._maps: dict[int, tuple[mmap.mmap, int]] = {}
        self.calls: Counter[str] = Counter()

    def available(self, index: int) -> int:
        """Always the same."""
        return ROOM

    def allocate(self, index: int, size: int) -> int:
        """A file without a name."""
        self.calls["allocate"] += 1
        descriptor = os.memfd_create("device")
        os.ftruncate(descriptor, size)
        return self._mapped(descriptor, size)

    def free(self, index: int, address: int) -> None:
        """Its pages go with the last mapping, its descriptor now."""
        self.calls["free"] += 1
        self._gone(address)

    def fetch(self, address: int, nbytes: int, stream: int) -> bytearray:
        """At once."""
        return bytearray(ctypes.string_at(address, nbytes))

    def send(self, address: int, data: bytes | bytearray, stream: int) -> None:
        """At once."""
        ctypes.memmove(address, bytes(data), len(data))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """At once."""
        self.calls["copy"] += 1
        ctypes.memmove(target, source, nbytes)

    def share(self, index: int, address: int) -> bytes:
        """Which file it is."""
        mapping, descriptor = self._maps[address]
        return HANDLE.pack(os.getpid(), descriptor, len(mapping))

    def open(self, index: int, handle: bytes) -> int:
        """Map that file."""
        self.calls["open"] += 1
        pid, number, size = HANDLE.unpack(handle)
        try:
            descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        except OSError as error:
            msg = f"cannot open the handle: {error}"
            raise TransportError(msg, reason=Reason.FAILED) from error
        return self._mapped(descriptor, size)

    def shut(self, index: int, address: int) -> None:
        """Unmap it."""
        self.calls["shut"] += 1
        self._gone(address)

    def extent(self, index: int, address: int) -> int:
        """Of the whole file."""
        return len(self._maps[address][0])

    def _mapped(self, descriptor: int, size: int) -> int:
        mapping = mmap.mmap(descriptor, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._maps[address] = mapping, descriptor
        return address

    def _gone(self, address: int) -> None:
        mapping, descriptor = self._maps.pop(address)
        os.close(descriptor)
        mapping.close()


class HeldStreams(NoStreams):
    """Streams on which nothing is done before :attr:`done` is set; notes who waited for which."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.waited: list[object] = []
        self.stream: object = "first"

    def current(self) -> object:
        """Whatever the test says."""
        return self.stream

    def moment(self, sources: Any) -> tuple[object, ...]:
        """The one of now."""
        return (self.stream,)

    @contextmanager
    def within(self, moment: tuple[Any, ...]) -> Iterator[None]:
        """That one again."""
        before, (self.stream,) = self.stream, moment
        yield
        self.stream = before

    def wait(self, stream: object) -> None:
        """Until the test says so."""
        self.waited.append(stream)
        assert self.done.wait(10.0)


MEMORIES = HostMemories()


def space(streams: Any = None) -> Space:
    """The device."""
    return Space(MEMORIES, streams or NoStreams(), dlpack.CPU)


class HostDevice:
    """A plugin that contributes ``host_ipc``: device_ipc on that device."""

    @hookimpl
    def stagelink_backends(self) -> list[Backend]:
        """The one backend."""
        here = "tests.devices.host:"
        ours = "stagelink.plugins.builtin:shm_liveness"
        return [
            Backend("host_ipc", "a test", "zmq", here + "provider", here + "plane", ours, rank=0)
        ]


def provider(context: BackendContext) -> DevicePoolProvider:
    """Pools on that device."""
    return DevicePoolProvider(space())


def plane(context: BackendContext) -> DeviceIpcPlane:
    """The plane under test."""
    return DeviceIpcPlane(context.instance, ipc)


def ipc(memory: Any) -> RuntimeIpc:
    """Opens peers' memory for the device that *memory* lies on."""
    return RuntimeIpc(memory.space)
