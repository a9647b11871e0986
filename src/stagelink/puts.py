"""A put, step by step: stage, copy into the announcement or the pool, publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.adapters.msgspec.staged import Whole, packed
from stagelink.adapters.wrap import mark
from stagelink.arguments import check_readers
from stagelink.calls import Accounted
from stagelink.core.errors import ConfigError, TransportError
from stagelink.core.events import Abandon, Failure, Publish, Published, Reserve
from stagelink.core.keys import check_key, check_stage, wire_key
from stagelink.core.pool import Block, Refusal
from stagelink.core.values import new
from stagelink.failures import capacity_error, error_of
from stagelink.payload import Draft
from stagelink.ports.memory import space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.adapters.msgspec.prepare import Prepared
    from stagelink.adapters.wrap import Wrapping
    from stagelink.calls import Calls
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
    """From our stage to another: what its puts, and their receipts, have in common.

    Attributes:
        stage: our name.
        to: the other one's.
        compressor: what makes payloads smaller for those who can undo it; empty: nothing does.
    """

    __slots__ = ("_common", "compressor", "stage", "to")

    def __init__(
        self, stage: str, to: str, compressor: str, address: str, instance: bytes
    ) -> None:
        self.stage = stage
        self.to = to
        self.compressor = compressor
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        tcp = port.isdigit()
        where = {"source_host": host.strip("[]"), "source_port": int(port)} if tcp else {}
        self._common = {"endpoint": address, **where, "instance": instance.hex()}

    def metadata(self, key: str, size: int, generation: int) -> dict[str, Any]:
        """A receipt's metadata."""
        named = wire_key(key, self.stage, self.to)
        return {**self._common, "key": named, "size": size, "generation": generation}


ALONE = (0, 1)
"""Numbers of readers of which each has the payload to itself; with 0, where there is but one."""


class Terms(NamedTuple):
    """For whom a payload is, how long it lives, and whether it replaces one: as Publish ends."""

    readers: int | tuple[str, ...] | None
    ttl_s: float
    replace: bool


class PutCall(Accounted):
    """A put under way: where to, under what name, on which terms, and until when it waits.

    Attributes:
        edge: where to.
        name: what it is published under; errors show the key.
        terms: on which terms.
        until_s: when its wait for room ends.
    """

    __slots__ = ("edge", "name", "terms", "until_s")

    edge: Edge
    name: str
    terms: Terms
    until_s: float


