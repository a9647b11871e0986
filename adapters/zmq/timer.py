"""One descriptor that turns readable after a while: timerfd, which Python has from 3.13 on."""

from __future__ import annotations

import ctypes
import os
from time import CLOCK_MONOTONIC

_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """A one-shot timer to put into an epoll set; quiet until :meth:`arm` is called."""

    def __init__(self) -> None:
        self._fd: int = _libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        """The descriptor; readable once the time is up, until :meth:`clear`."""
        return self._fd

    def arm(self, after_s: float) -> None:
        """Turn readable *after_s* seconds from now (> 0), in place of any earlier time."""
        seconds, part = divmod(max(1, int(after_s * 1e9)), 1_000_000_000)
        spec = (ctypes.c_long * 4)(0, 0, seconds, part)  # itimerspec: interval, value
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def clear(self) -> None:
        """Turn quiet; an armed time that has not come stays armed."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
