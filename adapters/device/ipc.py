"""Pools shared between processes by handle, each opened once a process."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

from stagelink.adapters.device.bytes import DeviceBytes
from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from stagelink.adapters.device.runtime import Memories
    from stagelink.adapters.device.space import Space

_lock = Lock()
_shared: WeakValueDictionary[tuple[str, bytes], Any] = WeakValueDictionary()
"""Pools that this process has shared: a runtime does not open what it has made itself."""
_opened: WeakValueDictionary[tuple[str, int, bytes], Mapping] = WeakValueDictionary()
"""Mappings by runtime, device and handle: HIP opens a handle only once."""


class Mapping:
    """Another process's memory, unmapped with the last object that refers to it."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, runtime: Memories, index: int, handle: bytes) -> None:
        self.address = runtime.open(index, handle)
        finalize(self, _shut, os.getpid(), runtime, index, self.address).atexit = False


class RuntimeIpc:
    """Shares pools and opens those of others for the device of *space*."""

    def __init__(self, space: Space) -> None:
        self.runtime = space.runtime.name
        self._space = space

    def share(self, memory: Any) -> bytes:  # noqa: ANN401 - a DevicePool
        """The pool's handle.

        Raises:
            TransportError: the runtime cannot share memory here.
        """
        runtime, index = self._space.runtime, memory.index
        try:
            handle = runtime.share(index, memory.address)
        except TransportError as error:
            error.remedy = "containers need --ipc=host or a shared PID namespace; MIG cannot share"
            raise
        _shared[self.runtime, handle] = memory
        return handle

    def open(self, handle: bytes, size: int) -> DeviceBytes:
        """The first *size* bytes of it, for our device.

        Raises:
            TransportError: it cannot be opened, or is smaller.
        """
        own = _shared.get((self.runtime, handle))
        if own is not None:
            return _within(own.buffer, size, own.size)
        space = self._space
        with _lock:
            mapping = self._mapped(handle)
        extent = space.runtime.extent(space.index, mapping.address)
        whole = DeviceBytes(space, mapping.address, size, mapping)
        return _within(whole, size, extent or size)

    def _mapped(self, handle: bytes) -> Mapping:
        key = self.runtime, self._space.index, handle
        found = _opened.get(key)
        if found is None:
            try:
                found = Mapping(self._space.runtime, self._space.index, handle)
            except TransportError as error:
                error.remedy = (
                    "both devices must reach each other (stagelink doctor --gpu), "
                    "and the peer must live and be of the same user"
                )
                raise
            _opened[key] = found
        return found


def _within(whole: DeviceBytes, size: int, there: int) -> DeviceBytes:
    if size > there:
        msg = f"the peer claims {size} bytes of device memory, there are {there}"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="restart the peer")
    return whole[:size]


def _shut(owner: int, runtime: Memories, index: int, address: int) -> None:
    """Unmap it, unless this is a forked child, in which the device cannot be used."""
    if os.getpid() == owner:
        runtime.shut(index, address)
