"""Can a connector of this configuration work here? All checks, in the order of their causes."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stagelink import hosts
from stagelink.adapters.zmq.address import check_ipc_is_free, ipc_url, is_wildcard, resolve_host
from stagelink.config import load_config
from stagelink.core.addresses import AUTO, Choice, is_local
from stagelink.core.errors import ConfigError, PeerError, Reason, StagelinkError
from stagelink.inspect import amd, host
from stagelink.inspect.backends import capabilities_of
from stagelink.inspect.checks import Check
from stagelink.inspect.client import Onlooker
from stagelink.inspect.memory import shared_memory
from stagelink.inspect.transfer import transfer_to_ourselves
from stagelink.plugins import BackendContext, Manager
from stagelink.plugins.builtin import keyring_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.config import Config
    from stagelink.ports.plane import Capabilities

PEER_S = 3.0
SHARED = "host-shared"


class Chosen(NamedTuple):
    """The backends that a configuration stands for, with what their planes say of themselves."""

    names: list[str]
    channel: str
    planes: list[Capabilities]


def examine(
    settings: Mapping[str, Any], *, peer: str | None = None, ask_torch: bool = False
) -> Iterator[Check]:
    """Every check, as soon as it is done.

    Args:
        settings: of :class:`stagelink.config.Config`; ``stage`` and ``role`` may be left out.
        peer: the endpoint of a connector that must be reachable.
        ask_torch: load torch and Mori, each in a process of its own, to see the GPUs.
    """
    yield from host.versions()
    yield from (host.open_files(), host.clock())
    yield from (host.gpus(ask_torch=ask_torch), host.rdma())
    wanted = str(settings.get("backend", "")).startswith("mori")
    yield from amd.checks(os.environ, wanted=wanted, ask=ask_torch)
    try:
        config = load_config(_complete(settings, peer))
    except StagelinkError as error:
        yield Check("configuration", False, error.message, error.remedy)
        return
    yield Check("configuration", True, f"{config.role}, backend {config.backend}")
    keys = check_keys(config)
    yield keys
    if keys.ok is not False:
        yield from _of_config(config, peer)


def _complete(settings: Mapping[str, Any], peer: str | None) -> dict[str, Any]:
    """Name ourselves, and count *peer* among the senders unless some are configured."""
    known = {"stage": "doctor", "role": "peer", **settings}
    if peer is not None and not known.get("sender") and not known.get("senders"):
        known["sender"] = peer
    return known


def _of_config(config: Config, peer: str | None) -> Iterator[Check]:
    chosen, check = choose_backend(config)
    yield check
    if chosen is not None:
        if any(plane.memory_kind == SHARED for plane in chosen.planes):
            yield from shared_memory(config.shm_dir, config.pool_bytes)
        # NICs need the pool locked; frames, over shared memory too, goes by the kernel's sockets.
        nics = any(one.crosses_hosts and one.memory_kind != SHARED for one in chosen.planes)
        yield host.locked_memory(needed=config.pool_bytes if nics else 0)
    address = check_address(config)
    yield address
    if address.ok is not False and (chosen is None or chosen.channel == "zmq"):
        yield check_port(hosts.with_host(config))
    if chosen is not None and address.ok is not False:
        yield transfer_to_ourselves(config)
    if peer is not None:
        names = [] if chosen is None else chosen.names
        yield check_peer(peer, names, keyring=keyring_of(config))


def check_keys(config: Config) -> Check:
    """The key files, or who may come in without them."""
    name = "keys"
    try:
        keyring = keyring_of(config)
    except StagelinkError as error:
        return Check(name, False, error.message, error.remedy)
    if keyring is not None:
        return Check(name, True, f"we are {keyring.name}; {len(keyring.allowed)} keys are let in")
    if config.role == "receiver" or config.ipc is not None or is_local(config.host):
        return Check(name, None, "none: security is off")
    remedy = "set security='curve' and keys= (stagelink keygen), unless you trust that network"
    return Check(name, None, f"none: whoever reaches {config.host} may come in", remedy)


def choose_backend(config: Config) -> tuple[Chosen | None, Check]:
    """What ``backend=`` stands for here; None if it cannot work."""
    try:
        manager = Manager()
        context = BackendContext(secrets.token_bytes(16), config)
        backends = manager.choose(config.backend, context)
        found = [capabilities_of(manager, backend, context) for backend in backends]
    except StagelinkError as error:
        return None, Check("backend", False, error.message, error.remedy)
    except Exception as error:  # noqa: BLE001 - a plugin is anybody's code
        return None, Check("backend", False, f"{type(error).__name__}: {error}")
    names = [backend.name for backend in backends]
    planes = [plane for plane in found if plane is not None]
    said = ", ".join(names) if config.backend != AUTO else f"auto takes {', '.join(names)}"
    return Chosen(names, backends[0].channel, planes), Check("backend", True, said)


def check_address(config: Config) -> Check:
    """The address that others dial, why it is that one, and what else could be."""
    name = "address"
    if config.role == "receiver" or config.ipc is not None:
        return Check(name, None, "none is bound" if config.ipc is None else "a local socket")
    try:
        hosts.with_host(config)  # refuses what must not be told to others
        choice = hosts.pick(config)
    except ConfigError as error:
        return Check(name, False, error.message, error.remedy)
    found = f"{choice.host}: {choice.reason}{_others(choice)}"
    elsewhere = [
        p.host for p in hosts.known_peers(config) if not is_local(p.address, _ours(choice))
    ]
    shown = config.advertise_host or choice.host
    if elsewhere and is_local(shown):
        remedy = "readers on other hosts cannot dial it; set host='auto' if there are any"
        return Check(name, None, found, remedy)
    return Check(name, True, found)


def _ours(choice: Choice) -> set[str]:
    return {row.address for row in choice.candidates}


def _others(choice: Choice) -> str:
    """The addresses of this host that could be told to others too."""
    usable = [f"{row.address} ({row.interface})" for row in choice.candidates if not row.objection]
    return f"; could be told to others: {', '.join(usable) or 'none'}"


def check_port(config: Config) -> Check:
    """Whether what the configuration binds can be bound now."""
    name = "port"
    if config.role == "receiver":
        return Check(name, None, "a receiver binds none")
    try:
        if config.ipc is not None:
            check_ipc_is_free(ipc_url(config.ipc))
            return Check(name, True, f"{config.ipc} is free")
        literal = resolve_host(config.host)
        if is_wildcard(literal) and not (config.allow_wildcard and config.advertise_host):
            remedy = "bind one address, or set allow_wildcard and advertise_host"
            return Check(name, False, f"{config.host} is every interface", remedy)
        return Check(name, True, _bound(literal, config.zmq_port))
    except StagelinkError as error:
        return Check(name, False, error.message, error.remedy)
    except OSError as error:
        remedy = "take another port, 0 for any free one, or an address of this host"
        return Check(name, False, f"{config.host}:{config.zmq_port}: {error.strerror}", remedy)


def _bound(literal: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in literal else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does
        probe.bind((literal, port))
        probe.listen(1)
        taken = probe.getsockname()[1]
    return f"{literal}:{port} can be bound" if port else f"any free one, for example {taken}"


def check_peer(
    endpoint: str, ours: list[str], timeout_s: float = PEER_S, keyring: Keyring | None = None
) -> Check:
    """Whether the connector at *endpoint* answers, and shares a backend with *ours*."""
    name = f"peer {endpoint}"
    try:
        with Onlooker(endpoint, keyring=keyring) as onlooker:
            health = onlooker.look(timeout_s)
    except PeerError as error:
        ok = None if error.reason is Reason.DECLINED else False
        return Check(name, ok, error.message, error.remedy)
    except StagelinkError as error:
        return Check(name, False, error.message, error.remedy)
    theirs = health.get("backends")
    theirs = list(map(str, theirs)) if isinstance(theirs, list) else []
    found = f"{health.get('stage')} ({health.get('role')}), {health.get('status')}"
    if ours and theirs and not set(ours) & set(theirs):
        said = f"{found}; it has {', '.join(theirs)}, we {', '.join(ours)}"
        return Check(name, False, said, "open both with the same backend")
    return Check(name, True, f"{found}, {', '.join(theirs)}")


def read_settings(data: bytes, suffix: str) -> dict[str, Any]:
    """The settings in a file of that *suffix*: ``.json``, ``.toml``, ``.yaml`` or ``.yml``.

    Raises:
        ConfigError: it is none of them, malformed, no table, or its reader is not installed.
    """
    readers = {
        ".json": msgspec.json.decode,
        ".toml": msgspec.toml.decode,
        ".yaml": msgspec.yaml.decode,
        ".yml": msgspec.yaml.decode,
    }
    reader = readers.get(suffix)
    if reader is None:
        msg = f"a configuration file ends in {', '.join(readers)}, not in {suffix!r}"
        raise ConfigError(msg)
    try:
        found = reader(data)
    except msgspec.DecodeError as error:
        msg = f"the configuration file is malformed: {error}"
        raise ConfigError(msg) from error
    except ImportError as error:
        msg = f"a {suffix} file cannot be read here: {error}"
        raise ConfigError(msg, remedy="use a .json file") from error
    if not isinstance(found, dict):
        msg = f"the configuration file holds a {type(found).__name__}, not settings by name"
        raise ConfigError(msg)
    return found
