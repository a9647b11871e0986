"""Where peers come in who write to us: the listening socket, the token, the connections."""

from __future__ import annotations

import hmac
import secrets
from functools import partial
from typing import TYPE_CHECKING

from stagelink.adapters.frames.incoming import Incoming
from stagelink.adapters.frames.loop import pause
from stagelink.adapters.frames.places import listen, tune
from stagelink.adapters.frames.wire import HELLO, MAGIC, TOKEN_BYTES
from stagelink.core.errors import TransportError

if TYPE_CHECKING:
    import socket

    from stagelink.adapters.frames.loop import Loop
    from stagelink.adapters.frames.places import Place
    from stagelink.adapters.frames.regions import Regions
    from stagelink.core.values import Instance

GREETING_S = 5.0
"""How long a connection may take to show our token."""

MOST_STRANGERS = 64
"""Connections that have not shown it yet; one more takes the place of the oldest."""

MOST_WRITERS = 4096
MOST_DEAD = 256
"""Dead writers that are remembered: what they had on its way may still come in. More than these
cannot have anything on its way: they would not fit before the door and behind it."""


class Doorway:
    """Connections to us. The plane's lock is held throughout.

    *regions* is our memory. ``lies`` counts connections that were closed because the
    peer broke the protocol, ``strangers`` those that did not have the token.
    """

    def __init__(
        self,
        instance: Instance,
        place: Place | None,
        loop: Loop,
        regions: Regions,
    ) -> None:
        self._instance = instance
        self._place = place
        self._loop = loop
        self._regions = regions
        self._socket: socket.socket | None = None
        self._shown = "", 0
        self._connections: dict[Incoming, None] = {}
        self._dead: dict[Instance, None] = {}
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.lies = 0
        self.strangers = 0

    def open(self, *, strict: bool) -> tuple[str, int, str]:
        """Listen, if it is not done yet; host, port, or why there is neither.

        Raises:
            TransportError: it cannot be done, and *strict*.
        """
        if self._place is None:
            return "", 0, "it only sends"
        if self._socket is None:
            try:
                self._socket, host, port = listen(self._place)
            except TransportError as error:
                if strict:
                    raise
                return "", 0, str(error)
            self._shown = host, port
            self._loop.add(self._socket.fileno(), self._come_in)
        return *self._shown, ""

    def fence(self, writer: Instance, *, dead: bool) -> None:
        """Nothing of *writer* lands any more; a living one may come by another token."""
        if dead:
            self._dead[writer] = None
            if len(self._dead) > MOST_DEAD:
                del self._dead[next(iter(self._dead))]
        else:
            self.token = secrets.token_bytes(TOKEN_BYTES)
        self._close_those_of(writer)

    def hang_up(self) -> None:
        """Close every connection."""
        for one in list(self._connections):
            one.close()

    def close(self) -> None:
        """Close every connection, then the door: whom it refuses knows that nothing is read."""
        self.hang_up()
        if self._socket is not None:
            self._loop.drop(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def let_go(self) -> None:
        """In a forked child: close our copies."""
        for one in self._connections:
            one.sock.close()
        self._connections.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def tick(self, now_s: float) -> bool:
        """Close those who are late with their greeting; whether any may still be."""
        strangers = [one for one in self._connections if one.writer is None]
        for one in strangers:
            if now_s - one.since_s > GREETING_S:
                self.strangers += 1
                one.close()
        return bool(strangers)

    # --- helpers -------------------------------------------------------------------------

    def _come_in(self, events: int) -> None:
        del events
        assert self._socket is not None
        try:
            sock, _ = self._socket.accept()
            sock.setblocking(False)
            tune(sock)
        except BlockingIOError:
            return
        except OSError:  # it has left again, or we are out of descriptors
            pause()
            return
        self._make_room()
        one = Incoming(sock, self._admit, self._regions.part, self._forget)
        self._connections[one] = None
        self._loop.add(sock.fileno(), partial(self._serve, one))
        self._loop.ticks = True

    def _make_room(self) -> None:
        strangers = [one for one in self._connections if one.writer is None]
        if len(strangers) >= MOST_STRANGERS or len(self._connections) >= MOST_WRITERS:
            self.strangers += 1
            (strangers or list(self._connections))[0].close()

    def _serve(self, one: Incoming, events: int) -> None:
        del events
        one.ready()
        if not one.closed:
            self._loop.wants(one.sock.fileno(), writes=one.wants_to_write)

    def _admit(self, hello: bytes) -> tuple[Instance, bool] | None:
        """The writer and whether it will write; None: it is not let in."""
        magic, carries, token, reader, writer = HELLO.unpack(hello)
        known = hmac.compare_digest(token, self.token)
        if magic != MAGIC or not known or reader != self._instance or writer in self._dead:
            self.strangers += 1
            return None
        if carries:
            self._close_those_of(writer)
        return writer, carries

    def _close_those_of(self, writer: Instance) -> None:
        for one in [one for one in self._connections if one.writer == writer]:
            one.close()

    def _forget(self, one: Incoming) -> None:
        self.lies += one.lies
        self._connections.pop(one, None)
        self._loop.drop(one.sock.fileno())
