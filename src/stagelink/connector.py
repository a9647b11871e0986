"""What applications hold: put here, get there.

The face checks arguments, turns a call into a command and its answer into a value or an exception.
Decisions are the core's, I/O and waiting the adapters'.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from stagelink.adapters.msgspec.placing import check_place
from stagelink.asynchronous import Asynchronous
from stagelink.calls import Accounted, Calls
from stagelink.core.errors import ConfigError, StagelinkError
from stagelink.core.events import Withdraw
from stagelink.core.keys import check_key, check_stage
from stagelink.gets import Gets
from stagelink.metrics import figures_of, health_of
from stagelink.puts import Puts, Receipt
from stagelink.senders import Senders
from stagelink.streams.registry import Streams
from stagelink.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.adapters.threads import Driver
    from stagelink.adapters.wrap import Wrapping
    from stagelink.config import Config
    from stagelink.core.endpoint import Endpoint
    from stagelink.foreign import Foreign
    from stagelink.payload import Draft, Payload
    from stagelink.ports import Serializer
    from stagelink.streams.reader import StreamReader
    from stagelink.streams.writer import StreamWriter

__all__ = ["Connector", "Receipt"]


class Connector(Asynchronous):
    """One stage's end of its edges; made by :func:`stagelink.open`.

    Any thread may call it, several at once. It is a context manager; :meth:`close` is bounded and
    idempotent.
    """

    def __init__(
        self, config: Config, driver: Driver, serializer: Serializer, wrapping: Wrapping,
        halves: tuple[type[Puts], type[Gets]] = (Puts, Gets),
    ) -> None:  # fmt: skip
        self.config = config
        self._driver = driver
        self._wrapping = wrapping
        self._calls = Calls(config, driver)
        self._senders = Senders(config, driver.parts.channel.check)
        puts, gets = halves
        self._puts = puts(config, self._calls, serializer, wrapping)
        self._gets = gets(self._calls, serializer, wrapping, self._senders)
        self._streams = Streams(self._calls, self._puts, self._gets, self._senders)
        self._foreign: Foreign | None = None
        self._receives = config.role != "sender"

    def speak(self, serializer: Serializer, wrapping: Wrapping, region: int) -> None:
        """Begin to speak the configured dialect as well; for :mod:`stagelink.compose`."""
        from stagelink.foreign import build  # noqa: PLC0415 - loads ZeroMQ, and few want it

        self._foreign = build(self.config, self._calls, serializer, wrapping, region)
        told = partial(figures_of, self.config, self._driver, wrapping, self._foreign)
        self._driver.exchange.inspections.figures = told

    # --- sending -------------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """Our stage's name."""
        return self.config.stage

    @property
    def endpoint(self) -> str:
        """Where receivers dial us, for example ``tcp://127.0.0.1:41873``."""
        return self._driver.parts.channel.address

    @property
    def dialect_endpoint(self) -> str:
        """Where receivers that speak the dialect dial us; empty if none may."""
        return self._foreign.endpoint if self._foreign is not None else ""

    def put(
        self, key: str, value: Any, *, to: str, timeout: float | None = None,  # noqa: ANN401
        deadline: float | None = None, ttl: float | None = None,
        readers: int | Iterable[str] | str | None = "default", replace: bool | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish *value* under *key* for the readers of stage *to*.

        When it returns, *value* may be changed: its bytes are ours. It returns without waiting for
        any reader.

        Args:
            key: 1 to 1024 characters; one payload of a key is live on an edge at a time.
            value: tensors, arrays, bytes, scalars, None, dataclasses, enum members, and dicts,
                lists and tuples of them; or a draft from :meth:`alloc`, which costs no copy. A
                payload is data: a tensor that requires grad is put without its gradient.
            to: the stage whose connectors may get it.
            timeout: seconds to wait for room in the pool; None: the policy's ``put_s``.
            deadline: instead of *timeout*, when that wait ends, as of ``time.monotonic()``.
            ttl: seconds it lives unless taken; None: the policy's ``ttl_s``.
            readers: how many readers may get it, or which identities (``"talker"``,
                ``"talker/1/0"``), or None for any number until its time to live is over, or 0 for
                whoever takes it first: it is offered to all, so two who take it within the same
                moment both have it. That is for keys that only one of many asks for.
            replace: whether a live payload of the key gives way; None: as configured.

        Raises:
            CapacityError: there was no room in time, or there never can be.
            DuplicateKeyError: the key is live, and is not to be replaced.
            PayloadError: something in *value* cannot be serialized; names the path to it.
            ConfigError: an argument is wrong, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        puts = self._puts
        call = puts.begin(key, to)
        try:
            puts.admit(
                call, timeout=timeout, deadline=deadline, ttl=ttl, readers=readers, replace=replace
            )
            return puts.put(value, call)
        except StagelinkError as error:
            call.failed(error)
            raise

    def alloc(self, shape: Sequence[int], dtype: object, *, timeout: float | None = None) -> Draft:
        """A block of the pool laid out as one tensor, to fill in place and put without a copy.

        Args:
            shape: the tensor's shape.
            dtype: a name such as ``"bfloat16"``, or a torch or numpy dtype.
            timeout: seconds to wait for room; None: the policy's ``put_s``.

        Raises:
            CapacityError, ConfigError, ClosedError, ForkedError: as for :meth:`put`.
        """
        with self._calls.accounted("", self.stage, "") as call:
            self._calls.check_usable(sends=True)
            return self._puts.alloc(shape, dtype, timeout, call)

    def withdraw(self, key: str, *, to: str) -> bool:
        """Take a published key back; False if no such key is live. Readers hear of it at once.

        Args:
            key: as given to put.
            to: the stage it was put for.

        Raises:
            ConfigError: an argument is wrong, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(sends=True)
        return bool(self._calls.tell(Withdraw(0, check_stage(to), check_key(key))))

    def fail(self, key: str, error: object, *, to: str, ttl: float | None = None) -> Receipt:
        """Publish that *key* failed: a get of it raises :exc:`GoneError` with *error*'s words.

        It needs no room in the pool, replaces a live payload of the key, and expires like one.

        Args:
            key: as for :meth:`put`.
            error: an exception, or words; of more than 4096 characters only the first travel.
            to: the stage whose connectors are told.
            ttl: seconds it is told to those who come later; None: the policy's ``ttl_s``.

        Raises:
            ConfigError: an argument is wrong, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        with self._puts.begin(key, to) as call:
            self._puts.admit(call, ttl=ttl, replace=True)
            return self._puts.publish(call, error=str(error) or "failed")

    def drain(self, timeout: float) -> bool:
        """Wait until every published payload has been taken or has expired; False if not so.

        A payload counts as taken once its readers have let go of it.

        Args:
            timeout: seconds to wait, 0 for a look.

        Raises:
            ConfigError: *timeout* is no finite number from 0, or this connector only receives.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(sends=True)
        return self._driver.wait_until(_all_taken, self._calls.seconds(timeout, 0.0))

    # --- receiving -----------------------------------------------------------------------

    def get(
        self, key: str, *, source: str | None = None, timeout: float | None = None,
        deadline: float | None = None, metadata: Mapping[str, Any] | None = None,
        into: Any = None, device: object = None,  # noqa: ANN401
    ) -> Payload:  # fmt: skip
        """Wait for the payload of *key* and take it.

        With *into* or *device* the value is copied out, and its memory released at once: the
        payload then needs no close.

        Args:
            key: as given to put.
            source: the stage that puts it; may be left out when only one sender is known.
            timeout: seconds to wait; None: the policy's ``transfer_base_s``.
            deadline: instead of *timeout*, when the wait ends, as of ``time.monotonic()``.
            metadata: a receipt's metadata: take that very payload from the connector that put it.
            into: a tensor or array that the value is copied into, or a dict, list or tuple of the
                payload's structure with such in it; ``.value`` is then *into* itself. If shapes,
                dtypes or structures differ, that is a PayloadError, and the payload is lost.
            device: where every tensor of the value is copied to, such as ``"cuda:0"``.

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
        self._calls.check_usable(receives=True)
        apart = into is not None or device is not None
        if apart:
            check_place(into, device)
        foreign = self._foreign
        if foreign is not None and foreign.speaks(source):
            payload = foreign.get(key, source, timeout, deadline, metadata)
            return payload.placed(into, device) if apart else payload
        command = self._gets.wanted(key, source, timeout, deadline, metadata)
        call = Accounted(self._driver, key, command.source, self._calls.stage)
        try:
            payload = self._gets.get(command, call)
            return payload.placed(into, device) if apart else payload
        except StagelinkError as error:
            call.failed(error)
            raise

    def get_many(
        self, keys: Iterable[str], *, source: str | None = None, timeout: float | None = None,
        deadline: float | None = None,
    ) -> list[Payload]:  # fmt: skip
        """Take the payloads of all *keys*, in their order, under one deadline.

        If one fails none is taken: those that came already stay for the next get of their key.

        Args:
            keys: as given to put.
            source: as for :meth:`get`.
            timeout: seconds to wait for all of them.
            deadline: instead of *timeout*, as for :meth:`get`.

        Raises:
            StagelinkError: the same as :meth:`get`, at the first failure; ``context.key`` names
                the key.
        """
        self._calls.check_usable(receives=True)
        return self._gets.get_many(self._gets.all_wanted(keys, source, timeout, deadline))

    def wait(
        self, keys: Iterable[str], *, source: str | None = None, timeout: float | None = None,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """Wait for the first of *keys* that a get would not wait for, and return it.

        Its payload is there and stays untaken (others may still take it first), or has expired,
        failed or been withdrawn, which a get then raises. Of several that are there, the first
        in the order given; not one that a get waits for.

        Args:
            keys: as given to put.
            source: as for :meth:`get`.
            timeout: seconds to wait.
            deadline: instead of *timeout*, as for :meth:`get`.

        Raises:
            StagelinkError: the same as :meth:`get`, ConfigError for no keys too; but GoneError
                only when each of *keys* is cancelled or rejected meanwhile.
        """
        self._calls.check_usable(receives=True)
        command = self._gets.first_wanted(keys, source, timeout, deadline)
        with self._calls.accounted("", command.source, self.stage) as call:
            return self._gets.first(self._calls.ask(command), call)

    def poll(
        self, key: str, *, source: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Payload | None:
        """Take the payload of *key* if it is here; None at once if not. No network call.

        What has to be pulled is fetched in the background for a later poll or get.

        Args:
            key: as given to put.
            source: as for :meth:`get`.
            metadata: as for :meth:`get`.

        Raises:
            StagelinkError: the same as :meth:`get`, except DeadlineError.
        """
        if not (self._driver.usable and self._receives):  # polls are many: the call is spared
            self._calls.check_usable(receives=True)
        if self._foreign is not None and self._foreign.speaks(source):
            return self._foreign.poll(key, source, metadata)
        if metadata is None and self._gets.absent(key, source):
            return None
        command = self._gets.wanted(key, source, None, None, metadata)
        with self._calls.accounted(key, command.source, self.stage) as call:
            return self._gets.poll(command, call)

    def cancel(self, key: str, *, source: str | None = None) -> int:
        """End every get of *key* on this connector; they raise GoneError. Returns how many.

        A :meth:`wait` goes on with its other keys; one without any ends, and is counted, likewise.

        Args:
            key: as given to put.
            source: the stage that puts it; may be left out when only one sender is known.

        Raises:
            ConfigError: an argument is wrong, no sender is known, or this connector only sends.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        return self._cancel(key, source, reject=False)

    def reject(self, key: str, *, source: str | None = None) -> int:
        """Like :meth:`cancel`, and tell the sender that we shall never want it: it frees it.

        Also a payload that is yet to be put.

        Args:
            key: as given to put.
            source: the stage that puts it; may be left out when only one sender is known.

        Raises:
            ConfigError, ClosedError, ForkedError: as for :meth:`cancel`.
        """
        return self._cancel(key, source, reject=True)

    def update_sender_info(self, host: str, port: int, *, source: str | None = None) -> None:
        """Get from this address from now on (of stage *source*, or by default).

        Args:
            host: a name or address, IPv6 without brackets too.
            port: a TCP port, from 1.
            source: the stage that is there; None: whoever has no address of its own.

        Raises:
            ConfigError: an argument is wrong, or this connector only sends.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(receives=True)
        self._senders.update(host, port, source)

    def upstream(self, host: str, port: int, *, source: str) -> Upstream:
        """The sender at this address, to be polled without looking it up each time.

        Several senders of one stage (its replicas, its ranks) are several of these.

        Args:
            host: a name or address, IPv6 without brackets too.
            port: a TCP port, from 1.
            source: the stage that is there.

        Raises:
            ConfigError: an argument is wrong, or this connector only sends.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(receives=True)
        endpoint = self._senders.endpoint(host, port)
        return Upstream(self._calls, self._gets, endpoint, check_stage(source))

    @property
    def viewed_bytes(self) -> int:
        """Bytes of delivered payloads that somebody still views, wherever they lie."""
        return self._driver.views.viewed_bytes

    def sender_ended(self, source: str) -> None:
        """Say that the process of stage *source*, which speaks the dialect, is no more.

        You must have proved it (waited for the process, or its host is down): memory of ours that
        it might have written to is used again at once. Senders that speak our own protocol need no
        such word.

        Raises:
            ConfigError: it is none of ``dialect_senders``.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(receives=True)
        if self._foreign is None:
            msg = f"stage {source!r} speaks no dialect here"
            raise ConfigError(msg, remedy="of all others the end is proved without you")
        self._foreign.sender_ended(source)

    def _cancel(self, key: str, source: str | None, *, reject: bool) -> int:
        check_key(key)
        self._calls.check_usable(receives=True)
        if self._foreign is not None and self._foreign.speaks(source):
            return self._foreign.cancel(key, source, reject=reject)
        return self._gets.cancel(key, source, reject=reject)

    # --- both ----------------------------------------------------------------------------

    @overload
    def stream(
        self, key: str, *, to: str, timeout: float | None = None, ttl: float | None = None,
        readers: int | Iterable[str] | str | None = "default",
    ) -> StreamWriter: ...  # fmt: skip

    @overload
    def stream(
        self, key: str, *, source: str | None = None, timeout: float | None = None,
        total: float | None = None,
    ) -> StreamReader: ...  # fmt: skip

    def stream(
        self, key: str, *, to: str | None = None, source: str | None = None,
        timeout: float | None = None, ttl: float | None = None,
        readers: int | Iterable[str] | str | None = "default", total: float | None = None,
    ) -> StreamWriter | StreamReader:  # fmt: skip
        """Open a stream of chunks under *key*: to write with *to*, to read without.

        Args:
            key: as for :meth:`put`; a stream and a payload of the same key do not meet.
            to: the stage whose connectors may read it; makes this its one writer.
            source: the stage that writes it; may be left out when only one sender is known.
            timeout: seconds for each chunk: to wait for room, or for it to come; None: the
                policy's ``put_s``, or ``transfer_base_s``.
            ttl: as for :meth:`put`, for each chunk and for the end.
            readers: as for :meth:`put`.
            total: seconds for the whole stream to be read in; None: each chunk has its timeout.

        Raises:
            DuplicateKeyError: a writer (or reader) of this key is open here already.
            ConfigError: an argument is wrong, belongs to the other end, or no sender is known.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        writes = to is not None
        self._calls.check_usable(sends=writes, receives=not writes)
        if to is not None:
            if source is not None or total is not None:
                msg = f"to={to!r} makes a writer; source= and total= are a reader's"
                raise ConfigError(msg, remedy="leave them out, or to=")
            return self._streams.writer(key, to, timeout=timeout, ttl=ttl, readers=readers)
        if ttl is not None or readers != "default":
            msg = "ttl= and readers= are a writer's"
            raise ConfigError(msg, remedy="pass to= to write, or leave them out")
        return self._streams.reader(key, source, timeout=timeout, total=total)

    def cleanup(self, key: str, *, to: str | None = None, source: str | None = None) -> int:
        """Forget *key* in both directions: withdraw what we published, end what we wait for.

        Streams of the key are ended as well: aborted and taken back, or closed. Returns how many
        publications, gets and readers of streams were ended; unknown keys are fine.

        Args:
            key: as given to put.
            to: the stage it was put for; None: all of them.
            source: the stage that it was wanted from; None: all that were ever asked.

        Raises:
            ConfigError: an argument is wrong.
            ClosedError, ForkedError: the connector is not usable (here).
        """
        check_key(key)
        self._calls.check_usable()
        stages = self._driver.look(lambda e: list(e.outgoing.ledgers)) if to is None else [to]
        ended = self._streams.forget(key, to, source)
        ended += sum(self.withdraw(key, to=stage) for stage in stages)
        if source is not None:
            return ended + self.reject(key, source=source)
        return ended + self._gets.end_everywhere(key)

    def health(self) -> dict[str, Any]:
        """Plain figures: status, host, pool, puts, gets, bytes, errors by cause, sessions, …."""
        return health_of(self.config, self._driver, self._wrapping, self._foreign)

    def close(self) -> None:
        """End every wait, give back everything; bounded by the policy's ``close_s`` + 1 s.

        Streams without an end are aborted. Twice is fine, and so beside a blocked get (which
        raises ClosedError).
        """
        first = not (self._driver.closed or self._driver.forked)
        self._streams.cut()
        if self._foreign is not None and not self._driver.forked:
            self._foreign.close(self._calls.policy.close_s)
        self._driver.close(self._calls.policy.close_s)
        if first:
            self._driver.log.debug(
                "connector_closed", instance=self._driver.parts.endpoint.settings.instance.hex()
            )

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


def _all_taken(endpoint: Endpoint) -> bool:
    return not any(ledger.entries for ledger in endpoint.outgoing.ledgers.values())
