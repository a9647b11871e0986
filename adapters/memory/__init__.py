"""Everything within one process: the reference, as strict as what runs between processes."""

from stagelink.adapters.memory.channel import MemoryChannel
from stagelink.adapters.memory.faults import Faults, WriteFault
from stagelink.adapters.memory.foreign import Engine
from stagelink.adapters.memory.hub import Hub
from stagelink.adapters.memory.liveness import HubLiveness
from stagelink.adapters.memory.plane_map import MemoryMapPlane
from stagelink.adapters.memory.plane_write import MemoryWritePlane
from stagelink.adapters.memory.provider import PrivateMemory, PrivateMemoryProvider

__all__ = [
    "Engine", "Faults", "Hub", "HubLiveness", "MemoryChannel", "MemoryMapPlane",
    "MemoryWritePlane", "PrivateMemory", "PrivateMemoryProvider", "WriteFault",
]  # fmt: skip
