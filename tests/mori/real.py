"""Engines and peers for the tests on AMD's real engine, here and in other processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.sims import hipsim, verbsim

from stagelink.plugins.conformance.elsewhere import Elsewhere

ROOT = Path(__file__).parents[2]

# The engine reads these when it is loaded. It would take XGMI for two GPUs of one host whatever a
# test is about, and its log goes to stdout.
os.environ.setdefault("MORI_DISABLE_AUTO_XGMI", "1")
os.environ.setdefault("MORI_IO_LOG_LEVEL", "critical")
# Copies overtake each other where streams and events allow it.
os.environ.setdefault("HIPSIM_SHUFFLE", "1")

verbsim.setup()

from mori import io as mori  # noqa: E402 - only once there is something that it can run on

__all__ = ["ROOT", "SIZE", "Far", "Side", "child", "ended", "mori"]

SIZE = 65536


class Side:
    """An engine with one registered piece of memory, full of one byte.

    Args:
        key: the engine's name.
        kind: ``xgmi``, with memory of a device, or ``rdma``, with memory of the host.
        device: whose memory it is (xgmi).
        settings: of the backend.
    """

    def __init__(
        self,
        key: str,
        kind: str,
        byte: int = 0x11,
        *,
        size: int = SIZE,
        device: int = 0,
        **settings: Any,
    ) -> None:
        self.kind, self.size, self.device = kind, size, device
        self.backend = mori.BackendType.XGMI if kind == "xgmi" else mori.BackendType.RDMA
        self.engine = mori.IOEngine(key, mori.IOEngineConfig(host="127.0.0.1", port=0))
        self._settings = settings
        self.begin()
        self._map: mmap.mmap | None = None
        self.address = self._allocate()
        self.fill(byte)
        self.memory = self.register(self.address, size)

    def begin(self) -> None:
        """Make the backend."""
        kind = mori.XgmiBackendConfig if self.kind == "xgmi" else mori.RdmaBackendConfig
        self.engine.create_backend(self.backend, kind(**self._settings))

    def again(self) -> None:
        """Make the backend anew."""
        self.engine.remove_backend(self.backend)
        self.begin()

    def register(self, address: int, size: int) -> Any:
        """The descriptor of memory that the engine may use from now on."""
        if self.kind == "xgmi":
            place = (self.device, mori.MemoryLocationType.GPU)
        else:
            place = (-1, mori.MemoryLocationType.CPU)
        return self.engine.register_memory(address, size, *place)

    def replace(self) -> None:
        """Free the memory of the device and allocate as much again, which the engine is not told."""
        hipsim.free(self.address)
        self.address = self._allocate()
        self.fill(0x77)

    def deregister(self) -> None:
        """Take the memory from the engine."""
        self.engine.deregister_memory(self.memory)

    def fill(self, byte: int) -> None:
        """All of the memory."""
        hipsim.view(self.address, self.size)[:] = bytes([byte]) * self.size

    def peek(self, size: int = 8, at: int = 0) -> bytes:
        """What the memory holds there."""
        return bytes(hipsim.view(self.address + at, size))

    def described(self) -> tuple[bytes, bytes]:
        """The engine and its memory, as they travel."""
        return self.engine.get_engine_desc().pack(), self.memory.pack()

    def meet(self, described: tuple[bytes, bytes]) -> Any:
        """Make a peer's engine known; its memory."""
        self.engine.register_remote_engine(mori.EngineDesc.unpack(described[0]))
        return mori.MemoryDesc.unpack(described[1])

    def meet_only(self, described: tuple[bytes, bytes]) -> None:
        """Make a peer's engine known; what is returned here can go to another process."""
        self.meet(described)

    def write(self, there: Any, size: int = 64, *, at: int = 0, mine: int = 0) -> Any:
        """Begin a write of our memory into that one."""
        uid = self.engine.allocate_transfer_uid()
        return self.engine.write(self.memory, mine, there, at, size, uid)

    def push(self, described: tuple[bytes, bytes], size: int, at: int = 0) -> tuple[str, str]:
        """Write our first bytes there, wait, and tell how it ended."""
        return ended(self.write(self.meet(described), size, at=at))

    def heard(self, key: str, uid: int) -> str:
        """How the transfer of that number ended that *key* told us of; empty if it has not."""
        status = self.engine.pop_inbound_transfer_status(key, uid)
        return status.Code().name if status else ""

    def failures(self) -> list[tuple[str, str]]:
        """Whom the engine knows to have failed, and why."""
        found = []
        while event := self.engine.pop_peer_failure():
            found.append((event.remote_engine_key, event.reason.name))
        return found

    def hook(self, simulator: str, name: str, *arguments: Any) -> None:
        """Call a hook of one of the simulators here."""
        getattr({"hipsim": hipsim, "verbsim": verbsim}[simulator], name)(*arguments)

    def limit_regions(self, max_bytes: int) -> None:
        """From now on cards here register no more than that."""
        self._limit = verbsim.limit_regions(max_bytes)
        self._limit.__enter__()

    def drop_all(self) -> None:
        """From now on nothing reaches the cards here."""
        self._lost = verbsim.drop_all()
        self._lost.__enter__()

    def close(self) -> None:
        """End the engine, which must outlive all its statuses and sessions; then the memory."""
        self.engine.remove_backend(self.backend)
        self.engine = None
        if self._map is None:
            hipsim.free(self.address)

    def _allocate(self) -> int:
        if self.kind == "xgmi":
            return hipsim.malloc(self.size, self.device)
        self._map = mmap.mmap(-1, self.size)
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))


class Far:
    """A side in a process of its own."""

    def __init__(self, key: str, kind: str, byte: int = 0x44, **settings: Any) -> None:
        self.process = Elsewhere(_Made(settings), key, kind, byte)
        self.described: tuple[bytes, bytes] = self.process.ask("described")

    def peek(self, size: int = 8, at: int = 0) -> bytes:
        """What its memory holds there."""
        held: bytes = self.process.ask("peek", size, at)
        return held


class _Made:
    """A side with these settings; can be sent to another process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __call__(self, *arguments: Any) -> Side:
        return Side(*arguments, **self._settings)


def ended(status: Any, within_s: float = 20.0) -> tuple[str, str]:
    """How a transfer has ended: the name of its code, and its message."""
    until_s = time.monotonic() + within_s
    while status.Code().name in ("INIT", "IN_PROGRESS"):
        assert time.monotonic() < until_s, "the transfer does not end"
        time.sleep(0.001)
    return status.Code().name, status.Message()


PRELUDE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it may be going to abort
from tests.mori.real import *
from tests.sims import hipsim, verbsim
"""


def child(
    code: str, environment: dict[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process that may not survive it; everything of this module is there.

    Its return code is -9 if it was still running after that time.
    """
    command = [sys.executable, "-c", PRELUDE + code]
    around = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **(environment or {})}
    with subprocess.Popen(
        command, env=around, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
