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
from contextlib import ExitStack
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from stagelink.adapters.threads.counters import Counters
from stagelink.adapters.threads.errands import Errands, error_of
from stagelink.adapters.threads.standby import Standby
from stagelink.adapters.threads.tickets import Ticket, Tickets
from stagelink.adapters.threads.views import Views
from stagelink.adapters.threads.wakeup import Wakeup
from stagelink.core.errors import ProtocolViolationError, Reason, StagelinkError, TransportError
from stagelink.core.events import (
    Abandon,
    Attach,
    Attached,
    Close,
    Complete,
    Connected,
    Delivery,
    Dial,
    Disconnected,
    Failure,
    Fence,
    Fenced,
    Get,
    HangUp,
    PlaneReset,
    Poll,
    Probe,
    Probed,
    Received,
    Release,
    Send,
    StartWrite,
    StopGet,
    TimePassed,
    Untaken,
    WriteEnded,
)  # fmt: skip
from stagelink.core.pool import Block
from stagelink.ports.channel import LinkUp, Mail
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.endpoint import Endpoint
    from stagelink.core.events import Action, Event, Result
    from stagelink.core.values import Instance, Link
    from stagelink.ports.channel import Arrival, ControlChannel
    from stagelink.ports.codec import Codec
    from stagelink.ports.liveness import Liveness
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import DataPlane

STALLED_RETRY_S = 0.002
IDLE_S = 3600.0
FLUSH_S = 0.2
HOME_S = 0.25

T = TypeVar("T")

log = structlog.get_logger("stagelink")


class Parts(NamedTuple):
    """The adapters that one connector is made of; ``planes`` by name, the pool in ``memory``."""

    endpoint: Endpoint
    channel: ControlChannel
    codec: Codec
    planes: dict[str, DataPlane]
    memory: Memory
    liveness: Liveness


class Left(NamedTuple):
    """A call whose caller has gone without a chance to say so."""

    event: Event
    ticket: Ticket


