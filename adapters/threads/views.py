"""Memory handed to callers, and the news that the last view of it has gone."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports.memory import DeviceBytes, Lent

_ROUND = 4096


class _Watched(ref):  # type: ignore[type-arg]
    """A weak reference that knows which handle to release, and how many bytes that is."""

    __slots__ = ("handle", "size")
    handle: int
    size: int


class Views:
    """Buffers whose end is a release.

    Every buffer is one exporter object; tensors, arrays and memoryviews of it keep that very
    object alive (a memoryview would not do: numpy and torch look through it). Its finalizer runs
    wherever the garbage collector does, perhaps under a lock, so it appends to a queue and writes
    an event descriptor, and does nothing in a forked child.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._watched: dict[int, _Watched] = {}
        self._deferred: set[int] = set()
        self.gone: deque[int] = deque()
        self._when_none: Callable[[], None] | None = None

    def __len__(self) -> int:
        """How many deliveries still have views."""
        return len(self._watched)

    @property
    def bytes(self) -> int:
        """Of all deliveries that still have views; counted anew, for finalizers may not lock."""
        return sum(watched.size for watched in list(self._watched.values()))

    def open(self, memory: Any, size: int, handle: int) -> Any:  # noqa: ANN401
        """An exporter over *memory* (at least *size* bytes), released by *handle* at its end.

        Of device memory it is a :class:`stagelink.ports.memory.Lent`, released once the device is
        done with it as well.
        """
        if not isinstance(memory, memoryview):
            return self._open_there(memory, size, handle)
        # One ctypes type per length: rounding keeps their number small.
        length = min(len(memory), -(-size // _ROUND) * _ROUND)
        buffer = (ctypes.c_char * length).from_buffer(memory)
        self._watch(buffer, size, handle)
        return buffer

    def _open_there(self, memory: DeviceBytes, size: int, handle: int) -> Lent:
        lent, token = memory.lend(size)
        self._deferred.add(handle)
        self._watch(token, size, handle)
        return lent

    def _watch(self, last: object, size: int, handle: int) -> None:
        watched = _Watched(last, self._finalized)
        watched.handle, watched.size = handle, size
        self._watched[handle] = watched

    def release(self, handle: int) -> bool:
        """Stop watching: the caller knows that its buffer is the last reference and releases.

        False: it is too early (the device may still read) or too late, and the end tells itself.
        """
        return handle not in self._deferred and self._forget(handle)

    def disown(self, handle: int) -> None:
        """Stop watching: whatever becomes of the buffer, somebody else releases."""
        self._forget(handle)

    def when_none(self, call: Callable[[], None]) -> None:
        """Call *call* once nothing is viewed: now, or at the end of the last view.

        The latter may be in a finalizer, perhaps under any lock: *call* must take none.
        """
        self._when_none = call
        self._tell()

    def _forget(self, handle: int) -> bool:
        known = self._watched.pop(handle, None) is not None
        self._deferred.discard(handle)
        if self._when_none is not None:
            self._tell()
        return known

    def _tell(self) -> None:
        if not self._watched:
            call, self._when_none = self._when_none, None
            if call is not None:
                call()

    def _finalized(self, watched: _Watched) -> None:
        if os.getpid() == self._pid and self._forget(watched.handle):
            self.gone.append(watched.handle)
            self._wake()
