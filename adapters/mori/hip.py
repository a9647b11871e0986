"""As much of the HIP runtime as memory for XGMI needs, without torch."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import ConfigError, Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

SONAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
"""What Mori itself is linked with comes first: one process must not hold two runtimes."""

TO_DEVICE, FROM_DEVICE = 1, 2
OUT_OF_MEMORY = 2
NO_DEVICE = 100


class HipError(Exception):
    """A call of the runtime has failed.

    Attributes:
        code: HIP's number.
    """

    def __init__(self, call: str, code: int, words: str) -> None:
        super().__init__(f"{call} gave {code}: {words}")
        self.code = code


class Hip:
    """The runtime; any thread may call it. Every call keeps the thread's current device."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a ctypes library
        self._library = library
        library.hipGetErrorString.restype = ctypes.c_char_p

    def count(self) -> int:
        """How many devices this process sees."""
        found = ctypes.c_int()
        code = self._library.hipGetDeviceCount(ctypes.byref(found))
        return 0 if code == NO_DEVICE else self._whole("hipGetDeviceCount", code, found.value)

    def current(self) -> int:
        """The calling thread's device."""
        found = ctypes.c_int()
        code = self._library.hipGetDevice(ctypes.byref(found))
        return self._whole("hipGetDevice", code, found.value)

    def room(self, device: int) -> tuple[int, int]:
        """Free bytes of *device*, and all that it has."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._on(device):
            code = self._library.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        self._whole("hipMemGetInfo", code)
        return free.value, total.value

    def allocate(self, size: int, device: int) -> int:
        """The address of so many bytes of *device*."""
        found = ctypes.c_void_p()
        with self._on(device):
            code = self._library.hipMalloc(ctypes.byref(found), ctypes.c_size_t(size))
        return self._whole("hipMalloc", code, found.value or 0)

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` gave."""
        self._whole("hipFree", self._library.hipFree(ctypes.c_void_p(address)))

    def put(self, address: int, content: bytes) -> None:
        """Copy *content* to a device address."""
        code = self._library.hipMemcpy(
            ctypes.c_void_p(address), content, ctypes.c_size_t(len(content)), TO_DEVICE
        )
        self._whole("hipMemcpy", code)

    def get(self, address: int, size: int) -> bytes:
        """The bytes at a device address."""
        into = ctypes.create_string_buffer(size)
        code = self._library.hipMemcpy(
            into, ctypes.c_void_p(address), ctypes.c_size_t(size), FROM_DEVICE
        )
        self._whole("hipMemcpy", code)
        return into.raw

    def settle(self) -> None:
        """Return when every device has done all that it was told to."""
        for device in range(self.count()):
            with self._on(device):
                self._whole("hipDeviceSynchronize", self._library.hipDeviceSynchronize())

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        before = self.current()
        self._whole("hipSetDevice", self._library.hipSetDevice(device))
        try:
            yield
        finally:
            self._library.hipSetDevice(before)

    def _whole(self, call: str, code: int, value: int = 0) -> int:
        """*value*, if the call went well."""
        if code:
            words = self._library.hipGetErrorString(code)
            raise HipError(call, code, words.decode() if words else "unknown")
        return value


@lru_cache(maxsize=1)
def load() -> Hip:
    """The runtime of this process.

    Raises:
        ConfigError: there is none.
    """
    reasons = []
    for name in SONAMES:
        try:
            return Hip(ctypes.CDLL(name))
        except OSError as error:  # noqa: PERF203 - three names
            reasons.append(str(error))
    msg = f"the HIP runtime cannot be loaded: {reasons[0]}"
    raise ConfigError(msg, remedy="install ROCm, or a ROCm build of torch and import it first")


def device_of(name: str, hip: Hip) -> int:
    """The number of the device that *name* (``cuda``, ``hip``, ``cuda:1``) stands for.

    Raises:
        ConfigError: there is no such device.
    """
    kind, _, number = name.partition(":")
    seen = hip.count()
    try:
        device = int(number) if number else hip.current()
    except ValueError:
        device = -1
    if kind not in {"cuda", "hip"} or not 0 <= device < seen:
        msg = f"memory_pool_device is {name!r}; this process sees {seen} devices"
        known = ", ".join(f"cuda:{i}" for i in range(seen)) or "none: see HIP_VISIBLE_DEVICES"
        raise ConfigError(msg, remedy=f"use one of them ({known})")
    return device


def host_can_read(address: int) -> bool:
    """Whether the CPU may touch *address*: the kernel tells, where a look would be the end.

    True for memory behind a large BAR, for an APU's, and for emulated devices.
    """
    reader, writer = os.pipe()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.write(writer, ctypes.c_void_p(address), ctypes.c_size_t(1)) == 1)
    finally:
        os.close(reader)
        os.close(writer)


def translated(error: HipError, what: str) -> TransportError:
    """*error* as ours; raise it from *error*."""
    return TransportError(f"HIP: {what}: {error}", reason=Reason.TRANSFER_FAILED)
