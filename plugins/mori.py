"""The backends over Mori, from a configuration; nothing loads it before one is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.mori import (
    DeviceMemoryProvider,
    PinnedMemoryProvider,
    RdmaOptions,
    XgmiOptions,
    rdma_plane,
    rdma_problem,
    xgmi_plane,
    xgmi_problem,
)
from stagelink.adapters.structlog import Log
from stagelink.plugins.devices import space_of_torch

if TYPE_CHECKING:
    from stagelink.config import Config
    from stagelink.plugins.hookspecs import BackendContext
    from stagelink.ports import DataPlane, MemoryProvider

CPU = "cpu"


def xgmi_provider(context: BackendContext) -> MemoryProvider:
    """Memory of a GPU."""
    return DeviceMemoryProvider(gpu(context.config), space_of_torch)


def xgmi(context: BackendContext) -> DataPlane:
    """From GPU to GPU."""
    mori = context.config.mori
    if mori.device_name:
        log = Log(stage=context.config.stage)
        log.warning(
            "setting_ignored", cause=f"mori.device_name is {mori.device_name!r}",
            remedy="leave it out: XGMI uses no NIC; or use backend='mori-rdma'",
        )  # fmt: skip
    options = XgmiOptions(mori.xgmi_num_streams, mori.xgmi_num_events)
    return xgmi_plane(context.instance, options)


def xgmi_probe(context: BackendContext) -> str:
    """Whether Mori is there, and a GPU."""
    return xgmi_problem(gpu(context.config))


def rdma_provider(context: BackendContext) -> MemoryProvider:
    """Memory of the host, or of a GPU where that is asked for."""
    device = context.config.mori.memory_pool_device or CPU
    if device == CPU:
        return PinnedMemoryProvider()
    return DeviceMemoryProvider(device, space_of_torch)


def rdma(context: BackendContext) -> DataPlane:
    """From NIC to NIC."""
    config = context.config
    device = config.mori.memory_pool_device or CPU
    return rdma_plane(context.instance, rdma_options(config), on_device=device != CPU)


def rdma_probe(context: BackendContext) -> str:
    """Whether Mori is there, and a NIC with an active port."""
    return rdma_problem(rdma_options(context.config))


def gpu(config: Config) -> str:
    """The device of a pool that must be on one."""
    return str(config.mori.memory_pool_device or config.pool_device)


def rdma_options(config: Config) -> RdmaOptions:
    """What *config* says of RDMA."""
    mori, wild = config.mori, config.host in {"", "*", "0.0.0.0", "::"}  # noqa: S104 - asked, not bound
    return RdmaOptions(
        device_name=mori.device_name,
        host=(config.advertise_host or "") if wild else config.host,
        qp_per_transfer=mori.qp_per_transfer,
        post_batch_size=mori.post_batch_size,
        num_worker_threads=mori.num_worker_threads,
        enable_transfer_chunking=mori.enable_transfer_chunking,
        chunk_bytes=mori.chunk_bytes,
        max_chunks_per_transfer=mori.max_chunks_per_transfer,
        num_nics_per_transfer=mori.num_nics_per_transfer,
        event_mode=mori.poll_cq_mode == "event",
        enable_notification=mori.enable_notification,
    )
