"""Whether a plane can work here, and if not, why and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.mori import hip
from stagelink.adapters.mori.fabric import choose
from stagelink.adapters.mori.library import load
from stagelink.adapters.mori.memory import HOST
from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from stagelink.adapters.mori.options import RdmaOptions


def xgmi_problem(device: str) -> str:
    """Why no XGMI plane can be made with a pool on *device*; empty if it can."""
    try:
        load()
        hip.device_of(device, hip.load())
    except StagelinkError as error:
        return str(error)
    except hip.HipError as error:
        return f"{error}; see `rocminfo`"
    return ""


def rdma_problem(options: RdmaOptions) -> str:
    """Why no RDMA plane can be made; empty if it can."""
    try:
        load()
        choose(options, HOST)
    except StagelinkError as error:
        return str(error)
    return ""
