"""Where a plane listens, and how it dials another."""

from __future__ import annotations

import contextlib
import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from stagelink.adapters.frames.wire import HELLO, MAGIC, READY
from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from stagelink.adapters.frames.wire import Description
    from stagelink.core.values import Instance

DIAL_S = 2.0
"""How long a peer has to answer, twice: to take the connection, and to let us in."""

BACKLOG = 128
_WILD = frozenset(("", "*", "0.0.0.0", "::"))  # noqa: S104 - named in order to refuse them
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Place(NamedTuple):
    """Where to listen.

    Attributes:
        host: the address to bind, or a name of this machine.
        advertise: what to tell peers instead; None: the address bound.
        allow_wildcard: whether *host* may be every interface; needs *advertise*.
    """

    host: str = "127.0.0.1"
    advertise: str | None = None
    allow_wildcard: bool = False


def listen(place: Place) -> tuple[socket.socket, str, int]:
    """A listening socket on a free port; the host and the port that peers dial.

    Raises:
        TransportError: it cannot be bound, or nobody could be told where it is.
    """
    host = place.host.strip("[]")
    if host in _WILD and not (place.allow_wildcard and place.advertise):
        msg = f"frames refuses to listen on every interface ({place.host!r})"
        remedy = "bind one address, or set allow_wildcard and advertise_host"
        raise TransportError(msg, reason=Reason.FAILED, remedy=remedy)
    try:
        found = socket.getaddrinfo(
            "0.0.0.0" if host in {"", "*"} else host,  # noqa: S104 - the caller has allowed it
            0, type=socket.SOCK_STREAM,
        )  # fmt: skip
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, _, _, _, where = found[0]
        made = socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        msg = f"frames cannot listen on {place.host!r}: {error}"
        remedy = "set host= to an address of this machine"
        raise TransportError(msg, reason=Reason.FAILED, remedy=remedy) from error
    made.setblocking(False)
    bound, port = made.getsockname()[:2]
    return made, (place.advertise or bound).strip("[]"), port


def dial(told: Description, writer: Instance, *, carries: bool) -> socket.socket:
    """A connection to the plane that *told* describes, which has let us in; non-blocking.

    With *carries* it takes the place of the one that *writer* had there; else it is good for
    nothing but to see that it can be had.

    Raises:
        TransportError: nobody is there, or does not let us in; says why and what to do.
    """
    if not told.port:
        msg = f"peer {told.instance.hex()} cannot be written to: {told.why or 'it only sends'}"
        raise TransportError(msg, reason=Reason.UNREACHABLE, remedy="put that right at its side")
    where = f"{told.host}:{told.port}"
    try:
        made = socket.create_connection((told.host, told.port), DIAL_S)
    except (OSError, UnicodeError) as error:
        raise _unreachable(where, told.host, str(error)) from error
    try:
        tune(made)
        made.sendall(HELLO.pack(MAGIC, carries, told.token, told.instance, writer))
        answer = _answer(made)
    except OSError as error:
        made.close()
        raise _unreachable(where, told.host, str(error)) from error
    if answer != READY:
        made.close()
        msg = f"the frames plane at {where} does not let us in"
        remedy = "it has cut us off, or another connector is there now: let it greet again"
        raise TransportError(msg, reason=Reason.FENCED, remedy=remedy)
    made.setblocking(False)
    return made


def tune(made: socket.socket) -> None:
    """Small frames go at once, and a host that has vanished is noticed some time."""
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)


def _answer(made: socket.socket) -> bytes:
    until_s = time.monotonic() + DIAL_S
    got = b""
    while len(got) < len(READY) and READY.startswith(got):
        made.settimeout(max(0.001, until_s - time.monotonic()))
        part = made.recv(len(READY) - len(got))
        if not part:
            break
        got += part
    return got


def _unreachable(where: str, host: str, why: str) -> TransportError:
    msg = f"the frames plane at {where} cannot be reached: {why}"
    remedy = "see that no firewall is between"
    with contextlib.suppress(ValueError):
        if ip_address(host).is_loopback:
            remedy = "it listens for its own host only: open that receiver with host=ITS_ADDRESS"
    return TransportError(msg, reason=Reason.UNREACHABLE, remedy=remedy)
