"""The bound side: one ROUTER for all who dial us.

A ROUTER does not say who left. Its monitor names the descriptor of a connection that ended, and
mail the descriptor it came on; as descriptors are reused, whoever fits is only a suspect. A
suspect is sent a ping: EHOSTUNREACH proves that it is gone. The proof may lag behind the event,
for the monitor hears first, so suspects are asked a few times more, by a timer.
"""

from __future__ import annotations

import os
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EHOSTUNREACH, ENODEV
from typing import TYPE_CHECKING

import zmq

from stagelink.adapters.zmq.address import BoundFile
from stagelink.adapters.zmq.callers import Callers
from stagelink.adapters.zmq.direct import put
from stagelink.adapters.zmq.guard import Guard
from stagelink.adapters.zmq.guests import NO_DESCRIPTOR, Guest, Guests
from stagelink.adapters.zmq.sockets import (
    HANDSHAKE_FAILED,
    MAX_FRAMES,
    NOBLOCK,
    PING,
    WRONG_MECHANISM,
    WRONG_SERVER_KEY,
    broken,
    close_watched,
    collect,
    has_mail,
    open_monitor,
    open_socket,
    protect_listener,
    put_again,
    read_monitor,
)  # fmt: skip
from stagelink.adapters.zmq.timer import Timer
from stagelink.core.errors import ConfigError
from stagelink.ports.channel import LinkDown, Mail, PeerRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.adapters.zmq.sockets import Context, Limits, Socket
    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival

WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
FIRST_CHECK_S, LAST_CHECK_S, CHECK_GROWTH = 0.001, 0.3, 4.0
SRCFD = 2  # ZMQ_SRCFD, which pyzmq does not name in every version

CAUSES = {WRONG_MECHANISM: "wrong_mechanism", WRONG_SERVER_KEY: "wrong_server_key"}

REMEDIES = {
    EADDRINUSE: "choose another port, port 0 for a free one, or stop the process that holds it",
    EADDRNOTAVAIL: "give an address of this machine (see `ip address`)",
    ENODEV: "give an address of this machine (see `ip address`)",
    EACCES: "choose a port above 1023, or a directory you may write to",
}


