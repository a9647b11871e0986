"""Ends of both planes on the real engine; another process can import this and make one."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from stagelink.adapters.mori import (
    DeviceMemoryProvider,
    PinnedMemoryProvider,
    RdmaOptions,
    rdma_plane,
    xgmi_plane,
)
from stagelink.core.errors import StagelinkError
from stagelink.plugins.conformance.meeting import REGION
from stagelink.plugins.conformance.plane import Party


def on_gpu(device: str, size: int) -> Party:
    """A party in the memory of a GPU."""
    instance = secrets.token_bytes(16)
    return Party(instance, xgmi_plane(instance), DeviceMemoryProvider(device).allocate(size))


on_xgmi = partial(on_gpu, "cuda:0")
on_xgmi_next_door = partial(on_gpu, "cuda:1")


def on_rdma(size: int, **options: Any) -> Party:
    """A party in the memory of the host."""
    instance = secrets.token_bytes(16)
    plane = rdma_plane(instance, RdmaOptions(**options))
    return Party(instance, plane, PinnedMemoryProvider().allocate(size))


class Stranger:
    """A party in a process of its own, which says what went wrong instead of raising it."""

    def __init__(self, make: Any, size: int) -> None:
        self._party: Party = make(size)
        self._party.plane.register(REGION, self._party.memory)

    def introduce(self) -> tuple[bytes, bytes]:
        """Its instance and its description."""
        return self._party.instance, self._party.plane.describe()

    def attach(self, peer: bytes, descriptor: bytes) -> str:
        """Know *peer*; empty, or why not."""
        try:
            self._party.plane.attach(peer, descriptor)
        except StagelinkError as error:
            return str(error)
        return ""

    def holds(self, byte: int, offset: int, size: int) -> bool:
        """Whether so many bytes from *offset* on are all *byte*."""
        return bytes(self._party.memory.buffer[offset : offset + size]) == bytes([byte]) * size
