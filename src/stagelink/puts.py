"""A put, step by step: stage, copy into the announcement or the pool, publish."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagelink.arguments import check_readers
from stagelink.core.envelope import mark_shared
from stagelink.core.errors import ConfigError, TransportError
from stagelink.core.events import Abandon, Failure, Publish, Published, Reserve
from stagelink.core.keys import wire_key
from stagelink.core.pool import Block, Refusal
from stagelink.failures import capacity_error, error_of
from stagelink.payload import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagelink.adapters.msgspec.prepare import Prepared
    from stagelink.adapters.wrap import Wrapping
    from stagelink.calls import Accounted, Calls
    from stagelink.config import Config
    from stagelink.ports import Serializer
    from stagelink.ports.codec import Staged


class Receipt:
    """What a put tells: so many bytes are published, under that number.

    Attributes:
        size: bytes of the encoded payload.
        generation: its number in the connector's log, never used again; with the connector's
            instance it names this very payload.
    """

    __slots__ = ("_edge", "_key", "generation", "size")

    def __init__(self, size: int, generation: int, key: str, edge: Edge) -> None:
        self.size = size
        self.generation = generation
        self._key = key
        self._edge = edge

    @property
    def metadata(self) -> dict[str, Any]:
        """A plain dictionary for :meth:`stagelink.Connector.get`.

        It names that very payload and where it is, so a receiver needs no other configuration.
        """
        return self._edge.metadata(self._key, self.size, self.generation)

    def __repr__(self) -> str:
        """Key, generation and size."""
        return f"<Receipt {self._key!r} generation {self.generation}, {self.size} bytes>"


class Edge:
    """From our stage to another: what receipts of its puts have in common."""

    __slots__ = ("_address", "_common", "stage", "to")

    def __init__(self, stage: str, to: str, address: str, instance: bytes) -> None:
        self.stage = stage
        self.to = to
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        tcp = port.isdigit()
        where = {"source_host": host.strip("[]"), "source_port": int(port)} if tcp else {}
        self._common = {"endpoint": address, **where, "instance": instance.hex()}

    def metadata(self, key: str, size: int, generation: int) -> dict[str, Any]:
        """A receipt's metadata."""
        named = wire_key(key, self.stage, self.to)
        return {**self._common, "key": named, "size": size, "generation": generation}


