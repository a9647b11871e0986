"""The thread that speaks the dialect, and the calls of other threads into it.

All state is that thread's. A call is put into its mailbox; whoever waits sleeps on an event that
the thread sets, at the deadline at the latest.
"""

from __future__ import annotations

import os
import time
from collections import deque
from functools import partial
from math import ceil, inf
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING, NamedTuple

import zmq

from stagelink.adapters.vllm_omni_mori.client import Client
from stagelink.adapters.vllm_omni_mori.figures import Figures
from stagelink.adapters.vllm_omni_mori.pulls import Ask, Landed, Ref, Waiter
from stagelink.adapters.vllm_omni_mori.server import Reply, Served, Server
from stagelink.adapters.vllm_omni_mori.sockets import Sockets
from stagelink.core.errors import ClosedError, Reason, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.adapters.vllm_omni_mori.pulls import Bounds, Order
    from stagelink.adapters.vllm_omni_mori.sockets import Door
    from stagelink.ports.foreign import ForeignOrder, ForeignStore, ForeignWriter
    from stagelink.ports.log import EventLog

    Deed = Callable[[float], Iterable[Order | Reply]]

IDLE_S = 3600.0
JOIN_S = 1.0
GLANCE_S = 0.5


class Place(NamedTuple):
    """Where their receivers ask, and for whose payloads; no ``readers``: nobody may."""

    host: str
    port: int
    served: Served


