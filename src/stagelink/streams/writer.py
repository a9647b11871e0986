"""The producing end of a stream."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import ClosedError, DuplicateKeyError, Reason
from stagelink.core.events import Publish
from stagelink.core.streams import End, Progress, first_key, reason_text, shown
from stagelink.payload import Draft
from stagelink.puts import PutCall
from stagelink.tickets import PUBLISHED, StagedPut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.calls import Calls
    from stagelink.core.endpoint import Endpoint
    from stagelink.puts import Edge, Puts, Receipt, Terms

TURN_S = 0.002
"""Between two looks at whether an earlier stream has been begun to be read."""

OPEN, ENDED, ABORTED, CUT = "open", "ended", "aborted", "cut off"
"""How a writer stands; CUT is aborted by the close of its connector."""


class StreamWriter:
    """Puts the chunks of one stream, in order; made by :meth:`stagelink.Connector.stream`.

    Use it in a ``with``: a clean exit ends the stream, an exception aborts it with its words. One
    thread at a time may call it.
    """

    def __init__(
        self, puts: Puts, calls: Calls, key: str, edge: Edge, *, terms: Terms, timeout_s: float
    ) -> None:
        self._state = OPEN
        self._puts = puts
        self._calls = calls
        self._edge = edge
        self._terms = terms
        self._timeout_s = timeout_s
        self._stream = Progress(key)

    @property
    def key(self) -> str:
        """The stream's key."""
        return self._stream.key

    @property
    def to(self) -> str:
        """The stage that reads it."""
        return self._edge.to

    @property
    def chunks(self) -> int:
        """How many chunks have been put."""
        return self._stream.chunks

    @property
    def bytes(self) -> int:
        """Their encoded sizes in sum."""
        return self._stream.size

    @property
    def closed(self) -> bool:
        """Whether it has ended or was aborted."""
        return self._state != OPEN

    def put(self, value: Any, *, timeout: float | None = None) -> int:  # noqa: ANN401
        """Publish the next chunk; return its number, from 0.

        Args:
            value: as for :meth:`stagelink.Connector.put`, a draft of the connector's too.
            timeout: seconds to wait for room in the pool, and, for chunk 0, until an earlier
                stream of the key has been begun to be read; None: as the stream was opened with.

        Raises:
            ClosedError: the stream has ended or was aborted, or the connector is closed.
            DuplicateKeyError: an earlier stream of the key has not been read from at all.
            CapacityError, PayloadError, ConfigError, ForkedError: as for
                :meth:`stagelink.Connector.put`; the stream is as it was, and may go on.
        """
        self._check_open()
        wait_s = self._calls.seconds(timeout, self._timeout_s)
        with self._accounted() as call:
            self._calls.check_usable(sends=True)
            self._await_turn(wait_s)
            call.until_s = self._calls.until(wait_s, None, wait_s)
            return self._put(self._puts.put(value, call))

    async def aput(self, value: Any, *, timeout: float | None = None) -> int:  # noqa: ANN401
        """As :meth:`put`, without blocking the event loop.

        Do not change *value* meanwhile, and await one chunk before putting the next. When the task
        is cancelled the chunk is not published unless it was already; the stream may go on.

        Raises:
            StagelinkError: the same as :meth:`put`.
        """
        self._check_open()
        wait_s = self._calls.seconds(timeout, self._timeout_s)
        with self._accounted() as call:
            self._calls.check_usable(sends=True)
            await self._aawait_turn(wait_s)
            call.until_s = self._calls.until(wait_s, None, wait_s)
            if isinstance(value, Draft):
                return self._put(self._puts.put_draft(value, call))
            staged = self._puts.stage(value)
            if self._puts.goes_inline(staged.size):
                return self._put(self._puts.store(staged, call))
        put = StagedPut(self._calls, self._puts, staged, call)
        try:
            return self._put(await put.carried_out())
        except BaseException:
            if (
                put.ticket.state == PUBLISHED
            ):  # cancelled too late: it is the stream's all the same
                self._put(put.ticket.result())
            raise

    async def aend(self) -> None:
        """As :meth:`end`, without blocking the event loop."""
        if self._state == OPEN:
            await self._aawait_turn(self._timeout_s)
        self.end()

    def end(self) -> None:
        """Say that there are no more chunks, and how many there were. Twice is fine.

        Raises:
            ClosedError: the stream was aborted, or the connector is closed.
            DuplicateKeyError: an earlier stream of the key has not been read from at all.
            ForkedError: the connector belongs to the parent process.
        """
        if self._state == ENDED:
            return
        self._check_open()
        with self._accounted() as call:
            self._calls.check_usable(sends=True)
            self._await_turn(self._timeout_s)
            self._say(End(self.chunks, self.bytes).text, call)
        self._state = ENDED

    def abort(self, reason: object = "aborted") -> None:
        """Give up: readers get what was put, and then an error with *reason*. Twice is fine."""
        self._abort(reason, ABORTED)

    def cut(self, reason: str) -> None:
        """Abort, because the connector is about to be closed."""
        self._abort(reason, CUT)

    def _abort(self, reason: object, state: str) -> None:
        if self._state != OPEN:
            return
        self._state = state
        driver = self._calls.driver
        if driver.closed or driver.forked:
            return  # its readers hear of the close
        try:
            with self._accounted() as call:
                self._say(reason_text(reason), call)
        except (DuplicateKeyError, ClosedError):
            pass  # readers of the earlier stream must not hear of it, those of this one do so

    def _put(self, receipt: Receipt) -> int:
        """One chunk more has been published; its number."""
        self._stream = self._stream.after(receipt.generation, receipt.size)
        return self.chunks - 1

    def _say(self, words: str, call: PutCall) -> None:
        self._puts.publish(call, error=words)

    def _accounted(self) -> PutCall:
        """The put of the next entry, whose name is none of a user's keys."""
        edge, name = self._edge, self._stream.next_key
        call = PutCall(self._calls.driver, shown(name), edge.stage, edge.to)
        call.edge, call.name, call.terms, call.until_s = edge, name, self._terms, call.start_s
        return call

    def _check_open(self) -> None:
        if self._state != OPEN:
            msg = f"the stream of key {self.key!r} is {self._state}, after {self.chunks} chunks"
            remedy = "open a new stream; this one takes no more chunks"
            raise ClosedError(msg, reason=Reason.CLOSED, remedy=remedy)

    def _await_turn(self, wait_s: float) -> None:
        """Wait until the first entry of an earlier stream of the key has been read."""
        if not self.chunks and not self._calls.driver.wait_until(self._is_free, wait_s):
            raise self._not_our_turn()

    async def _aawait_turn(self, wait_s: float) -> None:
        if self.chunks or self._calls.driver.look(self._is_free):
            return
        import asyncio  # noqa: PLC0415 - loaded already: it is what runs us

        until_s = self._calls.driver.clock() + wait_s
        while not self._calls.driver.look(self._is_free):
            if self._calls.driver.clock() >= until_s or self._calls.driver.closed:
                raise self._not_our_turn()
            await asyncio.sleep(TURN_S)

    def _not_our_turn(self) -> DuplicateKeyError:
        self._calls.check_usable(sends=True)  # closed meanwhile by another thread
        msg = f"an earlier stream of key {self.key!r} has not been read from at all"
        remedy = "wait until its reader has begun, or use a fresh key"
        return DuplicateKeyError(msg, reason=Reason.DUPLICATE, remedy=remedy)

    def _is_free(self, endpoint: Endpoint) -> bool:
        ledger = endpoint.outgoing.ledgers.get(self.to)
        return ledger is None or ledger.live(first_key(self.key)) is None

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Of an end that fails, or is interrupted, no writer is left open."""
        try:
            yield
        except BaseException as error:
            self.abort(f"{type(error).__name__}: {error}")
            raise

    def __enter__(self) -> Self:
        """Put chunks; leaving ends the stream."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the stream, or abort it with the words of an exception."""
        if kind is not None:
            self.abort(f"{kind.__name__}: {error}")
        elif self._state != ABORTED:
            with self._closing():
                self.end()

    async def __aenter__(self) -> Self:
        """Put chunks; leaving ends the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the stream, or abort it with the words of an exception."""
        if kind is None and self._state == OPEN:
            with self._closing():
                await self.aend()
        self.__exit__(kind, error, trace)

    def __del__(self) -> None:
        """Warn about a stream without an end, and abort it: its readers must not wait."""
        if getattr(self, "_state", ENDED) != OPEN:
            return
        driver = self._calls.driver
        if not driver.closed and not driver.forked:
            # A finalizer runs anywhere, perhaps under a lock of the driver's own.
            words = "the writer was dropped without an end"
            name = self._stream.next_key
            driver.post(Publish(0, self.to, name, 0, None, b"", words, *self._terms))
            warnings.warn(f"unended {self!r}", ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        """Key, state and how much there was."""
        return f"<StreamWriter {self.key!r} {self._state}, {self.chunks} chunks>"
