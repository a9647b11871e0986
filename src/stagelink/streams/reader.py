"""The consuming end of a stream."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.errors import (
    ClosedError,
    DeadlineError,
    GoneError,
    IncompleteStreamError,
    PeerError,
    ProtocolViolationError,
    Reason,
    TransportError,
)
from stagelink.core.events import CancelKey, Delivery, Failure, Get, Poll, Release
from stagelink.core.streams import Progress, parse_end, shown
from stagelink.core.values import NO_INSTANCE
from stagelink.failures import error_of
from stagelink.tickets import answered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.adapters.threads.tickets import Ticket
    from stagelink.calls import Accounted, Calls
    from stagelink.core.errors import Context, StagelinkError
    from stagelink.core.events import Result
    from stagelink.core.streams import End
    from stagelink.core.values import Instance
    from stagelink.gets import Gets
    from stagelink.payload import Payload

_OURS = frozenset({Reason.CANCELLED, Reason.REJECTED})
"""Ends that this side has asked for: they say nothing of the stream."""


class Origin(NamedTuple):
    """Where a stream comes from: the sender's address and stage."""

    address: str
    stage: str


class StreamReader:
    """The chunks of one stream, in order; made by :meth:`stagelink.Connector.stream`.

    Iterating yields payloads; each is closed when the next is asked for (tensors taken from it
    live on, as ever). :meth:`values` yields what was put instead. The iteration stops at the
    stream's end, once every chunk has come; a stream that breaks off raises.

    Close it, or use it in a ``with``: what has not been read is then given up, and the sender's
    memory with it, also of chunks that are yet to come. One thread at a time may call it.

    Attributes:
        deadline: the moment of :func:`time.monotonic` at which the stream must have ended, or
            None; may be set at any time. Each chunk has its own timeout besides.
    """

    def __init__(
        self, gets: Gets, calls: Calls, key: str, origin: Origin, timeout_s: float
    ) -> None:
        self._over = ""
        self._gets = gets
        self._calls = calls
        self._origin = origin
        self._timeout_s = timeout_s
        self._stream = Progress(key)
        self._instance: Instance = NO_INSTANCE
        self._current: Payload | None = None
        self._ahead: Result = None
        self._last_word = False
        self.deadline: float | None = None

    @property
    def key(self) -> str:
        """The stream's key."""
        return self._stream.key

    @property
    def source(self) -> str:
        """The stage that puts it."""
        return self._origin.stage

    @property
    def chunks(self) -> int:
        """How many chunks have come."""
        return self._stream.chunks

    @property
    def bytes(self) -> int:
        """Their encoded sizes in sum."""
        return self._stream.size

    @property
    def closed(self) -> bool:
        """Whether nothing more will come: it has ended, broken off or been closed."""
        return bool(self._over)

    def __iter__(self) -> Self:
        """The reader itself: a stream can be read once."""
        return self

    def __next__(self) -> Payload:
        """Wait for the next chunk.

        Raises:
            IncompleteStreamError: the producer gave up, closed, died or was restarted, or a chunk
                has expired or was withdrawn; at once, with the reason.
            DeadlineError: the chunk was not there in time; its number is named.
            CapacityError: the chunk can never fit our pool, or did not in time.
            ClosedError: the reader was closed or has failed before, or the connector is closed.
            ProtocolViolationError, ForkedError: as their names say.
        """
        if not self._begin():
            raise StopIteration
        with self._accounted() as call, self._ending():
            payload = self._received(self._ahead or self._asked(), call)
        if payload is None:
            raise StopIteration
        return payload

    def __aiter__(self) -> Self:
        """The reader itself."""
        return self

    async def __anext__(self) -> Payload:
        """As :meth:`__next__`, without blocking the event loop; may be cancelled and go on."""
        if not self._begin():
            raise StopAsyncIteration
        with self._accounted() as call, self._ending():
            payload = self._received(self._ahead or await self._answered(), call)
        if payload is None:
            raise StopAsyncIteration
        return payload

    def values(self) -> Iterator[Any]:
        """What was put, chunk by chunk; raises as :meth:`__next__`."""
        for payload in self:
            yield payload.value

    def close(self) -> None:
        """Give up what has not been read, here and at the sender. Twice is fine."""
        if not self._over:
            self._finish("closed")
            self._give_up()
        self._let_go()

    # --- one chunk -----------------------------------------------------------------------

    def _begin(self) -> bool:
        """Let the last chunk go; whether there may be another one."""
        self._let_go()
        if self._over == "ended":
            return False
        if self._over:
            msg = f"the stream of key {self.key!r} is {self._over}"
            raise ClosedError(msg, reason=Reason.CLOSED, remedy="read it with a new reader")
        self._calls.check_usable(receives=True)
        return True

    def _asked(self) -> Result:
        """The answer to the get of the next entry."""
        ticket = self._calls.driver.tickets.new()
        try:
            return self._calls.driver.call(self._wanted()._replace(ticket=ticket.number), ticket)
        except BaseException:
            self._keep_last_word(ticket)
            raise

    async def _answered(self) -> Result:
        ticket = self._calls.driver.tickets.new()
        try:
            return await answered(self._calls.driver, self._wanted(), ticket)
        except BaseException:
            self._keep_last_word(ticket)
            raise

    def _keep_last_word(self, ticket: Ticket) -> None:
        """We were interrupted: a chunk that came meanwhile is kept for us, an end is not."""
        said = ticket.result
        if isinstance(said, Failure) and said.reason == Reason.FAILED.value:
            self._ahead = said

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """An error ends the reader; an interruption does not."""
        try:
            yield
        except Exception as error:
            self._break_off(error)
            raise

    def _wanted(self) -> Get:
        until_s = self._calls.driver.clock() + self._timeout_s
        if self.deadline is not None:
            until_s = min(until_s, self.deadline)
        address, stage = self._origin
        return Get(0, address, stage, self._stream.next_key, 0, until_s, 0, self._instance)

    def _received(self, result: Result, call: Accounted) -> Payload | None:
        """The payload of the next chunk, or None at the end."""
        self._ahead = None
        if isinstance(result, Failure):
            self._ended(result, call.context)
            self._finish("ended")
            return None
        assert isinstance(result, Delivery)
        number = shown(self._stream.next_key)
        self._current = self._gets.payload(number, result, call)
        self._stream = self._stream.after(result.generation, result.size)
        self._instance = result.peer
        if result.block is not None:
            self._look_ahead()
        return self._current

    def _look_ahead(self) -> None:
        """The plane copies: let it copy the next chunk while this one is in use."""
        ticket = self._calls.driver.tickets.new()
        until_s = self._calls.driver.clock() + self._calls.policy.transfer_s(0)
        key, (address, stage) = self._stream.next_key, self._origin
        poll = Poll(ticket.number, address, stage, key, until_s, self._instance)
        self._ahead = self._calls.driver.glance(poll, ticket)

    # --- the end -------------------------------------------------------------------------

    def _ended(self, failure: Failure, context: Context) -> None:
        """No chunk: return if the stream is complete, and raise whatever else it is."""
        if failure.reason == Reason.FAILED.value:
            self._last_word = True
            end = parse_end(failure.detail)
            if end is not None:
                self._check_complete(end, context)
                return
        error = error_of(failure, context)
        broken = isinstance(error, (GoneError, PeerError, TransportError))
        if broken and error.reason not in _OURS:
            raise self._incomplete(error, context) from error
        if isinstance(error, DeadlineError):
            last = f"the last that came is {self.chunks - 1}" if self.chunks else "none has come"
            which = f"chunk {self.chunks} of stream {self.key!r}"
            error.message = f"{which} did not come in time, {last}: {error.message}"
        raise error

    def _check_complete(self, end: End, context: Context) -> None:
        came = (self._stream.chunks, self._stream.size)
        if came != end:
            msg = f"the producer counts {end.chunks} chunks of {end.size} bytes, {came} came"
            error = ProtocolViolationError(msg, reason=Reason.MISMATCH)
            raise self._incomplete(error, context, end.chunks) from error

    def _incomplete(
        self, cause: StagelinkError, context: Context, expected: int | None = None
    ) -> IncompleteStreamError:
        came = f"{self.chunks} chunk{'' if self.chunks == 1 else 's'}"
        return IncompleteStreamError(
            f"the stream of key {self.key!r} broke off after {came}: {cause.message}",
            chunks_expected=expected, chunks=self.chunks, size=self.bytes,
            reason=cause.reason, context=cause.context if cause.context.key else context,
            remedy=cause.remedy or "ask the producer for a new stream",
        )  # fmt: skip

    def _break_off(self, error: Exception) -> None:
        """Nothing more will be read; give up what may come, unless nothing has begun."""
        if self._over:
            return  # closed meanwhile by another thread
        self._finish(f"broken off: {error}")
        begun = self.chunks or not isinstance(error, DeadlineError)
        if begun and not self._last_word:
            self._give_up()

    def _finish(self, how: str) -> None:
        self._over = how

    def _give_up(self) -> None:
        """Tell the sender that we want no more of it, and give back what was fetched ahead."""
        driver = self._calls.driver
        if driver.closed or driver.forked:
            return
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Delivery) and ahead.handle:
            driver.submit(Release(ahead.handle))
        driver.submit(self._rejection())

    def _rejection(self) -> CancelKey:
        address, stage = self._origin
        return CancelKey(0, address, stage, self._stream.name, True, self._instance)

    def _let_go(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.close()

    def _accounted(self) -> Accounted:
        key = shown(self._stream.next_key)
        return self._calls.accounted(key, self._origin.stage, self._calls.stage)

    def __enter__(self) -> Self:
        """Read it; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the reader."""
        self.close()

    async def __aenter__(self) -> Self:
        """Read it; leaving closes it, which waits for nothing."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the reader."""
        self.close()

    def __del__(self) -> None:
        """Give up what was not read, as a generator would that nobody finishes."""
        if getattr(self, "_over", "never begun"):
            return
        driver = self._calls.driver
        if not driver.closed and not driver.forked:
            # A finalizer runs anywhere, perhaps under a lock of the driver's own.
            if isinstance(self._ahead, Delivery) and self._ahead.handle:
                driver.post(Release(self._ahead.handle))
            driver.post(self._rejection())

    def __repr__(self) -> str:
        """Key, state and how much has come."""
        return f"<StreamReader {self.key!r} {self._over or 'open'}, {self.chunks} chunks>"
