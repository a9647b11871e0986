"""A ``mori.io`` in pure Python: as careless as the real one, and it notices what would crash that.

One process, any memory by its address. Writes are applied when somebody waits for their status,
or at once; ``Knobs`` say when they fail. What the real engine answers with a crash, an abort or a
silent corruption raises :exc:`Crash` here, which nothing translates.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
import threading
from types import ModuleType
from typing import Any

import msgspec

NUMBERS = itertools.count(1)
COUNTING = threading.Lock()
REGISTERING = threading.Lock()


class Crash(BaseException):
    """The real one would have taken the process down, or somebody's bytes."""


class StatusCode(enum.Enum):
    SUCCESS = 0
    INIT = 1
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 3
    ERR_NOT_FOUND = 4
    ERR_RDMA_OP = 5
    ERR_BAD_STATE = 6
    ERR_GPU_OP = 7


class BackendType(enum.Enum):
    XGMI = 1
    RDMA = 2


class MemoryLocationType(enum.Enum):
    CPU = 1
    GPU = 2


class PollCqMode(enum.Enum):
    POLLING = 0
    EVENT = 1


class IOEngineConfig:
    def __init__(self, host: str = "", port: int = 0) -> None:
        self.host, self.port = host, port


class RdmaBackendConfig:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class XgmiBackendConfig:
    def __init__(self, num_streams: int = 64, num_events: int = 64) -> None:
        self.settings = {"num_streams": num_streams, "num_events": num_events}


class EngineDesc(msgspec.Struct, array_like=True):
    key: str
    node_id: str
    hostname: str
    host: str
    port: int
    pid: int

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def unpack(packed: bytes) -> EngineDesc:
        try:
            return msgspec.msgpack.decode(packed, type=EngineDesc)
        except msgspec.MsgspecError as error:
            raise RuntimeError(str(error)) from None


class MemoryDesc(msgspec.Struct, array_like=True):
    engine_key: str
    id: int
    device_id: int
    device_bus_id: str
    data: int
    size: int
    place: int
    ipc_handle: bytes

    @property
    def loc(self) -> MemoryLocationType:
        return MemoryLocationType(self.place)

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def unpack(packed: bytes) -> MemoryDesc:
        try:
            return msgspec.msgpack.decode(packed, type=MemoryDesc)
        except msgspec.MsgspecError as error:
            raise RuntimeError(str(error)) from None


