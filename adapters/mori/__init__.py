"""AMD's Mori: data planes over its IOEngine, by XGMI between GPUs of a host and by RDMA.

Nothing here imports ``mori`` before a plane is made; :mod:`stagelink.adapters.mori.library` does.
"""

from stagelink.adapters.mori.memory import DeviceMemoryProvider, PinnedMemoryProvider
from stagelink.adapters.mori.options import RdmaOptions, XgmiOptions
from stagelink.adapters.mori.plane import MoriPlane, rdma_plane, xgmi_plane
from stagelink.adapters.mori.probe import rdma_problem, xgmi_problem

__all__ = [
    "DeviceMemoryProvider", "MoriPlane", "PinnedMemoryProvider", "RdmaOptions", "XgmiOptions",
    "rdma_plane", "rdma_problem", "xgmi_plane", "xgmi_problem",
]  # fmt: skip
