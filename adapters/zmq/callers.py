"""Where connections come from, as far as it can be known for certain.

ZeroMQ tells the descriptor of a connection and not its address, and by the time that we hear of it
the descriptor may be closed and somebody else's. It tells of a connection's end before it closes
the descriptor, though: what was looked up before all news had been heard is right.
"""

from __future__ import annotations

import os
import socket

from stagelink.ports.channel import PeerRefused


class Callers:
    """Addresses by descriptor, of connections that are open.

    ``failed`` is cause and detail of the handshake that has failed and has not ended yet: ZeroMQ
    tells these two one after the other, by its one thread.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._fresh: dict[int, str] = {}
        self.failed: tuple[str, str] | None = None

    def accepted(self, descriptor: int) -> None:
        """A connection has come; look up from where."""
        self._known.pop(descriptor, None)
        self._fresh[descriptor] = _peer_of(descriptor)

    def ended(self, descriptor: int) -> PeerRefused | None:
        """A connection is no more; who it was, if its handshake had failed."""
        self._fresh.pop(descriptor, None)
        address = self._known.pop(descriptor, "")
        failed, self.failed = self.failed, None
        return None if failed is None else PeerRefused(address, *failed)

    def all_heard(self) -> None:
        """There is no more news now: whoever was looked up was still there."""
        self._known.update(self._fresh)
        self._fresh.clear()


def _peer_of(descriptor: int) -> str:
    """Who is at the other end; empty where the number is by now that of something else."""
    try:
        number = os.dup(descriptor)
    except OSError:
        return ""
    try:
        copy = socket.socket(fileno=number)
    except OSError:  # no socket: then the copy is still ours to close
        os.close(number)
        return ""
    with copy:
        try:
            name = copy.getpeername()
        except OSError:
            return ""
    return str(name[0]) if isinstance(name, tuple) else ""
