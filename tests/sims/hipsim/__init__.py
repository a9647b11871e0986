"""A HIP runtime without an AMD GPU: enough of it for the XGMI backend of AMD's engine.

Two libraries that both call themselves ``libamdhip64.so.7``, as ROCm's does:

*host*
    Devices are names, device memory is host memory that other processes can map. Made for tests: a
    copy can be made slow, held or failed, and everything is counted.
*cuda*
    The same calls on the CUDA runtime: the engine drives real NVIDIA GPUs.

Call :func:`setup` before anything imports ``mori``::

    from tests.sims import hipsim

    hipsim.setup()
    import mori.io

**What is real**: the engine, its threads, its descriptors and what goes between processes. A handle
that another process opens maps the same pages, and a process that dies leaves its peers with them.

**What is not**: time (a copy takes what ``memmove`` takes), copies at the same time (one worker does
all of them, in the order of submission or, shuffled, in any other that streams and events allow),
kernels, and faults of hardware other than those asked for.

Environment, read at the first call of the runtime (*host* variant):

============================ =======  =============================================================
``HIPSIM_DEVICES``           2        how many devices there are
``HIP_VISIBLE_DEVICES``               which of them this process sees, as ROCm reads it
``HIPSIM_P2P``               1        whether devices reach each other's memory
``HIPSIM_ASYNC``             1        0: a copy is done when the call that submits it returns
``HIPSIM_DELAY_US``          0        what each copy waits before it begins
``HIPSIM_SHUFFLE``           0        a seed: streams overtake each other where nothing forbids it
``HIPSIM_MEM_MB``            8192     memory of each device
``HIPSIM_TRACE``             0        1 says on stderr what is done
============================ =======  =============================================================
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sims import building, engine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LAUNCH_FAILURE",
    "delay",
    "devices",
    "fail_next",
    "free",
    "get",
    "held",
    "malloc",
    "put",
    "setup",
    "stats",
    "view",
]

FOLDER = Path(__file__).parent
SONAME = "libamdhip64.so.7"
HOST = ("devices.c", "memory.c", "ipc.c", "work.c", "hooks.c", "unsupported.c")
CUDA = ("cuda.c", "cuda_copy.c", "cuda_load.c", "unsupported.c")
TO_DEVICE, TO_HOST = 1, 2  # hipMemcpyKind
LAUNCH_FAILURE = 719
"""``hipErrorLaunchFailure``: what a GPU says of a copy that went wrong."""

_loaded: list[ctypes.CDLL] = []


def build(variant: str = "host") -> Path:
    """Build one of the libraries; where it lies.

    Raises:
        CannotBuildError: there is no C compiler, or it refuses.
    """
    sources = [FOLDER / name for name in (CUDA if variant == "cuda" else HOST)]
    flags = [f"-Wl,--version-script={FOLDER / 'hip.map'}", "-ldl"]
    return building.shared_library(f"hipsim-{variant}", SONAME, sources, flags)


def build_cuda_in_host_memory() -> Path:
    """A CUDA runtime over host memory, to see the *cuda* variant work without a GPU.

    ``HIPSIM_CUDART`` and ``HIPSIM_LIBCUDA`` must name it.
    """
    sources = [FOLDER / name for name in HOST if name != "unsupported.c"]
    flags = ["-include", str(FOLDER / "as_cuda.h")]
    return building.shared_library("hipsim-cudart", "libcudart-hipsim.so", sources, flags)


def setup(variant: str | None = None) -> ctypes.CDLL:
    """Load the runtime and then the engine, which finds it by its name; once.

    Args:
        variant: ``host`` or ``cuda``; ``HIPSIM_VARIANT`` or ``host`` if not said.

    Raises:
        CannotBuildError: there is no C compiler, or it refuses.
        ImportError: the engine is not installed.
    """
    if not _loaded:
        wanted = variant or os.environ.get("HIPSIM_VARIANT", "host")
        library = ctypes.CDLL(str(build(wanted)), mode=ctypes.RTLD_GLOBAL)
        library.hipGetErrorString.restype = ctypes.c_char_p
        engine.load()
        _loaded.append(library)
    return _loaded[0]


def _hip() -> ctypes.CDLL:
    assert _loaded, "hipsim.setup() comes first"
    return _loaded[0]


def _check(error: int) -> None:
    if error:
        msg = f"HIP error {error}: {_hip().hipGetErrorString(error).decode()}"
        raise RuntimeError(msg)


# --- memory --------------------------------------------------------------------------------------


def devices() -> int:
    """How many devices this process sees."""
    count = ctypes.c_int()
    _hip().hipGetDeviceCount(ctypes.byref(count))
    return count.value


def malloc(size: int, device: int = 0) -> int:
    """*size* bytes of the memory of *device*; their address.

    Raises:
        RuntimeError: with the number and the text of HIP's error.
    """
    pointer, before = ctypes.c_void_p(), ctypes.c_int()
    _check(_hip().hipGetDevice(ctypes.byref(before)))
    _check(_hip().hipSetDevice(device))
    try:
        _check(_hip().hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
    finally:
        _check(_hip().hipSetDevice(before))
    assert pointer.value
    return pointer.value


def free(address: int) -> None:
    """Give back what :func:`malloc` returned. It waits for every copy that is under way."""
    _check(_hip().hipFree(ctypes.c_void_p(address)))


def put(address: int, data: bytes) -> None:
    """Copy *data* to a device and wait until it is there."""
    _check(_hip().hipMemcpy(ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), TO_DEVICE))


def get(address: int, size: int) -> bytes:
    """*size* bytes of a device."""
    out = ctypes.create_string_buffer(size)
    _check(_hip().hipMemcpy(out, ctypes.c_void_p(address), ctypes.c_size_t(size), TO_HOST))
    return out.raw


def view(address: int, size: int) -> memoryview:
    """The memory itself, which is host memory in the *host* variant. It may not outlive it."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


# --- hooks, in the host variant only -------------------------------------------------------------


def fail_next(count: int = 1, error: int = LAUNCH_FAILURE, *, skip: int = 0) -> None:
    """The next *count* copies fail, after *skip* good ones: none of their bytes moves."""
    _hip().hipsim_fail_next(count, error, skip)


@contextmanager
def delay(seconds: float) -> Iterator[None]:
    """Every copy waits that long before it begins."""
    _hip().hipsim_set_delay_us(int(seconds * 1e6))
    try:
        yield
    finally:
        _hip().hipsim_set_delay_us(0)


@contextmanager
def held() -> Iterator[None]:
    """No copy begins within; those submitted begin afterwards. What waits for one waits as long."""
    _hip().hipsim_hold(1)
    try:
        yield
    finally:
        _hip().hipsim_hold(0)


def stats() -> dict[str, int]:
    """What this process has done and has now.

    ``copies`` and ``bytes`` since the start; ``streams``, ``events``, ``allocations`` and
    ``mappings`` of other processes' memory that exist; ``imports`` since the start.
    """
    names = ("copies", "bytes", "streams", "events", "allocations", "mappings", "imports")
    values = (ctypes.c_long * len(names))()
    _hip().hipsim_stats(values)
    return dict(zip(names, values, strict=True))
