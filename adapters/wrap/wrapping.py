"""Compression and digest in the one order that makes sense: what travels is what is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.adapters.wrap.digest import Integrity
from stagelink.adapters.wrap.packed import Compression
from stagelink.core import envelope

if TYPE_CHECKING:
    from mmap import mmap

    from stagelink.ports import Staged


class Shared:
    """A staged value that says in its flags that several readers may hold its memory."""

    __slots__ = ("_staged", "size")

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self.size = staged.size

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes, the flag among them."""
        self._staged.write(target)
        mark(target)


def mark(target: Any) -> None:  # noqa: ANN401 - a memoryview, or device bytes
    """Flag the payload at the beginning of *target* as memory that several readers may hold."""
    if isinstance(target, memoryview):
        envelope.mark_shared(target)
        return
    head = bytearray(bytes(target[: envelope.HEAD.size]))
    envelope.mark_shared(memoryview(head))
    target[: len(head)] = head


class Wrapping:
    """What one connector puts around its payloads and takes off those that come.

    Unless it has a ``tail``, a digest that it adds and asks for, a payload that begins with
    :data:`stagelink.core.envelope.BARE` may be used as it is.
    """

    def __init__(
        self, integrity: Integrity | None = None, compression: Compression | None = None
    ) -> None:
        self._integrity = integrity or Integrity()
        self.compression = compression or Compression()
        self.tail = self._integrity.tail
        self.seal = self._integrity.seal

    def wrap(self, staged: Staged, compressor: str, shared: bool) -> Staged:
        """*staged*, compressed if a *compressor* is named, and with its digest if asked for.

        *shared* says that several readers may be handed the memory it is written to.
        """
        if compressor:
            staged = self.compression.wrap(staged, compressor)
        elif shared:
            staged = Shared(staged)
        return self._integrity.wrap(staged)

    def flaw(self, buffer: Any, size: int) -> str:  # noqa: ANN401 - any buffer
        """Why the first *size* bytes of *buffer* are not what was put; empty if they may be."""
        return self._integrity.flaw(memoryview(buffer).cast("B")[:size])

    def unpacked(self, buffer: Any, size: int) -> mmap | None:  # noqa: ANN401 - any buffer
        """The payload of a compressed form, in memory of its own; None where it is none.

        Raises:
            PayloadError: it cannot be decompressed.
        """
        data = memoryview(buffer).cast("B")[:size]
        return self.compression.unwrap(data) if envelope.is_packed(data) else None