class Listener:
    """Reads and answers those who dial us, and finds out who is gone.

    ``hot``, ``woken`` and ``drained`` are as in :class:`stagelink.adapters.zmq.dialled.Dialled`.

    Raises:
        ConfigError: the URL cannot be bound; nothing is left open.
    """

    def __init__(
        self,
        context: Context,
        url: str,
        limits: Limits,
        arrive: Callable[[Arrival], None],
        drop: Callable[[], None],
        *,
        keyring: Keyring | None = None,
    ) -> None:
        self.arrive, self.drop = arrive, drop
        self.hot = self.woken = self.drained = False
        self.monitor: Socket | None = None
        self.timer = Timer()
        self._guard: Guard | None = None
        self._callers = Callers()
        self._file = BoundFile("")
        self._guests = Guests(limits.max_links)
        self._ended: set[int] = set()
        self._suspects: dict[bytes, Guest] = {}
        self._leaving: dict[bytes, Guest] = {}
        self._check_after_s = FIRST_CHECK_S
        self.socket = open_socket(context, zmq.ROUTER, limits, ipv6="[" in url)
        try:
            self.socket.set(zmq.ROUTER_MANDATORY, 1)
            if keyring is not None:
                self._protect(context, keyring)
            self.monitor = open_monitor(context, self.socket, WATCHED)
            self.socket.bind(url)
        except zmq.ZMQError as error:
            self.close()
            msg = f"cannot bind {url}: {error}"
            raise ConfigError(
                msg, remedy=REMEDIES.get(error.errno or 0, "check the address")
            ) from error
        self.bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._file = BoundFile(self.bound)

    def _protect(self, context: Context, keyring: Keyring) -> None:
        self._guard = Guard(context, keyring.allowed)
        protect_listener(self.socket, keyring.own)

    # --- mail ----------------------------------------------------------------------------

    def take(self) -> Mail | None:
        """The next message; None with ``drained`` unset means that one was dropped."""
        routing_id = self._first()
        if routing_id is None:
            self.drained = True
            self._part()
            return None
        self.drained = False
        frame = self.socket.recv(NOBLOCK, copy=False)
        frames = collect(self.socket, frame)
        if len(frames) > MAX_FRAMES:
            self.drop()
            return None
        guest = self._guests.by_id.get(routing_id)
        if len(frames) == 1 and frames[0] == PING:
            return None
        if guest is None:
            guest = self._admit(routing_id, frame)
        guest.active = True
        return Mail(guest.link, frames)

    def _first(self) -> bytes | None:
        # An exception costs more than asking first; just woken, there nearly always is something.
        if not self.woken and not has_mail(self.socket):
            return None
        self.woken = False
        try:
            return self.socket.recv(NOBLOCK)
        except zmq.Again:
            return None

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        """Queue one message; False when full, True and forgotten when the link is no more."""
        guest = self._guests.by_link.get(link)
        if guest is None:
            return True
        message = (guest.routing_id, *frames)
        try:
            put(self.socket, message)
        except zmq.Again:
            return self._send_again(guest, message)
        except zmq.ZMQError as error:
            self._unreachable(guest, error)
        return True

    def _send_again(self, guest: Guest, message: Sequence[bytes]) -> bool:
        try:
            put_again(self.socket, message)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._unreachable(guest, error)
        return True

    # --- who is there ----------------------------------------------------------------------

    def _admit(self, routing_id: bytes, frame: zmq.Frame) -> Guest:
        guest = Guest(routing_id, _descriptor(frame))
        fellows = self._guests.of_descriptor(guest.descriptor)
        if guest.descriptor in self._ended:  # that may have been this very connection
            self._ended.discard(guest.descriptor)
            fellows.append(guest)
        if fellows:  # asked by the timer and not now, so that this mail goes before any LinkDown
            self._suspect(fellows)
        gone = self._guests.admit(guest)
        if gone is not None:
            self._suspects.pop(gone.routing_id, None)
            self.arrive(LinkDown(gone.link, "too many links: an idle one was given up"))
        return guest

    def read_news(self) -> None:
        """Learn from the monitor which connections came, failed and ended, and whose they were."""
        for event, value in read_monitor(self.monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._callers.accepted(value)
            elif event == zmq.EVENT_DISCONNECTED:
                self._disconnected(value)
            elif event & HANDSHAKE_FAILED:
                self._refused(event, value)
        self._callers.all_heard()
        self._check()

    def _disconnected(self, descriptor: int) -> None:
        refused = self._callers.ended(descriptor)
        if refused is not None:
            self.arrive(refused)
        self._ended.add(descriptor)
        self._suspect(self._guests.of_descriptor(descriptor))

    def _refused(self, event: int, value: int) -> None:
        """A handshake failed; that its connection ended, and which it was, is told next."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            for address, key in self._guard.refused() if self._guard else ():
                self.arrive(PeerRefused(address, "unknown_key", f"its public key is {key}"))
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # a port scanner's is no garbage
            self._callers.failed = "broken_off", os.strerror(value)
        else:
            self.drop()
            self._callers.failed = CAUSES.get(value, "malformed"), f"ZeroMQ error {value:#x}"

    def on_timer(self) -> None:
        """Check the suspects again, a few times and ever less often."""
        self.timer.clear()
        self._check_after_s *= CHECK_GROWTH
        if self._check_after_s > LAST_CHECK_S:
            self._check()
            self._suspects.clear()  # reachable all the time: somebody else's descriptor
        else:
            self._check()

    def _suspect(self, guests: Iterable[Guest]) -> None:
        for guest in guests:
            self._suspects[guest.routing_id] = guest
            self._check_after_s = FIRST_CHECK_S
            self.timer.arm(FIRST_CHECK_S)

    def _check(self) -> None:
        for guest in list(self._suspects.values()):
            self._send_again(guest, (guest.routing_id, PING))  # full is there, too
        if self._suspects:
            self.timer.arm(self._check_after_s)

    def _unreachable(self, guest: Guest, error: zmq.ZMQError) -> None:
        if error.errno != EHOSTUNREACH:
            what = f"cannot send to {guest.link}"
            raise broken(what, error) from error
        self._suspects.pop(guest.routing_id, None)
        self._leaving[guest.routing_id] = guest

    def _part(self) -> None:
        """Tell of those who left, now that all their mail has been read: it may be last words."""
        for guest in self._leaving.values():
            if self._guests.by_id.get(guest.routing_id) is not guest:
                continue  # given up meanwhile, and told
            self._guests.remove(guest)
            if guest.descriptor != NO_DESCRIPTOR:
                self._ended.add(guest.descriptor)
            self.arrive(LinkDown(guest.link, "the peer disconnected"))
        self._leaving.clear()

    def close(self) -> None:
        """Close the sockets at once; the port is free after the context has ended."""
        self._file.remove()
        self.timer.close()
        close_watched(self.socket, self.monitor)
        if self._guard is not None:
            self._guard.close()
            self._guard = None


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(SRCFD))
    except zmq.ZMQError:
        return NO_DESCRIPTOR
