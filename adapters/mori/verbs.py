"""As much of libibverbs as tells which NICs are there, and whether they take our memory."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

SONAMES = ("libibverbs.so.1", "libibverbs.so")
PORT = 1
STATES = ("no change", "down", "init", "armed", "active", "deferred")
ACCESS = 0b1111
"""Local write, remote write, remote read, remote atomic: what Mori asks for."""

CAP_IPC_LOCK = 14
_PORT_ATTR_BYTES = 256


class Device(NamedTuple):
    """An RDMA device, and the state of its first port."""

    name: str
    state: str

    @property
    def active(self) -> bool:
        """Whether transfers can leave it."""
        return self.state == "active"


def devices() -> list[Device]:
    """Every RDMA device of this host; none where there is no libibverbs."""
    library = _library()
    if library is None:
        return []
    found = []
    with _listed(library) as pointers:
        for pointer in pointers:
            name = library.ibv_get_device_name(pointer).decode()
            found.append(Device(name, _state(library, pointer)))
    return found


def try_register(names: list[str], address: int, size: int) -> None:
    """Register memory with each device, and undo it.

    Raises:
        TransportError: one refuses; says which, with the system's error.
    """
    library = _library()
    if library is None:
        return
    with _listed(library) as pointers:
        for pointer in pointers:
            name = library.ibv_get_device_name(pointer).decode()
            if name in names:
                _try(library, pointer, name, address, size)


def check_locked(size: int, times: int) -> None:
    """See that the kernel lets us lock so many bytes, once for each device.

    Raises:
        TransportError: it does not; both numbers and the remedy.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    needed = size * times
    if limit == resource.RLIM_INFINITY or needed <= limit or _may_lock_all():
        return
    msg = (
        f"{needed} bytes are to be locked ({size} for each of {times} NICs), the limit is {limit}"
    )
    remedy = "raise it (`ulimit -l unlimited`, or memlock in limits.conf), or lower pool_bytes"
    raise TransportError(msg, reason=Reason.NO_ROOM, remedy=remedy)


def _may_lock_all() -> bool:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_IPC_LOCK & 1)
    return False


def _library() -> Any:  # noqa: ANN401 - a ctypes library
    for name in SONAMES:
        with suppress(OSError):
            library = ctypes.CDLL(name, use_errno=True)
            for pointer in ("get_device_list", "open_device", "alloc_pd", "reg_mr"):
                getattr(library, f"ibv_{pointer}").restype = ctypes.c_void_p
            library.ibv_get_device_name.restype = ctypes.c_char_p
            return library
    return None


@contextmanager
def _listed(library: Any) -> Iterator[list[ctypes.c_void_p]]:  # noqa: ANN401
    """Pointers to the devices, good until the end of the block."""
    count = ctypes.c_int()
    listed = library.ibv_get_device_list(ctypes.byref(count))
    if not listed:
        yield []
        return
    try:
        array = ctypes.cast(listed, ctypes.POINTER(ctypes.c_void_p))
        yield [ctypes.c_void_p(array[index]) for index in range(count.value)]
    finally:
        library.ibv_free_device_list(ctypes.c_void_p(listed))


def _state(library: Any, pointer: ctypes.c_void_p) -> str:  # noqa: ANN401
    context = library.ibv_open_device(pointer)
    if not context:
        return "closed to us"
    attributes = (ctypes.c_int * (_PORT_ATTR_BYTES // 4))()
    failed = library.ibv_query_port(ctypes.c_void_p(context), ctypes.c_uint8(PORT), attributes)
    library.ibv_close_device(ctypes.c_void_p(context))
    return STATES[attributes[0]] if not failed and attributes[0] < len(STATES) else "unknown"


def _try(library: Any, pointer: ctypes.c_void_p, name: str, address: int, size: int) -> None:  # noqa: ANN401
    ctypes.set_errno(0)
    context = library.ibv_open_device(pointer)
    domain = library.ibv_alloc_pd(ctypes.c_void_p(context)) if context else None
    try:
        arguments = ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(ACCESS)
        region = library.ibv_reg_mr(ctypes.c_void_p(domain), *arguments) if domain else None
        if not region:
            raise _refused(name, os.strerror(ctypes.get_errno()), size)
        library.ibv_dereg_mr(ctypes.c_void_p(region))
    finally:
        if domain:
            library.ibv_dealloc_pd(ctypes.c_void_p(domain))
        if context:
            library.ibv_close_device(ctypes.c_void_p(context))


def _refused(name: str, why: str, size: int) -> TransportError:
    msg = f"RDMA device {name} does not take {size} bytes with access {ACCESS:#x}: {why}"
    remedy = "check `ulimit -l`, the driver, and the device's access to this memory"
    return TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
