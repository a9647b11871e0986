"""What a third party may put around or into payloads: compressors and codecs of its own types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Compressor(NamedTuple):
    """Makes payloads smaller, and the very same bytes of them again. Any thread may call it.

    Attributes:
        name: what a user writes in ``compression=``, at most 64 characters; it travels with the
            payload, so a format that changes needs a new one.
        compress: all bytes of its argument, compressed.
        decompress: undoes that into a writable memoryview of the very size that was compressed;
            returns how many bytes came of it, and raises rather than write less or want more.
        probe: says why it cannot work here, with the remedy; empty when it can. None: it can.
        plugin: who contributed it; the manager fills it in.
    """

    name: str
    compress: Callable[[memoryview], bytes]
    decompress: Callable[[memoryview, memoryview], int]
    probe: Callable[[], str] | None = None
    plugin: str = ""


class TypeCodec(NamedTuple):
    """Says how values of one type travel. Any thread may call it.

    Attributes:
        name: what travels in the payload, at most 64 characters; both sides know it.
        type: the class, exactly (a subclass needs a codec of its own), or ``"module:qualname"`` of
            it, so that nothing is imported before such a value was seen.
        encode: the value as anything that can be put (tensors in it travel as tensors do). It may
            be called twice for one put.
        decode: what *encode* made, as it arrived, to the value.
        plugin: who contributed it; the manager fills it in.
    """

    name: str
    type: type | str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    plugin: str = ""
