"""One dialled link: a DEALER and the monitor that tells when it is connected."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from stagelink.adapters.zmq.direct import put
from stagelink.adapters.zmq.sockets import (
    HANDSHAKE_FAILED,
    LAST_WORDS_MS,
    MAX_FRAMES,
    NOBLOCK,
    PING,
    WRONG_MECHANISM,
    can_send,
    close_watched,
    collect,
    has_mail,
    open_monitor,
    open_socket,
    protect_dialled,
    put_again,
    read_monitor,
)  # fmt: skip
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.adapters.zmq.sockets import Context, Limits, Socket
    from stagelink.ports.channel import Arrival

UNKNOWN = "the peer does not know our key: copy our public key file to it, and open it again"
NO_CURVE_THERE = "the peer does not use CURVE, and we do: open both with the same security="
NO_CURVE_HERE = "the peer wants CURVE, and we do not use it: open both with the same security="
HUNG_UP = ", perhaps because its key is not the one that we have of it: compare the key files"

WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED


class Dialled:
    """A connection that ZeroMQ renews by itself; nothing is queued while there is none.

    Attributes:
        hot: whether the channel's queue of sockets to read holds it.
        woken: its descriptor has just said that there is something.
        rising: it is connected, but cannot send yet; LinkUp waits for that.
        drained: the last :meth:`take` found nothing.
        secure: it uses CURVE.
        broken: called when ZeroMQ has given up for good, as it does after a handshake that cannot
            succeed: whoever is there may yet be replaced, so :meth:`redial` a little later.
    """

    __slots__ = (
        "address",
        "arrive",
        "broken",
        "drained",
        "drop",
        "hot",
        "monitor",
        "rising",
        "secure",
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
        broken: Callable[[Dialled], None],
        ipv6: bool,
        keyring: Keyring | None = None,
    ) -> None:
        self.address = address
        self.arrive, self.drop, self.broken = arrive, drop, broken
        self.secure = keyring is not None
        self.up = self.rising = self.hot = self.woken = self.drained = False
        self.socket = open_socket(context, zmq.DEALER, limits, ipv6=ipv6)
        self.monitor: Socket | None = None
        try:
            self.socket.set(zmq.IMMEDIATE, 1)
            if keyring is not None:
                protect_dialled(self.socket, keyring.own, keyring.key_for(address))
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
                self._failed(f"{os.strerror(value)}{HUNG_UP if self.secure else ''}")
            elif event & HANDSHAKE_FAILED:
                self._stopped(event, value)
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

    def _failed(self, detail: str, *, refused: bool = False) -> None:
        self.up = self.rising = False
        self.arrive(LinkDown(self.address, f"the handshake failed: {detail}", refused))

    def _stopped(self, event: int, value: int) -> None:
        """ZeroMQ does not try again after this."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._failed(f"{UNKNOWN} (status {value})", refused=True)
        elif value == WRONG_MECHANISM:
            self._failed(NO_CURVE_THERE if self.secure else NO_CURVE_HERE, refused=True)
        else:
            self._failed(f"the peer speaks another protocol (ZeroMQ error {value:#x})")
        self.broken(self)

    def redial(self) -> None:
        """Begin anew where ZeroMQ has given up."""
        with suppress(zmq.ZMQError):  # it knows the address no more
            self.socket.disconnect(self.address)
        self.socket.connect(self.address)

    def close(self, linger_ms: int = LAST_WORDS_MS) -> None:
        """Close both sockets; what is queued has a moment to leave."""
        close_watched(self.socket, self.monitor, linger_ms)
