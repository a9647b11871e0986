"""Ends of both planes on the real engine; another process can import this and make one."""

from __future__ import annotations

import secrets
from typing import Any

from stagelink.adapters.mori import (
    DeviceMemoryProvider,
    PinnedMemoryProvider,
    RdmaOptions,
    rdma_plane,
    xgmi_plane,
)
from stagelink.plugins.conformance.plane import Party


def on_xgmi(size: int) -> Party:
    """A party in the memory of the first GPU."""
    instance = secrets.token_bytes(16)
    return Party(instance, xgmi_plane(instance), DeviceMemoryProvider("cuda:0").allocate(size))


def on_xgmi_next_door(size: int) -> Party:
    """A party in the memory of the second GPU."""
    instance = secrets.token_bytes(16)
    return Party(instance, xgmi_plane(instance), DeviceMemoryProvider("cuda:1").allocate(size))


def on_rdma(size: int, **options: Any) -> Party:
    """A party in the memory of the host."""
    instance = secrets.token_bytes(16)
    plane = rdma_plane(instance, RdmaOptions(**options))
    return Party(instance, plane, PinnedMemoryProvider().allocate(size))
