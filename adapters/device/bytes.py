"""A run of device memory, and a payload in it that is lent to a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.adapters.device.space import Space

HEAD_BYTES = 4096
"""Bytes of a payload that are fetched at once: prefix, table and header of all but odd ones."""


class DeviceBytes:
    """A :class:`stagelink.ports.memory.DeviceBytes`; *keep* holds what it lies in."""

    __slots__ = ("__weakref__", "_keep", "_size", "_space", "address")

    def __init__(self, space: Space, address: int, size: int, keep: object) -> None:
        self._space = space
        self._size = size
        self._keep = keep
        self.address = address

    def __len__(self) -> int:
        """Bytes."""
        return self._size

    def __getitem__(self, part: slice) -> DeviceBytes:
        """A part, in place."""
        start, size = self._range(part)
        return DeviceBytes(self._space, self.address + start, size, self._keep)

    def __setitem__(self, part: slice, data: bytes) -> None:
        """Copy *data* there."""
        start, size = self._range(part)
        if size != len(data):
            msg = f"{len(data)} bytes do not fit a part of {size}"
            raise ValueError(msg)
        self.fill([(start, data)])

    def __bytes__(self) -> bytes:
        """A copy on the host."""
        return bytes(self._space.download(self, 0, self._size))

    def fill(self, parts: Sequence[tuple[int, Any]]) -> None:
        """Copy host bytes and tensors to their offsets; all of it is there afterwards."""
        self._space.fill(self, parts)

    def settle(self) -> None:
        """Wait for the current stream."""
        self._space.settle()

    def tensor(self, offset: int, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        """A uint8 tensor over a part, in place; it keeps the memory alive."""
        return self._space.tensor(self.address + offset, nbytes, self._keep)

    def lend(self, size: int, head: bytes = b"") -> tuple[LentBytes, object]:
        """The payload at the beginning, and the token whose end gives it back."""
        token = Token(self._keep)
        return LentBytes(self._space, self, size, head, token), token

    def _range(self, part: slice) -> tuple[int, int]:
        start, stop, step = part.indices(self._size)
        if step != 1:
            msg = f"a part of device memory has no gaps, {part} has"
            raise ValueError(msg)
        return start, max(0, stop - start)


class Token:
    """What ends when a loan ends; keeps the memory until then."""

    __slots__ = ("__weakref__", "_keep")

    def __init__(self, keep: object) -> None:
        self._keep = keep


class LentBytes:
    """A :class:`stagelink.ports.memory.Lent`: its tensors keep it, and its end begins the wait.

    The streams that may have used it are those that were current when it was lent, when tensors
    of it were made, and when the last one went.
    """

    __slots__ = ("__weakref__", "_size", "_space", "_start", "_streams", "head")

    on_device = True

    def __init__(
        self, space: Space, where: DeviceBytes, size: int, head: bytes, token: Token
    ) -> None:
        self._space = space
        self._start = where.address
        self._size = size
        self.head = memoryview(head or space.download(where, 0, min(size, HEAD_BYTES)))
        self._streams: dict[Any, None] = {space.streams.current(): None}
        space.reaper.start()
        end = finalize(self, _returned, space, self._streams, [token])
        end.atexit = False  # the process ends all loans

    def __len__(self) -> int:
        """Bytes of the payload."""
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        """Host bytes of the head."""
        return bytes(self.head[part])

    def host(self, offset: int, nbytes: int) -> bytearray:
        """A copy of a part on the host."""
        if offset + nbytes <= len(self.head):
            return bytearray(self.head[offset : offset + nbytes])
        whole = DeviceBytes(self._space, self._start, self._size, self)
        return self._space.download(whole, offset, nbytes)

    def tensor(self, offset: int, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        """A uint8 tensor over a part, in place, which keeps this alive."""
        self._streams[self._space.streams.current()] = None
        return self._space.tensor(self._start + offset, nbytes, self)


def _returned(space: Space, streams: dict[Any, None], token: list[object]) -> None:
    """The last view has gone, on whatever thread and under whatever lock."""
    streams[space.streams.current()] = None
    space.reaper.give(tuple(streams), token)
