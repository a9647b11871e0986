"""Which sockets of a channel have something to read.

Every wake-up of ZeroMQ is edge-triggered: its descriptor says "look", once, and any call on the
socket, a send for one, may swallow that. So a socket is either *hot*, to be read until it says
"nothing", or known to be drained with all its news heard; sending makes it hot again.
"""

from __future__ import annotations

import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from stagelink.adapters.zmq.sockets import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.zmq.dialled import Dialled
    from stagelink.adapters.zmq.listener import Listener
    from stagelink.adapters.zmq.sockets import Socket
    from stagelink.ports.channel import Mail

    Source = Dialled | Listener

MAX_EVENTS = 64


class Readiness:
    """An epoll set of sockets and their monitors, and those sockets that are hot, in turn.

    Attributes:
        hot: the sockets to read.
    """

    def __init__(self) -> None:
        self.hot: deque[Source] = deque()
        self._on_wake: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._poll = self._epoll.poll

    def fileno(self) -> int:
        """The epoll set."""
        return self._epoll.fileno()

    def register(self, descriptor: int, on_wake: Callable[[], None]) -> None:
        """Have *on_wake* called within :meth:`look` once *descriptor* is readable."""
        self._on_wake[descriptor] = on_wake
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch(self, source: Source) -> None:
        """Look after a socket and its monitor."""
        news = partial(self.hear, source, source.read_news)
        socket_fd, monitor_fd = _descriptors(source)
        self.register(socket_fd, partial(self.heat, source, woken=True))
        self.register(monitor_fd, news)
        news()  # a queue wakes nobody before it has been found empty once

    def forget(self, source: Source) -> None:
        """Leave it alone; before it is closed."""
        for descriptor in _descriptors(source):
            self._epoll.unregister(descriptor)
            del self._on_wake[descriptor]
        while source in self.hot:  # twice, if heating it was interrupted
            self.hot.remove(source)

    def heat(self, source: Source, *, woken: bool = False) -> None:
        """Have it read; *woken*: its descriptor says that there is something."""
        if not source.hot:
            self.hot.append(source)
            source.hot, source.woken = True, woken

    def hear(self, source: Source, read: Callable[[], None]) -> None:
        """Perform *read*, which may swallow a wake-up of *source*."""
        self.heat(source)
        read()

    def look(self) -> bool:
        """Hear who has news; monitors are read at once, sockets become hot."""
        events = self._poll(0, MAX_EVENTS)
        for descriptor, _ in events:
            self._on_wake[descriptor]()
        return bool(events)

    def take(self) -> Mail | None:
        """The next mail of a hot socket, which then queues up behind the others."""
        hot = self.hot
        while hot:
            # A signal handler may raise between any two of these, and nobody heats what is hot:
            # a socket that called itself so outside the queue would never be read again.
            source = hot[0]
            mail = source.take()
            if source.drained:
                source.hot = False
                hot.popleft()
                continue
            hot.rotate(-1)
            return mail  # or None, when it was dropped: let the others have their turn
        return None

    def close(self) -> None:
        """Look after nobody any more."""
        self._on_wake.clear()
        self.hot.clear()
        self._epoll.close()


def _descriptors(source: Source) -> tuple[int, int]:
    monitor: Socket | None = source.monitor
    assert monitor is not None
    return descriptor_of(source.socket), descriptor_of(monitor)
