"""Addresses as people write them, checked before ZeroMQ sees them.

``tcp://host:port`` with IPv6 literals in brackets, and ``ipc:///path`` (``ipc://@name`` for Linux'
abstract names, which leave no file). Names are resolved to IPv4 addresses; IPv6 is by literal.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NoReturn

from stagelink.core.errors import ConfigError

MAX_PORT = 65535
MAX_IPC_BYTES = 107
WILDCARDS = frozenset(("*", "", "0.0.0.0", "::"))  # noqa: S104 - named in order to refuse them

_TCP = re.compile(
    r"tcp://(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)


def bare(host: str) -> str:
    """*host* without the brackets of an IPv6 literal."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def tcp_url(host: str, port: int | str) -> str:
    """``tcp://host:port``, an IPv6 literal in brackets."""
    host = bare(host)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def ipc_url(path: str) -> str:
    """``ipc://path`` of a path or of such a URL.

    Raises:
        ConfigError: the path is empty or longer than the system allows.
    """
    path = path[len("ipc://") :] if path.startswith("ipc://") else path
    size = len(os.fsencode(path))
    if not 0 < size <= MAX_IPC_BYTES or "\0" in path:
        msg = f"the ipc path {path!r} has {size} bytes, allowed are 1 to {MAX_IPC_BYTES}"
        raise ConfigError(msg, remedy="use a short path, for example below /tmp")
    return f"ipc://{path}"


def is_wildcard(host: str) -> bool:
    """Whether *host* stands for every interface."""
    host = bare(host)
    literal = _literal(host)
    if literal is None:
        return host in WILDCARDS
    inner = literal.ipv4_mapped if isinstance(literal, IPv6Address) else None
    return (inner or literal).is_unspecified


def check_dial(address: str) -> bool:
    """Whether *address*, which others gave us, is an IPv6 one.

    Raises:
        ConfigError: it is none that can be dialled.
    """
    if address.startswith("ipc://"):
        ipc_url(address)
        return False
    match = _TCP.fullmatch(address)
    if match is None:
        _refuse(address, "it is neither tcp://host:port nor ipc:///path")
    host, port = match["ipv6"] or match["host"], int(match["port"])
    if not 0 < port <= MAX_PORT:
        _refuse(address, f"port {port} is not in 1 to {MAX_PORT}")
    if is_wildcard(host):
        _refuse(address, "a wildcard is no place to connect to")
    if match["ipv6"] and not isinstance(_literal(host), IPv6Address):
        _refuse(address, "only IPv6 literals stand in brackets")
    return match["ipv6"] is not None


def resolve_host(host: str) -> str:
    """The literal to bind for *host*, a literal or a name of this machine.

    Raises:
        ConfigError: the name is unknown.
    """
    host = bare(host)
    if host in WILDCARDS:
        return "::" if host == "::" else "0.0.0.0"  # noqa: S104 - the caller has allowed it
    if _literal(host) is not None:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        msg = f"the host {host!r} to bind has no address: {error}"
        raise ConfigError(msg, remedy="give an address of this machine") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # as a dialled name: IPv4 first
    return str(found[0][4][0])


def check_ipc_is_free(url: str) -> None:
    """Refuse a path that is in use: ZeroMQ itself would unlink it and take over in silence.

    Raises:
        ConfigError: somebody listens there, or what lies there is no socket.
    """
    path = url[len("ipc://") :]
    if path.startswith("@") or not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        msg = f"cannot bind {url}: the path exists and is no socket"
        raise ConfigError(msg, remedy="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # a full backlog: somebody is there
            pass
        except OSError:
            return
    msg = f"cannot bind {url}: another process listens there"
    raise ConfigError(msg, remedy="choose another path, or stop the process that holds it")


def where_to_bind(
    host: str | None, port: int, ipc: str | None, advertise: str | None, *, allow_wildcard: bool
) -> tuple[str, str]:
    """The URL to bind and the host to show; both empty when there is nothing to bind.

    Raises:
        ConfigError: the arguments contradict one another, or ask for every interface.
    """
    if ipc is not None:
        if host is not None:
            msg = f"both host={host!r} and ipc={ipc!r} are given"
            raise ConfigError(msg, remedy="give one of them")
        return ipc_url(ipc), ""
    if host is None:
        return "", ""
    literal = resolve_host(host)
    if is_wildcard(literal) and not allow_wildcard:
        msg = f"refusing to listen on every interface ({host!r})"
        raise ConfigError(msg, remedy="bind one address, or set allow_wildcard and advertise")
    shown = literal if advertise is None else advertise
    if is_wildcard(shown):
        msg = f"nobody can dial the wildcard {shown!r}"
        raise ConfigError(msg, remedy="set advertise to an address that peers can reach")
    if not 0 <= port <= MAX_PORT:
        msg = f"port {port} is not in 0 to {MAX_PORT}"
        raise ConfigError(msg, remedy="give a port, or 0 for a free one")
    return tcp_url(literal, port), shown


class BoundFile:
    """The file of a bound ``ipc://`` *url*, which ZeroMQ leaves behind; any other url has none."""

    def __init__(self, url: str) -> None:
        has_file = url.startswith("ipc://") and not url.startswith("ipc://@")
        self._path = url[len("ipc://") :] if has_file else ""
        self._identity = _identity(self._path)

    def remove(self) -> None:
        """Unlink it, if it is still the one that was bound. Twice is fine."""
        if self._identity is not None and _identity(self._path) == self._identity:
            os.unlink(self._path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _refuse(address: str, why: str) -> NoReturn:
    msg = f"cannot dial {address!r:.200}: {why}"
    raise ConfigError(msg, remedy="give an address like tcp://10.0.0.7:50051 or tcp://[::1]:50051")
