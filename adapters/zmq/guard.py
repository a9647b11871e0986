"""Who may come in: ZeroMQ asks for every handshake (ZAP, RFC 27), and the allow-list answers.

ZeroMQ asks within the process, at ``inproc://zeromq.zap.01`` of the channel's own context, and the
peer waits for the answer. So a thread of its own gives it: a peer is then let in, or told that it
is not, while nobody looks at the channel. Without an answer nobody gets in.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.zmq.sockets import Context

PLACE = "inproc://zeromq.zap.01"
DOMAIN = b"stagelink"
CURVE, KEY_BYTES = b"CURVE", 32
MOST_NEWS = 1024
"""Refusals remembered until the channel asks; of more only the newest."""


class Unknown(NamedTuple):
    """Somebody whose key is not on the list; ``address`` is an IP address without a port."""

    address: str
    key: str


class Guard:
    """Answers ZeroMQ's questions until it is closed.

    Args:
        context: where sockets are guarded; it has no other guard.
        allowed: the public keys of those to let in, 32 bytes each.
    """

    def __init__(self, context: Context, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed
        self._news: deque[Unknown] = deque(maxlen=MOST_NEWS)
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = Thread(target=self._serve, name="stagelink-guard", daemon=True)
        try:
            self._socket.bind(PLACE)
            self._thread.start()
        except BaseException:
            self._release()
            raise

    def refused(self) -> Iterator[Unknown]:
        """Everybody who was turned away since the last call."""
        while self._news:
            yield self._news.popleft()

    def close(self) -> None:
        """End the thread: nobody new gets in. Once."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._release()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        while self._stop not in dict(poller.poll()):
            self._socket.send_multipart(self._answer(self._socket.recv_multipart()))

    def _answer(self, question: list[bytes]) -> list[bytes]:
        """``version, request, domain, address, identity, mechanism, key`` → yes or no."""
        version, request, _, address, _, mechanism, *credentials = question
        key = b"".join(credentials)
        if mechanism == CURVE and key in self._allowed:
            return [version, request, b"200", b"OK", b"", b""]
        shown = z85.encode(key).decode() if len(key) == KEY_BYTES else ""
        self._news.append(Unknown(address.decode("ascii", "replace"), shown))
        return [version, request, b"400", b"unknown key", b"", b""]

    def _release(self) -> None:
        self._socket.close(0)
        os.close(self._stop)
