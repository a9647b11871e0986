"""A connector's pool on a device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import finalize

from stagelink.adapters.device.bytes import DeviceBytes
from stagelink.core.errors import CapacityError, ConfigError, Reason, TransportError
from stagelink.ports.memory import DEVICE

if TYPE_CHECKING:
    from stagelink.adapters.device.runtime import Memories
    from stagelink.adapters.device.space import Space


class Allocation:
    """Device memory, freed with the last object that refers to it."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, runtime: Memories, index: int, size: int) -> None:
        self.address = runtime.allocate(index, size)
        finalize(self, _free, os.getpid(), runtime, index, self.address).atexit = False


class DevicePool:
    """One :class:`stagelink.ports.Memory` on a device.

    Attributes:
        address: where it begins, as the device's runtime tells it.
        index: the device's number in this process.
        space: the device.
    """

    kind = DEVICE
    name = ""

    def __init__(self, space: Space, size: int) -> None:
        allocation = Allocation(space.runtime, space.index, size)
        self.size = size
        self.space = space
        self.index = space.index
        self.address = allocation.address
        self._bytes: DeviceBytes | None = DeviceBytes(space, self.address, size, allocation)

    @property
    def buffer(self) -> DeviceBytes:
        """All bytes.

        Raises:
            TransportError: the pool is closed.
        """
        if self._bytes is None:
            msg = f"the pool of {self.size} bytes on {self.space.device} is closed"
            raise TransportError(msg, reason=Reason.CLOSED, remedy="allocate another")
        return self._bytes

    def close(self) -> None:
        """Let go; the memory goes with its last view. Twice is fine."""
        self._bytes = None
        self.space.close()


class DevicePoolProvider:
    """Allocates pools on the device of *space*."""

    kind = DEVICE

    def __init__(self, space: Space) -> None:
        self._space = space

    def allocate(self, size: int) -> DevicePool:
        """Reserve *size* bytes.

        Raises:
            CapacityError: the device has not that much; both numbers and the remedy.
            ConfigError: *size* is not positive.
        """
        space = self._space
        if size <= 0:
            msg = f"a pool of {size} bytes"
            raise ConfigError(msg, remedy="give a positive number of bytes")
        room = space.runtime.available(space.index)
        try:
            if size <= room:
                return DevicePool(space, size)
            cause = None
        except TransportError as error:
            cause = error
        msg = f"wanted a pool of {size} bytes on {space.device}, it has {room} available"
        numbers = {"requested": float(size), "free": float(room), "capacity": float(room)}
        remedy = "lower pool_bytes, or open the connector before the model takes the memory"
        raise CapacityError(msg, never_fits=True, numbers=numbers, remedy=remedy) from cause


def _free(owner: int, runtime: Memories, index: int, address: int) -> None:
    """Free it, unless this is a forked child, in which the device cannot be used."""
    if os.getpid() == owner:
        runtime.free(index, address)
