"""Payloads made smaller on the edges that ask for it, where the other side can undo it."""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING

from stagelink.core import envelope
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.ports import Compressor, Staged

BIG_COPY = 1 << 20
"""Bytes from which on a copy is worth leaving the interpreter lock for."""

LEAST_RAW = 1024
"""Bytes below which a payload is left as it is."""

MOST_NAMES = 64

WORTH = 0.9
"""Part of its size that a compressed payload may have at most; else it travels as it is."""


class Compression:
    """Every compressor that works here; any thread may call it, nothing is locked meanwhile.

    Args:
        edges: names of compressors by the stage that payloads are put to.
        known: compressors by name.
        most_raw: bytes that a payload may have once it is decompressed.
    """

    def __init__(
        self,
        edges: Mapping[str, str] | None = None,
        known: Mapping[str, Compressor] | None = None,
        most_raw: int = envelope.MOST_RAW,
    ) -> None:
        self.edges = dict(edges or {})
        self._known = dict(known or {})
        self._most_raw = most_raw
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Every compressor that can be undone here, as many as a greeting has room for."""
        return tuple(sorted(self._known))[:MOST_NAMES]

    def figures(self) -> dict[str, int]:
        """Payloads put compressed, as they are because that was no gain, and because a reader
        cannot undo it; bytes before and after; payloads decompressed.
        """  # noqa: D205 - one sentence of several figures
        names = ("compressed", "no_gain", "not_agreed", "raw_bytes", "packed_bytes", "undone")
        with self._lock:
            return {name: self._counts[name] for name in names}

    def count(self, **amounts: int) -> None:
        """Add to the figures."""
        with self._lock:
            self._counts.update(amounts)

    def wrap(self, staged: Staged, name: str) -> Staged:
        """*staged* compressed by the compressor *name*, or itself where that is no gain.

        Raises:
            PayloadError: the compressor failed; names its plugin.
        """
        raw_size = staged.size
        if not LEAST_RAW <= raw_size <= envelope.MOST_RAW:
            return staged
        raw = bytearray(raw_size)
        staged.write(memoryview(raw))
        packed = _compress(self._known[name], memoryview(raw))
        head = envelope.pack_head(name, raw_size, len(packed))
        if len(head) + len(packed) > raw_size * WORTH:
            self.count(no_gain=1)
            return staged
        self.count(compressed=1, raw_bytes=raw_size, packed_bytes=len(packed))
        return Compressed(head, packed)

    def unwrap(self, data: memoryview) -> mmap.mmap:
        """The payload whose compressed form is all of *data*, in memory of its own.

        Raises:
            PayloadError: it is malformed, too large, made by a compressor that is not here, or
                does not come to the very size that it promises.
        """
        found = envelope.parse_packed(data, self._most_raw)
        compressor = self._known.get(found.name)
        if compressor is None:
            known = ", ".join(self.names) or "none"
            msg = f"the payload is compressed by {found.name!r}, which cannot be undone here"
            raise PayloadError(msg, remedy=f"install its plugin on this side too; known: {known}")
        raw = _memory(found.raw_size)
        came = _decompress(compressor, data[found.start : found.stop], memoryview(raw))
        if came != found.raw_size:
            msg = f"{found.name!r} made {came} bytes, the payload promises {found.raw_size}"
            raise PayloadError(msg, remedy="run the same versions on both sides")
        self.count(undone=1)
        return raw


class Compressed:
    """A compressed payload, ready to be written."""

    __slots__ = ("_head", "_packed", "size")

    def __init__(self, head: bytes, packed: bytes) -> None:
        self._head = head
        self._packed = packed
        self.size = len(head) + len(packed)

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes."""
        start = len(self._head)
        target[:start] = self._head
        assert len(target) == self.size
        if len(self._packed) < BIG_COPY:
            target[start:] = self._packed
            return
        place = ctypes.addressof(ctypes.c_char.from_buffer(target, start))
        ctypes.memmove(place, self._packed, len(self._packed))  # leaves the interpreter lock


def _memory(size: int) -> mmap.mmap:
    """Pages that are ours alone; what is only promised, and never written, takes no memory."""
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        msg = f"no memory for the {size} bytes of a decompressed payload: {error}"
        raise PayloadError(msg, remedy="put smaller ones, or put them uncompressed") from error


def _compress(compressor: Compressor, raw: memoryview) -> bytes:
    try:
        return bytes(compressor.compress(raw))
    except Exception as error:
        raise _failed(compressor, "compress", error) from error


def _decompress(compressor: Compressor, packed: memoryview, raw: memoryview) -> int:
    try:
        return compressor.decompress(packed, raw)
    except Exception as error:
        raise _failed(compressor, "decompress", error) from error


def _failed(compressor: Compressor, what: str, error: Exception) -> PayloadError:
    msg = (
        f"{compressor.name!r} of plugin {compressor.plugin!r} cannot {what} the payload: "
        f"{type(error).__name__}: {error}"
    )
    return PayloadError(msg, remedy="see the cause; leave compression= out to go on without it")
