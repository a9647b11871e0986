"""Memory apart from the planes that move it."""

from __future__ import annotations

from typing import Protocol


class Memory(Protocol):
    """One allocation: ``size`` bytes at ``address``, every page resident.

    Attributes:
        kind: ``host-private`` or ``host-shared``.
        name: what a peer needs to reach it (a shared segment's name), or empty.
    """

    kind: str
    name: str
    size: int

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable, format ``B``."""
        ...

    def close(self) -> None:
        """Unlink the name at once; the pages go with their last view. Twice is fine."""
        ...


class MemoryProvider(Protocol):
    """Allocates memory of one kind."""

    kind: str

    def allocate(self, size: int) -> Memory:
        """Reserve and populate *size* bytes (a whole number of pages).

        Raises:
            CapacityError: the mount or the host has not that much; both numbers and the remedy.
        """
        ...
