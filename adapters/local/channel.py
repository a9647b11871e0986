"""A control channel that takes a Unix socket wherever both ends are processes of one host.

A message of ZeroMQ wakes three threads: its own of either side, and the reader. Through a Unix
socket it wakes the reader, and takes half the time (``python benchmarks/channels.py``). The
channel underneath finds peers, tells when they are there and dials again; as soon as it says that
a peer is up, the shortcut is tried, and where it works it replaces that connection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

from stagelink.adapters.local.address import accept, connect, listen
from stagelink.adapters.local.packets import Malformed, Packets
from stagelink.core.values import new
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival, ControlChannel

MAX_EVENTS = 64
IN, OUT = select.EPOLLIN, select.EPOLLOUT


class Lane:
    """One connection.

    Attributes:
        waits: it is full, and the kernel is to say when it is not any more.
        broken: it has failed once; what came before that is still to be read.
        heard: something has come on it.
    """

    __slots__ = ("broken", "descriptor", "heard", "link", "socket", "waits")

    def __init__(self, link: Link, opened: socket.socket) -> None:
        self.link = link
        self.socket = opened
        self.descriptor = opened.fileno()
        self.waits = self.broken = self.heard = False


def is_dialled(link: Link) -> bool:
    """Whether *link* is named by an address, as those are that we dialled."""
    return "://" in link


class LocalChannel:
    """A :class:`stagelink.ports.ControlChannel` around another one, which it owns.

    The end of a process closes its sockets, so a death is told at once. Silence is not measured: a
    process that has been stopped is still there, and what it owes is bounded by deadlines.

    Args:
        inner: finds peers and carries what the shortcut does not; bound already, or never.
        longest: bytes of the longest message; a longer one ends its connection.
        max_lanes: accepted connections at most; further callers stay with *inner*.
    """

    def __init__(self, inner: ControlChannel, *, longest: int, max_lanes: int = 4096) -> None:
        self._inner = inner
        self._packets = Packets(longest)
        self._max_lanes = max_lanes
        self._turned_away = 0
        self._pid = os.getpid()
        self._closed = False
        self._name = secrets.token_hex(4)
        self._serial = 0
        self._ready: deque[Arrival] = deque()
        self._unread = False
        self._likely: Lane | None = None
        self._latest: Lane | None = None
        self._lanes: dict[Link, Lane] = {}
        self._barred: set[Link] = set()
        self._by_descriptor: dict[int, Lane] = {}
        self._listener = listen(inner.address) if inner.address else None
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._inner_fd = inner.fileno()
        self._epoll.register(self._inner_fd, IN)
        if self._listener is not None:
            self._epoll.register(self._listener.fileno(), IN)
        _CHANNELS.add(self)

    @property
    def address(self) -> str:
        """Where others dial us: the inner channel's, for the shortcut is found by it."""
        return self._inner.address

    @property
    def dropped(self) -> int:
        """Messages that were malformed, and strangers that were turned away."""
        return self._inner.dropped + self._turned_away

    def check(self, address: str) -> None:
        """Look at an address without dialling it.

        Raises:
            ConfigError: the inner channel does not understand *address*.
        """
        self._inner.check(address)

    def dial(self, address: str) -> None:
        """Keep a connection to *address*, by the shortcut as soon as it is up.

        Raises:
            ConfigError: the inner channel does not understand *address*.
            TransportError: the process may not open more sockets.
        """
        self._inner.check(address)
        if address not in self._lanes:
            self._inner.dial(address)
            self._unread = True

    def hang_up(self, link: Link) -> None:
        """Close a dialled link, dropping what is queued on it. Unknown links are ignored."""
        if not is_dialled(link):
            return
        lane = self._lanes.get(link)
        if lane is None:
            self._inner.hang_up(link)
        else:
            self._end(lane)
        kept = [arrival for arrival in self._ready if arrival.link != link]
        self._ready.clear()
        self._ready.extend(kept)

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        """Queue *frames*, copied, as one message; False when *link*'s queue is full now.

        A link that is down or unknown takes the message and forgets it.
        """
        lane = self._lanes.get(link)
        if lane is None:
            self._unread = True  # it may have swallowed a wake-up of the inner channel
            return self._inner.send(link, frames)
        try:
            sent = self._packets.send(lane.descriptor, frames)
        except OSError:
            self._give_up(lane)
            return True
        if not sent and not lane.waits:
            lane.waits = True
            self._epoll.modify(lane.descriptor, IN | OUT)
        return sent

    def receive(self, look: bool = True) -> Arrival | None:
        """The next arrival, in turn from all connections, or None when there is none now."""
        ready = self._ready
        while not ready:
            if self._closed:
                return None
            if self._unread:
                self._read_inner(look)
            elif not look or not self._look():
                return None
        return ready.popleft()

    def fileno(self) -> int:
        """The epoll set of everything; the same from start to close, then -1."""
        return -1 if self._closed else self._epoll.fileno()

    def close(self) -> None:
        """Close every connection; what was sent stays to be read. Twice is fine.

        In a forked child, which holds copies, nothing happens.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.let_go()
        self._lanes.clear()
        self._by_descriptor.clear()
        self._ready.clear()
        self._epoll.close()
        self._inner.close()

    def let_go(self) -> None:
        """Close our copies of the sockets, as a forked child does.

        Else its parent's death would not be heard while it lives, and who dials the parent's
        successor would be connected to the child, which never answers.
        """
        for lane in list(self._lanes.values()):
            lane.socket.close()
        self._close_listener()

    def __enter__(self) -> LocalChannel:  # noqa: PYI034 - typing has no Self in 3.10
        """The channel itself; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # --- inside ------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Take one arrival of each connection that has any; False when none has.

        After a look that found nothing, the connection that was heard last is tried first: mostly
        it is the one that woke us, and then the kernel need not be asked which.
        """
        likely = self._likely
        if likely is not None:
            self._likely = None
            self._take(likely, 0)
            if self._ready:
                return True
        events = self._poll(0, MAX_EVENTS)
        for descriptor, what in events:
            lane = self._by_descriptor.get(descriptor)
            if lane is not None:
                self._take(lane, what)
            elif descriptor == self._inner_fd:
                self._unread = True
            else:
                self._accept()
        if not events:
            self._likely = self._latest
        return bool(events)

    def _take(self, lane: Lane, what: int) -> None:
        if lane.waits and what & OUT:
            lane.waits = False
            self._epoll.modify(lane.descriptor, IN)
        try:
            frames = self._packets.receive(lane.descriptor)
        except OSError as error:
            if lane.broken:
                self._down(lane, str(error))
            lane.broken = True
            return
        except Malformed:
            self._turned_away += 1
            self._down(lane, "what came is no message")
            return
        if frames:
            lane.heard = True
            self._latest = lane
            self._ready.append(new(Mail, (lane.link, frames)))
        elif frames is not None:
            self._down(lane, "the peer disconnected")

    def _read_inner(self, look: bool) -> None:
        arrival = self._inner.receive(look)
        if arrival is None:
            self._unread = False
        elif type(arrival) is LinkUp and self._take_lane(arrival.link):
            self._inner.hang_up(arrival.link)
        else:
            self._ready.append(arrival)

    def _take_lane(self, address: str) -> bool:
        """Whether *address* has a shortcut, which is up from now on."""
        if address in self._barred:
            self._barred.discard(address)
            return False
        opened = connect(address, self._packets.longest)
        if opened is None:
            return False
        self._add(Lane(address, opened))
        self._ready.append(LinkUp(address))
        return True

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            opened = accept(self._listener)
        except PermissionError:
            self._turned_away += 1
        except OSError:  # no descriptors left
            self._close_listener()
        else:
            if opened is not None:
                self._serial += 1
                self._add(Lane(f"local:{self._name}-{self._serial}", opened))
            if len(self._lanes) >= self._max_lanes:
                self._close_listener()

    def _close_listener(self) -> None:
        """From now on callers come by the inner channel, and those who have just called, too."""
        if self._listener is not None:
            self._listener.close()  # which takes it out of the epoll set
            self._listener = None

    def _add(self, lane: Lane) -> None:
        self._lanes[lane.link] = self._by_descriptor[lane.descriptor] = lane
        self._epoll.register(lane.descriptor, IN)

    def _give_up(self, lane: Lane) -> None:
        """Nothing more can be sent: let what has come be read, then its end."""
        with contextlib.suppress(OSError):
            lane.socket.shutdown(socket.SHUT_RDWR)

    def _down(self, lane: Lane, detail: str) -> None:
        self._end(lane)
        self._ready.append(LinkDown(lane.link, detail))
        if is_dialled(lane.link):
            if not lane.heard:  # turned away, perhaps: not twice in a row
                self._barred.add(lane.link)
            self._inner.dial(lane.link)
            self._unread = True

    def _end(self, lane: Lane) -> None:
        self._epoll.unregister(lane.descriptor)
        if lane is self._latest:
            self._latest = self._likely = None
        del self._lanes[lane.link], self._by_descriptor[lane.descriptor]
        lane.socket.close()


def _forked() -> None:
    for channel in list(_CHANNELS):
        channel.let_go()


_CHANNELS: WeakSet[LocalChannel] = WeakSet()
os.register_at_fork(after_in_child=_forked)
