"""Flat combining over one channel: who has something to send sends it, who waits receives.

Two locks. ``state`` guards the endpoint (pure, some 30 µs); ``io`` guards the channel (calls that
do not block) and is only ever tried, never waited for. Nothing is copied, serialized or mapped
under either. One thread stands by for what arrives while no caller waits; a second, started on
demand, runs the errands that may take long (attach, fence, reset).
"""

from __future__ import annotations

import os
import time
from collections import deque
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stagelink.adapters.threads.begun import Begun, Left, undoing, when_over
from stagelink.adapters.threads.closing import shut
from stagelink.adapters.threads.counters import Counters
from stagelink.adapters.threads.draining import drain
from stagelink.adapters.threads.exchange import Exchange
from stagelink.adapters.threads.narrator import Narrator
from stagelink.adapters.threads.standby import Standby
from stagelink.adapters.threads.tickets import Ticket, Tickets
from stagelink.adapters.threads.torn import FAILURE, TORN, Torn
from stagelink.adapters.threads.views import Views
from stagelink.adapters.threads.wakeup import Wakeup
from stagelink.adapters.threads.work import Work
from stagelink.adapters.threads.worker import Worker
from stagelink.core.events import (
    Abandon,
    Complete,
    Delivery,
    Dial,
    HangUp,
    Release,
    Send,
    TimePassed,
)  # fmt: skip
from stagelink.core.pool import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.core.endpoint import Endpoint
    from stagelink.core.events import Event, Result
    from stagelink.ports.channel import ControlChannel
    from stagelink.ports.codec import Codec
    from stagelink.ports.liveness import Liveness
    from stagelink.ports.log import EventLog
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import DataPlane

STALLED_RETRY_S = 0.002
IDLE_S = 3600.0

T = TypeVar("T")


class Parts(NamedTuple):
    """The adapters that one connector is made of; ``planes`` by name, the pool in ``memory``."""

    endpoint: Endpoint
    channel: ControlChannel
    codec: Codec
    planes: dict[str, DataPlane]
    memory: Memory
    liveness: Liveness
    log: EventLog


