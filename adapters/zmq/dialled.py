"""One dialled link: a DEALER and the monitor that tells when it is connected."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import zmq

from stagelink.adapters.zmq.direct import put
from stagelink.adapters.zmq.sockets import (
    HANDSHAKE_FAILED,
    LAST_WORDS_MS,
    MAX_FRAMES,
    NOBLOCK,
    PING,
    can_send,
    close_watched,
    collect,
    has_mail,
    open_monitor,
    open_socket,
    put_again,
    read_monitor,
)  # fmt: skip
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.adapters.zmq.sockets import Context, Limits, Socket
    from stagelink.ports.channel import Arrival

WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED


class Dialled:
    """A connection that ZeroMQ renews by itself; nothing is queued while there is none.

    Attributes:
        hot: whether the channel's queue of sockets to read holds it.
        woken: its descriptor has just said that there is something.
        rising: it is connected, but cannot send yet; LinkUp waits for that.
        drained: the last :meth:`take` found nothing.
    """

    __slots__ = (
        "address",
        "arrive",
        "drained",
        "drop",
        "hot",
        "monitor",
        "rising",
        "socket",
        "up",
        "woken",
    )

    def __init__(
        self,
        context: Context,
        address: str,
        limits: Limits,
        arrive: Callable[[Arrival], None],
        drop: Callable[[], None],
        *,
        ipv6: bool,
    ) -> None:
        self.address = address
        self.arrive, self.drop = arrive, drop
        self.up = self.rising = self.hot = self.woken = self.drained = False
        self.socket = open_socket(context, zmq.DEALER, limits, ipv6=ipv6)
        self.monitor: Socket | None = None
        try:
            self.socket.set(zmq.IMMEDIATE, 1)
            self.monitor = open_monitor(context, self.socket, WATCHED)
            self.socket.connect(address)
        except BaseException:
            self.close()
            raise

    def take(self) -> Mail | None:
        """The next message; None with ``drained`` unset means that one was dropped."""
        frame = self._first()
        if frame is None:
            self.drained = True
            return None
        self.drained = False
        frames = collect(self.socket, frame)
        if len(frames) > MAX_FRAMES:
            self.drop()
            return None
        if len(frames) == 1 and frames[0] == PING:
            return None
        return Mail(self.address, frames)

    def _first(self) -> zmq.Frame | None:
        if self.rising:
            self._rise()
        # An exception costs more than asking first; just woken, there nearly always is something.
        if not self.woken and not has_mail(self.socket):
            return None
        self.woken = False
        try:
            return self.socket.recv(NOBLOCK, copy=False)
        except zmq.Again:
            return None

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue one message; False when full, True and forgotten when there is no connection."""
        try:
            put(self.socket, frames)
        except zmq.Again:
            return self._send_again(frames)
        return True

    def _send_again(self, frames: Sequence[bytes]) -> bool:
        try:
            put_again(self.socket, frames)
        except zmq.Again:
            self.read_news()
            return not self.up
        return True

    def read_news(self) -> None:
        """Turn the monitor's events into arrivals; may swallow the socket's wake-up."""
        for event, value in read_monitor(self.monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._down("the connection was renewed")
                self.rising = True
            elif event == zmq.EVENT_DISCONNECTED:
                self._down("the connection ended")
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._failed(os.strerror(value))
            elif event & HANDSHAKE_FAILED:
                self._failed(f"the peer speaks another protocol (ZeroMQ error {value:#x})")
        if self.rising:
            self._rise()

    def _rise(self) -> None:
        """Be up once the socket has its queue, which may come a little after the handshake."""
        if can_send(self.socket):
            self.up, self.rising = True, False
            self.arrive(LinkUp(self.address))

    def _down(self, detail: str) -> None:
        self.rising = False
        if self.up:
            self.up = False
            self.arrive(LinkDown(self.address, detail))

    def _failed(self, detail: str) -> None:
        self.up = self.rising = False
        self.arrive(LinkDown(self.address, f"the handshake failed: {detail}"))

    def close(self, linger_ms: int = LAST_WORDS_MS) -> None:
        """Close both sockets; what is queued has a moment to leave."""
        close_watched(self.socket, self.monitor, linger_ms)