class Dialect:
    """Both halves of the dialect on one thread; ``address`` is where we are asked, or empty.

    Raises:
        ConfigError: the port cannot be bound.
    """

    def __init__(
        self, place: Place, bounds: Bounds, store: ForeignStore, writer: ForeignWriter,
        log: EventLog, *, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._log = log
        self._writer = writer
        self.figures = Figures()
        self._server = Server(place.served, store, self._post, self.figures, log)
        card = partial(writer.card, place.served.region)
        self._client = Client(bounds, store, card, self.figures)
        self._store = store
        self._mail: deque[Deed] = deque()
        self._closing = self._closed = False
        self._close_by_s = inf
        self._sockets = Sockets(place.host, place.port, served=bool(place.served.readers))
        self._asked, self._door = self._sockets.asked, self._sockets.door
        self._poller = self._sockets.poller
        self.address = self._door.address if self._door else ""
        self._waking = Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, zmq.POLLIN)
        self._thread = Thread(target=self._run, name="stagelink-dialect", daemon=True)
        self._thread.start()

    # --- calls of any thread -------------------------------------------------------------

    def get(self, ref: Ref, deadline_s: float, info: tuple[int, bool] | None = None) -> Landed:
        """Wait for a payload; its block is the caller's, to be freed once.

        Raises:
            StagelinkError: nothing comes, as its class and reason say.
        """
        found = self._client.kept.take(ref)
        if found is None:
            found = self._waited(ref, deadline_s, info)
        if isinstance(found, StagelinkError):
            raise found
        return self._counted(found)

    def poll(self, ref: Ref) -> Landed | None:
        """A payload that has landed; else None at once, and it is asked for meanwhile.

        Raises:
            StagelinkError: what the last question for it met.
        """
        found = self._client.kept.take(ref)
        if isinstance(found, StagelinkError):
            raise found
        if found is not None:
            return self._counted(found)
        if ref not in self._client.active:
            self._tell(lambda now_s: self._client.begin(ref, None, now_s))
        return None

    def cancel(self, ref: Ref, reason: Reason) -> int:
        """End the gets of *ref*; how many waited."""
        waited: list[int] = []
        there = Event()

        def cancel(now_s: float) -> list[Order]:
            del now_s
            waited.append(self._client.waiting(ref))
            orders = self._client.cancel(ref, reason)
            there.set()
            return orders

        self._tell(cancel)
        self._await(there)
        return waited[0] if waited else 0

    def sender_ended(self, address: str) -> None:
        """No process is behind *address* any more, as the caller has proved: nothing lands."""
        self._tell(lambda _: self._client.ended(address))

    def close(self, patience_s: float) -> None:
        """End gets, give loans back, stop the thread: within *patience_s* and a second.

        Writes of ours that have not ended by then are left to the plane, whose close ends them.
        Twice is fine.
        """
        if self._closed:
            return
        self._closed = True
        self._close_by_s = self._clock() + patience_s
        self._closing = True
        self._kick()
        if current_thread() is not self._thread:
            self._thread.join(patience_s + JOIN_S)

    def _waited(
        self, ref: Ref, deadline_s: float, info: tuple[int, bool] | None
    ) -> Landed | StagelinkError:  # fmt: skip
        box: list[Landed | StagelinkError] = []
        there = Event()

        def settle(outcome: Landed | StagelinkError) -> None:
            box.append(outcome)
            there.set()

        waiter = Waiter(deadline_s, settle, info)
        self._tell(lambda now_s: self._client.begin(ref, waiter, now_s))
        try:
            self._await(there)  # which is set by the deadline
        except BaseException:
            self._tell(partial(self._abandoned, ref, waiter, box))
            raise
        return box[0] if box else ClosedError("the connector is closed", reason=Reason.CLOSED)

    def _await(self, there: Event) -> None:
        """Wait until the thread sets *there*, or has ended: it may be closed at this moment."""
        while not there.wait(GLANCE_S) and self._thread.is_alive():
            pass

    def _abandoned(
        self, ref: Ref, waiter: Waiter, box: list[Landed | StagelinkError], now_s: float
    ) -> list[Order]:  # fmt: skip
        self._client.leave(ref, waiter)
        if box and isinstance(box[0], Landed):
            self._client.put_back(ref, box[0], now_s)
        return []

    def _counted(self, landed: Landed) -> Landed:
        self.figures.got += 1
        self.figures.got_bytes += landed.size
        return landed

    def _tell(self, deed: Deed) -> None:
        self._mail.append(deed)
        self._kick()

    def _kick(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # --- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over():
                self._attempt(self._turn)
        finally:
            self._shut()

    def _over(self) -> bool:
        if not self._closing:
            return False
        return not self._server.writing or self._clock() >= self._close_by_s

    def _turn(self) -> None:
        ready = self._wait()
        if self._wake in ready:
            os.eventfd_read(self._wake)
        while self._mail:
            self._perform(self._mail.popleft()(self._clock()))
        for asked in ready:
            if not isinstance(asked, int) and (
                self._door is None or asked is not self._door.socket
            ):
                self._hear(asked)
        if self._door is not None and self._door.socket in ready:
            self._listen(self._door)
        now_s = self._clock()
        self._server.on_time(now_s)
        self._perform(self._client.on_time(now_s))
        if self._client.may_fence:
            self._perform(self._client.fenced(self._writer.fence()))

    def _wait(self) -> dict[zmq.Socket[bytes] | int, int]:
        """What can be read, after a sleep until something can or a time is due."""
        if self._door is not None:
            takes = not (self._server.busy or self._closing)
            self._poller.register(self._door.socket, zmq.POLLIN if takes else 0)
        due_s = min(self._server.next_deadline(), self._client.next_deadline(), self._close_by_s)
        rest_s = max(0.0, min(due_s - self._clock(), IDLE_S))
        return dict(self._poller.poll(ceil(rest_s * 1000)))

    def _listen(self, door: Door) -> None:
        for peer, body in door.questions():
            if body is None:
                self.figures.frames_refused += 1
            else:
                self._perform(self._server.asked(peer, body, self._clock()))
            if self._server.busy:
                return

    def _hear(self, asked: zmq.Socket[bytes]) -> None:
        for number, body in self._asked.answers(asked):
            if number:
                now_s = self._clock()
                self._perform(self._client.answered(number, body or b"", now_s))
            else:
                self.figures.frames_refused += 1

    def _perform(self, orders: Iterable[Order | Reply]) -> None:
        for order in orders:
            if isinstance(order, Reply):
                assert self._door is not None
                self._door.answer(order.peer, order.body)
            elif not self._asked.perform(order):
                assert isinstance(order, Ask)
                self._perform(self._client.unsent(order.number, self._clock()))

    def _post(self, order: ForeignOrder) -> None:
        self._writer.post(order, self._written)

    def _written(self, order: ForeignOrder, error: str) -> None:
        """A write of ours has ended, told by any thread."""
        self._tell(lambda now_s: self._server.written(order.number, error, now_s))

    def _shut(self) -> None:
        """Close everything; only the thread may close its sockets."""
        self._attempt(self._perform_rest)
        self._attempt(lambda: self._perform(self._client.close()))
        self._attempt(self._server.close)
        self._attempt(self._sockets.close)
        with self._waking:  # its number may be another's at once
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _attempt(self, step: Callable[[], object]) -> None:
        """Do *step*; whatever fails in it, the next one must be done."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the plane's code may be anybody's
            self._log.error("dialect_failed", cause=f"{type(error).__name__}: {error}")

    def _perform_rest(self) -> None:
        while self._mail:
            self._perform(self._mail.popleft()(self._clock()))
