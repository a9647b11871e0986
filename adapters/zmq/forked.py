"""What a forked child does about a channel's connections: it closes its copies of them.

ZeroMQ has them closed by ``exec`` only. In a child that lives on without one, as those of
multiprocessing may, they would keep its parent's connections up and its port taken when the
parent has died, until heart-beats fail. ZeroMQ tells nobody its descriptors; an address at either
end tells them from those of others.
"""

from __future__ import annotations

import os
import socket
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakSet

from stagelink.adapters.zmq.address import bare, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Collection

DESCRIPTORS = "/proc/self/fd"


class Place(NamedTuple):
    """One end of a connection: an address and a port, or a path and 0."""

    host: str
    port: int


class Held(Protocol):
    """What a forked child has copies of."""

    def let_go(self) -> None:
        """Close them; called in the child only."""


def let_go_in_children(held: Held) -> None:
    """Have every child that is forked from now on let go of *held*, for as long as it lives."""
    _HELD.add(held)


def close_copies(bound: str, dialled: Collection[str]) -> None:
    """Close every socket of this process that is at *bound*, or speaks with one of *dialled*.

    Names of other hosts are not looked up here: their connections stay until heart-beats fail.
    """
    if not bound and not dialled:
        return
    try:
        numbers = [int(name) for name in os.listdir(DESCRIPTORS)]
    except OSError:
        return
    here, there = place_of(bound), {place_of(address) for address in dialled}
    for number in numbers:
        try:
            copy = socket.socket(fileno=number)
        except OSError:  # no socket, or gone
            continue
        if _is_at(_end(copy, "getsockname"), here) or _end(copy, "getpeername") in there:
            copy.close()
        else:
            copy.detach()


def place_of(address: str) -> Place | None:
    """The place of a URL of ZeroMQ; of every interface the host is ``*``."""
    if address.startswith("ipc://"):
        return Place(address[len("ipc://") :], 0)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        return None
    host = bare(host)
    return Place("*" if is_wildcard(host) else _plain(host), int(port))


def _end(copy: socket.socket, which: str) -> Place | None:
    """Where one end of *copy* is; None where there is no such end."""
    try:
        name = getattr(copy, which)()
    except OSError:
        return None
    if isinstance(name, tuple) and len(name) > 1 and isinstance(name[0], str):
        return Place(_plain(name[0]), name[1])
    if isinstance(name, bytes):  # Linux' abstract names
        name = "@" + os.fsdecode(name[1:])
    return Place(name, 0) if name and isinstance(name, str) else None


def _is_at(end: Place | None, here: Place | None) -> bool:
    if end is None or here is None:
        return False
    return end == here or (here.host == "*" and here.port == end.port)


def _plain(host: str) -> str:
    """One spelling for each address."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        literal = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    inner = literal.ipv4_mapped if isinstance(literal, IPv6Address) else None
    return str(inner or literal)


def _forked() -> None:
    for held in list(_HELD):
        held.let_go()


_HELD: WeakSet[Held] = WeakSet()
os.register_at_fork(after_in_child=_forked)
