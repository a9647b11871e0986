"""A get, step by step: what is wanted and from where, the answer, the value or the error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.arguments import MetadataFields, check_keys
from stagelink.core.envelope import BARE, is_shared
from stagelink.core.errors import ConfigError, Reason, StagelinkError, TransportError
from stagelink.core.events import Await, CancelKey, Delivery, Failure, Get, Poll, Release
from stagelink.core.keys import check_key, parse_wire_key, pending_with_same_request
from stagelink.core.streams import shown
from stagelink.failures import error_of
from stagelink.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from mmap import mmap

    from stagelink.adapters.threads import Ticket
    from stagelink.adapters.wrap import Wrapping
    from stagelink.calls import Accounted, Calls
    from stagelink.core.endpoint import Endpoint
    from stagelink.core.errors import Context
    from stagelink.core.events import Result
    from stagelink.core.source import Source
    from stagelink.ports import Serializer
    from stagelink.senders import Senders

_MARK = len(BARE)


class Gets:
    """The receiving half of a connector's face."""

    def __init__(
        self, calls: Calls, serializer: Serializer, wrapping: Wrapping, senders: Senders
    ) -> None:
        self._calls = calls
        self._driver = calls.driver
        self._serializer = serializer
        self._wrapping = wrapping
        self._senders = senders
        self._patience_s = calls.policy.transfer_s(0)
        self._absent = calls.driver.parts.endpoint.incoming.absent
        self._tickets = calls.driver.tickets

    def wanted(
        self,
        key: str,
        source: str | None,
        timeout: float | None,
        deadline: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> Get:
        """The command for a get, every argument checked, with the number of a ticket to be."""
        check_key(key)
        deadline_s = self._calls.until(timeout, deadline, self._patience_s)
        if metadata is None:
            address, stage = self._senders.where(source)
            return Get(self._tickets.number(), address, stage, key, 0, deadline_s)
        return self._named(key, source, metadata, deadline_s)

    def wanted_at(self, key: str, address: str, stage: str, deadline: float | None) -> Get:
        """The command for a get from a sender that is known by its checked address."""
        until_s = self._calls.until(None, deadline, self._patience_s)
        return Get(self._tickets.number(), address, stage, check_key(key), 0, until_s)

    def _named(
        self, key: str, source: str | None, metadata: Mapping[str, Any], deadline_s: float
    ) -> Get:
        """The get of exactly what *metadata* names, every field of it checked."""
        fields = MetadataFields.of(metadata)
        if fields.key:
            named, stage, to = parse_wire_key(fields.key)
            if (named, to) != (key, self._calls.stage):
                msg = f"this metadata is of key {named!r} for stage {to!r}"
                remedy = f"get that key there, not {key!r} at {self._calls.stage!r}"
                raise ConfigError(msg, remedy=remedy)
            source = stage
        senders = self._senders
        endpoint = fields.endpoint
        address = senders.dialled(endpoint) if endpoint else senders.where(source)[0]
        if source is None:
            source = senders.where(None)[1]
        return Get(
            self._tickets.number(), address, source, key, fields.generation, deadline_s,
            fields.size, fields.instance,
        )  # fmt: skip

    def get(self, command: Get, call: Accounted) -> Payload:
        """Wait for what *command* wants."""
        ticket = self._tickets.new(command.ticket)
        payload = Payload(self._driver, self._serializer, command.key)
        return self.payload(command.key, self._driver.call(command, ticket), call, payload)

    def absent(self, key: str, source: str | None) -> bool:
        """Whether a poll would find nothing: the usual answer, had by a few look-ups."""
        address, stage = self._senders.where(source)
        return self._absent(address, stage, check_key(key)) and self._driver.quiet

    def all_wanted(
        self,
        keys: Iterable[str],
        source: str | None,
        timeout: float | None,
        deadline: float | None,
    ) -> list[Get]:
        """One command for each key, all under one deadline."""
        names = check_keys(keys)
        until_s = self._calls.until(timeout, deadline, self._patience_s)
        return [self.wanted(key, source, None, until_s, None) for key in names]

    def get_many(self, commands: list[Get]) -> list[Payload]:
        """Wait for all of them; if one fails, what has come stays for the next get of its key."""
        driver = self._driver
        calls = [(command, self._tickets.new(command.ticket)) for command in commands]
        made: list[Payload] = []
        emptied: list[
            int
        ] = []  # given back once all are made, for until then they may be returned
        try:
            driver.gather(calls)
            self._check_all(calls)
            for command, ticket in calls:
                with self._accounted(command) as call:
                    made.append(self.payload(command.key, ticket.result, call, emptied=emptied))
        except BaseException:
            for payload in made:
                payload.disown()
            for begun in calls:
                driver.abandon(*begun)
            raise
        for handle in emptied:
            driver.submit(Release(handle))
        return made

    def _check_all(self, calls: list[tuple[Get, Ticket]]) -> None:
        for command, ticket in calls:
            if isinstance(ticket.result, Failure):
                with self._accounted(command) as call:
                    raise self._explained(command.key, ticket.result, call.context)

    def _accounted(self, command: Get) -> Accounted:
        return self._calls.accounted(command.key, command.source, self._calls.stage)

    def first_wanted(
        self,
        keys: Iterable[str],
        source: str | None,
        timeout: float | None,
        deadline: float | None,
    ) -> Await:
        """The command that waits for the first of many keys, every argument checked."""
        names = check_keys(keys)
        if not names:
            msg = "there are no keys to wait for"
            raise ConfigError(msg, remedy="pass at least one")
        until_s = self._calls.until(timeout, deadline, self._patience_s)
        return Await(0, *self._senders.where(source), names, until_s)

    def first(self, result: Result, call: Accounted) -> str:
        """The key that came first, or the failure as an exception."""
        if isinstance(result, Failure):
            raise error_of(result, call.context)
        assert isinstance(result, str)
        return result

    def poll(self, command: Get, call: Accounted) -> Payload | None:
        """Take it if it is here."""
        ticket = self._tickets.new(command.ticket)
        glance = Poll(
            ticket.number, command.address, command.source, command.key, command.deadline_s
        )
        result = self._driver.glance(glance, ticket)
        return None if result is None else self.payload(command.key, result, call)

    def payload(
        self, key: str, result: Result, call: Accounted, payload: Payload | None = None,
        *, emptied: list[int] | None = None,
    ) -> Payload:  # fmt: skip
        """What the core delivered, in the *payload* made for it; or its failure, raised.

        Handles of deliveries that were decompressed are added to *emptied*, or released at once.
        """
        if isinstance(result, Failure):
            raise self._explained(key, result, call.context)
        assert isinstance(result, Delivery)
        inline = result.body is not None
        buffer: Any = bytearray(result.body or b"") if inline else self._view(result, call)
        size, handle = result.size, result.handle
        if self._wrapping.tail or buffer[:_MARK] != BARE:
            buffer, size, handle = self._unwrapped(buffer, result, call, emptied)
        # What lies in our own pool, or in memory of its own, is nobody else's.
        shared = bool(handle) and result.where is not None and is_shared(buffer[:_MARK])
        driver = self._driver
        driver.counters.gets.add(call.from_stage, result.size, driver.clock() - call.start_s)
        if payload is None:
            payload = Payload(driver, self._serializer, key)
        payload._hold(  # noqa: SLF001 - payloads are made here
            buffer, handle, result.generation, size, not shared
        )
        return payload

    def _unwrapped(
        self,
        buffer: Any,  # noqa: ANN401
        result: Delivery,
        call: Accounted,
        emptied: list[int] | None,
    ) -> tuple[Any, int, int]:
        """Buffer, size and handle of the payload once checked and decompressed.

        What came compressed is in memory of its own; what cannot be handed out is released.
        """
        try:
            raw = self._checked(buffer, result, call)
        except BaseException:
            buffer = None  # the error's traceback holds this frame
            self._let_go(result.handle)
            raise
        if raw is None:
            return buffer, result.size, result.handle
        if emptied is None:
            self._let_go(result.handle)
        elif result.handle and self._driver.views.release(result.handle):
            emptied.append(result.handle)
        return raw, len(raw), 0

    def _checked(self, buffer: Any, result: Delivery, call: Accounted) -> mmap | None:  # noqa: ANN401
        """The payload that came compressed, or None: it may be used where it lies."""
        if getattr(buffer, "on_device", False):
            return None  # there is nothing around what lies on a device
        size = result.size
        flaw = self._wrapping.flaw(buffer, size)
        if flaw:
            peer = self._driver.narrator.name(result.peer)
            raise error_of(Failure(Reason.CORRUPT.value, flaw, peer), call.context)
        return self._wrapping.unpacked(buffer, size)

    def _view(self, result: Delivery, call: Accounted) -> Any:  # noqa: ANN401 - any buffer
        """A buffer over the delivered bytes, whose end releases them."""
        try:
            view = self._driver.view(result)
            return self._driver.views.open(view, result.size, result.handle)
        except BaseException as error:
            self._driver.submit(Release(result.handle))
            self._calls.check_usable()  # closed meanwhile by another thread
            if isinstance(error, TransportError) and error.reason:
                peer = self._driver.narrator.name(result.peer)
                told = Failure(error.reason.value, error.message, peer)
                raise error_of(told, call.context) from error
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

    def cancel(self, key: str, source: str | None, *, reject: bool) -> int:
        """End every get of *key* from one stage."""
        address, stage = self._senders.where(source)
        return self._end(key, address, stage, reject=reject)

    def end_everywhere(self, key: str) -> int:
        """Reject *key* at every sender we ever asked."""
        known = self._driver.look(lambda e: [(s.address, s.stage) for s in _sources(e)])
        return sum(self._end(key, *where, reject=True) for where in known)

    def _end(self, key: str, address: str, stage: str, *, reject: bool) -> int:
        with self._calls.accounted(key, stage, self._calls.stage) as call:
            result = self._calls.tell(CancelKey(0, address, stage, key, reject))
            if isinstance(result, Failure):
                raise error_of(result, call.context)
        assert isinstance(result, int)
        return result


def _sources(endpoint: Endpoint) -> list[Source]:
    return list(endpoint.incoming.sources.values())


def _pending_keys(endpoint: Endpoint) -> list[str]:
    sources = endpoint.incoming.sources.values()
    return [shown(key) for source in sources for key in source.inbox.known()]
