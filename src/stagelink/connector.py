"""What applications hold: put here, get there.

The face checks arguments, turns a call into a command and its answer into a value or an exception.
Decisions are the core's, I/O and waiting the adapters'.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.arguments import MetadataFields, bracketed, check_readers
from stagelink.core.errors import (
    ClosedError,
    ConfigError,
    Context,
    ForkedError,
    Reason,
    StagelinkError,
    TransportError,
)  # fmt: skip
from stagelink.core.events import (
    Abandon,
    CancelKey,
    Delivery,
    Failure,
    Get,
    Poll,
    Publish,
    Published,
    Release,
    Reserve,
    Withdraw,
)  # fmt: skip
from stagelink.core.keys import (
    check_key,
    check_stage,
    parse_wire_key,
    pending_with_same_request,
    wire_key,
)  # fmt: skip
from stagelink.core.pool import Block, Refusal
from stagelink.core.timeouts import deadline
from stagelink.failures import capacity_error, error_of
from stagelink.metrics import accounted, health_of
from stagelink.payload import Draft, Payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.adapters.threads import Driver
    from stagelink.adapters.wrap import Integrity
    from stagelink.config import Config
    from stagelink.core.endpoint import Endpoint
    from stagelink.core.events import Event, Result
    from stagelink.core.source import Source
    from stagelink.ports import Serializer


class Receipt(NamedTuple):
    """What a put tells: ``size`` bytes are published as ``generation``.

    ``metadata`` is a plain dictionary for :meth:`Connector.get`: it names that very payload and
    where it is, so a receiver needs no other configuration.
    """

    size: int
    generation: int
    metadata: dict[str, Any]


class Connector:
    """One stage's end of its edges; made by :func:`stagelink.open`.

    Any thread may call it, several at once. It is a context manager; :meth:`close` is bounded and
    idempotent.
    """

    def __init__(
        self, config: Config, driver: Driver, serializer: Serializer, integrity: Integrity
    ) -> None:
        self.config = config
        self._driver = driver
        self._serializer = serializer
        self._integrity = integrity
        self._policy = driver.parts.endpoint.settings.policy
        self._senders = dict(config.senders)
        self._sender = config.sender

    # --- sending -------------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """Our stage's name."""
        return self.config.stage

    @property
    def endpoint(self) -> str:
        """Where receivers dial us, for example ``tcp://127.0.0.1:41873``."""
        return self._driver.parts.channel.address

    def put(
        self, key: str, value: Any, *, to: str, timeout: float | None = None,  # noqa: ANN401
        ttl: float | None = None, readers: int | Iterable[str] | str | None = "default",
        replace: bool | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish *value* under *key* for the readers of stage *to*.

        When it returns, *value* may be changed: its bytes are ours. It returns without waiting for
        any reader.

        Args:
            key: 1 to 1024 characters; one payload of a key is live on an edge at a time.
            value: tensors, arrays, bytes, scalars, None, and dicts, lists and tuples of them; or
                a draft from :meth:`alloc`, which costs no copy.
            to: the stage whose connectors may get it.
            timeout: seconds to wait for room in the pool; None: the policy's ``put_s``.
            ttl: seconds it lives unless taken; None: the policy's ``ttl_s``.
            readers: how many readers may get it, or which identities (``"talker"``,
                ``"talker/1/0"``), or None for any number until its time to live is over.
            replace: whether a live payload of the key gives way; None: as configured.

        Raises:
            CapacityError: there was no room in time, or there never can be.
            DuplicateKeyError: the key is live, and is not to be replaced.
            PayloadError: something in *value* cannot be serialized; names the path to it.
            ConfigError: an argument is wrong, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        context = self._context(check_key(key), self.stage, check_stage(to))
        with self._accounted(context):
            self._check_usable(sends=True)
            command = self._command(key, to, ttl, readers, replace)
            wait_s = self._seconds(timeout, self._policy.put_s)
            return self._put(value, command, wait_s, context)

    def alloc(self, shape: Sequence[int], dtype: object, *, timeout: float | None = None) -> Draft:
        """A block of the pool laid out as one tensor, to fill in place and put without a copy.

        Args:
            shape: the tensor's shape.
            dtype: a name such as ``"bfloat16"``, or a torch or numpy dtype.
            timeout: seconds to wait for room; None: the policy's ``put_s``.

        Raises:
            CapacityError, ConfigError, ClosedError, ForkedError: as for :meth:`put`.
        """
        from stagelink.adapters.msgspec.prepare import prepare  # noqa: PLC0415 - may load torch

        context = Context(edge=f"{self.stage}->")
        with self._accounted(context):
            self._check_usable(sends=True)
            layout = prepare(shape, dtype)
            wait_s = self._seconds(timeout, self._policy.put_s)
            size = layout.size + self._integrity.tail
            block = self._reserve(size, wait_s, context)
            with self._given_back(block):
                buffer = self._memory(block)[: layout.size]
                return Draft(self._driver, block, size, buffer, layout.open(buffer))

    def withdraw(self, key: str, *, to: str) -> bool:
        """Take a published key back; False if no such key is live. Readers hear of it at once."""
        self._check_usable(sends=True)
        return bool(self._call(Withdraw(0, check_stage(to), check_key(key))))

    def fail(self, key: str, error: object, *, to: str, ttl: float | None = None) -> Receipt:
        """Publish that *key* failed: a get of it raises :exc:`GoneError` with *error*'s words."""
        context = self._context(check_key(key), self.stage, check_stage(to))
        with self._accounted(context):
            self._check_usable(sends=True)
            command = self._command(key, to, ttl, "default", True)
            return self._publish(command._replace(error=str(error) or "failed"), 0, context)

    def drain(self, timeout: float) -> bool:
        """Wait until every published payload has been taken or has expired; False if not so."""
        self._check_usable(sends=True)
        return self._driver.wait_until(_all_taken, self._seconds(timeout, 0.0))

    # --- receiving -----------------------------------------------------------------------

    def get(
        self, key: str, *, source: str | None = None, timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Payload:  # fmt: skip
        """Wait for the payload of *key* and take it.

        Args:
            key: as given to put.
            source: the stage that puts it; may be left out when only one sender is known.
            timeout: seconds to wait; None: the policy's time for an ordinary transfer.
            metadata: a receipt's metadata: take that very payload from the connector that put it.

        Raises:
            DeadlineError: it was not published, or the transfer not done, in time.
            GoneError: it expired, was withdrawn or taken, or the producer failed (``reason``).
            PeerError: the sender is unreachable, gone, restarted or refuses us (``reason``).
            CapacityError: it can never fit our pool, or did not in time.
            TransportError: a backend failed, or the bytes are not those that were put
                (``reason`` is corrupt; they are released and never handed out).
            ProtocolViolationError, PayloadError: as their names say.
            ConfigError: an argument is wrong, or no sender is known.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._check_usable(receives=True)
        command, context = self._wanted(key, source, timeout, metadata)
        with self._accounted(context):
            return self._payload(key, self._call(command), context)

    def poll(
        self, key: str, *, source: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Payload | None:
        """Take the payload of *key* if it is here; None at once if not. No network call.

        What has to be pulled is fetched in the background for a later poll or get.

        Raises:
            The same as :meth:`get`, except DeadlineError.
        """
        self._check_usable(receives=True)
        wanted, context = self._wanted(key, source, None, metadata)
        with self._accounted(context):
            ticket = self._driver.tickets.new()
            command = Poll(ticket.number, wanted.address, wanted.source, key, wanted.deadline_s)
            result = self._driver.glance(command, ticket)
            return None if result is None else self._payload(key, result, context)

    def cancel(self, key: str, *, source: str | None = None) -> int:
        """End every get of *key* on this connector; they raise GoneError. Returns how many."""
        return self._cancel(key, source, reject=False)

    def reject(self, key: str, *, source: str | None = None) -> int:
        """Like :meth:`cancel`, and tell the sender that we shall never want it: it frees it."""
        return self._cancel(key, source, reject=True)

    def update_sender_info(self, host: str, port: int, *, source: str | None = None) -> None:
        """Get from this address from now on (of stage *source*, or by default)."""
        from stagelink.config import check_port  # noqa: PLC0415

        self._check_usable(receives=True)
        if not isinstance(host, str):
            msg = f"host {host!r} is no name or address"
            raise ConfigError(msg, remedy="pass the sender's host as a string")
        address = self._dialled(f"tcp://{bracketed(host)}:{check_port(port)}")
        if source is None:
            self._sender = address
        else:
            self._senders[check_stage(source)] = address

    def check_senders(self) -> None:
        """Raise ConfigError unless every configured sender has an address that can be dialled."""
        own = [self.endpoint] if self.endpoint else []
        default = [] if self._sender is None else [self._sender]
        for address in (*own, *default, *self._senders.values()):
            self._dialled(address)

    # --- both ----------------------------------------------------------------------------

    def cleanup(self, key: str, *, to: str | None = None, source: str | None = None) -> int:
        """Forget *key* in both directions: withdraw what we published, end what we wait for.

        Returns how many publications and gets were ended; unknown keys are fine.
        """
        check_key(key)
        self._check_usable()
        stages = self._driver.look(lambda e: list(e.outgoing.ledgers)) if to is None else [to]
        ended = sum(self.withdraw(key, to=stage) for stage in stages)
        if source is not None:
            return ended + self.reject(key, source=source)
        known = self._driver.look(lambda e: [(s.address, s.stage) for s in _sources(e)])
        return ended + sum(self._end(key, *where, reject=True) for where in known)

    def health(self) -> dict[str, Any]:
        """Plain figures: status, host, pool, puts, gets, bytes, errors by cause, sessions, …."""
        return health_of(self.config, self._driver)

    def close(self) -> None:
        """End every wait, give back everything; bounded by the policy's ``close_s`` + 1 s.

        Twice is fine, and so beside a blocked get (which raises ClosedError).
        """
        self._driver.close(self._policy.close_s)

    def __enter__(self) -> Self:
        """Use the connector; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connector."""
        self.close()

    def __del__(self) -> None:
        """Warn about a connector that was not closed; its threads end with the process."""
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.closed and not driver.forked:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        """Stage, role and endpoint."""
        return f"<Connector {self.stage!r} {self.config.role} {self.endpoint}>"

    # --- put, step by step ---------------------------------------------------------------

    def _put(
        self,
        value: Any,  # noqa: ANN401
        command: Publish,
        wait_s: float,
        context: Context,
    ) -> Receipt:
        """Copy small values into the announcement, large ones into a block of the pool."""
        if isinstance(value, Draft):
            size, block = value.size, value.take(self._driver)
            with self._given_back(block):
                self._integrity.seal(self._memory(block)[:size])
            return self._publish(command._replace(block=block), size, context)
        staged = self._integrity.wrap(self._serializer.stage(value))
        if staged.size <= self.config.eager_limit:
            body = bytearray(staged.size)
            staged.write(memoryview(body))
            receipt = self._try_inline(command._replace(body=bytes(body)), staged.size, context)
            if receipt is not None:
                return receipt
        block = self._reserve(staged.size, wait_s, context)
        with self._given_back(block):
            staged.write(self._memory(block)[: staged.size])
        return self._publish(command._replace(block=block), staged.size, context)

    def _try_inline(self, command: Publish, size: int, context: Context) -> Receipt | None:
        """None if too many inline bytes are published already: the pool takes it then."""
        room = self._driver.look(lambda e: e.outgoing.inline_bytes + size)
        if room > self.config.inline_bytes:
            return None
        return self._publish(command, size, context)

    def _publish(self, command: Publish, size: int, context: Context) -> Receipt:
        result = self._call(command._replace(size=size))
        if isinstance(result, Failure):
            raise error_of(result, context)
        assert isinstance(result, Published)
        self._driver.counters.add(puts=1, bytes_put=size)
        return Receipt(size, result.generation, self._metadata(command, size, result.generation))

    def _metadata(self, command: Publish, size: int, generation: int) -> dict[str, Any]:
        address = self.endpoint
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        where = (
            {"source_host": host.strip("[]"), "source_port": int(port)} if port.isdigit() else {}
        )
        return {
            "endpoint": address,
            **where,
            "key": wire_key(command.key, self.stage, command.to),
            "size": size,
            "generation": generation,
            "instance": self._driver.parts.endpoint.settings.instance.hex(),
        }

    def _reserve(self, size: int, wait_s: float, context: Context) -> Block:
        result = self._call(Reserve(0, size, self._driver.clock() + wait_s))
        if isinstance(result, Refusal):
            raise capacity_error(result, context)
        if isinstance(result, Failure):
            raise error_of(result, context)
        assert isinstance(result, Block)
        return result

    def _command(
        self, key: str, to: str, ttl: float | None, readers: object, replace: bool | None
    ) -> Publish:
        who = self.config.readers if readers == "default" else readers
        wanted = self.config.on_duplicate == "replace" if replace is None else replace
        if not isinstance(wanted, bool):
            msg = f"replace is {replace!r}, not True, False or None"
            raise ConfigError(msg, remedy="leave it out, for what on_duplicate says")
        life_s = self._seconds(ttl, self._policy.ttl_s)
        return Publish(0, to, key, 0, None, b"", "", check_readers(who), life_s, wanted)

    def _memory(self, block: Block) -> memoryview:
        try:
            return self._driver.parts.memory.buffer[block.offset : block.offset + block.size]
        except TransportError:
            self._check_usable()  # closed meanwhile by another thread
            raise

    @contextmanager
    def _given_back(self, block: Block) -> Iterator[None]:
        """Give *block* back unless the body succeeds."""
        try:
            yield
        except BaseException:
            self._driver.submit(Abandon(block))
            raise

    # --- get, step by step ---------------------------------------------------------------

    def _wanted(
        self, key: str, source: str | None, timeout: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> tuple[Get, Context]:  # fmt: skip
        check_key(key)
        timeout_s = self._seconds(timeout, self._policy.transfer_s(0))
        deadline_s = self._driver.clock() + timeout_s
        if metadata is None:
            address, stage = self._where(source)
            command = Get(0, address, stage, key, 0, deadline_s)
        else:
            command = self._named(key, source, metadata, deadline_s)
        return command, self._context(key, command.source, self.stage)

    def _named(
        self, key: str, source: str | None, metadata: Mapping[str, Any], deadline_s: float
    ) -> Get:
        """The get of exactly what *metadata* names, every field of it checked."""
        fields = MetadataFields.of(metadata)
        if fields.key:
            named, stage, to = parse_wire_key(fields.key)
            if (named, to) != (key, self.stage):
                msg = f"this metadata is of key {named!r} for stage {to!r}"
                raise ConfigError(msg, remedy=f"get that key there, not {key!r} at {self.stage!r}")
            source = stage
        address = self._dialled(fields.endpoint) if fields.endpoint else self._where(source)[0]
        if source is None:
            source = self._where(None)[1]
        return Get(
            0, address, source, key, fields.generation, deadline_s, fields.size, fields.instance
        )

    def _where(self, source: str | None) -> tuple[str, str]:
        """Address and stage to get from."""
        if source is None and self._sender is None and len(self._senders) == 1:
            source = next(iter(self._senders))
        if source is not None:
            address = self._senders.get(check_stage(source), self._sender)
            if address is not None:
                return address, source
        known = ", ".join(sorted(self._senders)) or "none"
        if source is None:
            msg = f"source= is needed to get; stages with a known sender: {known}"
            raise ConfigError(msg, remedy="pass source='stage name'")
        msg = f"no sender is known for stage {source!r}; known: {known}"
        raise ConfigError(msg, remedy="open with sender=, senders=, or call update_sender_info()")

    def _payload(self, key: str, result: Result, context: Context) -> Payload:
        if isinstance(result, Failure):
            raise self._explained(key, result, context)
        assert isinstance(result, Delivery)
        buffer = self._opened(result)
        flaw = self._integrity.flaw(memoryview(buffer).cast("B")[: result.size])
        if flaw:
            buffer = None  # the error's traceback holds this frame
            self._let_go(result.handle)
            raise error_of(Failure(Reason.CORRUPT.value, flaw), context)
        self._driver.counters.add(gets=1, bytes_got=result.size)
        return Payload(
            self._driver, self._serializer, buffer, result.handle,
            key=key, generation=result.generation, size=result.size,
        )  # fmt: skip

    def _opened(self, result: Delivery) -> Any:  # noqa: ANN401 - any buffer
        """The delivered bytes; their memory is released with the last view of them."""
        if result.body is not None:
            return bytearray(result.body)
        try:
            view = self._driver.view(result)
            return self._driver.views.open(view, result.size, result.handle)
        except BaseException:
            self._driver.submit(Release(result.handle))
            self._check_usable()  # closed meanwhile by another thread
            raise

    def _let_go(self, handle: int) -> None:
        """Release a delivery that no caller has seen."""
        if handle and self._driver.views.release(handle):
            self._driver.submit(Release(handle))

    def _explained(self, key: str, failure: Failure, context: Context) -> StagelinkError:
        """The error, with the keys of the same request that are pending instead."""
        error = error_of(failure, context)
        if isinstance(error, TimeoutError):
            known = self._driver.look(_pending_keys)
            near = pending_with_same_request(key, [name for name in known if name != key])
            if near:
                error.message += "; pending with the same request: " + ", ".join(near)
        return error

    def _cancel(self, key: str, source: str | None, *, reject: bool) -> int:
        check_key(key)
        self._check_usable(receives=True)
        address, stage = self._where(source)
        return self._end(key, address, stage, reject=reject)

    def _end(self, key: str, address: str, stage: str, *, reject: bool) -> int:
        result = self._call(CancelKey(0, address, stage, key, reject))
        if isinstance(result, Failure):
            raise error_of(result, self._context(key, stage, self.stage))
        assert isinstance(result, int)
        return result

    def _dialled(self, address: str) -> str:
        """*address*, if it is well-formed: else ConfigError, before anything was dialled.

        A scheme of which we know nothing is its channel's to judge.
        """
        scheme, found, _ = address.partition("://")
        if not found or scheme in {"tcp", "ipc", "udp", "http"}:
            from stagelink.adapters.zmq.address import check_dial  # noqa: PLC0415

            check_dial(address)
        return address

    # --- helpers -------------------------------------------------------------------------

    def _call(self, command: Event) -> Result:
        ticket = self._driver.tickets.new()
        return self._driver.call(command._replace(ticket=ticket.number), ticket)  # type: ignore[call-arg]

    def _check_usable(self, *, sends: bool = False, receives: bool = False) -> None:
        if self._driver.forked:
            msg = f"this connector of stage {self.stage!r} belongs to the parent process"
            raise ForkedError(msg, remedy="open a connector of its own in the child")
        if self._driver.closed:
            msg = f"the connector of stage {self.stage!r} is closed"
            raise ClosedError(msg, remedy="open a new one")
        if sends and self.config.role == "receiver":
            msg = f"the connector of stage {self.stage!r} only receives"
            raise ConfigError(msg, remedy="open it with role='peer' to put as well")
        if receives and self.config.role == "sender":
            msg = f"the connector of stage {self.stage!r} only sends"
            raise ConfigError(msg, remedy="open it with role='peer' to get as well")

    def _seconds(self, value: float | None, default: float) -> float:
        try:
            return default if value is None else deadline(0.0, value)
        except OverflowError:
            msg = "an integer too large for a float is not a wait that ends"
            raise ConfigError(msg, remedy="pass finite seconds, 0 or more") from None

    def _accounted(self, context: Context) -> AbstractContextManager[None]:
        return accounted(self._driver.counters, context, self._driver.clock)

    def _context(self, key: str, from_stage: str, to_stage: str) -> Context:
        return Context(key=key, edge=f"{from_stage}->{to_stage}")


def _sources(endpoint: Endpoint) -> list[Source]:
    return list(endpoint.incoming.sources.values())


def _all_taken(endpoint: Endpoint) -> bool:
    return not any(ledger.entries for ledger in endpoint.outgoing.ledgers.values())


def _pending_keys(endpoint: Endpoint) -> list[str]:
    return [key for source in endpoint.incoming.sources.values() for key in source.inbox.known()]
