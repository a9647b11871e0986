"""Both Mori planes on a fake engine that notices what would crash the real one."""

from __future__ import annotations

import ctypes
import mmap
import secrets
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.adapters import mori_fake

from stagelink.adapters.mori import (
    DeviceMemoryProvider,
    PinnedMemoryProvider,
    RdmaOptions,
    XgmiOptions,
    hip,
    rdma_plane,
    verbs,
    xgmi_plane,
)
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party

if TYPE_CHECKING:
    from types import ModuleType


class Runtime:
    """A HIP of two devices whose memory is the host's."""

    def __init__(self) -> None:
        self.settled = 0
        self.full = False
        self._mappings: dict[int, mmap.mmap] = {}

    def count(self) -> int:
        return 2

    def current(self) -> int:
        return 0

    def room(self, device: int) -> tuple[int, int]:
        return 4096, 1 << 30

    def allocate(self, size: int, device: int) -> int:
        if self.full:
            raise hip.HipError("hipMalloc", hip.OUT_OF_MEMORY, "out of memory")
        mapping = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._mappings[address] = mapping
        return address

    def free(self, address: int) -> None:
        self._mappings.pop(address)

    def put(self, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def get(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def settle(self) -> None:
        self.settled += 1


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(hip, "load", lambda: made)
    return made


@pytest.fixture
def mori(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> ModuleType:
    """``mori.io`` for this test; two NICs with an active port."""
    made = mori_fake.module()
    monkeypatch.setitem(sys.modules, "mori.io", made)
    nics = [verbs.Device("nic0", "active"), verbs.Device("nic1", "active")]
    monkeypatch.setattr(verbs, "devices", lambda: nics)
    monkeypatch.setattr(verbs, "try_register", lambda *_: None)
    return made


def on_xgmi(size: int, **options: Any) -> Party:
    instance = secrets.token_bytes(16)
    memory = DeviceMemoryProvider("cuda").allocate(size)
    return Party(instance, xgmi_plane(instance, XgmiOptions(**options)), memory)


def on_rdma(size: int, **options: Any) -> Party:
    instance = secrets.token_bytes(16)
    memory = PinnedMemoryProvider().allocate(size)
    return Party(instance, rdma_plane(instance, RdmaOptions(**options)), memory)


class TestXgmiPlane(DataPlaneContract):
    """Between GPUs."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, mori: ModuleType) -> MakeParty:
        return on_xgmi


class TestRdmaPlane(DataPlaneContract):
    """Through NICs."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, mori: ModuleType) -> MakeParty:
        return on_rdma
