"""A reader's end of a connection: frames come in straight into our pool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagelink.adapters.frames.wire import ACK, FRAME_BYTES, HEAD, HELLO, READY
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from stagelink.core.values import Instance

READ_BYTES = 4 << 20
"""The most that is read before others have their turn; the plane's lock is held for it."""

MOST_ACKS = 64 << 10
"""Bytes of acknowledgements that may wait; who does not read them is cut off."""


class Incoming:
    """Writes of one peer to us. The plane's lock is held throughout.

    Args:
        sock: from the listening socket, non-blocking.
        admit: judges a HELLO: the writer and whether it will write, or None.
        part: the bytes of ours that a frame is for; raises TransportError for none.
        drop: called before the socket is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        admit: Callable[[bytes], tuple[Instance, bool] | None],
        part: Callable[[RegionRef], memoryview],
        drop: Callable[[Incoming], None],
    ) -> None:
        self.sock = sock
        self.since_s = time.monotonic()
        self.writer: Instance | None = None
        self.closed = False
        self.lies = 0
        self._admit = admit
        self._part = part
        self._drop = drop
        self._head = memoryview(bytearray(max(HELLO.size, HEAD.size)))
        self._into = self._head[: HELLO.size]
        self._next: Callable[[], None] = self._greeted
        self._write = 0, False
        self._acks = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether acknowledgements wait for room."""
        return bool(self._acks)

    def ready(self) -> None:
        """Read what has come, up to a bound."""
        budget = READ_BYTES
        try:
            while budget > 0 and not self.closed:
                got = self.sock.recv_into(self._into)
                if not got:
                    self.close()
                    return
                budget -= got
                self._into = self._into[got:]
                if not self._into:
                    self._next()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        self.flush()

    def flush(self) -> None:
        """Send what acknowledgements there are."""
        if self.closed or not self._acks:
            return
        try:
            del self._acks[: self.sock.send(self._acks)]
        except BlockingIOError:
            if len(self._acks) > MOST_ACKS:
                self.close()
        except OSError:
            self.close()

    def close(self) -> None:
        """Read no more: no byte of it can land now. Twice is fine."""
        if self.closed:
            return
        self.closed = True
        self._into = self._head
        self._drop(self)
        self.sock.close()

    # --- what has come whole -------------------------------------------------------------

    def _greeted(self) -> None:
        admitted = self._admit(bytes(self._head[: HELLO.size]))
        if admitted is None:
            self.close()
            return
        writer, carries = admitted
        self._acks += READY
        if carries:
            self.writer = writer
            self._await_head()
        else:
            self.flush()
            self.close()

    def _headed(self) -> None:
        last, number, region, offset, size = HEAD.unpack_from(self._head)
        try:
            place = self._part(RegionRef(region, offset, size))
        except TransportError:
            self._lied()
            return
        if last > 1 or not 0 < size <= FRAME_BYTES:
            self._lied()
            return
        self._write = number, bool(last)
        self._into = place
        self._next = self._landed

    def _landed(self) -> None:
        number, last = self._write
        if last:
            self._acks += ACK.pack(number)
        self._await_head()

    def _await_head(self) -> None:
        self._into = self._head[: HEAD.size]
        self._next = self._headed

    def _lied(self) -> None:
        self.lies += 1
        self.close()
