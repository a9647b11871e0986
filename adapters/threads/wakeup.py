"""What a driving thread polls: the channel's descriptor and an event descriptor of ours."""

from __future__ import annotations

import contextlib
import os
import select
from threading import RLock

_LONGEST_S = 3600.0


class Wakeup:
    """One waiter at a time; anybody may kick. Descriptors are closed on exec.

    ``peek(0)`` tells whether the channel may have something, without a call into it; of two
    threads that ask at the same moment one is told RuntimeError.
    """

    def __init__(self, channel_fd: int) -> None:
        self._event = eventfd()
        # Re-entrant: a finalizer may kick while its own thread kicks.
        self._open = RLock()
        channel = select.poll()
        channel.register(channel_fd, select.POLLIN)
        self.peek = channel.poll
        self._poll = select.poll()
        self._poll.register(channel_fd, select.POLLIN)
        self._poll.register(self._event, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Sleep until the channel is readable, somebody kicks, or *timeout_s* has passed."""
        # Rounded up: waking a moment before a deadline would only mean waking twice.
        timeout_ms = int(min(_LONGEST_S, timeout_s) * 1000) + 1 if timeout_s > 0 else 0
        for descriptor, _ in self._poll.poll(timeout_ms):
            if descriptor == self._event:
                drain(self._event)

    def kick(self) -> None:
        """Wake the waiter, now or at its next wait."""
        with self._open:  # a number that was closed may be somebody else's file by now
            signal(self._event)

    def close(self) -> None:
        """Close the event descriptor; later kicks do nothing."""
        with self._open:
            event, self._event = self._event, -1
            if event >= 0:
                os.close(event)


def eventfd() -> int:
    """A non-blocking event descriptor."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def signal(event: int) -> None:
    """Make *event* readable; -1, a closed one, is fine."""
    if event >= 0:
        os.eventfd_write(event, 1)


def drain(event: int) -> None:
    """Make *event* quiet; another thread may have done so first."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)
