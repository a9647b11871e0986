"""Shared memory of one host: segments, proof of life, and two planes over them."""

from stagelink.adapters.shm.liveness import LockLiveness
from stagelink.adapters.shm.plane_map import ShmMapPlane
from stagelink.adapters.shm.plane_write import ShmWritePlane
from stagelink.adapters.shm.segment import Segment, SharedMemoryProvider, available
from stagelink.adapters.shm.sweep import residue, sweep

__all__ = [
    "LockLiveness", "Segment", "SharedMemoryProvider", "ShmMapPlane", "ShmWritePlane",
    "available", "residue", "sweep",
]  # fmt: skip
