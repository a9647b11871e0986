"""Anonymous memory of this process, resident from the start."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

from stagelink.core.errors import CapacityError, ConfigError, Reason, TransportError

KIND = "host-private"


class PrivateMemory:
    """One :class:`stagelink.ports.Memory` without a name."""

    kind = KIND
    name = ""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.size = len(mapping)
        self._view: memoryview | None = memoryview(mapping)

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable.

        Raises:
            TransportError: the memory is closed.
        """
        if self._view is None:
            msg = f"private memory of {self.size} bytes is closed"
            raise TransportError(msg, reason=Reason.CLOSED, remedy="allocate another")
        return self._view

    def close(self) -> None:
        """Let go; the pages go with their last view. Twice is fine."""
        self._view = None


class PrivateMemoryProvider:
    """Allocates :class:`PrivateMemory`."""

    kind = KIND

    def allocate(self, size: int) -> PrivateMemory:
        """Map and populate *size* bytes.

        Raises:
            CapacityError: the host has not that much.
            ConfigError: *size* is not positive.
        """
        if size <= 0:
            msg = f"a memory of {size} bytes"
            raise ConfigError(msg, remedy="give a positive number of bytes")
        room = _room()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        try:
            # Asking for too much may be granted, and end in the kernel's killing us.
            mapping = mmap.mmap(-1, size, flags) if size <= room else None
        except OSError:
            mapping = None
        if mapping is None:
            msg = f"wanted {size} bytes of memory, the host has {room} available"
            numbers = {"requested": float(size), "free": float(room), "capacity": float(room)}
            remedy = "lower the pool's size, or free memory"
            raise CapacityError(msg, never_fits=True, numbers=numbers, remedy=remedy)
        return PrivateMemory(mapping)


def _room() -> int:
    """Bytes that the kernel could give; boundless where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62