class TransferStatus:
    """Ends when somebody waits for it and the gate is open; never, once its engine has gone."""

    def __init__(
        self, engine: IOEngine, pair: tuple[MemoryDesc, MemoryDesc], moves: list[Any]
    ) -> None:
        self._engine, self._pair, self._moves = engine, pair, moves
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._code = StatusCode.IN_PROGRESS
        self._message = ""

    def Wait(self) -> None:  # noqa: N802
        for _ in range(4000):
            if self._ended.is_set():
                return
            self._engine.waited_for()
            if self._engine.knobs.gate.is_set() and not self._engine.gone:
                self._apply()
            else:
                self._ended.wait(0.005)
        raise Crash("a status that nobody ends")

    def _apply(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            with REGISTERING:  # as a NIC: it looks at each write whether its target is registered
                if self._engine.reaches(*self._pair):
                    for target, source, size in self._moves:
                        ctypes.memmove(target, source, size)
                    self.Update(StatusCode.SUCCESS, "success")
                else:
                    self._engine.break_off(self, self._pair[1])
            self._engine.fly(-1)

    def Update(self, code: StatusCode, message: str) -> None:  # noqa: N802
        self._code, self._message = code, message
        self._ended.set()

    def Succeeded(self) -> bool:  # noqa: N802
        return self._code is StatusCode.SUCCESS

    def Code(self) -> StatusCode:  # noqa: N802
        return self._code

    def Message(self) -> str:  # noqa: N802
        return self._message


class Session:
    def __init__(self, engine: IOEngine, mine: MemoryDesc, theirs: MemoryDesc) -> None:
        self._engine, self._mine, self._theirs = engine, mine, theirs

    def allocate_transfer_uid(self) -> int:
        return next(NUMBERS)

    def write(self, mine: int, theirs: int, size: int, uid: int) -> TransferStatus:
        return self.batch_write([mine], [theirs], [size], uid)

    def batch_write(
        self, mine: list[int], theirs: list[int], sizes: list[int], uid: int
    ) -> TransferStatus:
        self._engine.alive()
        self._engine.knobs.calls.append(("write", len(sizes)))
        rows = [
            (self._theirs.data + theirs[i], self._mine.data + mine[i], sizes[i])
            for i in range(len(sizes))
        ]
        if not len(mine) == len(theirs) == len(sizes):
            raise Crash("batches of several lengths")
        for i, size in enumerate(sizes):
            if mine[i] + size > self._mine.size or theirs[i] + size > self._theirs.size:
                raise Crash("outside of the memory")
        return self._engine.transfer(self._mine, self._theirs, rows)


class Knobs:
    """What a test decides; ``calls`` are those of Mori, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.engines: dict[str, IOEngine] = {}
        self.nics: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failures: list[tuple[StatusCode, str]] = []
        self.broken: set[tuple[str, str]] = set()
        self.unroutable = False
        self.refuse_backend = ""

    def fail_next(self, code: StatusCode, message: str) -> None:
        self.failures.append((code, message))


class IOEngine:
    knobs = Knobs()

    def __init__(self, key: str, config: IOEngineConfig) -> None:
        if key in self.knobs.engines:
            raise Crash("an engine key is used twice")
        self.key, self.config = key, config
        self.backend: BackendType | None = None
        self.memories: dict[int, MemoryDesc] = {}
        self.remotes: dict[str, EngineDesc] = {}
        self.under_way = 0
        self.gone = False
        self.knobs.engines[key] = self

    def fly(self, more: int) -> None:
        with COUNTING:
            self.under_way += more

    def alive(self) -> None:
        if self.gone:
            raise Crash("used after the engine has gone")

    def create_backend(self, kind: BackendType, config: Any = None) -> None:
        if self.knobs.refuse_backend:
            raise RuntimeError(self.knobs.refuse_backend)
        self.backend = kind
        self.knobs.calls.append(("backend", kind.name, config.settings))
        self.knobs.nics.append(os.environ.get("MORI_RDMA_DEVICES"))

    def remove_backend(self, kind: BackendType) -> None:
        if self.under_way and kind is BackendType.XGMI:
            raise Crash("copies under way")
        self.gone = True
        self.knobs.calls.append(("gone", self.key))

    def waited_for(self) -> None:
        if self.gone and self.backend is BackendType.XGMI:
            raise Crash("waited for after the engine has gone")

    def get_engine_desc(self) -> EngineDesc:
        port = 4000 if self.backend is BackendType.RDMA else 0
        return EngineDesc(self.key, "node", "host", self.config.host or "host", port, 1)

    def register_remote_engine(self, described: EngineDesc) -> None:
        self.alive()
        if self.backend is None:
            raise Crash("a peer before the backend")
        self.remotes[described.key] = described

    def deregister_remote_engine(self, described: EngineDesc) -> None:
        self.remotes.pop(described.key, None)

    def register_memory(
        self, address: int, size: int, device: int, place: MemoryLocationType
    ) -> MemoryDesc:
        self.alive()
        if self.backend is None:
            raise Crash("memory before the backend")
        if any(one.data == address for one in self.memories.values()):
            raise Crash("memory registered twice at once")
        bus, handle = ("0000:01:00.0", b"h" * 64) if place is MemoryLocationType.GPU else ("", b"")
        found = MemoryDesc(
            self.key, next(NUMBERS), device, bus, address, size, place.value, handle
        )
        self.memories[found.id] = found
        return found

    def deregister_memory(self, described: MemoryDesc) -> None:
        self.alive()
        with REGISTERING:
            del self.memories[described.id]

    def allocate_transfer_uid(self) -> int:
        return next(NUMBERS)

    def read(
        self, mine: MemoryDesc, at: int, theirs: MemoryDesc, there: int, size: int, uid: int
    ) -> TransferStatus:
        self.alive()
        self.knobs.calls.append(("read", theirs.engine_key))
        self._route(theirs)
        return self.transfer(mine, theirs, [(mine.data + at, theirs.data + there, size)])

    def create_session(self, mine: MemoryDesc, theirs: MemoryDesc) -> Session | None:
        self.alive()
        if self.knobs.unroutable:
            return None
        self._route(theirs)
        return Session(self, mine, theirs)

    def transfer(
        self, mine: MemoryDesc, theirs: MemoryDesc, moves: list[tuple[int, int, int]]
    ) -> TransferStatus:
        status = TransferStatus(self, (mine, theirs), moves)
        if (self.key, theirs.engine_key) in self.knobs.broken:
            status.Update(StatusCode.ERR_RDMA_OP, "Work Request Flushed Error")
        elif self.knobs.failures:
            self.break_off(status, theirs, *self.knobs.failures.pop(0))
        else:
            self.fly(1)
        return status

    def break_off(
        self, status: TransferStatus, theirs: MemoryDesc,
        code: StatusCode = StatusCode.ERR_RDMA_OP, message: str = "remote access error",
    ) -> None:  # fmt: skip
        status.Update(code, message)
        if self.backend is BackendType.RDMA:
            self.knobs.broken.add((self.key, theirs.engine_key))

    def _route(self, theirs: MemoryDesc) -> None:
        if theirs.engine_key != self.key and theirs.engine_key not in self.remotes:
            raise RuntimeError("no route")

    def reaches(self, mine: MemoryDesc, theirs: MemoryDesc) -> bool:
        owners = [one for one in self.knobs.engines.values() if not one.gone]
        return mine.id in self.memories and any(theirs.id in one.memories for one in owners)


def module() -> ModuleType:
    """A module to stand for ``mori.io``, and knobs of its own."""
    made = ModuleType("mori.io")
    engine = type("IOEngine", (IOEngine,), {"knobs": Knobs()})
    setattr(made, "IOEngine", engine)  # noqa: B010 - mypy knows no such attribute
    for one in (
        StatusCode, BackendType, MemoryLocationType, PollCqMode, IOEngineConfig,
        RdmaBackendConfig, XgmiBackendConfig, EngineDesc, MemoryDesc,
    ):  # fmt: skip
        setattr(made, one.__name__, one)
    return made
