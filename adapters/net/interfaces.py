"""The table of interfaces and the route to a peer, asked of the kernel."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
from ipaddress import ip_address
from pathlib import Path

from stagelink.core.addresses import Interface, Peer

# From linux/sockios.h and linux/if.h; the standard library names neither.
_GET_FLAGS, _GET_ADDRESS = 0x8913, 0x8915
_UP, _RUNNING = 0x1, 0x40
_REQUEST = struct.Struct("16s24s")
_ANY_PORT = 9  # the port does not matter to a route; 9 is "discard"


def read_interfaces() -> list[Interface]:
    """One row for the first IPv4 address and for every IPv6 address of each interface."""
    names = [name for _, name in socket.if_nameindex()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        up = {name: _is_up(probe, name) for name in names}
        rows = [
            Interface(name, address, up[name])
            for name in names
            if (address := _ipv4_of(probe, name))
        ]
    return rows + [Interface(name, address, up.get(name, False)) for name, address in _ipv6()]


def peer_of(host: str, *, socket_file: bool = False) -> Peer:
    """What the kernel knows about reaching *host*, a literal or a name. May ask the resolver.

    Args:
        host: an address or a name, without brackets.
        socket_file: it is a path instead, so on this host.
    """
    if socket_file:
        return Peer(host, "127.0.0.1", "127.0.0.1")
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return Peer(host, "", "")
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # as ZeroMQ dials: IPv4 first
    family, _, _, _, target = found[0]
    return Peer(host, str(target[0]), _leaves_from(family, target))


def _leaves_from(family: int, target: tuple[object, ...]) -> str:
    """Connecting a datagram socket sends nothing, but makes the kernel choose the route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_up(probe: socket.socket, name: str) -> bool:
    answer = _ask(probe, _GET_FLAGS, name)
    flags = int.from_bytes(answer[:2], sys.byteorder)
    return flags & (_UP | _RUNNING) == _UP | _RUNNING


def _ipv4_of(probe: socket.socket, name: str) -> str:
    answer = _ask(probe, _GET_ADDRESS, name)  # struct sockaddr_in: family, port, address
    return socket.inet_ntoa(answer[4:8]) if answer else ""


def _ask(probe: socket.socket, question: int, name: str) -> bytes:
    request = _REQUEST.pack(name.encode()[:15], b"")
    try:
        return fcntl.ioctl(probe.fileno(), question, request)[16:]
    except OSError:  # it has no address, or is gone
        return b""


def _ipv6() -> list[tuple[str, str]]:
    """Interface and address; none where the kernel has no IPv6."""
    rows: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            rows.append((name, str(ip_address(bytes.fromhex(digits)))))
    return rows
