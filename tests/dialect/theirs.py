"""The other side: what vLLM-Omni 0.30.0's connector does on the wire, read in its package.

Written anew, and with a codec of its own, so that a mistake in ours is no mistake here as well.
Memory and writes are those of the in-memory engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from stagelink.adapters.memory import Engine
from stagelink.core.regions import Region
from stagelink.core.values import RegionRef
from stagelink.ports import ForeignCard, ForeignOrder, ForeignWriter

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

REGION = 1
PATIENCE_MS = 10_000


class PullWire(msgspec.Struct):
    request_id: str
    engine_desc_packed: bytes
    mem_desc_packed: bytes
    dst_offset: int
    length: int


class QueryWire(msgspec.Struct):
    request_id: str


class InfoWire(msgspec.Struct):
    request_id: str
    data_size: int
    is_fast_path: bool


def in_memory(name: str, size: int) -> tuple[memoryview, ForeignWriter]:
    """A pool, and the engine that knows it."""
    pool = memoryview(bytearray(size))
    return pool, Engine(name.encode(), {REGION: Region(pool, 0)})


MakeEngine = Callable[[str, int], "tuple[memoryview, Any]"]


class Memory:
    """A process of theirs: an engine, and a pool that is handed out from the front."""

    def __init__(self, name: str, size: int, make: MakeEngine) -> None:
        self.pool, self.engine = make(name, size)
        self.card = self.engine.card(REGION)
        self.next = 4096

    def alloc(self, size: int) -> int:
        offset, self.next = self.next, self.next + -(-size // 4096) * 4096
        return offset


class TheirReceiver(Memory):
    """``get()`` of a connector with role receiver, over REQ."""

    def __init__(
        self, address: str, size: int = 1 << 20, make: MakeEngine = in_memory
    ) -> None:  # fmt: skip
        super().__init__("their-receiver", size, make)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = address
        self.sockets: list[zmq.Socket[bytes]] = []

    def ask(self, body: bytes, patience_ms: int = PATIENCE_MS) -> bytes:
        """One request on a socket of its own, and its answer."""
        req = self.context.socket(zmq.REQ)
        req.set(zmq.LINGER, 0)
        req.set(zmq.RCVTIMEO, patience_ms)
        try:
            req.connect(self.address)
            req.send(body)
            return req.recv()
        finally:
            req.close()

    def query(self, request_id: str) -> InfoWire | None:
        body = self.ask(b"query_info" + msgspec.msgpack.encode(QueryWire(request_id)))
        return None if body == b"info_not_found" else msgspec.msgpack.decode(body, type=InfoWire)

    def pull(self, request_id: str, size: int, **other: Any) -> tuple[bytes, bytes]:
        """The answer, and the bytes that are then at the place that was named."""
        offset = self.alloc(size)
        wire = PullWire(request_id, self.card.engine, self.card.memory, offset, size)
        for name, value in other.items():
            setattr(wire, name, value)
        answer = self.ask(msgspec.msgpack.encode(wire))
        return answer, bytes(self.pool[offset : offset + size])

    def get(self, request_id: str) -> tuple[bytes, bool] | None:
        """The bytes and whether they are plain, as its ``get`` with no metadata."""
        info = self.query(request_id)
        if info is None:
            return None
        answer, data = self.pull(request_id, info.data_size)
        assert answer == b"trans_done"
        return data, info.is_fast_path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.context.term()
        self.engine.close()


class TheirSender(Memory):
    """The listener of a connector with role sender, over ROUTER.

    ``silent`` takes questions and answers none; ``words`` answers with these bodies instead.
    """

    def __init__(self, port: int = 0, make: MakeEngine = in_memory) -> None:
        super().__init__("their-sender", 1 << 20, make)
        self.buffers: dict[str, tuple[bytes, bool]] = {}
        self.asked: list[tuple[str, str]] = []
        self.silent = False
        self.words: list[bytes] = []
        self.unanswered: list[tuple[list[bytes], bytes]] = []
        self.heard = threading.Event()
        self._stop = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.address = self._router.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._late = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def put(self, key: str, data: bytes, *, plain: bool, edge: str = "0_1") -> dict[str, Any]:
        self.buffers[f"{key}@{edge}"] = (data, plain)
        host, port = self.address.removeprefix("tcp://").split(":")
        return {
            "source_host": host, "source_port": int(port), "data_size": len(data),
            "is_fast_path": plain,
        }  # fmt: skip

    def answer_now(self) -> None:
        """Do at last what was asked while silent."""
        self.silent = False
        self._late.set()

    def _listen(self) -> None:
        while not self._stop.is_set():
            if self._late.is_set():
                self._late.clear()
                late, self.unanswered = self.unanswered, []
                for frames, body in late:
                    self._answer(frames, body)
            if not self._router.poll(5):
                continue
            frames = self._router.recv_multipart()
            body = frames[-1]
            kind = "query" if body.startswith(b"query_info") else "pull"
            self.asked.append((kind, self._name(body)))
            if self.silent:
                self.unanswered.append((frames, body))
            else:
                self._answer(frames, body)
            self.heard.set()

    @staticmethod
    def _name(body: bytes) -> str:
        if body.startswith(b"query_info"):
            return msgspec.msgpack.decode(body[10:], type=QueryWire).request_id
        return msgspec.msgpack.decode(body, type=PullWire).request_id

    def _answer(self, frames: list[bytes], body: bytes) -> None:
        word = self.words.pop(0) if self.words else self._reply(body)
        self._router.send_multipart([frames[0], b"", word])

    def _reply(self, body: bytes) -> bytes:
        if body.startswith(b"query_info"):
            name = self._name(body)
            found = self.buffers.get(name)
            if found is None:
                return b"info_not_found"
            return msgspec.msgpack.encode(InfoWire(name, len(found[0]), found[1]))
        pull = msgspec.msgpack.decode(body, type=PullWire)
        found = self.buffers.get(pull.request_id)
        if found is None or len(found[0]) != pull.length:
            return b"trans_error"
        offset = self.alloc(pull.length)
        self.pool[offset : offset + pull.length] = found[0]
        if self.write(pull, offset):
            return b"trans_error"
        del self.buffers[pull.request_id]
        return b"trans_done"

    def write(self, pull: PullWire, offset: int) -> str:
        """Write to where *pull* says; the error, or nothing."""
        ends: list[str] = []
        card = ForeignCard(pull.engine_desc_packed, pull.mem_desc_packed)
        order = ForeignOrder(1, RegionRef(REGION, offset, pull.length), card, pull.dst_offset)
        try:
            self.engine.post(order, lambda _, error: ends.append(error))
        except Exception as error:
            return str(error)
        return ends[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()

    def stop(self) -> None:
        """End as a process does; twice is fine."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(10)
        self._router.close()
        self._context.term()
        self.engine.close()
