"""Numpy arrays and scalars as leaves. Only imported once an array was seen."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.msgpack import Decoder, Ext
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from stagelink.adapters.msgspec.leaves import (
    ARRAY,
    BIG_COPY,
    NUMPY_SCALAR,
    VIEW_ALIGNMENT,
    count_items,
    decode_array_fields,
    encode,
    write_from,
)
from stagelink.adapters.msgspec.paths import Path, at, render
from stagelink.core.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from stagelink.adapters.msgspec.packing import Walk
    from stagelink.adapters.msgspec.unpacking import Load

PLAIN = frozenset("?bBhHiIlLqQefd")
"""Type characters whose arrays memoryviews can cast to bytes."""

Array = np.ndarray[Any, np.dtype[Any]]


def write(array: Array, nbytes: int, target: memoryview, offset: int) -> None:
    """Write an array of any strides, in C order."""
    if array.dtype.char in PLAIN and array.flags.c_contiguous:  # no array of the target is made
        if nbytes < BIG_COPY:
            target[offset : offset + nbytes] = array.data.cast("B")
        else:
            write_from(array.ctypes.data, nbytes, target, offset)
        return
    if array.dtype.names:  # fields leave their padding as it was: no old bytes may show
        target[offset : offset + nbytes] = bytes(nbytes)
    place = np.frombuffer(target, array.dtype, array.size, offset)
    np.copyto(place.reshape(array.shape), array)


def pack(walk: Walk, array: Array, path: Path, _depth: int) -> Ext:
    """The header's words for *array*; its bytes become a leaf.

    Raises:
        PayloadError: it is of a subclass, or of a dtype that is no plain bytes.
    """
    if type(array) is not np.ndarray:
        msg = f"{render(path)}: {type(array)} cannot be serialized"
        raise PayloadError(msg, remedy="pass numpy.asarray(...) of it")
    description = _described(array.dtype, path)
    index = walk.far(write, array, array.nbytes, VIEW_ALIGNMENT)
    return Ext(ARRAY, encode((index, description, array.shape)))


def unpack(load: Load, data: memoryview) -> Array:
    """The array of :func:`pack`: a view that keeps the buffer alive."""
    index, description, shape = decode_array_fields(data)
    offset, nbytes = load.place(index)  # first: it may fetch what load.buffer then is
    return make(load.buffer, offset, nbytes, description, shape)


def pack_scalar(_walk: Walk, scalar: np.generic, path: Path, _depth: int) -> Ext:
    """The header's words for a numpy scalar: dtype and bytes."""
    data = scalar.tobytes()[: scalar.dtype.itemsize]
    return Ext(NUMPY_SCALAR, encode((_described(scalar.dtype, path), data)))


def unpack_scalar(_load: Load, data: memoryview) -> Any:  # noqa: ANN401 - any scalar
    """The numpy scalar of :func:`pack_scalar`."""
    description, bits = decode_scalar(data)
    dtype = find_dtype(description)
    if dtype.itemsize != len(bits):
        msg = f"a scalar of {dtype} has {dtype.itemsize} bytes, not {len(bits)}"
        raise PayloadError(msg)
    return np.frombuffer(bits, dtype, 1)[0] if bits else np.zeros(1, dtype)[0]


def _described(dtype: np.dtype[Any], path: Path) -> object:
    try:
        return describe_dtype(dtype)
    except PayloadError as error:
        raise at(path, error) from error.__cause__


def describe_dtype(dtype: np.dtype[Any]) -> object:
    """The description from which :func:`find_dtype` makes *dtype* again."""
    if dtype.isbuiltin == 1 and not dtype.hasobject:
        return dtype.str
    if not dtype.hasobject:
        description: Any = dtype_to_descr(dtype)
        if _same(description, dtype):
            return description
    msg = f"an array of dtype {dtype!r} cannot be serialized"
    raise PayloadError(msg, remedy="convert it with .astype() to numbers or fixed-size strings")


def find_dtype(description: object) -> np.dtype[Any]:
    """The dtype that *description*, read from a payload, stands for.

    Raises:
        PayloadError: none, or one that holds references.
    """
    try:
        if isinstance(description, str):
            return _plain(description)
        dtype = descr_to_dtype(_tuples(description, depth=16))
    except (  # a warning where warnings are errors: numpy deprecates some spellings, as "a4"
        ValueError, TypeError, KeyError, IndexError, SyntaxError, RecursionError, Warning,
    ) as error:  # fmt: skip
        msg = f"{description!r:.80} is no dtype: {error}"
        raise PayloadError(msg) from error
    return _without_objects(dtype)


def make(
    buffer: Any,  # noqa: ANN401
    offset: int,
    nbytes: int,
    description: object,
    shape: tuple[int, ...],
) -> Array:
    """A view of these *nbytes* that keeps *buffer* alive; read-only if that is.

    Raises:
        PayloadError: *description* and *shape* are none, or do not match the bytes.
    """
    dtype = find_dtype(description)
    count = count_items(shape, dtype.itemsize, nbytes)
    try:
        if not nbytes:
            empty: Array = np.ndarray(shape, dtype, bytearray())
            return empty  # np.empty() would make a byte of each item of "S0"
        return np.frombuffer(buffer, dtype, count, offset).reshape(shape)
    except (ValueError, MemoryError) as error:
        msg = f"no array of dtype {dtype} and shape {shape!r:.80}: {error}"
        raise PayloadError(msg) from error


def description_and_size(dtype: object) -> tuple[object, int]:
    """The description of a dtype, given by name or itself, and its bytes per item.

    Raises:
        ConfigError: numpy has no such dtype, or it holds references.
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
        return describe_dtype(found), found.itemsize
    except (TypeError, ValueError, PayloadError) as error:
        msg = f"{dtype!r:.40} is no dtype that can be sent: {error}"
        raise ConfigError(msg, remedy="a numpy dtype of numbers, or its name") from error


@lru_cache(256)
def _plain(text: str) -> np.dtype[Any]:
    return _without_objects(np.dtype(text))


def _without_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        msg = f"an array of references ({dtype}) does not come in a payload"
        raise PayloadError(msg)
    return dtype


def _same(
    description: Any,  # noqa: ANN401
    dtype: np.dtype[Any],
) -> bool:
    """Whether the description says it all: foreign types (bfloat16) look like raw bytes."""
    again = descr_to_dtype(description)
    return bool(again == dtype and again.type is dtype.type)


def _tuples(value: object, depth: int) -> Any:  # noqa: ANN401 - numpy checks it
    """Lists of a description as numpy wants them: a list of fields, each field a tuple."""
    if not isinstance(value, list) or not depth:
        return value
    return [
        tuple(_field(part, depth - 1) for part in field) if isinstance(field, list) else field
        for field in value
    ]


def _field(part: object, depth: int) -> object:
    if isinstance(part, list) and all(isinstance(length, (int, str)) for length in part):
        return tuple(part)  # a subarray's shape, or a pair of title and name
    return _tuples(part, depth)


decode_scalar = Decoder(tuple[Any, bytes]).decode
