"""What leaves the tree of a value: a leaf is described in the header and lies in a buffer."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Protocol

from msgspec.msgpack import Decoder, Encoder

from stagelink.core.errors import PayloadError

# Extension codes of the header. Numbers are never given twice.
TUPLE, MAP, BIG_INT = 1, 2, 3
BYTEARRAY, MEMORYVIEW, NUMPY_SCALAR = 4, 5, 6
FAR_BYTES, FAR_BYTEARRAY, FAR_MEMORYVIEW, TENSOR, ARRAY = 16, 17, 18, 19, 20

VIEW_ALIGNMENT = 64
COPY_ALIGNMENT = 8
BIG_COPY = 1 << 20
"""Bytes from which on a copy is worth leaving the interpreter lock for."""

encode = Encoder().encode
decode_index = Decoder(int).decode
decode_array_fields = Decoder(tuple[int, Any, tuple[int, ...]]).decode


class Leaf(Protocol):
    """Bytes that go to a buffer of their own; sizes in bytes."""

    @property
    def nbytes(self) -> int:
        """Length of the buffer."""
        ...

    @property
    def alignment(self) -> int:
        """Of the buffer's offset."""
        ...

    def write(self, target: memoryview, offset: int) -> None:
        """Fill ``target[offset : offset + nbytes]``."""
        ...


Described = tuple[Leaf, object, tuple[int, ...]]
"""A tensor or array as the header says it: its leaf, dtype and shape."""


class BytesLeaf(NamedTuple):
    """A run of bytes."""

    data: bytes | memoryview
    nbytes: int
    alignment: int

    def write(self, target: memoryview, offset: int) -> None:
        """Copy it."""
        if self.nbytes >= BIG_COPY and type(self.data) is bytes:
            place = ctypes.addressof(ctypes.c_char.from_buffer(target, offset))
            ctypes.memmove(place, self.data, self.nbytes)  # without the interpreter lock
        else:
            target[offset : offset + self.nbytes] = self.data


class Place(NamedTuple):
    """Where a loaded leaf lies: the caller's own buffer object, and what is known of it."""

    buffer: Any  # anything with the buffer protocol; views must be made from this very object
    view: memoryview
    offset: int
    nbytes: int


def check_bytes(place: Place, shape: tuple[int, ...], item_bytes: int) -> int:
    """How many items *shape* has, if *place* holds exactly these.

    Raises:
        PayloadError: a dimension is negative, or the bytes do not match.
    """
    count = 1
    for length in shape:
        if length < 0:
            msg = f"a dimension of {shape} is negative"
            raise PayloadError(msg)
        count *= length
    if count * item_bytes != place.nbytes:
        msg = f"shape {shape} of {item_bytes} byte items needs {count * item_bytes} bytes"
        raise PayloadError(msg + f", its buffer has {place.nbytes}")
    return count
