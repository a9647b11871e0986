"""Payloads between processes that share neither memory nor a fabric: frames over TCP.

The owner of the data dials the reader and writes into its pool. Plain non-blocking sockets on one
thread, not ZeroMQ's: ``sendmsg`` takes the bytes straight from our pool and ``recv_into`` puts
them straight into theirs, so the kernel's two copies are all there are; a message of ZeroMQ would
be one more on the reader's side, and nothing could stop one that is under way.

What the contract asks for, by these means:

- A write is complete when the reader says so, after its last byte is in place.
- One that is stopped ends when the reader has closed its side of the connection, which it does at
  the end of the stream: then no byte of it can land. A reader that does not within a second (it
  is frozen, or its host is away) is given up: before it hears from us again it must be attached
  anew, and letting us in once more it closes what it had of us first.
- A reader that cuts a living writer off closes its connections under the lock that every byte
  lands under, and takes another token: an older description opens nothing any more.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from threading import Thread, current_thread
from typing import TYPE_CHECKING

from stagelink.adapters.frames.doorway import Doorway
from stagelink.adapters.frames.forked import let_go_in_children
from stagelink.adapters.frames.loop import Loop
from stagelink.adapters.frames.outgoing import STOPPED, Job, Outgoing
from stagelink.adapters.frames.places import Place, dial
from stagelink.adapters.frames.regions import Regions
from stagelink.adapters.frames.routes import Route
from stagelink.adapters.frames.turns import Turns
from stagelink.adapters.frames.wire import Description, pack, parse
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import attached, check, not_attached, same_size
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import WriteOrder

CLOSED = "the plane is closed"
STOP_S = 1.0
"""How long stopped writes are waited for."""

INLINE_BYTES = 256 << 10
"""So much is given to the kernel within post, which saves waking the thread for it."""

TURN_BYTES = 1 << 20
"""So much at a time by the thread, then others have their turn."""


class FramesPlane:
    """A :class:`stagelink.ports.DataPlane` for host memory, over TCP.

    Args:
        instance: ours.
        place: where to listen for those who write to us; None: we only write.
        kind: of the memory that it serves.
        strict: :meth:`describe` raises where nothing can be bound; else peers are told why.
    """

    def __init__(
        self,
        instance: Instance,
        place: Place | None = Place(),  # noqa: B008 - a named tuple
        *,
        kind: str = "host-shared",
        strict: bool = True,
    ) -> None:
        self.capabilities = Capabilities("write", kind, True, False, True)
        self._instance = instance
        self._strict = strict
        self._own = Regions(kind)
        self._routes: dict[Instance, Route] = {}
        self._connections: set[Outgoing] = set()
        self._dialling: set[Thread] = set()
        self._ended: deque[tuple[Job, str]] = deque()
        self._turns = Turns()
        self._closed = False
        self._lies = 0
        self._loop = Loop(self._turns, self._settle, self._tick)
        self._door = Doorway(instance, place, self._loop, self._own)
        let_go_in_children(self)

    @property
    def lies(self) -> int:
        """Connections that were closed because a peer broke the protocol."""
        return self._door.lies + self._lies

    @property
    def strangers(self) -> int:
        """Connections that were closed because they did not have our token."""
        return self._door.strangers

    def register(self, region: int, memory: Memory) -> None:
        """Make host memory reachable as *region*.

        Raises:
            TransportError: it lies on a GPU, is of another kind, or is one too many.
        """
        with self._turns:
            self._own.register(region, memory)

    def describe(self) -> bytes:
        """Where we listen, what opens it and the sizes of our regions; listens from now on.

        Raises:
            TransportError: nothing can be bound, and the plane is strict.
        """
        with self._turns:
            host, port, why = "", 0, CLOSED
            if not self._closed:
                host, port, why = self._door.open(strict=self._strict)
            told = self._instance, self._door.token, host, port, why, self._own.sizes
            return pack(Description(*told))

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Connect to what *peer* described, and be let in.

        A good connection to the same is kept; it is seen all the same that it could be had.

        Raises:
            TransportError: malformed, or not reachable; says why and what to do.
        """
        told = parse(descriptor, peer)
        with self._turns:
            self._refuse_closed()
            route = self._routes.get(peer)
            kept = route.good if route is not None and route.told == told else None
        sock = dial(told, self._instance, carries=kept is None)
        with self._turns:
            if self._closed or kept is not None:
                sock.close()
                self._refuse_closed()
                return
            route = self._routes.pop(peer, None)
            self._part(route)
            self._routes[peer] = Route(told, self._connected(peer, sock))
        self._settle()

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """Refuse: this plane does not map."""
        msg = f"this plane writes, it shows no bytes of peer {peer.hex()} ({where})"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="use a map plane")

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Begin a write, or queue it; *done* is called once."""
        with self._turns:
            try:
                route, job = self._checked(order, done)
            except TransportError as error:
                refusal: str | None = str(error)
            else:
                refusal = None if job.view else ""
                if job.view:
                    self._begin(order.peer, route, job)
        if refusal is not None:
            done(order, refusal)
        self._settle()

    def fence(self, peer: Instance, dead: bool) -> bool:
        """End our writes to *peer*, and its writes to us.

        A living one is not let in again but by what we say of ourselves from now on.
        """
        with self._turns:
            self._door.fence(peer, dead=dead)
            self._part(self._routes.pop(peer, None))
            stopping = [one for one in self._connections if one.peer == peer]
        self._await(stopping)
        return True

    def reset(self) -> None:
        """End every write under way, ours and our peers'; connections are made anew.

        What a frozen reader has of us ends when it goes on, or with a fence.
        """
        with self._turns:
            self._door.hang_up()
            for route in self._routes.values():
                self._part(route)
            stopping = list(self._connections)
        self._await(stopping, give_up=False)

    def close(self) -> None:
        """End all writes, connections and the thread. Twice is fine."""
        with self._turns:
            self._closed = True
            self._door.close()
            dialling = self._dialling - {current_thread()}
            for route in self._routes.values():
                self._part(route)
            self._routes.clear()
            stopping = list(self._connections)
        self._await(stopping)
        for thread in dialling:
            thread.join()
        self._loop.end()
        with self._turns:
            self._own.clear()

    def let_go(self) -> None:
        """In a forked child: close our copies of what is the parent's."""
        self._turns = Turns()
        self._closed = True
        self._loop.let_go()
        self._door.let_go()
        for connection in self._connections:
            connection.sock.close()
        self._connections.clear()
        self._routes.clear()

    # --- under the lock ------------------------------------------------------------------

    def _checked(
        self, order: WriteOrder, done: Callable[[WriteOrder, str], None]
    ) -> tuple[Route, Job]:
        """The route of *order*, all of whose numbers are right, and its job.

        Raises:
            TransportError: they are not, or the plane is closed.
        """
        source, target = order.source, order.target
        same_size(source, target)
        self._refuse_closed()
        route = self._routes.get(order.peer)
        if route is None:
            raise not_attached(order.peer, target.region)
        check(target, attached(route.told.sizes, order.peer, target.region))
        return route, Job(order, self._own.part(source), done)

    def _begin(self, peer: Instance, route: Route, job: Job) -> None:
        """Send now what the kernel takes at once, or dial first."""
        connection = route.good
        if connection is not None:
            connection.add(job)
            self._push(connection, INLINE_BYTES)
            return
        route.waiting.append(job)
        if not route.dialled:
            route.dialled = True
            thread = Thread(
                target=self._redial, args=(peer, route), name="stagelink-dial", daemon=True
            )
            self._dialling.add(thread)
            thread.start()

    def _push(self, connection: Outgoing, budget: int) -> None:
        more = connection.flush(budget)
        if not connection.gone.is_set():
            self._loop.wants(connection.sock.fileno(), writes=more)

    def _connected(self, peer: Instance, sock: socket.socket) -> Outgoing:
        connection = Outgoing(peer, sock, self._note_end, self._forget)
        self._connections.add(connection)
        self._loop.add(sock.fileno(), partial(self._serve, connection))
        return connection

    def _serve(self, connection: Outgoing, events: int) -> None:
        del events
        connection.ready()
        if not connection.gone.is_set():
            self._push(connection, TURN_BYTES)

    def _forget(self, connection: Outgoing) -> None:
        self._connections.discard(connection)
        self._lies += connection.lies
        self._loop.drop(connection.sock.fileno())

    def _part(self, route: Route | None) -> None:
        """Begin to end what goes over *route*; what waits for a connection ends at once."""
        if route is None:
            return
        waiting, route.waiting = route.waiting, []
        self._ended.extend((job, STOPPED) for job in waiting)
        if route.connection is not None:
            route.connection.stop()

    def _note_end(self, job: Job, error: str) -> None:
        self._ended.append((job, error))

    def _tick(self) -> bool:
        return self._door.tick(time.monotonic())

    def _refuse_closed(self) -> None:
        if self._closed:
            raise TransportError(CLOSED, reason=Reason.CLOSED)

    # --- without it ----------------------------------------------------------------------

    def _await(self, stopping: Iterable[Outgoing], *, give_up: bool = True) -> None:
        """Wait for peers to see the end of the stream, for a second in all; then give up, or not.

        Who keeps the conversation up must not: a frozen reader would hear of the end before it
        reads what is on its way.
        """
        self._settle()
        until_s = time.monotonic() + (0.0 if self._loop.is_me() else STOP_S)
        for connection in stopping:
            connection.gone.wait(max(0.0, until_s - time.monotonic()))
        with self._turns:
            for connection in stopping if give_up else ():
                connection.close(STOPPED)
        self._settle()

    def _redial(self, peer: Instance, route: Route) -> None:
        """On a thread of its own: connect to a peer again, and let go what waits for that."""
        sock, why = None, ""
        try:
            sock = dial(route.told, self._instance, carries=True)
        except TransportError as error:
            why = str(error)
        with self._turns:
            route.dialled = False
            self._dialling.discard(current_thread())
            waiting, route.waiting = route.waiting, []
            if sock is not None and not self._closed and self._routes.get(peer) is route:
                route.connection = self._connected(peer, sock)
                for job in waiting:
                    route.connection.add(job)
                self._push(route.connection, INLINE_BYTES)
            else:
                if sock is not None:
                    sock.close()
                self._ended.extend((job, why or STOPPED) for job in waiting)
        self._settle()

    def _settle(self) -> None:
        """Tell of every write that has ended; any thread may, each end is told once."""
        while True:
            try:
                job, error = self._ended.popleft()
            except IndexError:
                return
            job.done(job.order, error)
