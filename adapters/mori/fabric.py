"""What differs between XGMI and RDMA: how an engine is made, for which memory, and what it can."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from stagelink.adapters.mori import hip, verbs
from stagelink.adapters.mori.library import load
from stagelink.adapters.mori.memory import DEVICE, HOST, TAIL
from stagelink.core.errors import ConfigError, Reason, TransportError, translating
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.mori.memory import MoriMemory
    from stagelink.adapters.mori.options import RdmaOptions, XgmiOptions

_ENVIRONMENT = Lock()
"""Mori reads some settings from the environment only, when a backend is made."""


class XgmiFabric:
    """GPUs of one host. A process that has our memory open cannot be kept from writing to it."""

    name = "xgmi"
    kind = DEVICE
    notifies = False
    breaks = False
    inline_bytes = 64 << 10
    capabilities = Capabilities(
        mode="write", memory_kind=DEVICE, crosses_hosts=False, survives_owner=False,
        can_fence=False,
    )  # fmt: skip

    def __init__(self, options: XgmiOptions) -> None:
        self.library = load()
        self.location = self.library.MemoryLocationType.GPU
        self._options = options

    def open(self, key: str) -> Any:  # noqa: ANN401 - mori.io.IOEngine
        """An engine called *key*, its backend made.

        Raises:
            TransportError: Mori cannot make it; says why.
        """
        mori = self.library
        with translating(Exception, "Mori: no XGMI engine", "see `rocm-smi`, and /dev/kfd"):
            engine = mori.IOEngine(key, mori.IOEngineConfig("", 0))
            config = mori.XgmiBackendConfig(self._options.num_streams, self._options.num_events)
            engine.create_backend(mori.BackendType.XGMI, config)
        return engine

    def shut(self, engine: Any) -> None:  # noqa: ANN401 - mori.io.IOEngine
        """Let the engine's mappings go; it has no session any more."""
        engine.remove_backend(self.library.BackendType.XGMI)

    def admit(self, memory: MoriMemory) -> None:
        """Any memory of a GPU will do."""

    def check(self, memory: Any) -> str:  # noqa: ANN401 - mori.io.MemoryDesc
        """What is wrong with a descriptor, ours or a peer's; empty if nothing is."""
        if not memory.device_bus_id or not any(memory.ipc_handle):
            return f"memory {memory.id} has no device, or no handle to open it by"
        return ""

    def settle(self) -> None:
        """After an error: what had been begun of it may still be under way."""
        with suppress(hip.HipError):  # then the device is lost, and everything on it has ended
            hip.load().settle()


class RdmaFabric:
    """NICs. A failed transfer leaves its queue pairs useless: a new connection is needed."""

    name = "rdma"
    breaks = True
    inline_bytes = 0

    def __init__(self, options: RdmaOptions, kind: str) -> None:
        self.library = load()
        places = self.library.MemoryLocationType
        self.kind = kind
        self.location = places.CPU if kind == HOST else places.GPU
        self.notifies = options.enable_notification
        self.capabilities = Capabilities(
            mode="write", memory_kind=kind, crosses_hosts=True, survives_owner=False,
            can_fence=True,
        )  # fmt: skip
        self._options = options
        self.devices = choose(options, kind)

    def open(self, key: str) -> Any:  # noqa: ANN401 - mori.io.IOEngine
        """An engine called *key*, its backend made; it listens for peers that connect.

        Raises:
            TransportError: Mori cannot make it; says why.
        """
        mori, options = self.library, self._options
        mode = mori.PollCqMode.EVENT if options.event_mode else mori.PollCqMode.POLLING
        config = mori.RdmaBackendConfig(
            qp_per_transfer=options.qp_per_transfer,
            post_batch_size=options.post_batch_size,
            num_worker_threads=options.num_worker_threads,
            poll_cq_mode=mode,
            enable_notification=options.enable_notification,
            enable_transfer_chunking=options.enable_transfer_chunking,
            chunk_bytes=options.chunk_bytes,
            max_chunks_per_transfer=options.max_chunks_per_transfer,
            num_nics_per_transfer=options.num_nics_per_transfer,
        )
        # Memory of a GPU would else go by XGMI within a host: a name is strict.
        wanted = {"MORI_DISABLE_AUTO_XGMI": "1", "MORI_RDMA_DEVICES": ",".join(self.devices)}
        remedy = "see `ibv_devinfo`, and `ulimit -l`"
        with translating(Exception, "Mori: no RDMA engine", remedy), _environment(wanted):
            engine = mori.IOEngine(key, mori.IOEngineConfig(options.host, 0))
            engine.create_backend(mori.BackendType.RDMA, config)
        return engine

    def shut(self, engine: Any) -> None:  # noqa: ANN401 - mori.io.IOEngine
        """Destroy the queue pairs and registrations; it has no session any more."""
        engine.remove_backend(self.library.BackendType.RDMA)

    def admit(self, memory: MoriMemory) -> None:
        """Register *memory* with every NIC and let go again: where Mori cannot, it aborts.

        Raises:
            TransportError: a NIC refuses it, or the limit of locked memory does.
        """
        if memory.kind != HOST:
            return  # it goes by the GPU's driver, which our own verbs know nothing of
        verbs.check_locked(memory.size + TAIL, len(self.devices))
        verbs.try_register(self.devices, memory.address, memory.size + TAIL)

    def check(self, memory: Any) -> str:  # noqa: ANN401 - mori.io.MemoryDesc
        """What is wrong with a descriptor, ours or a peer's; empty if nothing is."""
        del memory
        return ""

    def settle(self) -> None:
        """A completion in error is the end of it."""


def choose(options: RdmaOptions, kind: str) -> list[str]:
    """The NICs to use: those named, else all with an active port; one if several would fail.

    Raises:
        ConfigError: one of those named is not there.
        TransportError: there is none with an active port.
    """
    named = options.device_name or os.environ.get("MORI_RDMA_DEVICES", "")
    found = verbs.devices()
    active = [device.name for device in found if device.active]
    chosen = _chosen(named, active)
    if not chosen and active:
        msg = f"device_name is {named!r}; RDMA devices with an active port: {active}"
        raise ConfigError(msg, remedy="name one of them, or leave it empty")
    if not chosen:
        seen = ", ".join(f"{d.name} ({d.state})" for d in found) or "none"
        msg = f"no RDMA device has an active port; devices: {seen}"
        remedy = "see `ibv_devinfo`; within one host use backend='mori-xgmi' or 'shm'"
        raise TransportError(msg, reason=Reason.UNREACHABLE, remedy=remedy)
    several = options.qp_per_transfer > 1 and options.num_worker_threads > 1
    if several and options.num_nics_per_transfer == 1 and kind == HOST:
        return chosen[:1]  # workers use the first NIC's keys on every NIC
    return chosen


def _chosen(named: str, active: list[str]) -> list[str]:
    """The active devices that *named* lists (or, after ``^``, does not list), as Mori reads it."""
    names = [one.strip() for one in named.lstrip("^").split(",") if one.strip()]
    if named.startswith("^"):
        return [name for name in active if name not in names]
    return [name for name in active if name in names] if names else active


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Have these variables while Mori looks."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