class Puts:
    """The sending half of a connector's face."""

    def __init__(
        self, config: Config, calls: Calls, serializer: Serializer, wrapping: Wrapping
    ) -> None:
        self._calls = calls
        self._driver = calls.driver
        self._outgoing = self._driver.parts.endpoint.outgoing
        self._wrapping = wrapping
        self._on_device = space_of(self._driver.parts.memory) is not None
        self._eager_limit = config.eager_limit
        self._inline_limit = config.inline_bytes
        self._sends = config.role != "receiver"
        policy = calls.policy
        self._put_s = policy.put_s
        self._usual = Terms(config.readers, policy.ttl_s, config.on_duplicate == "replace")
        self._edges: dict[str, Edge] = {}
        self.stage: Callable[[Any], Staged] = serializer.stage
        """Measures a value: no copy yet, but errors of type."""

    def begin(self, key: str, to: str) -> PutCall:
        """A put of *key* on the usual terms; from now on what fails can be counted.

        Raises:
            ConfigError: *key* or *to* is none.
        """
        check_key(key)
        edge = self._edges.get(to) if type(to) is str else None
        if edge is None:
            edge = self.edge(check_stage(to))
        call = PutCall(self._driver, key, edge.stage, to)
        call.edge, call.name = edge, key
        call.terms, call.until_s = self._usual, call.start_s + self._put_s
        return call

    def admit(
        self, call: PutCall, *, timeout: float | None = None, deadline: float | None = None,
        ttl: float | None = None, readers: object = "default", replace: bool | None = None,
    ) -> None:  # fmt: skip
        """Take what else *call* is asked for, every argument checked.

        Raises:
            ConfigError: an argument is wrong, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        if not (self._driver.usable and self._sends):
            self._calls.check_usable(sends=True)
        if ttl is not None or replace is not None or readers != "default":
            call.terms = self.terms(ttl, readers, replace)
        if timeout is not None or deadline is not None:
            call.until_s = self.until(timeout, deadline)

    def terms(self, ttl: float | None, readers: object, replace: bool | None) -> Terms:
        """The terms of a put, every argument checked."""
        usual = self._usual
        who = usual.readers if readers == "default" else check_readers(readers)
        wanted = usual.replace if replace is None else replace
        if not isinstance(wanted, bool):
            msg = f"replace is {replace!r}, not True, False or None"
            raise ConfigError(msg, remedy="leave it out, for what on_duplicate says")
        return Terms(who, self._calls.seconds(ttl, usual.ttl_s), wanted)

    def until(self, timeout: float | None, deadline: float | None) -> float:
        """When the wait for room ends."""
        return self._calls.until(timeout, deadline, self._put_s)

    def put(self, value: Any, call: PutCall) -> Receipt:  # noqa: ANN401
        """Publish a draft as it is, and anything else as a copy."""
        if isinstance(value, Draft):
            return self.put_draft(value, call)
        return self.store(self.stage(value), call)

    def put_draft(self, draft: Draft, call: PutCall) -> Receipt:
        """Publish what lies in the pool already."""
        size, head, block = draft.size, draft.head, draft.take(self._driver)
        shared = self._is_shared(call)
        if shared or self._wrapping.tail or self._on_device:
            try:
                memory = self.memory(block)[:size]
                if self._on_device:
                    memory.settle()
                if shared:
                    mark(memory)
                self._wrapping.seal(memory)
            except BaseException:
                self._driver.submit(Abandon(block))
                raise
        return self.publish(call, size, block, b"" if shared else head)

    def goes_inline(self, size: int) -> bool:
        """Whether so many bytes travel in the announcement, which needs no room in the pool."""
        return (
            size <= self._eager_limit
            and self._outgoing.inline_bytes + size <= self._inline_limit
        )  # fmt: skip

    def store(
        self, staged: Staged, call: PutCall, ready: Callable[[], None] | None = None
    ) -> Receipt:
        """Copy small values into the announcement, large ones into a block of the pool.

        *ready* is called once they have been read, and may raise: then they are not published.
        """
        shared = self._is_shared(call)
        if shared or call.edge.compressor or self._wrapping.tail:
            staged = self._wrapped(staged, call, shared)
        size = staged.size
        if self.goes_inline(size):
            body = staged.packed() if type(staged) is Whole else packed(staged)
            if ready is not None:
                ready()
            return self.publish(call, size, None, body)
        self._check_free(call)
        block = self.reserve(size, call.until_s, call)
        try:
            staged.write(self.memory(block)[:size])
            if ready is not None:
                ready()
        except BaseException:
            self._driver.submit(Abandon(block))
            raise
        head = getattr(staged, "head", b"") if self._on_device else b""
        return self.publish(call, size, block, head)

    def alloc(
        self, shape: Sequence[int], dtype: object, timeout: float | None, call: Accounted
    ) -> Draft:
        """A block of the pool laid out as one tensor."""
        layout = self.prepared(shape, dtype)
        size = layout.size + self._wrapping.tail
        block = self.reserve(size, self.until(timeout, None), call)
        try:
            buffer = self.memory(block)[: layout.size]
            tensor = layout.open_there(buffer) if self._on_device else layout.open(buffer)
            draft = Draft(self._driver, block, size, buffer, tensor)
        except BaseException:
            self._driver.submit(Abandon(block))
            raise
        if self._on_device:
            draft.head = layout.head
        return draft

    def prepared(self, shape: Sequence[int], dtype: object) -> Prepared:
        """The layout of a payload of one tensor."""
        from stagelink.adapters.msgspec.prepare import prepare  # noqa: PLC0415 - may load torch

        return prepare(shape, dtype, on_device=self._on_device)

    def publish(
        self, call: PutCall, size: int = 0, block: Block | None = None, body: bytes = b"",
        error: str = "",
    ) -> Receipt:  # fmt: skip
        """Make known *size* bytes in *block* or *body*, or the *error* that there are none for.

        Of what lies in a block *body* may have the beginning.
        """
        driver, edge = self._driver, call.edge
        to = edge.to
        command = (0, to, call.name, size, block, body, error, *call.terms)
        result = driver.submit(new(Publish, command))
        if type(result) is not Published:
            assert isinstance(result, Failure)
            raise error_of(result, call.context)
        driver.counters.puts.add(to, size, driver.clock() - call.start_s)
        return Receipt(size, result.generation, call.name, edge)

    def reserve(self, size: int, until_s: float, call: Accounted) -> Block:
        """A block of the pool of at least *size* bytes."""
        ticket = self._driver.tickets.new()
        result = self._driver.call(Reserve(ticket.number, size, until_s), ticket)
        if isinstance(result, Refusal):
            raise capacity_error(result, call.context)
        if isinstance(result, Failure):
            raise error_of(result, call.context)
        assert isinstance(result, Block)
        return result

    def memory(self, block: Block) -> Any:  # noqa: ANN401 - a memoryview, or device bytes
        """The bytes of a block."""
        try:
            return self._driver.parts.memory.buffer[block.offset : block.offset + block.size]
        except TransportError:
            self._calls.check_usable()  # closed meanwhile by another thread
            raise

    def edge(self, to: str) -> Edge:
        """Our edge to stage *to*, a checked name."""
        edge = self._edges.get(to)
        if edge is None:
            parts = self._driver.parts
            instance = parts.endpoint.settings.instance
            compressor = self._wrapping.compression.edges.get(to, "")
            edge = Edge(self._calls.stage, to, compressor, parts.channel.address, instance)
            self._edges[to] = edge
        return edge

    def _check_free(self, call: PutCall) -> None:
        """Refuse a live key before anybody waits for room, or hears that there is none."""
        command = Publish(0, call.edge.to, call.name, 0, None, b"", "", *call.terms)
        failure = self._driver.look(lambda endpoint: endpoint.outgoing.refuses(command))
        if failure is not None:
            raise error_of(failure, call.context)

    def _is_shared(self, call: PutCall) -> bool:
        """Whether several readers may be handed the memory of what is put.

        Where the first has it, all that are there are offered it, and two may take it at once.
        """
        readers = call.terms.readers
        return readers not in ALONE or (readers == 0 and self._outgoing.has_several(call.edge.to))

    def _wrapped(self, staged: Staged, call: PutCall, shared: bool) -> Staged:
        """*staged* with all that is put around it; compressed if its readers can undo that."""
        compression, edge = self._wrapping.compression, call.edge
        name = edge.compressor
        if name and not self._driver.look(lambda e: e.outgoing.undone_by_all(edge.to, name)):
            compression.count(not_agreed=1)
            name = ""
        return self._wrapping.wrap(staged, name, shared)