class Puts:
    """The sending half of a connector's face."""

    def __init__(
        self, config: Config, calls: Calls, serializer: Serializer, wrapping: Wrapping
    ) -> None:
        self._calls = calls
        self._driver = calls.driver
        self._serializer = serializer
        self._wrapping = wrapping
        self._eager_limit = config.eager_limit
        self._inline_limit = config.inline_bytes
        self._readers = config.readers
        self._replace = config.on_duplicate == "replace"
        self._edges: dict[str, Edge] = {}

    def put(self, value: Any, command: Publish, until_s: float, call: Accounted) -> Receipt:  # noqa: ANN401
        """Publish a draft as it is, and anything else as a copy."""
        if isinstance(value, Draft):
            return self.put_draft(value, command, call)
        return self.store(self.stage(value), command, until_s, call)

    def put_draft(self, draft: Draft, command: Publish, call: Accounted) -> Receipt:
        """Publish what lies in the pool already."""
        size, block = draft.size, draft.take(self._driver)
        with self.given_back(block):
            memory = self.memory(block)[:size]
            if command.readers != 1:
                mark_shared(memory)
            self._wrapping.seal(memory)
        return self.publish(command._replace(size=size, block=block), call)

    def stage(self, value: Any) -> Staged:  # noqa: ANN401
        """Measure *value*: no copy yet, but errors of type."""
        return self._serializer.stage(value)

    def goes_inline(self, size: int) -> bool:
        """Whether so many bytes travel in the announcement, which needs no room in the pool."""
        return size <= self._eager_limit and self._inline_room(size)

    def store(
        self, staged: Staged, command: Publish, until_s: float, call: Accounted,
        ready: Callable[[], None] | None = None,
    ) -> Receipt:  # fmt: skip
        """Copy small values into the announcement, large ones into a block of the pool.

        *ready* is called once they have been read, and may raise: then they are not published.
        """
        compressor = self._compressor(command.to)
        staged = self._wrapping.wrap(staged, compressor, command.readers != 1)
        size = staged.size
        if self.goes_inline(size):
            body = bytearray(size)
            staged.write(memoryview(body))
            if ready is not None:
                ready()
            return self.publish(command._replace(size=size, body=bytes(body)), call)
        self._check_free(command, call)
        block = self.reserve(size, until_s, call)
        with self.given_back(block):
            staged.write(self.memory(block)[:size])
            if ready is not None:
                ready()
        return self.publish(command._replace(size=size, block=block), call)

    def alloc(
        self, shape: Sequence[int], dtype: object, timeout: float | None, call: Accounted
    ) -> Draft:
        """A block of the pool laid out as one tensor."""
        layout = self.prepared(shape, dtype)
        size = layout.size + self._wrapping.tail
        block = self.reserve(size, self.until(timeout, None), call)
        with self.given_back(block):
            buffer = self.memory(block)[: layout.size]
            return Draft(self._driver, block, size, buffer, layout.open(buffer))

    def prepared(self, shape: Sequence[int], dtype: object) -> Prepared:
        """The layout of a payload of one tensor."""
        from stagelink.adapters.msgspec.prepare import prepare  # noqa: PLC0415 - may load torch

        return prepare(shape, dtype)

    def until(self, timeout: float | None, deadline: float | None) -> float:
        """When the wait for room ends."""
        return self._calls.until(timeout, deadline, self._calls.policy.put_s)

    def command(
        self, key: str, to: str, ttl: float | None, readers: object, replace: bool | None
    ) -> Publish:
        """A publish of *key* without its bytes, every argument checked."""
        who = self._readers if readers == "default" else check_readers(readers)
        wanted = self._replace if replace is None else replace
        if not isinstance(wanted, bool):
            msg = f"replace is {replace!r}, not True, False or None"
            raise ConfigError(msg, remedy="leave it out, for what on_duplicate says")
        life_s = self._calls.seconds(ttl, self._calls.policy.ttl_s)
        return Publish(0, to, key, 0, None, b"", "", who, life_s, wanted)

    def publish(self, command: Publish, call: Accounted) -> Receipt:
        """Make it known."""
        result = self._calls.tell(command)
        if isinstance(result, Failure):
            raise error_of(result, call.context)
        assert isinstance(result, Published)
        call.put(command.size)
        return Receipt(command.size, result.generation, command.key, self._edge(command.to))

    def reserve(self, size: int, until_s: float, call: Accounted) -> Block:
        """A block of the pool of at least *size* bytes."""
        result = self._calls.ask(Reserve(0, size, until_s))
        if isinstance(result, Refusal):
            raise capacity_error(result, call.context)
        if isinstance(result, Failure):
            raise error_of(result, call.context)
        assert isinstance(result, Block)
        return result

    def memory(self, block: Block) -> memoryview:
        """The bytes of a block."""
        try:
            return self._driver.parts.memory.buffer[block.offset : block.offset + block.size]
        except TransportError:
            self._calls.check_usable()  # closed meanwhile by another thread
            raise

    @contextmanager
    def given_back(self, block: Block) -> Iterator[None]:
        """Give *block* back unless the body succeeds."""
        try:
            yield
        except BaseException:
            self._driver.submit(Abandon(block))
            raise

    def _check_free(self, command: Publish, call: Accounted) -> None:
        """Refuse a live key before anybody waits for room, or hears that there is none."""
        failure = self._driver.look(lambda endpoint: endpoint.outgoing.refuses(command))
        if failure is not None:
            raise error_of(failure, call.context)

    def _compressor(self, to: str) -> str:
        """The compressor of the edge, if its readers have said that they can undo it."""
        compression = self._wrapping.compression
        name = compression.edges.get(to, "")
        if name and not self._driver.look(lambda e: e.outgoing.undone_by_all(to, name)):
            compression.count(not_agreed=1)
            return ""
        return name

    def _inline_room(self, size: int) -> bool:
        """Whether so many inline bytes more may be published; else the pool takes them."""
        return self._driver.parts.endpoint.outgoing.inline_bytes + size <= self._inline_limit

    def _edge(self, to: str) -> Edge:
        edge = self._edges.get(to)
        if edge is None:
            parts = self._driver.parts
            instance = parts.endpoint.settings.instance
            edge = self._edges[to] = Edge(self._calls.stage, to, parts.channel.address, instance)
        return edge
