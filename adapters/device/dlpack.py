"""Tensors over any address, by DLPack: the one public way that takes a device by name.

``__cuda_array_interface__`` would let torch ask the driver which device an address is of, and a
mapping of a peer's memory may be told as the peer's device, where our kernels must not run.
"""

from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA, ROCM = 1, 2, 10
"""Kinds of devices, as DLPack numbers them."""

_UINT, _BITS, _LANES = 1, 8, 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_kept: dict[int, tuple[Any, ...]] = {}
"""What each living tensor needs, by the address of its description."""


def _forget(address: int) -> None:
    _kept.pop(address, None)


_delete = _Deleter(_forget)
# Tensors may outlive this module: torch calls it until the interpreter has ended.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_delete))

_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def tensor(address: int, nbytes: int, kind: int, index: int, keep: object) -> Any:  # noqa: ANN401
    """A uint8 tensor over *nbytes* (at least 1) at *address* of a device; it keeps *keep* alive.

    *keep* is let go by whichever thread drops the last view of the tensor.
    """
    import torch  # noqa: PLC0415 - heavy

    shape, stride = (ctypes.c_int64 * 1)(nbytes), (ctypes.c_int64 * 1)(1)
    described = _Tensor(
        address, _Device(kind, index), 1, _Type(_UINT, _BITS, _LANES), shape, stride, 0
    )
    managed = _Managed(described, None, _delete)
    place = ctypes.addressof(managed)
    _kept[place] = managed, shape, stride, keep
    try:
        return torch.from_dlpack(_capsule(place, b"dltensor", None))
    except BaseException:
        _forget(place)
        raise
