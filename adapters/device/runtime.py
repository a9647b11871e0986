"""The few calls of the CUDA or HIP runtime that torch has no public name for.

torch's own way to share memory (``storage._share_cuda_``) counts references in a file of its own:
a consumer that is killed leaves them, a pool that many consumers open wants one count each, and
with expandable segments there is no handle at all. The handle beneath it is 64 bytes that the
runtime makes of an allocation, and the same two calls in CUDA and HIP.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stagelink.core.errors import ConfigError, Reason, TransportError
from stagelink.ports.memory import whole_pages

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

HANDLE_BYTES = 64
LAZY_PEER_ACCESS = 1
WHEREVER = 4
"""The direction of a copy that the runtime tells by the addresses."""

LIBRARIES = {"cuda": "libcudart", "hip": "libamdhip64"}
"""How the library of a runtime is called; its functions begin with the runtime's name."""


class Memories(Protocol):
    """Allocates, shares and opens device memory. Any thread may call it."""

    name: str

    def available(self, index: int) -> int:
        """Free bytes of device *index*."""
        ...

    def allocate(self, index: int, size: int) -> int:
        """The address of *size* new bytes on device *index*."""
        ...

    def free(self, index: int, address: int) -> None:
        """Give an allocation back, at the latest when nothing queued uses it."""
        ...

    def fetch(self, address: int, nbytes: int, stream: int) -> bytearray:
        """Host bytes of a device's, copied on *stream* and waited for there."""
        ...

    def send(self, address: int, data: bytes | bytearray, stream: int) -> None:
        """Queue a copy of host bytes to a device on *stream*; *data* stays until it is done."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy within a device on *stream*."""
        ...

    def share(self, index: int, address: int) -> bytes:
        """What another process opens the allocation at *address* by, 64 bytes."""
        ...

    def open(self, index: int, handle: bytes) -> int:
        """Map what another process shared, for use by device *index*; its address."""
        ...

    def shut(self, index: int, address: int) -> None:
        """Undo one :meth:`open`."""
        ...

    def extent(self, index: int, address: int) -> int:
        """Bytes of the allocation or mapping that begins at *address*; 0: it cannot tell."""
        ...


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Runtime:
    """Implements :class:`Memories` with the library that torch has loaded.

    Args:
        library: the runtime, loaded.
        name: ``cuda`` or ``hip``.
    """

    def __init__(self, library: Any, name: str) -> None:  # noqa: ANN401 - a CDLL
        self.name = name
        self._library = library
        self._function("GetErrorString").restype = ctypes.c_char_p
        opener = self._function("IpcOpenMemHandle")
        opener.argtypes = (ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint)
        self._ranges = self._range_function()

    @classmethod
    def of_torch(cls) -> Runtime:
        """That which torch uses in this process, its devices looked up.

        Raises:
            ConfigError: torch is not here, or sees no device.
        """
        try:
            import torch  # noqa: PLC0415 - heavy

            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (ImportError, AssertionError, RuntimeError) as error:
            msg = f"torch has no device here: {error}"
            remedy = "install a torch for CUDA or ROCm, and see `stagelink doctor --gpu`"
            raise ConfigError(msg, remedy=remedy) from error
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        name = "hip" if torch.version.hip else "cuda"
        return cls(ctypes.CDLL(find(maps.splitlines(), name)), name)

    def available(self, index: int) -> int:
        """Free bytes of device *index*."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._on(index):
            self._call("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, index: int, size: int) -> int:
        """An allocation of its own: torch's allocator may hand out parts of larger ones."""
        place = ctypes.c_void_p()
        with self._on(index):
            self._call("Malloc", ctypes.byref(place), ctypes.c_size_t(whole_pages(size)))
        return place.value or 0

    def free(self, index: int, address: int) -> None:
        """The runtime waits for the device itself before it takes memory back."""
        with self._on(index):
            self._function("Free")(ctypes.c_void_p(address))

    def fetch(self, address: int, nbytes: int, stream: int) -> bytearray:
        """Without torch's way of making a stream current, which takes as long as the copy."""
        found = bytearray(nbytes)
        if nbytes:
            place = (ctypes.c_char * nbytes).from_buffer(found)
            self._copy(ctypes.addressof(place), address, nbytes, stream)
            self._call("StreamSynchronize", ctypes.c_void_p(stream))
        return found

    def send(self, address: int, data: bytes | bytearray, stream: int) -> None:
        """CUDA reads pageable memory before the call returns, HIP need not."""
        if data:
            self._copy(address, _address_of(data), len(data), stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Without a tensor of the target, which takes torch longer to make than a small copy."""
        if nbytes:
            self._copy(target, source, nbytes, stream)

    def share(self, index: int, address: int) -> bytes:
        """The handle."""
        handle = _Handle()
        with self._on(index):
            self._call("IpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        return bytes(handle)

    def open(self, index: int, handle: bytes) -> int:
        """Map it; peer access is enabled on the way."""
        place, shared = ctypes.c_void_p(), _Handle.from_buffer_copy(handle)
        flags = ctypes.c_uint(LAZY_PEER_ACCESS)
        with self._on(index):
            self._call("IpcOpenMemHandle", ctypes.byref(place), shared, flags)
        return place.value or 0

    def shut(self, index: int, address: int) -> None:
        """Unmap it."""
        with self._on(index):
            self._function("IpcCloseMemHandle")(ctypes.c_void_p(address))

    def extent(self, index: int, address: int) -> int:
        """As the driver tells."""
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        if self._ranges is None:
            return 0
        with self._on(index):
            failed = self._ranges(ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(address))
        return 0 if failed or base.value is None else base.value + size.value - address

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Whatever device is current: a copy belongs to its stream's."""
        self._call(
            "MemcpyAsync", ctypes.c_void_p(target), ctypes.c_void_p(source),
            ctypes.c_size_t(nbytes), ctypes.c_int(WHEREVER), ctypes.c_void_p(stream),
        )  # fmt: skip

    def _on(self, index: int) -> AbstractContextManager[Any]:
        """The calling thread's device is *index* within it, and its own again afterwards.

        By torch, for it makes no context on a device that is merely gone back to.
        """
        import torch  # noqa: PLC0415 - loaded already

        return torch.cuda.device(index)

    def _range_function(self) -> Any:  # noqa: ANN401 - a function of a library
        if self.name == "hip":
            return getattr(self._library, "hipMemGetAddressRange", None)
        try:
            return getattr(ctypes.CDLL("libcuda.so.1"), "cuMemGetAddressRange_v2", None)
        except OSError:
            return None

    def _function(self, name: str) -> Any:  # noqa: ANN401 - a function of a library
        return getattr(self._library, self.name + name)

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function that returns an error number.

        Raises:
            TransportError: it does, with its number and words.
        """
        failed = self._function(name)(*arguments)
        if failed:
            words = self._function("GetErrorString")(failed) or b"unknown"
            self._function("GetLastError")()  # or the next kernel of the user's would report it
            msg = f"{self.name}{name} failed with {failed}: {words.decode(errors='replace')}"
            raise TransportError(msg, reason=Reason.FAILED)


def _address_of(data: bytes | bytearray) -> int:
    if isinstance(data, bytearray):
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def find(maps: Iterable[str], name: str) -> str:
    """The library of the runtime *name* among the lines of ``/proc/self/maps``.

    Raises:
        ConfigError: it is not loaded.
    """
    stem = LIBRARIES[name]
    for line in maps:
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith((f"{stem}.so", f"{stem}-")):
            return "/" + path.split(" (deleted)")[0]
    msg = f"no library of the CUDA or HIP runtime is loaded in this process: {stem} is not"
    raise ConfigError(msg, remedy=f"use a torch that loads {stem} as a library of its own")
