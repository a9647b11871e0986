"""The control channel of one process: queues, with every promise of the real ones."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from typing import TYPE_CHECKING

from stagelink.adapters.memory.ends import End, part
from stagelink.adapters.memory.hub import SCHEME, Hub
from stagelink.core.errors import ConfigError
from stagelink.ports.channel import Mail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.adapters.memory.faults import Faults
    from stagelink.core.values import Instance, Link
    from stagelink.ports.channel import Arrival

HIGH_WATER_MARK = 1024
MOST_FRAMES = 4
_ADDRESS = re.compile(r"memory://[1-9][0-9]{0,17}")


class MemoryChannel:
    """A :class:`stagelink.ports.ControlChannel` between connectors of one :class:`Hub`.

    Args:
        address: ``memory://<n>`` to listen at; empty for a fresh one.
        hub: the world it lives in; the process's own by default.
        faults: what befalls the mail that this channel sends.
        high_water_mark: how many undelivered messages a link holds.
        instance: whose channel it is, for :meth:`Hub.kill`.

    Raises:
        ConfigError: *address* is none, or is taken.
    """

    def __init__(
        self,
        address: str = "",
        *,
        hub: Hub | None = None,
        faults: Faults | None = None,
        high_water_mark: int = HIGH_WATER_MARK,
        instance: Instance | None = None,
    ) -> None:
        if address:
            _require_address(address)
        self.dropped = 0
        self.instance = instance
        self._hub = hub or Hub.default()
        self._faults = faults
        self._high_water_mark = high_water_mark
        self._links: dict[Link, End] = {}
        self._ready: deque[End] = deque()
        self._signalled = False
        self._closed = False
        self._event = -1
        with self._hub.lock:
            self.address = self._hub.bind(address, self)
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._hub.welcome(self.address)

    def check(self, address: str) -> None:
        """Look at an address without dialling it.

        Raises:
            ConfigError: *address* is not ``memory://<n>``.
        """
        _require_address(address)

    def dial(self, address: str) -> None:
        """Connect to *address* as soon as, and whenever, somebody listens there.

        Raises:
            ConfigError: *address* is not ``memory://<n>``.
        """
        _require_address(address)
        with self._hub.lock:
            if self._closed or address in self._links:
                return
            end = self._links[address] = End(self, address, dialled=True)
            self._hub.dialled.setdefault(address, []).append(end)
            self._hub.connect(end)

    def hang_up(self, link: Link) -> None:
        """Close a dialled link; what came from there and is unread goes too."""
        with self._hub.lock:
            end = self._links.get(link)
            if end is None or not end.dialled:
                return
            del self._links[link]
            self._hub.undial(end)
            part(end, f"{self.address} hung up")
            self.unqueue(end)

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        """Copy *frames* to the other side; False if it has too much unread."""
        message = [bytes(frame) for frame in frames]
        now_s = self._hub.now() if self._faults is not None else 0.0
        with self._hub.lock:
            end = self._links.get(link)
            if end is None or end.other is None:
                return True
            if end.other.undelivered() >= self._high_water_mark:
                return False
            if not 0 < len(message) <= MOST_FRAMES:
                end.other.channel.dropped += 1
                return True
            mail = Mail(end.other.name, message)
            if self._faults is not None:
                return self._faults.pass_on(self._hub, end, mail, now_s)
            end.other.push(mail)
            return True

    def receive(self, look: bool = True) -> Arrival | None:
        """The next arrival, links served in turn."""
        del look  # nothing is hidden here
        self._hub.deliver()
        with self._hub.lock:
            ready = self._ready
            while ready and not ready[0].inbox:
                ready.popleft()  # an interruption left it
            if not ready:
                self._quieten()
                return None
            # An end leaves last, or an interruption would leave it deaf.
            end = ready[0]
            arrival = end.inbox.popleft()
            end.known = True
            ready.popleft()
            if end.inbox:
                ready.append(end)
            return arrival

    def fileno(self) -> int:
        """An event descriptor; -1 once closed."""
        return self._event

    def close(self) -> None:
        """Part from everybody, and free the address. Twice is fine."""
        with self._hub.lock:
            self.vanish(f"{self.address} closed")

    # --- for the ends and the hub, which hold the lock -----------------------------------

    def accept(self, name: Link) -> End:
        """A new end for somebody who dialled us."""
        end = self._links[name] = End(self, name, dialled=False)
        return end

    def disown(self, end: End) -> None:
        """Forget an accepted end; what has arrived on it can still be received."""
        self._links.pop(end.name, None)

    def vanish(self, detail: str) -> None:
        """Part from everybody, who are told *detail*, and free the address. Twice is fine."""
        if self._closed:
            return
        del self._hub.bound[self.address]
        for end in list(self._links.values()):
            self._hub.undial(end)
            part(end, detail)
        self.forget()

    def forget(self) -> None:
        """Be closed without telling anybody: in a forked child it was the parent's channel."""
        self._closed = True
        self._links.clear()
        self._ready.clear()
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    def unqueue(self, end: End) -> None:
        """Nothing of *end* is to be received any more."""
        if end in self._ready:
            self._ready.remove(end)

    def queue(self, end: End) -> None:
        """*end* has its first unread arrival: wake the reader."""
        self._ready.append(end)
        if not self._signalled and self._event >= 0:
            self._signalled = True
            os.eventfd_write(self._event, 1)

    def _quieten(self) -> None:
        if self._signalled and self._event >= 0:
            self._signalled = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)


def _require_address(address: str) -> None:
    if not _ADDRESS.fullmatch(address):
        msg = f"{address!r} is no address of this channel"
        raise ConfigError(msg, remedy=f"give {SCHEME} and a number, such as {SCHEME}1")
