"""Torch tensors as leaves. Only imported once a tensor was seen."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from msgspec.msgpack import Ext

from stagelink.adapters.msgspec.leaves import (
    DEVICE_TENSOR,
    DIMENSION_LIMIT,
    TENSOR,
    VIEW_ALIGNMENT,
    count_items,
    decode_array_fields,
    encode,
    write_from,
)
from stagelink.adapters.msgspec.packing import WHOLE
from stagelink.adapters.msgspec.paths import Path, at
from stagelink.adapters.msgspec.staged import Form, Whole, framed
from stagelink.core.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.msgspec.packing import Walk
    from stagelink.adapters.msgspec.unpacking import Load

# Quantized dtypes say nothing without their scale, which is not in the bytes.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and "qint" not in str(dtype) and "quint" not in str(dtype)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Bits are copied as integers of the same width: some dtypes have no copy kernel, and a copy of
# floats need not keep every NaN.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
STRIDED = torch.strided


def write(tensor: torch.Tensor, nbytes: int, target: memoryview, offset: int) -> None:
    """Copy a CPU tensor whose bytes lie as they are to be written."""
    write_from(tensor.data_ptr(), nbytes, target, offset)


def write_anyhow(tensor: torch.Tensor, _nbytes: int, target: memoryview, offset: int) -> None:
    """Let torch write a CPU tensor of any strides, in C order, without the interpreter lock."""
    source = tensor.resolve_conj().resolve_neg()
    dtype = BITS.get(source.element_size(), source.dtype)
    place = torch.frombuffer(target, dtype=dtype, count=source.numel(), offset=offset)
    place.view(source.shape).copy_(source.view(dtype))


def copy_bits(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy between tensors of one dtype and shape, without a change to any NaN."""
    dtype = BITS.get(source.element_size(), source.dtype)
    target.view(dtype).copy_(source.view(dtype))


def moved_bits(tensor: torch.Tensor, device: object) -> torch.Tensor:
    """A copy of *tensor* on *device*, without a change to any NaN."""
    bits = tensor.view(BITS.get(tensor.element_size(), tensor.dtype))
    return bits.to(device, copy=True).view(tensor.dtype)  # type: ignore[call-overload, no-any-return]


def pack(walk: Walk, tensor: torch.Tensor, path: Path, _depth: int) -> Ext:
    """The header's words for *tensor*; its bytes become a leaf, and its gradient stays here.

    Raises:
        PayloadError: they are not the whole of it, or not in host memory.
    """
    if tensor.requires_grad or type(tensor) is torch.nn.Parameter:
        tensor = tensor.detach()
    name = NAMES.get(tensor.dtype)
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or name is None:
        raise at(path, _refusal(tensor))
    shape = tensor.shape
    if tensor.layout is not torch.strided or len(shape) > DIMENSION_LIMIT:
        raise at(path, _refusal(tensor))
    plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    index = walk.far(write if plain else write_anyhow, tensor, tensor.nbytes, VIEW_ALIGNMENT)
    return Ext(TENSOR, encode((index, name, shape)))


def pack_there(walk: Walk, tensor: torch.Tensor, path: Path) -> Ext:
    """The header's words for a tensor of a device, which stays there.

    Raises:
        PayloadError: its bytes are not the whole of it.
    """
    from stagelink.adapters.msgspec.device import stay  # noqa: PLC0415 - it imports us

    tensor = tensor.detach()
    name = NAMES.get(tensor.dtype)
    strided = tensor.layout is torch.strided and len(tensor.shape) <= DIMENSION_LIMIT
    if type(tensor) is not torch.Tensor or name is None or not strided:
        raise at(path, _refusal(tensor, anywhere=True))
    index = walk.far(stay, tensor, tensor.nbytes, VIEW_ALIGNMENT)
    return Ext(DEVICE_TENSOR, encode((index, name, tensor.shape)))


def frame_there(tensor: torch.Tensor) -> tuple[bytes, int] | None:
    """What comes before a device tensor in a payload of its own, and the size of that.

    None where :func:`pack_there` has to look.
    """
    if type(tensor) is not torch.Tensor or tensor.layout is not STRIDED or tensor.requires_grad:
        return None
    form = _form(tensor.dtype, tensor.shape, DEVICE_TENSOR)
    return None if form is None or not form.nbytes else (form.head, form.size)


def write_down(tensor: torch.Tensor, target: memoryview, offset: int) -> None:
    """Copy a tensor of a device to host memory, once what is queued before it is done."""
    if tensor.numel():
        write_anyhow(tensor, tensor.nbytes, target, offset)


