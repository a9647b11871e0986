"""Torch tensors as leaves. Only imported once a tensor was seen."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from stagelink.adapters.msgspec.leaves import (
    BIG_COPY,
    VIEW_ALIGNMENT,
    Described,
    Place,
    check_bytes,
)
from stagelink.core.errors import ConfigError, PayloadError

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


class TensorLeaf(NamedTuple):
    """A CPU tensor of any strides; its bytes are written in C order."""

    tensor: torch.Tensor
    nbytes: int
    alignment: int = VIEW_ALIGNMENT

    def write(self, target: memoryview, offset: int) -> None:
        """Copy it in one pass, without the interpreter lock."""
        tensor, nbytes = self.tensor, self.nbytes
        if not nbytes:
            return
        # Small: memmove takes a sixth of the time. Large: torch copies with several threads.
        if nbytes < BIG_COPY and tensor.is_contiguous() and not _lazy(tensor):
            place = ctypes.addressof(ctypes.c_char.from_buffer(target, offset))
            ctypes.memmove(place, tensor.data_ptr(), nbytes)
        else:
            self._copy(target, offset)

    def _copy(self, target: memoryview, offset: int) -> None:
        source = self.tensor.resolve_conj().resolve_neg() if _lazy(self.tensor) else self.tensor
        bits = BITS.get(source.element_size())
        if bits is not None:
            source = source.view(bits)
        place = torch.frombuffer(target, dtype=source.dtype, count=source.numel(), offset=offset)
        place.view(source.shape).copy_(source)


def describe(tensor: torch.Tensor) -> Described:
    """The leaf of *tensor*.

    Raises:
        PayloadError: its bytes are not the whole of it, or not in host memory.
    """
    name = NAMES.get(tensor.dtype)
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not tensor.is_cpu or not name:
        raise _refusal(tensor)
    if tensor.layout is not torch.strided:
        raise _refusal(tensor)
    return TensorLeaf(tensor, tensor.nbytes), name, tensor.shape


def make(place: Place, name: object, shape: tuple[int, ...], readonly_views: bool) -> torch.Tensor:
    """A tensor over *place* that keeps its buffer alive, or a copy if that is read-only."""
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        msg = f"torch {torch.__version__} has no dtype {name!r:.40}"
        raise PayloadError(msg, remedy="run the same torch on both sides, or convert before put")
    count = check_bytes(place, shape, dtype.itemsize)
    try:
        if not count:
            return torch.empty(shape, dtype=BITS.get(dtype.itemsize, dtype)).view(dtype)
        if place.view.readonly:
            place = _owned(place) if readonly_views else _copied(place)
        flat = torch.frombuffer(place.buffer, dtype=dtype, count=count, offset=place.offset)
        return flat.view(*shape) if shape else flat.view(())  # view(shape) takes 1.7 us more
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:
        msg = f"no tensor of dtype {name} and shape {shape!r:.80}: {error}"
        raise PayloadError(msg) from error


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


def _copied(place: Place) -> Place:
    end = place.offset + place.nbytes
    data = bytearray(place.view[place.offset : end])
    return Place(data, memoryview(data), 0, place.nbytes)


def _owned(place: Place) -> Place:
    """The same memory as an object that torch takes for writable.

    torch.frombuffer warns of read-only memory once a process, and warnings can only be silenced
    for all threads at once. What is read-only stays so: writing to such a tensor is the caller's
    breach of ``readonly_views``.
    """
    import numpy as np  # noqa: PLC0415 - the one way to the address of read-only memory

    start = np.frombuffer(place.buffer, np.uint8).ctypes.data
    memory = (ctypes.c_ubyte * place.nbytes).from_address(start + place.offset)
    memory.keep = place.buffer  # type: ignore[attr-defined]
    return Place(memory, place.view, 0, place.nbytes)


def _lazy(tensor: torch.Tensor) -> bool:
    """Whether the bytes are yet to be conjugated or negated."""
    return tensor.is_conj() or tensor.is_neg()


def _refusal(tensor: torch.Tensor) -> PayloadError:
    if tensor.requires_grad:
        return PayloadError("a tensor that requires grad", remedy="pass .detach() of it")
    if type(tensor) is not torch.Tensor:
        remedy = "pass .as_subclass(torch.Tensor), or .detach() of a Parameter"
        return PayloadError(f"{type(tensor)} cannot be serialized", remedy=remedy)
    if not tensor.is_cpu:
        return PayloadError(f"a tensor on {tensor.device}", remedy="pass .cpu() of it")
    if tensor.layout is not torch.strided:
        remedy = "pass .to_dense() of it"
        return PayloadError(f"a tensor of layout {tensor.layout}", remedy=remedy)
    remedy = "pass .int_repr() of it and its scale"
    return PayloadError(f"a tensor of dtype {tensor.dtype}", remedy=remedy)
