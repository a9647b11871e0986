"""Which of our addresses others are told to dial, chosen from a table of interfaces.

An explicit setting wins. Else it is loopback while every known peer is on this host, or none is
known; else the address from which the route to the peers leaves. Interfaces that lead to no
neighbour (tunnels, bridges of containers, link-local addresses) are never chosen in silence, and
every interface at once never is.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Address

AUTO = "auto"
LOOPBACK = "127.0.0.1"

_INDIRECT = ("tun", "tap", "wg", "docker", "br-", "veth", "virbr", "tailscale", "zt", "cni", "ppp")
"""What the names of tunnels, VPNs and bridges of containers begin with."""


class Interface(NamedTuple):
    """One address of one interface; ``up`` says that it is in use."""

    name: str
    address: str
    up: bool = True


class Peer(NamedTuple):
    """A peer as configured: its host, resolved, and the address our route to it leaves from.

    Either is empty when it is not known: the name has no address, there is no route.
    """

    host: str
    address: str
    leaves_from: str


class Candidate(NamedTuple):
    """One address that was considered; ``objection`` is empty if it can be told to others."""

    interface: str
    address: str
    objection: str


class Choice(NamedTuple):
    """The address to bind, why, and all that were considered."""

    host: str
    reason: str
    candidates: tuple[Candidate, ...]


def choose_host(
    setting: str, interfaces: Iterable[Interface], peers: Sequence[Peer] = ()
) -> Choice:
    """The address that others shall dial.

    Args:
        setting: an address or name, taken as it is, or ``auto``.
        interfaces: those of this host, one row an address.
        peers: those that are known beforehand.

    Raises:
        ConfigError: a peer is on another host, and no address of ours leads to it.
    """
    table = tuple(interfaces)
    candidates = tuple(
        Candidate(row.name, row.address, objection_to(row.name, row.address, up=row.up))
        for row in table
    )
    if setting != AUTO:
        return Choice(setting, "as configured", candidates)
    ours = {row.address for row in table}
    remote = [peer for peer in peers if not is_local(peer.address, ours)]
    if not remote:
        reason = "every known peer is on this host" if peers else "no peer is known yet"
        return Choice(LOOPBACK, reason, candidates)
    return Choice(*_towards(remote, candidates), candidates)


def is_local(address: str, ours: Iterable[str] = ()) -> bool:
    """Whether *address* is of this host: loopback, or one of *ours*."""
    found = _literal(address)
    return address in ours or (found is not None and found.is_loopback)


def objection_to(interface: str, address: str, *, up: bool = True) -> str:
    """What speaks against telling other hosts to dial *address*; empty if nothing does."""
    found = _literal(address)
    if found is None:
        return "no address"
    objections = (
        (found.is_unspecified, "wildcard: every interface"),
        (found.is_loopback, "loopback: this host only"),
        (found.is_link_local, "link-local"),
        (found.is_multicast, "multicast"),
        (interface.startswith(_INDIRECT), f"{interface} is a tunnel or a bridge of containers"),
        (not up, "down"),
    )
    return next((words for holds, words in objections if holds), "")


def _towards(remote: list[Peer], candidates: tuple[Candidate, ...]) -> tuple[str, str]:
    """The one address from which the routes to all *remote* peers leave, and why."""
    known = {row.address: row for row in candidates}
    for peer in remote:
        row = known.get(peer.leaves_from)
        objection = "there is no route" if row is None else row.objection
        if objection:
            msg = f"no address of ours can be told to {peer.host}: {_source(peer)}{objection}"
            raise ConfigError(msg, remedy=_remedy(candidates))
    leaving = {peer.leaves_from: peer.host for peer in remote}
    if len(leaving) > 1:
        said = ", ".join(f"{host} from {address}" for address, host in sorted(leaving.items()))
        msg = f"the known peers are reached from different addresses: {said}"
        raise ConfigError(msg, remedy=_remedy(candidates))
    address, host = next(iter(leaving.items()))
    return address, f"the route to {host} leaves from {known[address].interface}"


def _source(peer: Peer) -> str:
    return f"the route leaves from {peer.leaves_from}, " if peer.leaves_from else ""


def _remedy(candidates: tuple[Candidate, ...]) -> str:
    usable = [f"{row.address} ({row.interface})" for row in candidates if not row.objection]
    return f"set host to the address that peers can dial; here: {', '.join(usable) or 'none'}"


def _literal(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address)
    except ValueError:
        return None
    inner = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return inner or found