class Driver:
    """Performs the endpoint's orders and feeds it facts, from any number of threads."""

    def __init__(  # noqa: PLR0915 - one field each
        self, parts: Parts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.parts = parts
        self.clock = clock
        self.malformed = 0
        self.forked = False
        self.closed = False
        self.tickets = Tickets()
        self.counters = Counters()
        self._state = Lock()
        self._io = Lock()
        self._driving = Lock()
        self._outbox: deque[Send | Dial | HangUp] = deque()
        self._todo: deque[Action] = deque()
        self._mail: deque[Event | Left] = deque()
        self._stalled: dict[Link, deque[list[bytes]]] = {}
        self._waiting: dict[int, Ticket] = {}
        self._posting: set[int] = set()
        self._plane_of: dict[Instance, DataPlane] = {}
        self._wakeup = Wakeup(parts.channel.fileno())
        self._channel_closed = False
        self._polled_for: Ticket | None = None
        self._poll_until = 0.0
        self.views = Views(self._kick)
        self._errands = Errands()
        self._standby = Standby(self, parts.channel.fileno())
        self._standby.start()
        _DRIVERS.add(self)

    # --- calls ---------------------------------------------------------------------------

    def submit(self, event: Event) -> None:
        """Hand one fact or command to the core and perform what it orders."""
        self._feed(event)
        self.pump()

    def call(self, event: Event, ticket: Ticket) -> Result:
        """Hand in a command with *ticket* and wait for its answer; the core bounds the wait."""
        try:
            self.submit(event)
            if not ticket.done:
                self._wait(ticket)
        except BaseException:
            self.abandon(event, ticket)
            raise
        return ticket.result

    def begin(self, event: Event, ticket: Ticket) -> None:
        """Hand in a command without waiting: whoever serves the channel answers its ticket."""
        del ticket  # it is known by its number, and its ``then`` says what to do
        self.submit(event)

    def gather(self, calls: Iterable[tuple[Event, Ticket]]) -> None:
        """Hand in many commands; wait until all are answered, or one has failed."""
        calls, every = list(calls), self.tickets.new()
        left = deque(ticket for _, ticket in calls)

        def answered(ticket: Ticket) -> None:
            left.pop()
            if not left or isinstance(ticket.result, Failure):
                self.tickets.resolve(every.number, None)
                self._kick()

        for _, ticket in calls:
            ticket.then(partial(answered, ticket))
        try:
            for event, _ in calls:
                self._feed(event)
            self.pump()
            if calls and not every.done:
                self._wait(every)
        finally:
            self.tickets.forget(every.number)

    def abandon(self, event: Event, ticket: Ticket) -> None:
        """The caller that handed in *event* has gone: end its call, or take its answer back.

        A delivery stays for the next get of its key. Twice is fine.
        """
        self._end(event, ticket)
        self._kick()
        self.pump()

    def _end(self, event: Event, ticket: Ticket) -> None:
        with self._state:  # answers are given under it: none can come in between
            self.tickets.forget(ticket.number)
            undo = _undone(event, ticket)
            ticket.result = None
            if undo is not None:
                self._route(self.parts.endpoint.handle(undo, self.clock()))

    def leave(self, event: Event, ticket: Ticket) -> None:
        """Like :meth:`abandon`, a little later: for finalizers, which must take no lock."""
        self._mail.append(Left(event, ticket))
        self._kick()

    def glance(self, event: Event, ticket: Ticket) -> Result:
        """Like :meth:`call` for a command answered at once; the channel is left alone if quiet."""
        if self._wakeup.channel_readable():
            self.pump()
        self._feed(event)
        if self._outbox or self._todo:
            self.pump()
        return ticket.result

    def view(self, delivery: Delivery) -> memoryview:
        """The delivered bytes in our pool or at the peer, writable."""
        if delivery.block is not None:
            start = delivery.block.offset
            return self.parts.memory.buffer[start : start + delivery.block.size]
        assert delivery.where is not None
        plane = self._plane_of.get(delivery.peer)
        if plane is None:
            msg = f"the memory of peer {delivery.peer.hex()} has been cut off"
            raise TransportError(msg, reason=Reason.FENCED, remedy="get the key again")
        return plane.view(delivery.peer, delivery.where)

    def plane_of(self, peer: Instance) -> DataPlane | None:
        """The plane that *peer* was attached to."""
        return self._plane_of.get(peer)

    def look(self, read: Callable[[Endpoint], T]) -> T:
        """What *read* sees in the endpoint's state; it must be quick."""
        with self._state:
            return read(self.parts.endpoint)

    def wait_until(self, holds: Callable[[Endpoint], bool], timeout_s: float) -> bool:
        """Whether *holds* comes true within *timeout_s*; looked at every few milliseconds."""
        until_s = self.clock() + timeout_s
        while not self.look(holds):
            if self.clock() >= until_s or self.closed:
                return False
            self._standby.nap(0.002)
        return True

    # --- the combining loop --------------------------------------------------------------

    def pump(self) -> None:
        """Send what waits, take what has arrived, run what came of it; never blocks.

        A thread that finds ``io`` taken leaves its work in the outbox: the holder looks again
        after it has let go.
        """
        while True:
            self._take_mail()
            if self._io.acquire(blocking=False):
                try:
                    self._exchange()
                finally:
                    self._io.release()
            self._run_todo()
            if self.idle() and (not self._outbox or self._io.locked()):
                return

    def pass_time(self) -> None:
        """Let due time-outs happen, after the channel has been drained."""
        with self._state:
            due = self.parts.endpoint.next_deadline()
        now_s = self.clock()
        if due is not None and due <= now_s:
            self.submit(TimePassed())

    def idle(self) -> bool:
        """Whether nothing waits that no descriptor announces."""
        return not (self._mail or self.views.gone or self._todo)

    def poll_until(self) -> float:
        """When a thread that polls must be back, in seconds of our clock."""
        now_s = self.clock()
        with self._state:
            due = self.parts.endpoint.next_deadline()
            until = now_s + IDLE_S if due is None else due
            # Under the lock: whoever arms an earlier time-out from now on sees it, and kicks.
            self._poll_until = until
        return min(until, now_s + STALLED_RETRY_S) if self._stalled else until

    def _wait(self, ticket: Ticket) -> None:
        """Drive until *ticket* is answered, or sleep while another caller drives."""
        self._waiting[ticket.number] = ticket
        try:
            while not ticket.done:
                if self._driving.acquire(blocking=False):
                    try:
                        self._drive(ticket)
                    finally:
                        self._driving.release()
                else:
                    ticket.sleep()
        finally:
            self._waiting.pop(ticket.number, None)
            self._hand_over()

    def _drive(self, ticket: Ticket) -> None:
        while not ticket.done:
            self.pump()
            self.pass_time()
            # First, so that whoever arms an earlier time-out from now on kicks us.
            self._polled_for = ticket
            try:
                until = self.poll_until()
                if self._may_sleep(ticket):
                    self._wakeup.wait(until - self.clock())
            finally:
                self._polled_for = None

    def _may_sleep(self, ticket: Ticket) -> bool:
        return not ticket.done and self.idle()

    def _hand_over(self) -> None:
        """A driver leaves: the next waiting caller takes its turn, or the standby thread."""
        if self._driving.locked():
            return  # another caller drives, and hands over when it leaves
        for ticket in list(self._waiting.values()):
            if not ticket.done:
                ticket.nudge()
                return
        self._standby.unpark()

    @property
    def has_driver(self) -> bool:
        """Whether some caller waits, and so drives."""
        return bool(self._waiting)

    def _kick(self) -> None:
        """Wake whoever polls: there is work that no descriptor announces."""
        if self._polled_for is not None:
            self._wakeup.kick()
        self._standby.kick()

    # --- feeding the core ----------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        with self._state:
            actions = self.parts.endpoint.handle(event, self.clock())
            self._route(actions)
            due = self.parts.endpoint.next_deadline()
            sooner = due is not None and due < self._poll_until
            if sooner and due is not None:
                self._poll_until = due
        if sooner:
            self._kick()

    def _route(self, actions: Iterable[Action]) -> None:
        """Queue orders by who may perform them; answers are given at once."""
        for action in actions:
            kind = type(action)
            if kind is Complete:
                self._answer(action)  # type: ignore[arg-type]
            elif kind is Send or kind is Dial or kind is HangUp:
                self._outbox.append(action)  # type: ignore[arg-type]
            else:
                self._todo.append(action)

    def _answer(self, action: Complete) -> None:
        ticket = self.tickets.resolve(action.ticket, action.result)
        if ticket is None:
            self._give_back(action.result)
        elif ticket is self._polled_for:
            self._wakeup.kick()

    def _give_back(self, result: Result) -> None:
        """Nobody waits for this answer any more: what it holds is free again."""
        if isinstance(result, Block):
            self._mail.append(Abandon(result))
        elif isinstance(result, Delivery) and result.handle:
            self._mail.append(Release(result.handle))

    def _take_mail(self) -> None:
        while self._mail:
            try:
                event = self._mail.popleft()
            except IndexError:
                return
            if isinstance(event, Left):
                self._end(*event)
            else:
                self._feed(event)
        while self.views.gone:
            try:
                handle = self.views.gone.popleft()
            except IndexError:
                return
            self._feed(Release(handle))

    # --- the channel (io lock held) ------------------------------------------------------

    def _exchange(self) -> None:
        if self._channel_closed:
            self._outbox.clear()
            return
        self._flush()
        receive = self.parts.channel.receive
        while (arrival := receive()) is not None:
            self._arrived(arrival)
            if self._outbox:
                self._flush()

    def _flush(self) -> None:
        """Perform the outbox in order: peek, perform, pop, so that nothing is ever lost."""
        for link in list(self._stalled):
            self._retry(link)
        outbox, channel = self._outbox, self.parts.channel
        while outbox:
            action = outbox[0]
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Dial):
                self._dial(action.link)
            else:
                self._stalled.pop(action.link, None)
                channel.hang_up(action.link)
            outbox.popleft()

    def _dial(self, link: Link) -> None:
        """An address that cannot be dialled is a peer that cannot be reached."""
        try:
            self.parts.channel.dial(link)
        except StagelinkError as error:
            log.warning("dial_failed", link=link, cause=str(error))
            self._mail.append(Disconnected(link, str(error)))

    def _send(self, action: Send) -> None:
        try:
            frames = self.parts.codec.encode(action.message)
        except Exception as error:
            log.exception(
                "message_dropped", link=action.link, cause=f"{type(error).__name__}: {error}"
            )
            return
        waiting = self._stalled.get(action.link)
        if waiting:
            waiting.append(frames)
        elif not self.parts.channel.send(action.link, frames):
            self._stalled[action.link] = deque([frames])

    def _retry(self, link: Link) -> None:
        waiting = self._stalled[link]
        while waiting and self.parts.channel.send(link, waiting[0]):
            waiting.popleft()
        if not waiting:
            del self._stalled[link]

    def _arrived(self, arrival: Arrival) -> None:
        if isinstance(arrival, Mail):
            try:
                message = self.parts.codec.decode(arrival.frames)
            except ProtocolViolationError as error:
                self._reject(arrival.link, error)
                return
            self._feed(Received(arrival.link, message))
        elif isinstance(arrival, LinkUp):
            self._feed(Connected(arrival.link))
        else:
            self._stalled.pop(arrival.link, None)
            self._feed(Disconnected(arrival.link, arrival.detail))

    def _reject(self, link: Link, error: ProtocolViolationError) -> None:
        """Garbage costs its sender a counter; a greeting of another version gets an answer."""
        self.malformed += 1
        answer = getattr(error, "answer", None)
        if answer is not None:
            self.parts.channel.send(link, self.parts.codec.encode(answer))
        if self.malformed & (self.malformed - 1) == 0:
            log.warning("frames_refused", link=link, cause=str(error), count=self.malformed)

    # --- planes and peers (no lock held) -------------------------------------------------

    def _run_todo(self) -> None:
        while self._todo:
            try:
                action = self._todo.popleft()
            except IndexError:
                return
            if isinstance(action, StartWrite):
                self._post(action)
            elif isinstance(action, Probe):
                self._mail.append(Probed(action.peer, self._is_dead(action)))
            else:
                self._errands.run(partial(self._errand, action))

    def _is_dead(self, action: Probe) -> bool:
        """Whether the peer is proven dead; a proof that cannot be read proves nothing."""
        try:
            return self.parts.liveness.is_dead(action.proof)
        except Exception as error:  # noqa: BLE001 - a backend may be anybody's code
            log.warning("probe_failed", peer=action.peer.hex(), cause=str(error))
            return False

    def _post(self, action: StartWrite) -> None:
        order = WriteOrder(*action)
        plane = self._plane_of.get(action.peer)
        if plane is None:
            self._written(order, "the peer is not attached")
            return
        me = get_ident()
        self._posting.add(me)
        try:
            error = error_of(lambda: plane.post(order, self._written))
            if error:
                self._written(order, error)
        finally:
            self._posting.discard(me)

    def _written(self, order: WriteOrder, error: str) -> None:
        """A plane is through with a write; its own thread tells the peer, without another hop."""
        self._mail.append(WriteEnded(order.peer, order.transfer, error))
        if get_ident() not in self._posting:
            self.pump()

    def _errand(self, action: Action) -> None:
        """Do what may take long, and report."""
        if isinstance(action, Attach):
            self.submit(Attached(action.peer, action.link, self._attach(action)))
        elif isinstance(action, Fence):
            self.submit(Fenced(action.peer, self._fence(action)))
        else:
            log.warning("plane_reset", cause="a write was under way for too long")
            for plane in self.parts.planes.values():
                plane.reset()
            self.submit(PlaneReset())

    def _attach(self, action: Attach) -> str:
        """Let the plane map a peer; empty, or what stands in the way."""
        plane = self.parts.planes.get(action.plane.name)
        if plane is None:
            return f"no plane is called {action.plane.name!r} here"
        error = error_of(lambda: plane.attach(action.peer, action.plane.descriptor))
        if error:
            log.warning("attach_failed", peer=action.peer.hex(), cause=error)
        else:
            self._plane_of[action.peer] = plane
        return error

    def _fence(self, action: Fence) -> bool:
        """Cut a peer off on every plane."""
        fenced = [plane.fence(action.peer, action.dead) for plane in self.parts.planes.values()]
        if all(fenced):
            self._plane_of.pop(action.peer, None)
            log.info("peer_fenced", peer=action.peer.hex(), dead=action.dead)
        return all(fenced)

    # --- the end -------------------------------------------------------------------------

    def close(self, patience_s: float) -> None:
        """End every wait and transfer, then everything else; bounded by *patience_s* + 1 s."""
        with self._state:
            first, self.closed = not self.closed, True
        if self.forked or not first:
            return
        with ExitStack() as last:  # whatever fails, the rest is closed all the same
            last.callback(_DRIVERS.discard, self)
            last.callback(self._wakeup.close)
            last.callback(self._close_liveness)
            last.callback(self.parts.memory.close)
            last.callback(self._close_channel)
            last.callback(self._send_callers_home)
            last.callback(self._errands.stop)
            last.callback(self._standby.stop)
            for plane in self.parts.planes.values():
                last.callback(plane.close)
            last.callback(self._send_callers_home)
            self.submit(Close())
            self._settle(patience_s)

    def _send_callers_home(self) -> None:
        """Answer every open call, and wait a moment until nobody polls any more."""
        until_s = self.clock() + HOME_S
        while True:
            with self._state:
                for ticket in self.tickets.all():
                    self.tickets.resolve(ticket.number, Failure(Reason.CLOSED.value, "closed"))
            if not self._waiting or self.clock() > until_s:
                return
            self._wakeup.kick()
            self._standby.nap(0.001)

    def _close_liveness(self) -> None:
        # A peer that still views our pages, or whose pages we view, asks the kernel about us:
        # the proof of our life goes with the last view, or with the process.
        if not len(self.views):
            self.parts.liveness.close()

    def _settle(self, patience_s: float) -> None:
        """Flush, and wait while a transfer may still touch memory or a view is open."""
        start_s = self.clock()
        while True:
            self.pump()
            self.pass_time()
            passed_s = self.clock() - start_s
            with self._state:
                rest = self.parts.endpoint.at_rest and not self._stalled
            if (rest and not len(self.views)) or passed_s > patience_s:
                return
            if not self.parts.endpoint.at_rest or passed_s < FLUSH_S or len(self.views):
                self._standby.nap(0.005)

    def _close_channel(self) -> None:
        with self._io:
            self._channel_closed = True
            self.parts.channel.close()


def _undone(event: Event, ticket: Ticket) -> Event | None:
    """What ends the call, or takes back what it was answered with."""
    if not ticket.done:
        return StopGet(ticket.number, Reason.CANCELLED.value)
    if isinstance(ticket.result, Block):
        return Abandon(ticket.result)
    if isinstance(ticket.result, Delivery) and isinstance(event, (Get, Poll)):
        return Untaken(event.address, event.key, ticket.result)
    return None


def _forked() -> None:
    """In a forked child every connector is dead: its threads and sockets are the parent's."""
    for driver in list(_DRIVERS):
        driver.forked = True


_DRIVERS: set[Driver] = set()
os.register_at_fork(after_in_child=_forked)
