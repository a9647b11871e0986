"""Try the engine on one of the runtimes: ``python -m tests.sims.hipsim.trial [host|cuda]``.

Two processes, a device each (or both the same, if there is one): bytes are written from one to the
other through an IPC handle and compared; then small and large writes are timed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.sims import hipsim

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZE = 64 << 20
SMALL = 4096
TIMES = 200


class End:
    """An engine with memory of one device."""

    def __init__(self, key: str, device: int, size: int) -> None:
        from mori import io

        self.io, self.size = io, size
        self.engine = io.IOEngine(key, io.IOEngineConfig("127.0.0.1", 0))
        self.engine.create_backend(io.BackendType.XGMI)
        self.address = hipsim.malloc(size, device)
        self.memory = self.engine.register_memory(
            self.address, size, device, io.MemoryLocationType.GPU
        )

    def described(self) -> tuple[bytes, bytes]:
        """The engine and its memory, as they travel."""
        return self.engine.get_engine_desc().pack(), self.memory.pack()

    def session(self, engine: bytes, memory: bytes) -> Any:
        """Our memory and a peer's."""
        self.engine.register_remote_engine(self.io.EngineDesc.unpack(engine))
        made = self.engine.create_session(self.memory, self.io.MemoryDesc.unpack(memory))
        assert made, "the peer is out of reach"
        return made


def far(pipe: Connection, variant: str) -> None:
    """The other process: its memory is written, and it says what it holds."""
    hipsim.setup(variant)
    end = End("far", hipsim.devices() - 1, SIZE)
    hipsim.put(end.address, b"\0" * SIZE)
    pipe.send(end.described())
    while pipe.recv():
        pipe.send(hipsim.get(end.address, SIZE))


def write(session: Any, size: int) -> None:
    status = session.write(0, 0, size, session.allocate_transfer_uid())
    status.Wait()
    assert status.Succeeded(), status.Message()


def best_s(session: Any, size: int, times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        write(session, size)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main(variant: str) -> None:
    """Both ends; prints what was found."""
    hipsim.setup(variant)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=far, args=(theirs, variant), daemon=True)
    process.start()
    end, content = End("near", 0, SIZE), os.urandom(SIZE)
    session = end.session(*pipe.recv())
    hipsim.put(end.address, content)
    write(session, SIZE)
    pipe.send(True)
    assert pipe.recv() == content, "wrong bytes"
    small, large = best_s(session, SMALL, TIMES), best_s(session, SIZE, TIMES // 10)
    sys.stdout.write(
        f"{variant}: {hipsim.devices()} devices, every byte right; {SMALL} bytes in "
        f"{small * 1e6:.1f} us, {SIZE >> 20} MiB at {SIZE / large / 1e9:.0f} GB/s\n"
    )
    pipe.send(False)
    process.join()
    os._exit(0)  # whatever order the interpreter would take things apart in


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "host")
