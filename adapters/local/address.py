"""Where the shortcut of an address is found, and whether who is there may be trusted.

A listener at ``tcp://host:port`` also listens at a Unix socket of that name in Linux' abstract
namespace. Those names belong to the network namespace, as the port does: who shares it with the
listener, and nobody else, finds it. They leave no file. The kernel says who is at the other end.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

PREFIX = "\0stagelink/1/"
MAX_NAME = 108
BACKLOG = 128
SEND_BUFFER = 1 << 20
"""Asked for, in bytes; the kernel gives what ``net.core.wmem_max`` allows."""

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid


def name_of(address: str) -> str:
    """The name beside *address*; empty where there is none, as for ``ipc://``."""
    if not sys.platform.startswith("linux") or not address.startswith("tcp://"):
        return ""
    name = PREFIX + address[len("tcp://") :].replace("localhost:", "127.0.0.1:", 1)
    return name if len(os.fsencode(name)) <= MAX_NAME else ""


def listen(address: str) -> socket.socket | None:
    """A listening socket beside *address*; None where somebody else has the name, or none is."""
    name = name_of(address)
    if not name:
        return None
    opened = _open()
    try:
        opened.bind(name)
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        return None
    return opened


def connect(address: str, least_buffer: int) -> socket.socket | None:
    """A connection to who listens beside *address*; None when nobody of our user does.

    *least_buffer* is the largest message, in bytes, that it must be able to take.
    """
    name = name_of(address)
    if not name:
        return None
    opened = _open()
    try:
        opened.connect(name)  # it does not wait: it fails where there is no room
        if is_ours(opened) and send_buffer(opened) > least_buffer:
            return opened
    except OSError:
        pass
    opened.close()
    return None


def accept(listener: socket.socket) -> socket.socket | None:
    """Who has called next; None when nobody has, or it has gone already.

    Raises:
        PermissionError: it is a stranger, who was turned away.
        OSError: the process may not open more descriptors.
    """
    try:
        opened, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    if not is_ours(opened):
        opened.close()
        raise PermissionError
    _prepare(opened)
    return opened


def is_ours(opened: socket.socket) -> bool:
    """Whether a process of our user is at the other end."""
    raw = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.geteuid())


def send_buffer(opened: socket.socket) -> int:
    """Bytes that one message may have at most."""
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 64  # the kernel keeps 32


def _open() -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _prepare(opened)
    return opened


def _prepare(opened: socket.socket) -> None:
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
