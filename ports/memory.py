"""Memory apart from the planes that move it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

DEVICE = "device"
"""The kind of memory that lies on a device."""

LARGE_PAGE = 2 << 20
"""Bytes of a GPU's large page."""


class DeviceBytes(Protocol):
    """A run of device memory: what a memoryview is of host memory. A slice copies nothing.

    Whoever holds one keeps the memory (or the mapping of a peer's) there.

    Attributes:
        address: where it begins, as the device's runtime tells it.
    """

    address: int

    def __len__(self) -> int:
        """Bytes."""
        ...

    def __getitem__(self, part: slice) -> Self:
        """A part of it, in place."""
        ...

    def __setitem__(self, part: slice, data: bytes) -> None:
        """Copy *data* there; it is there afterwards."""
        ...

    def __bytes__(self) -> bytes:
        """A copy on the host."""
        ...

    def fill(self, parts: Sequence[tuple[int, Any]]) -> None:
        """Copy host bytes and device tensors to their offsets, in the order of current streams.

        Each tensor is read after what is queued on its device's current stream; other streams
        are not waited for. All of it is there afterwards.
        """
        ...

    def settle(self) -> None:
        """Wait for what is queued on the current stream of its device, and for nothing else."""
        ...

    def tensor(self, offset: int, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        """A uint8 tensor over a part of it, in place."""
        ...

    def lend(self, size: int, head: bytes = b"") -> tuple[Lent, object]:
        """The payload of *size* bytes at its beginning for a caller, and a token.

        *head* is what it begins with, if that is known; else it is fetched.

        The token ends once the last tensor of the payload has gone **and** all that was queued on
        the streams that may have used it is done.
        """
        ...


class Lent(Protocol):
    """A delivered payload on a device, whose tensors keep it.

    Attributes:
        head: a copy on the host of its beginning, enough for any usual header.
        on_device: True; host buffers have no such attribute.
    """

    head: memoryview
    on_device: bool

    def __len__(self) -> int:
        """Bytes of the payload."""
        ...

    def __getitem__(self, part: slice) -> bytes:
        """Host bytes of the head."""
        ...

    def host(self, offset: int, nbytes: int) -> bytearray:
        """A copy of a part on the host; it may be of the head, or be fetched."""
        ...

    def tensor(self, offset: int, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        """A uint8 tensor over a part of it, in place, which keeps this alive."""
        ...


class DeviceSpace(Protocol):
    """What a serializer must know of the device that a pool lies on."""

    def holds(self, tensor: Any) -> bool:  # noqa: ANN401 - a torch tensor
        """Whether *tensor* lies on a device of this kind, and so travels as device memory."""
        ...

    def moment(self, tensors: Sequence[Any]) -> object:
        """The calling thread's current streams on the devices of *tensors*."""
        ...

    def within(self, moment: object) -> AbstractContextManager[object]:
        """On whatever thread, those streams are current again."""
        ...

    def read(self, tensor: Any) -> bytearray | None:  # noqa: ANN401 - a torch tensor
        """Host bytes of a tensor, once what is queued on the current stream is done.

        None if they do not lie in a row on this very device.
        """
        ...

    def upload(self, data: memoryview) -> Any:  # noqa: ANN401 - a torch tensor
        """A uint8 tensor on the device with a copy of host bytes, for the current stream."""
        ...


class Memory(Protocol):
    """One allocation: ``size`` bytes at ``address``, every page resident.

    Attributes:
        kind: ``host-private``, ``host-shared`` or ``device``.
        name: what a peer needs to reach it (a shared segment's name), or empty.
    """

    kind: str
    name: str
    size: int

    @property
    def buffer(self) -> Any:  # noqa: ANN401 - memoryview | DeviceBytes, by kind
        """All bytes, writable: a memoryview of format ``B``, or :class:`DeviceBytes`."""
        ...

    def close(self) -> None:
        """Unlink the name at once; the pages go with their last view. Twice is fine."""
        ...


def whole_pages(size: int) -> int:
    """Bytes to ask a device's driver for, so that *size* bytes lie in whole large pages.

    A driver maps an allocation of any other size by small pages: after other work on the device,
    copies of 256 MiB then took a quarter longer on an NVIDIA H200.
    """
    return -(-size // LARGE_PAGE) * LARGE_PAGE


def space_of(memory: Memory) -> DeviceSpace | None:
    """The device that *memory* lies on and only its own copies reach; None: the host reaches it.

    Such memory has an attribute ``space``, and its ``buffer`` is a :class:`DeviceBytes`.
    """
    return getattr(memory, "space", None)


class MemoryProvider(Protocol):
    """Allocates memory of one kind."""

    kind: str

    def allocate(self, size: int) -> Memory:
        """Reserve and populate *size* bytes (a whole number of pages).

        Raises:
            CapacityError: the mount or the host has not that much; both numbers and the remedy.
        """
        ...
