"""A lock that nobody can take twice in a row while somebody else waits for it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Turns:
    """A lock for a thread that is busy under it, and others that must get a word in.

    A plain lock goes to whoever asks first after it is let go, which is the busy thread each time.
    """

    __slots__ = ("_door", "_lock")

    def __init__(self) -> None:
        self._door = Lock()
        self._lock = Lock()

    def __enter__(self) -> None:
        """Wait for one's turn: whoever waits keeps the door shut for those who come later."""
        with self._door:
            self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next one in."""
        self._lock.release()
