"""Tensors over any address, by DLPack: the one public way that takes a device by name.

``__cuda_array_interface__`` would let torch ask the driver which device an address is of, and a
mapping of a peer's memory may be told as the peer's device, where our kernels must not run.
"""

from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA, ROCM = 1, 2, 10
"""Kinds of devices, as DLPack numbers them."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor, with which every description begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_Anchor = ctypes.c_ubyte * 1


def tensor(address: int, nbytes: int, kind: int, index: int, keep: object) -> Any:  # noqa: ANN401
    """A uint8 tensor over *nbytes* (at least 1) at *address* of a device; it keeps *keep* alive.

    torch itself describes a tensor of one byte that keeps *keep*, and the description is changed
    to lead elsewhere. So its end is torch's own code as well: a function of ours would be called
    from there in the middle of whatever went on, exceptions on their way out included.
    """
    import torch  # noqa: PLC0415 - heavy

    dlpack: Any = torch.utils.dlpack
    anchor = _Anchor()
    anchor.keep = keep  # type: ignore[attr-defined]
    capsule = dlpack.to_dlpack(torch.frombuffer(anchor, dtype=torch.uint8))
    told = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = (ctypes.c_int64 * 1)(nbytes)
    told.data, told.byte_offset = address, 0
    told.device = _Device(kind, index)
    told.shape = shape
    return dlpack.from_dlpack(capsule)
