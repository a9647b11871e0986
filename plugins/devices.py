"""Pools on GPUs, and the backend that maps them; nothing loads torch before one is chosen."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.adapters.device import (
    DevicePoolProvider,
    Runtime,
    RuntimeIpc,
    Space,
    TorchStreams,
    find_device,
    kind_of,
)
from stagelink.adapters.device_ipc import DeviceIpcPlane
from stagelink.plugins.builtin import shm_probe

if TYPE_CHECKING:
    from stagelink.plugins.hookspecs import BackendContext
    from stagelink.ports import DataPlane, MemoryProvider

NODES = (
    "/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/kfd", "/dev/dxg",
)  # fmt: skip
"""What a GPU's driver shows to processes that may use it."""


def gpu_is_here() -> bool:
    """Whether there is a trace of a GPU; torch is asked if somebody else has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda"):
        return bool(torch.cuda.is_available())
    return any(Path(node).exists() for node in NODES)


def space_of_torch(index: int) -> Space | None:
    """Device *index* as torch knows it; None where torch or a GPU is missing."""
    if find_spec("torch") is None or not gpu_is_here():
        return None
    runtime = Runtime.of_torch()
    return Space(runtime, TorchStreams(index), kind_of(runtime.name), index)


def provider(context: BackendContext) -> MemoryProvider:
    """A pool on the device that ``pool_device`` names.

    Raises:
        ConfigError: it names none, or torch has none.
    """
    runtime = Runtime.of_torch()
    index = find_device(context.config.pool_device)
    return DevicePoolProvider(Space(runtime, TorchStreams(index), kind_of(runtime.name), index))


def ipc(context: BackendContext) -> DataPlane:
    """Readers map."""

    def opener(memory: Any) -> RuntimeIpc:  # noqa: ANN401 - a pool on a device
        return RuntimeIpc(memory.space)

    return DeviceIpcPlane(context.instance, opener)


def probe(context: BackendContext) -> str:
    """Whether torch and a GPU's driver are here; and as for the proof of life, shared memory."""
    if find_spec("torch") is None:
        return "torch is not installed; pip install torch, for CUDA or ROCm"
    if not gpu_is_here():
        return (
            "no GPU's driver is here; give the container its devices (--gpus, --device=/dev/kfd)"
        )
    return shm_probe(context)
