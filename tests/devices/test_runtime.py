"""The calls of the CUDA or HIP runtime, by a library that notes them."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from tests.devices.host import space

from stagelink.adapters.device import RuntimeIpc, find_device
from stagelink.adapters.device.runtime import Runtime, find
from stagelink.core.errors import ConfigError, TransportError

MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/libc.so.6
7f0000002000-7f0000003000 r-xp 00000000 08:01 2 /venv/lib/libcudart_static_user.so
7f0000004000-7f0000005000 r-xp 00000000 08:01 3 {path}
"""


class Function:
    """A function of a library that answers as told."""

    def __init__(self, name: str, library: Library) -> None:
        self.argtypes = self.restype = None
        self._name = name
        self._library = library

    def __call__(self, *arguments: Any) -> Any:
        self._library.called.append(self._name)
        self._library.on.append(self._library.device)
        if self._name.endswith("GetErrorString"):
            return b"no such thing"
        if self._name.endswith(("Malloc", "IpcOpenMemHandle")):
            arguments[0]._obj.value = 0x7000
        if self._name.endswith("Malloc"):
            self._library.sizes.append(arguments[1].value)
        if self._name.endswith("IpcGetMemHandle"):
            ctypes.memmove(ctypes.addressof(arguments[0]._obj), bytes(range(64)), 64)
        if self._name.endswith("IpcOpenMemHandle"):
            self._library.opened.append((bytes(arguments[1]), arguments[2].value))
        if self._name.endswith("MemcpyAsync"):
            self._library.copied.append(tuple(argument.value for argument in arguments[2:]))
            if arguments[0].value == 0x7000:
                sent = ctypes.string_at(arguments[1].value, arguments[2].value)
                self._library.sent.append(sent)
        if self._name.endswith("MemGetInfo"):
            arguments[0]._obj.value, arguments[1]._obj.value = 1000, 2000
        if self._name.endswith("MemGetAddressRange"):
            arguments[0]._obj.value, arguments[1]._obj.value = 0x6F00, 0x300
        return self._library.fails


class Library:
    """Keeps its functions, as a loaded library does."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.on: list[int] = []
        self.sizes: list[int] = []
        self.opened: list[tuple[bytes, int]] = []
        self.sent: list[bytes] = []
        self.copied: list[tuple[int, ...]] = []
        self.fails = 0
        self.device = -1

    def __getattr__(self, name: str) -> Function:
        found = Function(name, self)
        setattr(self, name, found)
        return found


class Noted(Runtime):
    """Makes a device current by noting it."""

    def _on(self, index: int) -> AbstractContextManager[Any]:
        self._library.device = index
        return nullcontext()


def test_each_call_is_the_runtimes_own_on_the_device_that_it_is_for() -> None:
    library = Library()
    runtime = Noted(library, "hip")

    assert runtime.available(1) == 1000
    assert runtime.allocate(2, 4096) == 0x7000
    assert runtime.share(3, 0x7000) == bytes(range(64))
    assert runtime.open(4, bytes(range(64))) == 0x7000
    assert runtime.extent(5, 0x7000) == 0x200
    runtime.shut(6, 0x7000)
    runtime.free(7, 0x7000)

    assert library.called == [
        "hipMemGetInfo", "hipMalloc", "hipIpcGetMemHandle", "hipIpcOpenMemHandle",
        "hipMemGetAddressRange", "hipIpcCloseMemHandle", "hipFree",
    ]  # fmt: skip
    assert library.on == [1, 2, 3, 4, 5, 6, 7]
    assert library.opened == [(bytes(range(64)), 1)], "peer access is to be enabled"


def test_the_driver_is_asked_for_whole_large_pages() -> None:
    """Else it maps the whole of it by small ones, and copies of it take longer."""
    library = Library()
    for size in (1, 2 << 20, (2 << 20) + 1):
        Noted(library, "cuda").allocate(0, size)
    assert library.sizes == [2 << 20, 2 << 20, 4 << 20]


def test_host_bytes_are_copied_on_the_stream_that_is_named() -> None:
    library = Library()
    runtime = Noted(library, "cuda")

    runtime.send(0x7000, b"abc", 5)
    assert runtime.fetch(0x7000, 7, 6) == bytes(7)
    runtime.send(0x7000, bytearray(b"defg"), 5)
    runtime.send(0x7000, b"", 5)
    assert runtime.fetch(0x7000, 0, 6) == b""
    runtime.copy(0x8000, 0x7000, 9, 8)
    runtime.copy(0x7000, 0, 0, 8)

    copy = "cudaMemcpyAsync"
    assert library.called == [copy, copy, "cudaStreamSynchronize", copy, copy]
    assert library.copied == [(3, 4, 5), (7, 4, 6), (4, 4, 5), (9, 4, 8)]
    assert library.sent == [b"abc", b"defg"]


def test_a_failing_call_names_itself_and_leaves_no_error_behind() -> None:
    library = Library()
    runtime = Noted(library, "cuda")
    library.fails = 2
    with pytest.raises(TransportError, match="cudaMalloc failed with 2: no such thing"):
        runtime.allocate(0, 1)
    assert library.called[-1] == "cudaGetLastError"
    assert Noted(library, "hip").extent(0, 0x7000) == 0


def test_what_cannot_be_opened_or_shared_has_a_remedy() -> None:
    library = Library()
    device = space()
    device.runtime = Noted(library, "hip")
    library.fails = 17
    with pytest.raises(TransportError, match="the peer must live"):
        RuntimeIpc(device).open(bytes(64), 1)

    class Pool:
        index, address = 0, 0x7000

    with pytest.raises(TransportError, match="--ipc=host"):
        RuntimeIpc(device).share(Pool())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/venv/nvidia/cuda_runtime/lib/libcudart.so.13", "cuda"),
        ("/venv/torch/lib/libcudart-d0da41ae.so.11.0", "cuda"),
        ("/rocm 7/lib/libamdhip64.so.7.0.1", "hip"),
        ("/venv/torch/lib/libamdhip64.so (deleted)", "hip"),
    ],
)
def test_the_runtime_is_the_one_that_torch_has_loaded(path: str, name: str) -> None:
    found = find(MAPS.format(path=path).splitlines(), name)
    assert found == path.removesuffix(" (deleted)")


def test_without_a_runtime_the_error_says_so() -> None:
    with pytest.raises(ConfigError, match="no library of the CUDA or HIP runtime"):
        find(MAPS.format(path="/usr/lib/libz.so").splitlines(), "cuda")
    with pytest.raises(ConfigError, match="libamdhip64"):
        find(MAPS.format(path="/usr/lib/libcudart.so.13").splitlines(), "hip")


@pytest.mark.parametrize("name", ["cpu", "nonsense", "meta", ""])
def test_a_pool_device_that_is_none_is_refused(name: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="pool_device"):
        find_device(name)
