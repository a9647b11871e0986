"""What leaves the tree of a value: a leaf is described in the header and lies in a buffer."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char, c_char_p, c_ubyte, c_void_p, cast
from math import prod
from struct import Struct
from typing import Annotated, Any

from msgspec import Meta
from msgspec.msgpack import Decoder, Encoder

from stagelink.adapters.msgspec.spread import spread
from stagelink.core.errors import PayloadError

# Extension codes of the header. Numbers are never given twice.
TUPLE, MAP, BIG_INT = 1, 2, 3
BYTEARRAY, MEMORYVIEW, NUMPY_SCALAR = 4, 5, 6
SET, FROZENSET, COMPLEX, OBJECT, ENUM = 7, 8, 9, 10, 11
FAR_BYTES, FAR_BYTEARRAY, FAR_MEMORYVIEW, TENSOR, ARRAY = 16, 17, 18, 19, 20
CODEC, TRACED, DEVICE_TENSOR = 24, 25, 26

DEPTH_LIMIT = 100
DIMENSION_LIMIT = 64  # numpy's own; and the product of a long shape takes long
VIEW_ALIGNMENT = 64
COPY_ALIGNMENT = 8
BIG_COPY = 1 << 20
"""Bytes from which on a copy is worth leaving the interpreter lock for."""

AnyBytes = c_ubyte * BIG_COPY
encode = Encoder().encode
Length = Annotated[int, Meta(ge=0)]
Shape = Annotated[tuple[Length, ...], Meta(max_length=DIMENSION_LIMIT)]
decode_index = Decoder(Length).decode
decode_array_fields = Decoder(tuple[Length, Any, Shape]).decode


Writer = Callable[[Any, int, memoryview, int], None]
"""``write(source, nbytes, target, offset)`` fills ``target[offset : offset + nbytes]``."""

Leaf = tuple[Writer, Any]
"""A writer and its source: bytes that go to a buffer of their own."""


def write_bytes(source: bytes | memoryview, nbytes: int, target: memoryview, offset: int) -> None:
    """Copy a run of bytes."""
    if nbytes >= BIG_COPY and type(source) is bytes:
        address = cast(c_char_p(source), c_void_p).value or 0
        spread(addressof(c_char.from_buffer(target, offset)), address, nbytes)
    else:
        target[offset : offset + nbytes] = source


def write_from(address: int, nbytes: int, target: memoryview, offset: int) -> None:
    """Copy what lies at *address*.

    A memoryview copies little in half the time of memmove, under the interpreter lock. Much is
    copied without it, and not by torch.copy_: its threads wait for one another on cores that
    compute, which took 1 MiB from 40 µs to 10 ms.
    """
    if nbytes >= BIG_COPY:
        spread(addressof(c_char.from_buffer(target, offset)), address, nbytes)
    else:
        source = memoryview(AnyBytes.from_address(address)).cast("B")
        target[offset : offset + nbytes] = source[:nbytes]


def count_items(shape: tuple[int, ...], item_bytes: int, nbytes: int) -> int:
    """How many items *shape* (of lengths from 0) has, if these are exactly *nbytes*.

    Raises:
        PayloadError: the bytes do not match.
    """
    count = prod(shape)
    if count * item_bytes != nbytes:
        msg = f"shape {shape} of {item_bytes} byte items needs {count * item_bytes} bytes"
        raise PayloadError(msg + f", its buffer has {nbytes}")
    return count


complex_bits = Struct("<dd")
