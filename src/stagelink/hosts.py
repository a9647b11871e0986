"""``host="auto"``: the address to bind, chosen before anything is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stagelink.adapters.net import peer_of, read_interfaces
from stagelink.core.addresses import AUTO, LOOPBACK, Choice, Peer, choose_host, is_local
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from stagelink.config import Config

WRITTEN_TO = frozenset(("auto", "frames"))
"""Backends whose senders may dial a receiver."""


def with_host(config: Config) -> Config:
    """*config* with an address in place of ``auto``; any other host is left as it is.

    Raises:
        ConfigError: no address of ours can be told to a known peer.
    """
    if config.host != AUTO:
        return config
    if config.role == "receiver" or config.ipc is not None:
        return msgspec.structs.replace(config, host=_for_bytes(config))
    choice = pick(config)
    _check_advertised(config, choice)
    return msgspec.structs.replace(config, host=choice.host)


def _for_bytes(config: Config) -> str:
    """Where nobody dials the control channel there: only senders that write over TCP come."""
    if config.role == "sender" or config.security != "none" or config.backend not in WRITTEN_TO:
        return LOOPBACK
    try:
        return pick(config).host
    except ConfigError:
        return LOOPBACK


def pick(config: Config) -> Choice:
    """The address for *config*, why, and all that were considered.

    Raises:
        ConfigError: as :func:`with_host`.
    """
    return choose_host(config.host, read_interfaces(), known_peers(config))


def known_peers(config: Config) -> list[Peer]:
    """The configured senders, as far as they are dialled over TCP or a local socket."""
    peers = []
    for address in config.addresses:
        scheme, _, rest = address.partition("://")
        if scheme in {"tcp", "ipc"}:
            host = rest.rpartition(":")[0].strip("[]") if scheme == "tcp" else rest
            peers.append(peer_of(host, socket_file=scheme == "ipc"))
    return peers


def _check_advertised(config: Config, choice: Choice) -> None:
    """Refuse to tell a peer on another host that we are on its own."""
    shown = config.advertise_host
    if shown is None or choice.host == LOOPBACK or not is_local(shown):
        return
    msg = f"advertise_host {shown!r} is loopback, and peers on other hosts would dial themselves"
    raise ConfigError(msg, remedy=f"leave it out, for {choice.host} ({choice.reason})")
