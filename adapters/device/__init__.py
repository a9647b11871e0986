"""Pools in the memory of a GPU, whose tensors are torch's; CUDA and HIP alike."""

from stagelink.adapters.device.ipc import RuntimeIpc
from stagelink.adapters.device.pool import DevicePool, DevicePoolProvider
from stagelink.adapters.device.runtime import Runtime
from stagelink.adapters.device.space import Space, find_device, kind_of
from stagelink.adapters.device.streams import TorchStreams

__all__ = [
    "DevicePool", "DevicePoolProvider", "Runtime", "RuntimeIpc", "Space", "TorchStreams",
    "find_device", "kind_of",
]  # fmt: skip