class Driver:
    """Performs the endpoint's orders and feeds it facts, from any number of threads.

    ``usable``: it is neither ``closed``, nor ``torn`` by an interruption, nor ``forked``: a copy
    in a child process.
    """

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        # Of more than 30 attributes CPython 3.11 makes a dictionary, and each look takes longer.
        self.parts = parts
        self.clock = clock
        self.forked = self.closed = self.torn = False
        self.turns, self.usable = 0, True
        self.tickets = Tickets()
        self.counters = Counters()
        self.narrator = Narrator(parts.log, parts.endpoint.settings.policy.lease_warning_s)
        self._endpoint: Endpoint | Torn = parts.endpoint
        self.make_locks()
        self._mail: deque[Event | Left] = deque()
        self._waiting: dict[int, Ticket] = {}
        self._begun, self._readers = Begun(), parts.endpoint.outgoing.readers
        self._polled_for: Ticket | None = None
        self._poll_until = 0.0
        self.wakeup = Wakeup(parts.channel.fileno())
        note, narrator = self._mail.append, self.narrator
        self.exchange = Exchange(
            parts.channel, parts.codec, self._feed, note, narrator=narrator, clock=clock
        )
        self.work = Work(
            parts.planes, parts.liveness, self.submit, note, self.settle,
            lost=self._lost, narrator=narrator,
        )  # fmt: skip
        self._outbox, self._todo = self.exchange.outbox, self.work.todo
        self.views = Views(self._kick)
        self.worker = Worker(parts.log)
        self.standby = Standby(self, parts.channel.fileno(), parts.log)
        self.standby.start()
        _DRIVERS.add(self)

    def make_locks(self) -> None:
        """Have locks that nobody holds; no thread may know of others yet, or still.

        ``_take_io`` and ``_take_turn`` are for ``for _ in iter(take, False):``, a try that no
        interruption can part from its lock: between a call that takes it and the ``try`` behind
        it a signal's handler may run, there it may not.
        """
        self.state, self.io, self._driving = Lock(), Lock(), Lock()
        self._take_io = partial(self.io.acquire, False)
        self._take_turn = partial(self._driving.acquire, False)

    @property
    def log(self) -> EventLog:
        """Where people are told."""
        return self.parts.log

    # --- calls ---------------------------------------------------------------------------

    def submit(self, event: Event) -> Result:
        """Hand one fact or command to the core and perform what it orders.

        Returns the answer to a command with ticket 0, which the core gives at once; in a forked
        child nothing happens, for what is held there is the parent's to release.
        """
        if self.forked:
            return None
        result = self._feed(event)
        self.settle()
        return result

    def post(self, event: Event) -> None:
        """Have one fact or command handed in soon; a finalizer may call this under any lock."""
        self._mail.append(event)
        self._kick()

    def call(self, event: Event, ticket: Ticket) -> Result:
        """Hand in a command with *ticket* and wait for its answer; the core bounds the wait."""
        try:
            self._feed(event)
            if ticket.done:
                self.settle()
            else:
                self._wait(ticket)
        except BaseException:
            self.abandon(event, ticket)
            raise
        return ticket.result

    def begin(self, event: Event, ticket: Ticket) -> None:
        """Hand in a command without waiting: its ``then`` says what to do with the answer."""
        self._begun.add(ticket)
        self.submit(event)
        if not ticket.done and not self._waiting:
            self.standby.relieve(now=True)

    def gather(self, calls: Sequence[tuple[Event, Ticket]]) -> None:
        """Hand in many commands; wait until all are answered, or one has failed."""
        every = self.tickets.new()

        def over() -> None:
            self.tickets.resolve(every.number, None)
            self._kick()

        when_over([ticket for _, ticket in calls], over)
        try:
            for event, _ in calls:
                self._feed(event)
            self.settle()
            if calls and not every.done:
                self._wait(every)
        finally:
            self.tickets.forget(every.number)

    def abandon(self, event: Event, ticket: Ticket) -> None:
        """The caller that handed in *event* has gone: end its call, or take its answer back.

        A delivery stays for the next get of its key. Twice is fine.
        """
        if self.forked:
            return
        self._end(event, ticket)
        if self._waiting.pop(ticket.number, None):  # interrupted just when it began to wait
            self.turns += 1
        self._kick()
        self.standby.relieve(now=True)  # the interruption may have kept it from handing over
        self.settle()

    def leave(self, event: Event, ticket: Ticket) -> None:
        """Like :meth:`abandon`, a moment later: for finalizers, which must take no lock."""
        self._mail.append(Left(event, ticket))
        self._kick()

    def glance(self, event: Event, ticket: Ticket) -> Result:
        """Like :meth:`call` for a command answered at once, after what has arrived."""
        if not self.quiet:
            self.pump()
        self.submit(event)
        return ticket.result

    @property
    def quiet(self) -> bool:
        """Whether the channel has nothing new, told without a call into it."""
        if self.exchange.undrained:
            return False
        try:
            return not self.wakeup.peek(0)
        except RuntimeError:  # another thread asks at this very moment; a look does no harm
            return False

    def view(self, delivery: Delivery) -> Any:  # noqa: ANN401 - a memoryview, or device bytes
        """The delivered bytes in our pool or at the peer, writable."""
        if delivery.block is not None:
            start = delivery.block.offset
            return self.parts.memory.buffer[start : start + delivery.block.size]
        assert delivery.where is not None
        return self.work.view(delivery.peer, delivery.where)

    def look(self, read: Callable[[Endpoint], T]) -> T:
        """What *read* sees in the endpoint's state; it must be quick."""
        with self.state:
            return read(self._endpoint)  # type: ignore[arg-type]  # they look and no more

    def wait_until(self, holds: Callable[[Endpoint], bool], timeout_s: float) -> bool:
        """Whether *holds* comes true within *timeout_s*; looked at every few milliseconds."""
        until_s = self.clock() + timeout_s
        while not self.look(holds):
            if self.clock() >= until_s or self.closed:
                return False
            self.standby.nap(0.002)
        return True

    @property
    def malformed(self) -> int:
        """Messages that were none of this version."""
        return self.exchange.malformed

    def close(self, patience_s: float) -> None:
        """End every wait and transfer, then everything else; bounded by *patience_s* + 1 s."""
        with self.state:
            first, self.closed, self.usable = not self.closed, True, False
        if first and not self.forked:
            shut(self, patience_s)
            _DRIVERS.discard(self)

    # --- the combining loop --------------------------------------------------------------

    def settle(self) -> None:
        """Perform what was ordered; arrivals are left to whoever watches the channel."""
        if self._outbox or self._todo or self._mail or self.views.gone:
            self.pump(look=False)
            if self.exchange.stalled:
                self._kick()  # whoever polls must try again soon: this may have heard "room"

    def pump(self, ticket: Ticket | None = None, *, look: bool = True) -> None:
        """Send what waits, take what has arrived until *ticket* is answered, run what came of it.

        Never blocks: a thread that finds ``io`` taken leaves its messages in the outbox, and the
        holder looks there again after it has let go.
        """
        outbox, todo, mail, gone = self._outbox, self._todo, self._mail, self.views.gone
        io = self.io
        while True:
            if mail or gone:
                self._take_mail()
            for _ in iter(self._take_io, False):
                left = True
                try:
                    self.exchange.run(ticket, look)
                    left = False
                except BaseException as error:
                    self.exchange.broken_off(error, self._lost)
                    raise
                finally:
                    io.release()
                    if left:  # by an interruption: no descriptor tells what is undone
                        self._kick()
                break
            if todo:
                self.work.run()
            if not (mail or gone or todo) and (not outbox or io.locked()):
                return

    def pass_time(self) -> None:
        """Let due time-outs happen, after the channel has been drained."""
        with self.state:
            due = self._endpoint.next_deadline()
        now_s = self.clock()
        if due is not None and due <= now_s:
            self.submit(TimePassed())
        if self.narrator.due_s <= now_s:
            self.narrator.look(self.look, now_s)

    def idle(self, ticket: Ticket | None = None) -> bool:
        """Whether nothing waits that no descriptor announces; an answered *ticket* does."""
        return not (
            self._mail or self.views.gone or self._todo or (ticket is not None and ticket.done)
        )

    def poll_until(self) -> float:
        """When a thread that polls must be back, in seconds of our clock."""
        now_s = self.clock()
        with self.state:
            due = self._endpoint.next_deadline()
            until = min(now_s + IDLE_S if due is None else due, self.narrator.due_s)
            # Under the lock: whoever arms an earlier time-out from now on sees it, and kicks.
            self._poll_until = until
        return min(until, now_s + STALLED_RETRY_S) if self.exchange.stalled else until

    def _wait(self, ticket: Ticket) -> None:
        """Drive until *ticket* is answered, or sleep while another caller drives."""
        waiting = self._waiting
        waiting[ticket.number] = ticket
        self.turns += 1
        self.standby.step_back()
        try:
            while not ticket.done:
                for _ in iter(self._take_turn, False):
                    try:
                        self._drive(ticket)
                    finally:
                        self._driving.release()
                    break
                else:
                    self.settle()  # whoever drives may be asleep already
                    ticket.sleep()
        finally:
            del waiting[ticket.number]
            self.turns += 1
            if waiting or self._readers or self._begun.open or self.standby.asleep:
                self._hand_over()

    def _drive(self, ticket: Ticket) -> None:
        """Serve the channel until *ticket* is answered.

        What follows the sleep is as short as can be: a message that has come is taken first, the
        time is only looked at before the next sleep.
        """
        while True:
            self.pump(ticket)
            if ticket.done:
                return
            # First, so that whoever arms an earlier time-out from now on kicks us.
            self._polled_for = ticket
            try:
                rest_s = self.poll_until() - self.clock()
                if rest_s > 0 and self.idle(ticket):
                    self.wakeup.wait(rest_s)
            finally:
                self._polled_for = None
            if rest_s <= 0:
                self.pass_time()

    def _hand_over(self) -> None:
        """A driver leaves: the next waiting caller takes its turn, or the standby thread."""
        if self._driving.locked():
            return  # another caller drives, and hands over when it leaves
        for ticket in list(self._waiting.values()):
            if not ticket.done:
                ticket.nudge()
                return
        # A connector that others read from must answer them; one that only reads can wait.
        self.standby.relieve(now=bool(self._readers or self._begun.open))

    @property
    def has_driver(self) -> bool:
        """Whether some caller waits, and so drives."""
        return bool(self._waiting)

    def _kick(self) -> None:
        """Wake whoever polls: there is work that no descriptor announces."""
        if self.forked:
            return  # the descriptors are shared with the parent
        if self._polled_for is not None:
            self.wakeup.kick()
        else:
            self.standby.kick()

    # --- feeding the core ----------------------------------------------------------------

    def _feed(self, event: Event) -> Result:
        """Hand *event* to the core and queue its orders by who may perform them.

        Calls are answered at once; the answer to ticket 0 is returned.
        """
        with self.state:
            result = self._perform(event)
            due = self._endpoint.next_deadline()
            sooner = due is not None and due < self._poll_until
            if sooner:
                self._poll_until = due  # type: ignore[assignment]
        # A caller that drives and does not poll now looks at the time before it polls again, or
        # leaves that to the standby thread: to wake anybody would only cost this call its turn.
        if sooner and (self._polled_for is not None or not self._waiting):
            self._kick()
        return result

    def _perform(self, event: Event) -> Result:
        """Hand *event* in, with ``state`` held; the answer to ticket 0."""
        result: Result = None
        try:
            for action in self._endpoint.handle(event, self.clock()):
                kind = type(action)
                if kind is Complete:
                    number, answer = action  # type: ignore[misc]
                    if number:
                        self._answer(number, answer)  # type: ignore[arg-type]
                    else:
                        result = answer  # type: ignore[assignment]
                elif kind is Send or kind is Dial or kind is HangUp:
                    self._outbox.append(action)  # type: ignore[arg-type]
                else:
                    self._todo.append(action)
        except Exception:
            raise  # of the core's own, which checks before it changes
        except BaseException:
            self._tear()
            raise
        return result

    def _lost(self) -> None:
        """We were interrupted with something in hand that the core, or a peer, counts on."""
        with self.state:
            self._tear()

    def _tear(self) -> None:
        """We were interrupted where the core cannot be: let nobody wait for it any more."""
        self.torn, self.usable = True, False
        self._endpoint = Torn(self.parts.endpoint)
        for ticket in self.tickets.all():
            self.tickets.resolve(ticket.number, FAILURE)
        self.log.error("connector_torn", cause=TORN, remedy="close it, and open another")
        self._kick()

    def _answer(self, number: int, result: Result) -> None:
        ticket = self.tickets.resolve(number, result)
        if ticket is None:
            self._give_back(result)
        elif ticket is self._polled_for:
            self.wakeup.kick()

    def _give_back(self, result: Result) -> None:
        """Nobody waits for this answer any more: what it holds is free again."""
        if isinstance(result, Block):
            self._mail.append(Abandon(result))
        elif isinstance(result, Delivery) and result.handle:
            self._mail.append(Release(result.handle))

    def _take_mail(self) -> None:
        if self._mail:
            drain(self._mail, self._heed, self._lost)
        if self.views.gone:
            drain(self.views.gone, self._release, self._lost)

    def _heed(self, event: Event | Left) -> None:
        if isinstance(event, Left):
            self._end(*event)
        else:
            self._feed(event)

    def _release(self, handle: int) -> None:
        self._feed(Release(handle))

    def _end(self, event: Event, ticket: Ticket) -> None:
        with self.state:  # answers are given under it: none can come in between
            self.tickets.forget(ticket.number)
            self._begun.drop(ticket)
            undo = undoing(event, ticket)
            if undo is not None:  # else its failure stays to be seen: it may not be told again
                ticket.result = None
                self._perform(undo)


def _forked() -> None:
    """In a forked child every connector is dead: its threads and sockets are the parent's.

    So are the threads that held its locks, and nobody would ever let go of those here.
    """
    for driver in list(_DRIVERS):
        driver.forked, driver.usable = True, False
        driver.make_locks()


_DRIVERS: set[Driver] = set()
os.register_at_fork(after_in_child=_forked)
