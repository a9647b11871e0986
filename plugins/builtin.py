"""Our own backends, registered through the same hooks as anybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.addresses import is_local
from stagelink.plugins.hookspecs import Backend, ChannelKind, hookimpl

if TYPE_CHECKING:
    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.config import Config
    from stagelink.plugins.hookspecs import BackendContext
    from stagelink.ports import ControlChannel, DataPlane, Liveness, MemoryProvider

_HERE = "stagelink.plugins.builtin:"
_DEVICES = "stagelink.plugins.devices:"
_MORI = "stagelink.plugins.mori:"


@hookimpl
def stagelink_backends() -> list[Backend]:
    """Shared memory and the in-process reference in both modes, TCP, GPUs, Mori's two fabrics."""
    shm = (_HERE + "shm_provider", _HERE + "shm_liveness", _HERE + "shm_probe")
    memory = (_HERE + "memory_provider", _HERE + "memory_liveness")
    return [
        Backend(
            "shm", "one host: readers map the sender's pages", "zmq",
            shm[0], _HERE + "shm_map", shm[1], shm[2], rank=20,
        ),
        Backend(
            "shm-write", "one host: senders copy into the reader's pool", "zmq",
            shm[0], _HERE + "shm_write", shm[1], shm[2], rank=10,
        ),
        Backend(
            "frames", "many hosts: senders copy into the reader's pool, over TCP", "zmq",
            shm[0], _HERE + "frames", shm[1], _HERE + "frames_probe", rank=5,
        ),
        Backend(
            "memory", "one process: readers map the sender's pages", "memory",
            memory[0], _HERE + "memory_map", memory[1],
        ),
        Backend(
            "memory-write", "one process: senders copy into the reader's pool", "memory",
            memory[0], _HERE + "memory_write", memory[1],
        ),
        Backend(
            "device_ipc", "one host: readers map the sender's pool on its GPU", "zmq",
            _DEVICES + "provider", _DEVICES + "ipc", shm[1], _DEVICES + "probe",
        ),
        Backend(
            "mori-xgmi", "one host: GPUs write into the reader's GPU, by AMD's Mori", "zmq",
            _MORI + "xgmi_provider", _MORI + "xgmi", _HERE + "shm_liveness",
            _MORI + "xgmi_probe",
        ),
        Backend(
            "mori-rdma", "many hosts: NICs write into the reader's pool, by AMD's Mori", "zmq",
            _MORI + "rdma_provider", _MORI + "rdma", _HERE + "shm_liveness",
            _MORI + "rdma_probe",
        ),
    ]  # fmt: skip


@hookimpl
def stagelink_channels() -> list[ChannelKind]:
    """ZeroMQ between processes, queues within one."""
    return [
        ChannelKind(
            "zmq", "ZeroMQ, and Unix sockets within one host", _HERE + "zmq_channel",
            security=("none", "curve"),
        ),
        ChannelKind("memory", "queues of one process", _HERE + "memory_channel"),
    ]  # fmt: skip


def zmq_channel(context: BackendContext) -> ControlChannel:
    """Bound unless the connector only receives: nobody dials a receiver."""
    from stagelink.adapters.local import LocalChannel  # noqa: PLC0415
    from stagelink.adapters.zmq.channel import ZmqChannel  # noqa: PLC0415

    config = context.config
    keyring = keyring_of(config)
    largest = config.eager_limit + (128 << 10)
    channel = ZmqChannel(
        None if config.role == "receiver" or config.ipc is not None else config.host,
        config.zmq_port,
        ipc=config.ipc,
        advertise=config.advertise_host,
        allow_wildcard=config.allow_wildcard,
        max_frame_bytes=largest,
        heartbeat_timeout_s=config.policy.silence_s,
        heartbeat_interval_s=config.policy.silence_s / 3,
        keyring=keyring,
    )
    if keyring is not None or not config.shortcut:
        return channel  # Unix sockets ask for the same user and for no key: no way around the list
    return LocalChannel(channel, longest=largest)