def shaped(flat: torch.Tensor, nbytes: int, name: object, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of dtype *name* and *shape* over the *nbytes* of *flat*, wherever it lies.

    Raises:
        PayloadError: they are none, or do not match the bytes.
    """
    dtype, count = _items(nbytes, name, shape)
    try:
        if not count:
            return torch.empty(shape, dtype=dtype, device=flat.device)
        return flat.view(dtype).view(shape)
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:
        msg = f"no tensor of dtype {name} and shape {shape!r:.80}: {error}"
        raise PayloadError(msg) from error


def whole(tensor: torch.Tensor) -> Whole | None:
    """A value that is nothing but this tensor, measured; None where :func:`pack` has to look.

    The layout of such a payload is that of all tensors of the dtype and shape.
    """
    if (
        not tensor.is_cpu
        or tensor.layout is not STRIDED
        or not tensor.is_contiguous()
        or tensor.is_neg()
    ):
        return None
    form = _form(tensor.dtype, tensor.shape)
    return None if form is None else Whole(tensor, form)


@lru_cache(256)
def _form(dtype: torch.dtype, shape: tuple[int, ...], code: int = TENSOR) -> Form | None:
    """What payloads of such a tensor have in common."""
    name = NAMES.get(dtype)
    if name is None or dtype.is_complex or len(shape) > DIMENSION_LIMIT:
        return None  # complex ones may be yet to be conjugated
    nbytes = math.prod(shape) * dtype.itemsize
    return Form(nbytes, *framed(code, name, shape, nbytes))


def unpack(load: Load, data: memoryview) -> torch.Tensor:
    """The tensor of :func:`pack`: a view that keeps the buffer alive, or a copy of read-only."""
    index, name, shape = decode_array_fields(data)
    offset, nbytes = load.place(index)
    if not load.view.readonly:
        return make(load.buffer, offset, nbytes, name, shape)
    if load.readonly_views and nbytes:
        return make(_as_writable(load.buffer, offset, nbytes), 0, nbytes, name, shape)
    return make(bytearray(load.view[offset : offset + nbytes]), 0, nbytes, name, shape)


def make(
    buffer: Any,  # noqa: ANN401
    offset: int,
    nbytes: int,
    name: object,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """A tensor over these *nbytes* of a writable *buffer*, which it keeps alive.

    Raises:
        PayloadError: dtype *name* and *shape* are none, or do not match the bytes.
    """
    dtype, count = _items(nbytes, name, shape)
    try:
        if not count:
            return torch.empty(shape, dtype=BITS.get(dtype.itemsize, dtype)).view(dtype)
        return _view(buffer, dtype, count, offset, shape)
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:
        msg = f"no tensor of dtype {name} and shape {shape!r:.80}: {error}"
        raise PayloadError(msg) from error


def viewer(
    offset: int, nbytes: int, name: object, shape: tuple[int, ...]
) -> Callable[[Any], torch.Tensor]:
    """:func:`make` of any buffer, all else checked once; there must be items.

    Raises:
        PayloadError: as for :func:`make`.
    """
    dtype, count = _items(nbytes, name, shape)
    if len(shape) == 1:
        return partial(torch.frombuffer, dtype=dtype, count=count, offset=offset)
    return partial(_view, dtype=dtype, count=count, offset=offset, shape=shape)


def _items(nbytes: int, name: object, shape: tuple[int, ...]) -> tuple[torch.dtype, int]:
    """The dtype called *name*, and how many items of it these *nbytes* are."""
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        msg = f"torch {torch.__version__} has no dtype {name!r:.40}"
        raise PayloadError(msg, remedy="run the same torch on both sides, or convert before put")
    return dtype, count_items(shape, dtype.itemsize, nbytes)


def _view(
    buffer: Any,  # noqa: ANN401
    dtype: torch.dtype,
    count: int,
    offset: int,
    shape: tuple[int, ...],
) -> torch.Tensor:
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    # Of the same items in another shape; takes half the time of view().
    return flat if len(shape) == 1 else flat.resize_(*shape) if shape else flat.resize_(())


def name_and_size(dtype: object) -> tuple[str, int]:
    """The name of a dtype, given by name or itself, and its bytes per item.

    Raises:
        ConfigError: torch has no such dtype.
    """
    known = dtype if isinstance(dtype, torch.dtype) else DTYPES.get(str(dtype))
    name = NAMES.get(known) if known is not None else None
    if known is None or name is None:
        msg = f"torch {torch.__version__} has no dtype {dtype!r:.40} that can be sent"
        raise ConfigError(msg, remedy=f"one of {', '.join(sorted(DTYPES))}")
    return name, known.itemsize


def _as_writable(buffer: Any, offset: int, nbytes: int) -> Any:  # noqa: ANN401
    """The same memory as an object that torch takes for writable.

    torch.frombuffer warns of read-only memory once a process, and warnings can only be silenced
    for all threads at once. What is read-only stays so: writing to such a tensor is the caller's
    breach of ``readonly_views``.
    """
    import numpy as np  # noqa: PLC0415 - the one way to the address of read-only memory

    start = np.frombuffer(buffer, np.uint8).ctypes.data
    memory = (ctypes.c_ubyte * nbytes).from_address(start + offset)
    memory.keep = buffer  # type: ignore[attr-defined]
    return memory


def _refusal(tensor: torch.Tensor, *, anywhere: bool = False) -> PayloadError:
    if type(tensor) is not torch.Tensor:
        remedy = "pass .as_subclass(torch.Tensor) of it"
        return PayloadError(f"{type(tensor)} cannot be serialized", remedy=remedy)
    if tensor.is_meta:
        remedy = "put its shape and dtype instead: it has no values"
        return PayloadError("a tensor on meta", remedy=remedy)
    if not (tensor.is_cpu or anywhere):
        remedy = "pass .cpu() of it, or use a backend whose pool is on a device"
        return PayloadError(f"a tensor on {tensor.device}", remedy=remedy)
    if tensor.layout is not torch.strided:
        remedy = "pass .to_dense() of it"
        return PayloadError(f"a tensor of layout {tensor.layout}", remedy=remedy)
    if tensor.dim() > DIMENSION_LIMIT:
        return PayloadError(f"a tensor of {tensor.dim()} dimensions", remedy="flatten it")
    remedy = "pass .int_repr() of it and its scale"
    return PayloadError(f"a tensor of dtype {tensor.dtype}", remedy=remedy)


WHOLE[torch.Tensor] = whole
