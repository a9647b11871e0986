"""Puts under way on another thread, and how a coroutine waits for what other threads do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagelink.adapters.threads import Outcome
from stagelink.core.errors import (
    CapacityError,
    ClosedError,
    DeadlineError,
    GoneError,
    Reason,
)  # fmt: skip

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Generator

    from stagelink.adapters.threads import Driver
    from stagelink.adapters.threads.tickets import Ticket
    from stagelink.calls import Calls
    from stagelink.core.events import Await, Get, Result
    from stagelink.ports.codec import Staged
    from stagelink.ports.log import EventLog
    from stagelink.puts import PutCall, Puts, Receipt

QUEUED, COPYING, PUBLISHED, FAILED = "queued", "copying", "published", "failed"


class Progress:
    """How far a put has come, seen by the thread that puts and by whoever waits or cancels."""

    __slots__ = ("_unpublished", "_untouched", "outcome", "state")

    def __init__(self, log: EventLog) -> None:
        self.outcome = Outcome(log)
        self.state = QUEUED
        # Each is popped by the thread that puts or by the one that cancels: no lock needed.
        self._untouched = [None]
        self._unpublished = [None]

    def touch(self) -> None:
        """The value is going to be read, for the first time or once more.

        Raises:
            GoneError: the put was cancelled before.
        """
        if self.state == QUEUED and not _pop(self._untouched):
            raise _cancelled()
        self.state = COPYING

    def commit(self) -> None:
        """The value has been read, and is going to be published.

        Raises:
            GoneError: the put was cancelled.
        """
        if not _pop(self._unpublished):
            raise _cancelled()

    def cancel(self) -> tuple[bool, bool]:
        """Whether it will never read the value, and whether it will never be published."""
        return _pop(self._untouched), _pop(self._unpublished)

    def end(self, receipt: Receipt | None, error: BaseException | None = None) -> None:
        """It is published, or failed with *error*."""
        self.state = PUBLISHED if error is None else FAILED
        self.outcome.settle(receipt, error)


class PutTicket:
    """A put under way on another thread; any number of threads and tasks may wait for it.

    Once it is done the value may be changed, and not before. A ticket may be dropped: the put goes
    on, and a failure is counted in ``health()``.

    Attributes:
        key: the key it is put under.
        size: bytes of the encoded payload.
    """

    def __init__(self, calls: Calls, progress: Progress, key: str, size: int) -> None:
        self._calls = calls
        self._progress = progress
        self.key = key
        self.size = size

    @property
    def state(self) -> str:
        """``queued`` (for its turn, or for room), ``copying``, ``published`` or ``failed``."""
        return self._progress.state

    @property
    def done(self) -> bool:
        """Whether it is published or failed."""
        return self._progress.outcome.done

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt; None waits until the put ends, which its own deadline bounds.

        Raises:
            DeadlineError: it is not done in time, and goes on.
            ForkedError: it is the parent process that puts.
            CapacityError, DuplicateKeyError, ClosedError, ...: the put failed, as for ``put``.
        """
        wait_s = None if timeout is None else self._calls.seconds(timeout, 0.0)
        outcome = self._progress.outcome
        if not outcome.done:
            self._calls.check_process()
        if not outcome.wait(wait_s):
            msg = f"the put of key {self.key!r} is still {self.state}"
            raise DeadlineError(msg, reason=Reason.DEADLINE, remedy="wait longer")
        if outcome.error is not None:
            raise outcome.error
        receipt: Any = outcome.result
        return receipt  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[[PutTicket], object]) -> None:
        """Call *callback* with this ticket once it is done, on the thread that puts; or now.

        It should be quick: other puts wait for it. What it raises is logged.
        """
        self._progress.outcome.then(partial(callback, self))

    def cancel(self) -> bool:
        """Put it no more: True, and it will never be published; False, and it is or will be.

        It may still be copying: wait until it is done before changing the value.
        """
        return self._progress.cancel()[1]

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the receipt without blocking the event loop; cancelling ends the wait only."""
        if not self.done:
            self._calls.check_process()
            yield from woken(self._progress.outcome.then).__await__()
        return self.result()

    def __repr__(self) -> str:
        """Key, state and size."""
        return f"<PutTicket {self.key!r} {self.state}, {self.size} bytes>"


def published(calls: Calls, receipt: Receipt, key: str) -> PutTicket:
    """The ticket of a put that needed no other thread."""
    progress = Progress(calls.driver.log)
    progress.end(receipt)
    return PutTicket(calls, progress, key, receipt.size)


class StagedPut:
    """The job of a worker: the value, where it goes, and the ticket that tells of it.

    Attributes:
        staged: the value, measured.
        ticket: for whoever waits.
    """

    def __init__(self, calls: Calls, puts: Puts, staged: Staged, call: PutCall) -> None:
        self.staged = staged
        self.size = staged.size
        self._progress = Progress(calls.driver.log)
        self.ticket = PutTicket(calls, self._progress, call.name, self.size)
        self._driver = calls.driver
        self._puts = puts
        self._call = call

    def enqueue(self, *, wait: bool) -> None:
        """Give it to the worker, waiting for a turn in the queue or (not *wait*) taking one.

        Raises:
            CapacityError: the queue stayed full for too long.
        """
        worker = self._driver.worker
        wait_s = max(0.0, self._call.until_s - self._driver.clock())
        if not worker.give(self, wait_s, bounded=wait):
            msg = f"{len(worker)} puts wait for their turn already"
            raise CapacityError(msg, remedy="let them be done first, or wait longer (timeout=)")

    async def carried_out(self) -> Receipt:
        """Its receipt. If the waiting task is cancelled, nothing reads the value afterwards."""
        self.enqueue(wait=False)
        try:
            return await self.ticket
        except GeneratorExit:
            self._progress.cancel()
            raise
        except BaseException:
            untouched, _ = self._progress.cancel()
            while not (untouched or self.ticket.done):
                await self._until_let_go()
            raise

    async def _until_let_go(self) -> None:
        """Wait (milliseconds) for a copy under way, whoever cancels us meanwhile."""
        import asyncio  # noqa: PLC0415 - loaded already: it is what runs us

        try:
            await woken(self._progress.outcome.then)
        except asyncio.CancelledError:
            pass  # the one that brought us here is raised in the end

    # --- what a worker calls -------------------------------------------------------------

    def run(self) -> None:
        """Copy and publish."""
        try:
            with self._call as call:
                receipt = self._puts.store(self, call, self._progress.commit)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the ticket must be done
            self._progress.end(None, error)
        else:
            self._progress.end(receipt)

    def write(self, target: memoryview) -> None:
        """Copy the value, unless its put was cancelled before."""
        self._progress.touch()
        self.staged.write(target)

    def drop(self) -> None:
        """The connector was closed first."""
        msg = "the connector was closed before the put had its turn"
        error = ClosedError(msg, reason=Reason.CLOSED, remedy="open a new one")
        self._call.failed(error)
        self._progress.end(None, error)


async def answered(driver: Driver, command: Get | Await, ticket: Ticket) -> Result:
    """The core's answer to *command*; whoever serves the channel wakes our loop."""
    begun = command._replace(ticket=ticket.number)
    try:
        driver.begin(begun, ticket)
        if not ticket.done:
            await woken(ticket.then)
    except GeneratorExit:
        driver.leave(begun, ticket)  # by the garbage collector, perhaps under a lock
        raise
    except BaseException:
        driver.abandon(begun, ticket)
        raise
    return ticket.result


async def woken(then: Callable[[Callable[[], object]], object]) -> None:
    """Wait until the callback that *then* is given has been called, on whatever thread."""
    import asyncio  # noqa: PLC0415 - loaded already: it is what runs us

    loop = asyncio.get_running_loop()
    future: Future[None] = loop.create_future()
    then(partial(_wake, loop, future))
    await future


def _wake(loop: AbstractEventLoop, future: Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, future)
    except RuntimeError:
        pass  # the loop is closed: nobody waits there any more


def _set(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _pop(token: list[None]) -> bool:
    """Whether we are the one who takes it."""
    try:
        token.pop()
    except IndexError:
        return False
    return True


def _cancelled() -> GoneError:
    return GoneError("the put was cancelled", reason=Reason.CANCELLED)
