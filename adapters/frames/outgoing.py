"""A writer's end of a connection: frames go out straight from our pool, answers come in."""

from __future__ import annotations

import socket
import struct
from collections import deque
from threading import Event
from typing import TYPE_CHECKING

from stagelink.adapters.frames.wire import ACK, FRAME_BYTES, HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance
    from stagelink.ports.plane import WriteOrder

LOST = "the peer has closed the connection"
STOPPED = "the write was stopped"
_NO_LINGER = struct.pack("ii", 1, 0)


class Job:
    """A write: so much of it is *framed*, as that *number*; *view* keeps our pool."""

    __slots__ = ("done", "framed", "number", "order", "view")

    def __init__(
        self, order: WriteOrder, view: memoryview, done: Callable[[WriteOrder, str], None]
    ) -> None:
        self.order = order
        self.view = view
        self.done = done
        self.framed = 0
        self.number = 0


class Outgoing:
    """Writes to one peer, which take turns after each frame. The plane's lock is held throughout.

    What was begun here ends well with its acknowledgement, and with an error once the peer has
    closed its side: whatever was under way is then not read any more. ``gone`` is set by that.

    Args:
        peer: whom we write to.
        sock: let in by the peer, non-blocking.
        end: takes a job and how it ended.
        drop: called before the socket is closed.
    """

    def __init__(
        self,
        peer: Instance,
        sock: socket.socket,
        end: Callable[[Job, str], None],
        drop: Callable[[Outgoing], None],
    ) -> None:
        self.peer = peer
        self.sock = sock
        self.gone = Event()
        self.stopping = False
        self.lies = 0
        self._end = end
        self._drop = drop
        self._waiting: deque[Job] = deque()
        self._begun: dict[int, Job] = {}
        self._next = 0
        self._frame: list[memoryview] = []
        self._sending: Job | None = None
        self._acks = b""

    @property
    def usable(self) -> bool:
        """Whether more writes may be added."""
        return not self.stopping and not self.gone.is_set()

    def add(self, job: Job) -> None:
        """Queue a write."""
        self._waiting.append(job)

    def flush(self, budget: int) -> bool:
        """Send until the kernel takes no more, or about *budget* bytes; whether there is more."""
        if self.stopping:
            return False
        try:
            while budget > 0 and (self._frame or self._begin_frame()):
                budget -= self._send()
        except BlockingIOError:
            return True
        except OSError as error:
            self.close(str(error))
            return False
        return bool(self._frame or self._waiting)

    def ready(self) -> None:
        """Read acknowledgements; at their end the peer has closed its side."""
        try:
            got = self.sock.recv(64 << 10)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if not got:
            self.close(LOST)
            return
        self._acks += got
        whole = len(self._acks) // ACK.size * ACK.size
        for (number,) in ACK.iter_unpack(self._acks[:whole]):
            if not self._acknowledged(number):
                return
        self._acks = self._acks[whole:]

    def stop(self) -> None:
        """Begin no frame any more; what has begun ends when the peer has seen that we end here."""
        if not self.usable:
            return
        self.stopping = True
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            if not job.framed:
                self._end(job, STOPPED)
        if not self._begun:
            self.close(STOPPED)
            return
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.close(str(error))

    def close(self, why: str) -> None:
        """End everything with the error *why*; what the kernel has not sent is thrown away."""
        if self.gone.is_set():
            return
        self.gone.set()
        jobs = [*self._begun.values(), *(job for job in self._waiting if not job.framed)]
        self._begun, self._waiting, self._frame = {}, deque(), []
        self._drop(self)
        if jobs:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.sock.close()
        for job in jobs:
            self._end(job, f"{STOPPED}: {why}" if why != STOPPED else STOPPED)

    # --- helpers -------------------------------------------------------------------------

    def _begin_frame(self) -> bool:
        """The next frame of the job whose turn it is; False if there is none."""
        if not self._waiting:
            return False
        job = self._waiting[0]
        if not job.framed:
            self._next = job.number = self._next + 1
            self._begun[job.number] = job
        begun = job.framed
        size = min(FRAME_BYTES, len(job.view) - begun)
        target = job.order.target
        is_last = begun + size == len(job.view)
        head = HEAD.pack(is_last, job.number, target.region, target.offset + begun, size)
        self._frame = [memoryview(head), job.view[begun : begun + size]]
        job.framed = begun + size
        self._sending = self._waiting.popleft()
        return True

    def _send(self) -> int:
        """Give the kernel as much of the frame as it takes."""
        sent = left = self.sock.sendmsg(self._frame)
        while self._frame and left >= len(self._frame[0]):
            left -= len(self._frame.pop(0))
        if left:
            self._frame[0] = self._frame[0][left:]
        job = self._sending
        if not self._frame and job is not None:
            self._sending = None
            if job.framed < len(job.view):
                self._waiting.append(job)
        return sent

    def _acknowledged(self, number: int) -> bool:
        """A write is in place; False: it cannot be, and the connection is closed."""
        job = self._begun.get(number)
        if job is None or job.framed < len(job.view) or job is self._sending:
            self.lies += 1
            self.close(f"it acknowledges write {number}, which it cannot have")
            return False
        del self._begun[number]
        self._end(job, "")
        return True
