"""In place of AMD's package, whose wheels are for other Pythons: enough of it for vLLM-Omni's connector.

Its memory is ordinary memory, its write is the kernel's ``process_vm_writev``, also into other
processes. So what fails over it is not the engine's fault.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import sys
import types
from typing import Any

import torch

_PR_SET_PTRACER = 0x59616D61
_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Packed:
    """A value that travels as text."""

    def __init__(self, *fields: Any) -> None:
        self.fields = fields

    def pack(self) -> bytes:
        return "|".join(map(str, self.fields)).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> _Packed:
        return cls(*packed.decode().split("|"))


class EngineDesc(_Packed):
    """Who an engine is: key, host, port."""

    key = property(lambda self: self.fields[0])
    host = property(lambda self: self.fields[1])
    port = property(lambda self: self.fields[2])


class MemoryDesc(_Packed):
    """Where memory lies: process, address, bytes."""


class TransferStatus:
    """How a write went; it is over when it is returned."""

    def __init__(self, wrong: str = "") -> None:
        self._wrong = wrong

    def Wait(self) -> None:  # noqa: N802 - Mori's names
        pass

    def Failed(self) -> bool:  # noqa: N802
        return bool(self._wrong)

    def Message(self) -> str:  # noqa: N802
        return self._wrong


class IOEngine:
    """Writes from registered memory of this process into that of another."""

    def __init__(self, key: str, config: Any) -> None:
        self._desc = EngineDesc(key, "127.0.0.1", 1)
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # others may write

    def create_backend(self, *_: Any) -> None:
        pass

    def get_engine_desc(self) -> EngineDesc:
        return self._desc

    def register_torch_tensor(self, tensor: torch.Tensor) -> MemoryDesc:
        return MemoryDesc(os.getpid(), tensor.data_ptr(), tensor.nbytes)

    def register_remote_engine(self, desc: EngineDesc) -> None:
        pass

    deregister_remote_engine = deregister_memory = register_remote_engine

    def allocate_transfer_uid(self) -> int:
        return next(_numbers)

    def batch_write(
        self, mine: list[Any], at: list[list[int]], theirs: list[Any], to: list[list[int]],
        sizes: list[list[int]], uids: list[int],
    ) -> list[TransferStatus]:  # fmt: skip
        return [
            _write(*each)
            for here, there, *lists in zip(mine, theirs, at, to, sizes, strict=True)
            for each in zip(itertools.repeat(here), itertools.repeat(there), *lists, strict=False)
        ]


def _write(here: MemoryDesc, there: MemoryDesc, at: int, to: int, size: int) -> TransferStatus:
    _, source, _ = map(int, here.fields)
    process, target, _ = map(int, there.fields)
    local, remote = _Vector(source + at, size), _Vector(target + to, size)
    done = _libc.process_vm_writev(
        process, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )  # fmt: skip
    return TransferStatus("" if done == size else os.strerror(ctypes.get_errno()))


def install() -> None:
    """Let ``import mori`` find this, and let memory be pinned where there is no accelerator."""
    if "mori" in sys.modules:
        return

    def settings(*_: Any, **__: Any) -> types.SimpleNamespace:
        return types.SimpleNamespace()

    mori, cpp, io = (types.ModuleType(name) for name in ("mori", "mori.cpp", "mori.io"))
    cpp.TransferStatus = TransferStatus  # type: ignore[attr-defined]
    vars(io).update(
        BackendType=types.SimpleNamespace(RDMA=0, XGMI=1),
        PollCqMode=types.SimpleNamespace(POLLING=0),
        EngineDesc=EngineDesc, MemoryDesc=MemoryDesc, IOEngine=IOEngine, IOEngineConfig=settings,
        RdmaBackendConfig=settings, XgmiBackendConfig=settings,
    )  # fmt: skip
    sys.modules.update({"mori": mori, "mori.cpp": cpp, "mori.io": io})
    from vllm_omni.distributed.omni_connectors.connectors import mori_transfer_engine_connector

    importlib.reload(mori_transfer_engine_connector)  # vLLM-Omni had looked for it already
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
