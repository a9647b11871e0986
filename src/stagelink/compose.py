"""From settings to a running connector: the one place where adapters are wired to the core."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads import Driver, Parts
from stagelink.adapters.wrap import Compression, Integrity, Wrapping
from stagelink.config import load_config
from stagelink.connector import Connector
from stagelink.core.addresses import is_local
from stagelink.core.endpoint import Endpoint
from stagelink.core.errors import ConfigError
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.values import HostCard, Identity, Instance, PlaneCard
from stagelink.gets import Gets
from stagelink.hosts import with_host
from stagelink.metrics import figures_of
from stagelink.plugins import BackendContext, Manager
from stagelink.ports.memory import space_of
from stagelink.puts import Puts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.config import Config
    from stagelink.plugins import Backend
    from stagelink.ports import ControlChannel, DataPlane, Liveness, Memory, Serializer

REGION = 1
"""The region id of a connector's pool; region ids are unique within an instance."""


def compose(settings: Mapping[str, Any], manager: Manager | None = None) -> Connector:
    """Build the connector that *settings* describe; nothing is left behind when it cannot be.

    *manager* knows the plugins; None: ours and the installed ones.

    Raises:
        ConfigError, CapacityError, TransportError: as :func:`stagelink.open`.
    """
    config = with_host(load_config(settings))
    manager = manager or Manager()
    context = BackendContext(secrets.token_bytes(16), config)
    chosen = manager.choose(config.backend, context)
    wrapping = _wrapping(config, manager)
    halves = _halves(config)
    with ExitStack() as undo:
        codecs = wrapping.compression.names
        parts = _parts(manager, context, chosen, codecs, undo)
        serializer = _serializer(config, manager, parts.memory)
        driver = Driver(parts)
        undo.pop_all()
    driver.log.debug(
        "connector_opened", role=config.role, link=driver.parts.channel.address,
        instance=context.instance.hex(), backends=[backend.name for backend in chosen],
    )  # fmt: skip
    if _is_open_to_others(config, driver.parts.channel.address):
        driver.log.warning(
            "unprotected_bind", link=driver.parts.channel.address,
            cause="whoever reaches the port can get, and nothing is encrypted",
            remedy="set security='curve' and keys=, or bind a loopback address",
        )  # fmt: skip
    driver.exchange.inspections.figures = partial(figures_of, config, driver, wrapping)
    connector = Connector(config, driver, serializer, wrapping, halves)
    if config.dialect:
        try:
            connector.speak(serializer, wrapping, REGION)
        except BaseException:
            connector.close()
            raise
    return connector


def check(settings: Mapping[str, Any], manager: Manager | None = None) -> tuple[str, ...]:
    """The backends that would serve a connector of *settings*; nothing is opened.

    Raises:
        ConfigError: as :func:`stagelink.check`.
    """
    config = load_config(settings)
    manager = manager or Manager()
    context = BackendContext(secrets.token_bytes(16), config)
    return tuple(backend.name for backend in manager.choose(config.backend, context))


def _is_open_to_others(config: Config, address: str) -> bool:
    """Whether other hosts may come in without a key."""
    if config.security != "none" or not address.startswith("tcp://"):
        return False
    shown = address[len("tcp://") :].rpartition(":")[0]
    bound = shown if config.advertise_host is None else config.host  # a name is told resolved
    return not is_local(bound.strip("[]"))


def _halves(config: Config) -> tuple[type[Puts], type[Gets]]:
    """Who performs puts and gets: without tracing nothing of it is even imported."""
    if not config.tracing:
        return Puts, Gets
    try:
        from stagelink.tracing import TracedGets, TracedPuts  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = f"tracing needs opentelemetry-api: {error}"
        raise ConfigError(msg, remedy="pip install 'stagelink[otel]'") from error
    return TracedPuts, TracedGets


def _serializer(config: Config, manager: Manager, memory: Memory) -> Serializer:
    """That of the pool's kind of memory; what cannot be had on a device is refused.

    Raises:
        ConfigError: digests, compression and trace contexts need every byte on the host.
    """
    codecs = manager.codecs.values()
    space = space_of(memory)
    if space is None:
        return PayloadSerializer(readonly_views=config.readonly_views, codecs=codecs)
    for name in ("integrity", "compression", "tracing"):
        if getattr(config, name):
            msg = f"setting {name!r} is {getattr(config, name)!r}, and the pool lies on a device"
            raise ConfigError(msg, remedy="leave it out, or use a backend with a host pool")
    from stagelink.adapters.msgspec.device import DeviceSerializer  # noqa: PLC0415 - few need it

    return DeviceSerializer(space, readonly_views=config.readonly_views, codecs=codecs)


def _wrapping(config: Config, manager: Manager) -> Wrapping:
    """What is put around payloads; whatever is missing for it is found out here."""
    for name in config.compression.values():
        manager.compressor(name)
    known = manager.working_compressors()
    compression = Compression(config.compression, known, config.decompress_limit)
    return Wrapping(Integrity(config.integrity), compression)


def _parts(
    manager: Manager, context: BackendContext, chosen: list[Backend], codecs: tuple[str, ...],
    undo: ExitStack,
) -> Parts:  # fmt: skip
    """Every adapter of one connector, each closed by *undo* until all of them stand."""
    first, config = chosen[0], context.config
    liveness: Liveness = manager.build(first.liveness, context)
    undo.callback(liveness.close)
    memory: Memory = manager.build(first.provider, context).allocate(config.pool_bytes)
    undo.callback(memory.close)
    channel: ControlChannel = manager.channel(first.channel, context)
    undo.callback(channel.close)
    for address in (*filter(None, [channel.address]), *config.addresses):
        channel.check(address)
    planes: dict[str, DataPlane] = {}
    for backend in chosen:
        plane: DataPlane = manager.build(backend.plane, context)
        undo.callback(plane.close)
        plane.register(REGION, memory)
        planes[backend.name] = plane
    endpoint = _endpoint(config, context.instance, liveness, planes, codecs)
    log = Log(stage=config.stage)
    return Parts(endpoint, channel, WireCodec(), planes, memory, liveness, log)


def _endpoint(
    config: Config, instance: Instance, liveness: Liveness, planes: dict[str, DataPlane],
    codecs: tuple[str, ...],
) -> Endpoint:  # fmt: skip
    own = tuple(
        OwnPlane(
            PlaneCard(name, plane.capabilities.mode, plane.describe()),
            plane.capabilities.crosses_hosts,
        )
        for name, plane in planes.items()
    )
    # Cutting off a living peer takes views from nobody only where it wrote into our pool.
    told = [plane.capabilities for plane in planes.values()]
    can_fence = all(one.can_fence and one.mode == "write" for one in told)
    far = [one.can_fence and one.mode == "write" for one in told if one.crosses_hosts]
    settings = Settings(
        instance=instance,
        identity=Identity(config.stage, config.replica, config.rank),
        host=HostCard(liveness.host, liveness.proof),
        planes=own,
        policy=config.policy,
        inline_bytes=config.inline_bytes,
        max_writes=config.max_writes,
        session_base=int.from_bytes(instance[:5], "big") << 16,
        can_fence=can_fence,
        can_fence_far=bool(far) and all(far),
        codecs=codecs,
        peer_share=config.peer_share,
        credit_share=config.credit_share if config.credits else 0.0,
    )
    pool = Pool(
        config.pool_bytes, config.alignment, config.send_share, config.receive_share, REGION
    )
    return Endpoint(settings, pool)
