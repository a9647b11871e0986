"""ZeroMQ sockets with our options, and the short calls of the message path."""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import zmq

from stagelink.adapters.zmq.direct import put
from stagelink.adapters.zmq.guard import DOMAIN
from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagelink.adapters.zmq.keyfiles import KeyPair

    Socket = zmq.Socket[bytes]
    Context = zmq.Context[Socket]

MAX_FRAMES = 4
PING = b"\0"  # a message of this one byte is ours alone; protocol messages begin with 8 bytes

NOBLOCK = int(zmq.NOBLOCK)
EVENTS = zmq.EVENTS
POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
WRONG_MECHANISM = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, as value of an event
WRONG_SERVER_KEY = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_EVENT = struct.Struct("=HI")


class Limits(NamedTuple):
    """Bounds of every socket; sizes in bytes, queues in messages."""

    max_frame_bytes: int
    high_water_mark: int
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    reconnect_min_s: float
    reconnect_max_s: float
    max_links: int


LAST_WORDS_MS = 200
"""How long queued messages may take to leave at close: they say what was consumed."""


def open_socket(context: Context, kind: int, limits: Limits, *, ipv6: bool) -> Socket:
    """A socket of *kind* that bounds its queues, lingers for last words and beats its heart."""
    opened = context.socket(kind)
    timeout_ms = round(limits.heartbeat_timeout_s * 1000)
    options = {
        zmq.LINGER: LAST_WORDS_MS,
        zmq.IPV6: int(ipv6),
        zmq.SNDHWM: limits.high_water_mark,
        zmq.RCVHWM: limits.high_water_mark,
        zmq.MAXMSGSIZE: limits.max_frame_bytes,
        zmq.HEARTBEAT_IVL: round(limits.heartbeat_interval_s * 1000),
        zmq.HEARTBEAT_TIMEOUT: timeout_ms,
        zmq.HEARTBEAT_TTL: timeout_ms,
        zmq.RECONNECT_IVL: round(limits.reconnect_min_s * 1000),
        zmq.RECONNECT_IVL_MAX: round(limits.reconnect_max_s * 1000),
        zmq.BACKLOG: 1024,
    }
    for option, value in options.items():
        opened.set(option, value)
    return opened


def protect_listener(listening: Socket, own: KeyPair) -> None:
    """Let only those in whom a :class:`stagelink.adapters.zmq.guard.Guard` allows, encrypted."""
    listening.set(zmq.CURVE_SERVER, 1)
    listening.set(zmq.CURVE_SECRETKEY, own.secret)
    listening.set(zmq.ZAP_DOMAIN, DOMAIN)
    listening.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a guard nobody, rather than everybody


def protect_dialled(dialled: Socket, own: KeyPair, server_key: bytes) -> None:
    """Talk to whoever proves to have *server_key* and to nobody else, encrypted."""
    dialled.set(zmq.CURVE_SERVERKEY, server_key)
    dialled.set(zmq.CURVE_PUBLICKEY, own.public)
    dialled.set(zmq.CURVE_SECRETKEY, own.secret)


def open_monitor(context: Context, watched: Socket, events: int) -> Socket:
    """A socket from which :func:`read_monitor` learns the *events* of the *watched* one.

    Its queue has no limit: a full one would stop the I/O thread, and with it every connection.
    """
    place = f"inproc://monitor-{descriptor_of(watched)}"
    watched.monitor(place, events)
    monitor = context.socket(zmq.PAIR)
    monitor.set(zmq.LINGER, 0)
    monitor.set(zmq.RCVHWM, 0)
    monitor.connect(place)
    return monitor


def descriptor_of(opened: Socket) -> int:
    """What polls readable, once, when the socket has news of any kind."""
    return int(opened.getsockopt(zmq.FD))


def has_mail(source: Socket) -> bool:
    """Whether a message can be read, after the socket has heard its latest news."""
    return int(source.get(EVENTS)) & POLLIN != 0


def can_send(target: Socket) -> bool:
    """Whether a message can be queued, after the socket has heard its latest news."""
    return int(target.get(EVENTS)) & POLLOUT != 0


def close_watched(watched: Socket, monitor: Socket | None, linger_ms: int = LAST_WORDS_MS) -> None:
    """Close a socket, which lingers for its last words, and its monitor, which has none."""
    if monitor is not None:
        watched.monitor(None, 0)
        monitor.close(0)
    watched.close(linger_ms)


def read_monitor(monitor: Socket | None) -> Iterator[tuple[int, int]]:
    """Every event that has come, with its value (a descriptor or an error number)."""
    while monitor is not None:
        try:
            head = monitor.recv(NOBLOCK)
        except zmq.Again:
            return
        monitor.recv(NOBLOCK)
        event, value = _EVENT.unpack(head)
        yield event, value


def put_again(target: Socket, frames: Sequence[bytes]) -> None:
    """Like :func:`put`, after the socket has heard its latest news.

    ZeroMQ looks for "your queue has room" only every few milliseconds on its own.
    """
    target.get(EVENTS)
    put(target, frames)


def collect(source: Socket, frame: zmq.Frame) -> list[bytes]:
    """The message that begins with *frame*; of one too long, just enough to tell."""
    frames = [frame.bytes]
    while frame.more:
        frame = source.recv(NOBLOCK, copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(frame.bytes)
    return frames


@contextmanager
def translating_errors(what: str) -> Iterator[None]:
    """Turn ZeroMQ's errors into :exc:`TransportError`; for calls off the message path."""
    try:
        yield
    except zmq.ZMQError as error:
        raise broken(what, error) from error


def broken(what: str, error: zmq.ZMQError) -> TransportError:
    """A failure of ZeroMQ itself, such as no descriptors left, as ours."""
    remedy = "see whether the process may open more files (ulimit -n)"
    return TransportError(f"{what}: {error}", reason=Reason.TRANSFER_FAILED, remedy=remedy)