def keyring_of(config: Config) -> Keyring | None:
    """The keys that *config* names; None without ``security="curve"``.

    Raises:
        ConfigError: a key file is missing, malformed, or open to others.
    """
    if config.security != "curve":
        return None
    from stagelink.adapters.zmq.keyring import read_keyring  # noqa: PLC0415

    assert config.keys is not None, "checked where it entered"
    stages = {address: stage for stage, address in config.senders.items()}
    return read_keyring(config.keys, stages, config.server_key)


def shm_provider(context: BackendContext) -> MemoryProvider:
    """Segments of the mount."""
    from stagelink.adapters.shm import SharedMemoryProvider  # noqa: PLC0415

    return SharedMemoryProvider(context.instance, context.config.shm_dir)


def shm_liveness(context: BackendContext) -> Liveness:
    """A lock file where the segments are; what dead connectors left there is removed first."""
    from stagelink.adapters.shm import LockLiveness, sweep  # noqa: PLC0415

    sweep(context.config.shm_dir)
    return LockLiveness(context.instance, context.config.shm_dir)


def shm_map(context: BackendContext) -> DataPlane:
    """Readers map."""
    from stagelink.adapters.shm import ShmMapPlane  # noqa: PLC0415

    return ShmMapPlane(context.config.shm_dir)


def shm_write(context: BackendContext) -> DataPlane:
    """Senders write."""
    from stagelink.adapters.shm import ShmWritePlane  # noqa: PLC0415

    return ShmWritePlane(context.config.shm_dir)


def shm_probe(context: BackendContext) -> str:
    """Whether the shared-memory directory can be used."""
    import os  # noqa: PLC0415

    directory = context.config.shm_dir
    if os.access(directory, os.W_OK | os.X_OK):
        return ""
    return f"{directory} is not writable; mount a tmpfs there, or set shm_dir"


def frames(context: BackendContext) -> DataPlane:
    """Senders write over TCP; who only sends listens nowhere.

    Under ``auto`` nobody may ever need it: then peers are told why it cannot listen.
    """
    from stagelink.adapters.frames import FramesPlane, Place  # noqa: PLC0415
    from stagelink.adapters.structlog import Log  # noqa: PLC0415

    config = context.config
    if config.role == "receiver" and not is_local(config.host):
        Log(stage=config.stage).warning(
            "unprotected_bind", link=f"tcp://{config.host}",
            cause="senders write payloads there, and nothing is encrypted",
            remedy="set host='127.0.0.1' unless senders are on other hosts of a trusted network",
        )  # fmt: skip
    place = Place(config.host, config.advertise_host, config.allow_wildcard)
    return FramesPlane(
        context.instance,
        None if config.role == "sender" else place,
        strict=config.backend == "frames",
    )


def frames_probe(context: BackendContext) -> str:
    """Whether bytes may go in clear, and there is a place for the pool."""
    if context.config.security != "none":
        return (
            f"security={context.config.security!r} encrypts the control channel, and frames would "
            "send payloads in clear; leave it out on a network that you trust, or encrypt below it"
        )
    return shm_probe(context)


def memory_channel(context: BackendContext) -> ControlChannel:
    """Listens under a name of its own."""
    from stagelink.adapters.memory import MemoryChannel  # noqa: PLC0415

    return MemoryChannel(instance=context.instance)


def memory_provider(context: BackendContext) -> MemoryProvider:
    """Anonymous memory."""
    from stagelink.adapters.memory import PrivateMemoryProvider  # noqa: PLC0415

    del context
    return PrivateMemoryProvider()


def memory_liveness(context: BackendContext) -> Liveness:
    """The hub knows who has closed."""
    from stagelink.adapters.memory import HubLiveness  # noqa: PLC0415

    return HubLiveness(context.instance)


def memory_map(context: BackendContext) -> DataPlane:
    """Readers map."""
    from stagelink.adapters.memory import MemoryMapPlane  # noqa: PLC0415

    return MemoryMapPlane(context.instance)


def memory_write(context: BackendContext) -> DataPlane:
    """Senders write."""
    from stagelink.adapters.memory import MemoryWritePlane  # noqa: PLC0415

    return MemoryWritePlane(context.instance)
