"""What a get returns, and the buffer that a put may be filled in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec.placing import fill, moved
from stagelink.core.errors import LeaseError
from stagelink.core.events import Abandon, Release

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.adapters.threads import Driver
    from stagelink.core.pool import Block
    from stagelink.ports import Loader

_UNSHARED = 2
"""References to a buffer that only the payload holds: its attribute, and the count's argument."""


class Payload:
    """One delivered value; tensors and arrays in it are views of shared memory, never copies.

    The memory is released when the last view has gone: leaving ``with`` while a tensor lives only
    defers the release. ``value`` is decoded at first use.

    Attributes:
        key: the key it was put under.
        generation: its number in the sender's log.
        size: bytes of its encoded form.
        writable: whether arrays and tensors may be written to. They may, unless other readers
            are handed the very same memory: then arrays are read-only and tensors copies (or
            views, with ``readonly_views``).
    """

    __slots__ = (
        "__weakref__", "_buffer", "_driver", "_handle", "_loaded", "_serializer", "_value",
        "generation", "key", "size", "writable",
    )  # fmt: skip

    def __init__(self, driver: Driver, serializer: Loader, key: str) -> None:
        """Closed until it is given what it holds: it is made before the wait for that."""
        self._driver = driver
        self._serializer = serializer
        self._buffer: Any = None
        self._handle = 0
        self._value: Any = None
        self._loaded = False
        self.key = key
        self.generation = self.size = 0
        self.writable = False

    def _hold(self, buffer: Any, handle: int, generation: int, size: int, writable: bool) -> None:  # noqa: ANN401
        """The delivery of *handle* (0: none to release), of *size* bytes in *buffer*."""
        self._buffer = buffer
        self._handle = handle
        self.generation = generation
        self.size = size
        self.writable = writable

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever was put
        """The value that was put, of the same types.

        Raises:
            LeaseError: the payload has been closed.
            PayloadError: the bytes are no payload of this version.
        """
        if not self._loaded:
            if self._buffer is None:
                msg = f"the payload of key {self.key!r} has been closed"
                raise LeaseError(msg, remedy="use .value inside the with block")
            load = self._serializer.load
            self._value = load(self._buffer, self.size, writable=self.writable)
            self._loaded = True
        return self._value

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the put; empty without tracing there, or once closed."""
        from stagelink.adapters.msgspec import traced  # noqa: PLC0415 - few ask

        buffer = self._buffer
        if buffer is None or getattr(buffer, "on_device", False):
            return ""  # tracing is refused where pools lie on a device
        return traced.read(buffer, self.size)

    def placed(self, into: Any, device: object) -> Self:  # noqa: ANN401
        """This payload, its value copied *into* what is given or to *device*, its memory released.

        Raises:
            PayloadError: *into* does not match; the payload is closed.
        """
        if into is None and device is None:
            return self
        try:
            # Read only, so views will do even where others read the same bytes.
            value = self._serializer.load(self._buffer, self.size)
            value = moved(value, device) if into is None else fill(value, into)
        except BaseException as error:
            value = error.__traceback__ = None  # whose frames hold views
            self.close()
            raise
        self.close()
        self._value, self._loaded = value, True
        return self

    def close(self, *, strict: bool = False) -> None:
        """Let the memory go now, or with its last view. Twice is fine.

        Raises:
            LeaseError: *strict*, and a view is alive; the payload then stays open.
        """
        if self._buffer is None:
            return
        self._value, self._loaded = None, False
        shared = sys.getrefcount(self._buffer) > _UNSHARED
        if shared and strict:
            msg = f"a view of the payload of key {self.key!r} is still alive"
            raise LeaseError(msg, remedy="drop or copy the tensors made from it first")
        if self._handle and not shared and self._driver.views.release(self._handle):
            self._buffer = None
            self._driver.submit(Release(self._handle))
        self._buffer = None

    def disown(self) -> None:
        """Hand the memory back unreleased: its delivery is somebody else's from now on."""
        self._driver.views.disown(self._handle)
        self._buffer, self._value, self._loaded = None, None, False

    async def __aenter__(self) -> Self:
        """Use the payload; leaving closes it, which does not wait."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the payload."""
        self.close()

    def __enter__(self) -> Self:
        """Use the payload; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the payload."""
        self.close()

    def __repr__(self) -> str:
        """Key, generation and size."""
        return f"<Payload {self.key!r} generation {self.generation}, {self.size} bytes>"


class Draft:
    """A block of the pool, laid out as one tensor, to be filled in place and put without a copy.

    Leaving ``with`` without having put it gives the block back.

    Attributes:
        tensor: a view of the block, of the shape and dtype asked for; its content is undefined.
            Do not use it after the put.
        size: bytes of the encoded payload.
        head: those with which it begins, where its readers may not be able to look; else empty.
    """

    def __init__(self, driver: Driver, block: Block, size: int, buffer: Any, tensor: Any) -> None:  # noqa: ANN401
        self._driver = driver
        self._block: Block | None = block
        self._buffer: Any = buffer
        self.tensor = tensor
        self.size = size
        self.head = b""

    @property
    def memory(self) -> Any:  # noqa: ANN401 - a memoryview, or device bytes
        """The bytes of the payload but its digest; None once put or given back."""
        return self._buffer

    def take(self, driver: Driver) -> Block:
        """The block, once: from now on it belongs to the put that *driver* performs.

        Raises:
            LeaseError: it was put or given back before, or is another connector's.
        """
        if driver is not self._driver:
            msg = "this buffer is of another connector's pool"
            raise LeaseError(msg, remedy="alloc() it on the connector that puts it")
        block, self._block, self.tensor, self._buffer = self._block, None, None, None
        if block is None:
            msg = "this buffer has been put or given back already"
            raise LeaseError(msg, remedy="alloc() a new one for each put")
        return block

    def close(self) -> None:
        """Give the block back unless it was put. Twice is fine."""
        if self._block is not None:
            self._driver.submit(Abandon(self.take(self._driver)))

    def __enter__(self) -> Self:
        """Fill ``tensor``, then put the draft."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the block back unless it was put."""
        self.close()
