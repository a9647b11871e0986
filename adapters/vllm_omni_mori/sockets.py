"""The ZeroMQ sockets of the dialect: one ROUTER to be asked, and one DEALER per question of ours.

No answer says which question it is for, so a socket carries one question at a time; one whose
answer is not awaited any more is closed, never used again. Theirs are REQ and ROUTER; a DEALER
with an empty frame ahead speaks to the one and as the other.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING

import zmq

from stagelink.adapters.vllm_omni_mori.frames import FRAME_LIMIT
from stagelink.adapters.vllm_omni_mori.pulls import Ask, Rest
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.vllm_omni_mori.pulls import Order

    Socket = zmq.Socket[bytes]
    Context = zmq.Context[Socket]

MOST_IDLE = 8
"""Sockets kept connected to one address for the next question there."""

AT_ONCE = 64
"""Messages taken before others have their turn."""


LAST_WORDS_MS = 200
"""How long answers may take to leave at close; a question of ours leaves then, or never."""


def _open(context: Context, kind: int) -> Socket:
    opened = context.socket(kind)
    opened.set(zmq.LINGER, LAST_WORDS_MS if kind == zmq.ROUTER else 0)
    opened.set(zmq.MAXMSGSIZE, FRAME_LIMIT)
    opened.set(zmq.IPV6, 1)
    return opened


class Door:
    """The ROUTER that their receivers dial; ``address`` is where.

    Raises:
        ConfigError: it cannot be bound there.
    """

    def __init__(self, context: Context, host: str, port: int) -> None:
        self.socket = _open(context, zmq.ROUTER)
        where = f"{_literal(host)}:{port or '*'}"
        try:
            self.socket.bind(f"tcp://{where}")
        except zmq.ZMQError as error:
            self.socket.close()
            msg = f"the dialect cannot be served at tcp://{where}: {error}"
            remedy = "choose another dialect_port, or stop who holds it; host must be of this host"
            raise ConfigError(msg, remedy=remedy) from error
        self.address = str(self.socket.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def questions(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Who asks, and what; None in its place for what no REQ sends."""
        for _ in range(AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            framed = len(frames) == 3 and not frames[1]  # noqa: PLR2004 - peer, nothing, body
            yield frames[0], frames[2] if framed else None

    def answer(self, peer: bytes, body: bytes) -> None:
        """Send *body*; who has gone does not get it."""
        try:
            self.socket.send_multipart((peer, b"", body), zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # full or gone: it asks anew, or has given up


class Asked:
    """The DEALERs with a question of ours, by number, and idle ones by address."""

    def __init__(self, context: Context, poller: zmq.Poller) -> None:
        self._context = context
        self._poller = poller
        self._by_number: dict[int, tuple[str, Socket]] = {}
        self._numbers: dict[Socket, int] = {}
        self._idle: dict[str, deque[Socket]] = {}

    def perform(self, order: Order) -> bool:
        """Ask, or part with a socket; False: the question cannot be sent."""
        if isinstance(order, Ask):
            return self._ask(order)
        found = self._by_number.pop(order.number, None)
        if found is not None:
            address, asked = found
            self._numbers.pop(asked, None)
            idle = self._idle.setdefault(address, deque())
            if isinstance(order, Rest) and len(idle) < MOST_IDLE:
                idle.append(asked)
            else:
                self._close(asked)
        return True

    def answers(self, ready: Socket) -> Iterator[tuple[int, bytes | None]]:
        """Number and body of what came on a socket; number 0: on one that had no question."""
        try:
            frames = ready.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        number = self._numbers.get(ready, 0)
        if not number:
            for idle in self._idle.values():
                if ready in idle:
                    idle.remove(ready)
            self._close(ready)
        framed = len(frames) == 2 and not frames[0]  # noqa: PLR2004 - nothing, body
        yield number, frames[1] if framed else None

    def close(self) -> None:
        """Close all of them."""
        for _, asked in self._by_number.values():
            self._close(asked)
        for idle in self._idle.values():
            for spare in idle:
                self._close(spare)
        self._by_number.clear()
        self._numbers.clear()
        self._idle.clear()

    def _ask(self, order: Ask) -> bool:
        number, address, body = order
        found = self._by_number.get(number)
        try:
            asked = found[1] if found else self._connected(address)
        except zmq.ZMQError:
            return False
        self._by_number[number], self._numbers[asked] = (address, asked), number
        try:
            asked.send_multipart((b"", body), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _connected(self, address: str) -> Socket:
        idle = self._idle.get(address)
        if idle:
            return idle.pop()
        opened = _open(self._context, zmq.DEALER)
        try:
            opened.connect(address)
        except zmq.ZMQError:
            opened.close()
            raise
        self._poller.register(opened, zmq.POLLIN)
        return opened

    def _close(self, asked: Socket) -> None:
        self._poller.unregister(asked)
        asked.close()


class Sockets:
    """All of them, of one thread; ``door`` only where we are asked.

    Raises:
        ConfigError: it cannot be bound.
    """

    def __init__(self, host: str, port: int, *, served: bool) -> None:
        self._context: Context = zmq.Context()
        self.poller = zmq.Poller()
        self.asked = Asked(self._context, self.poller)
        try:
            self.door = Door(self._context, host, port) if served else None
        except BaseException:
            self._context.term()
            raise

    def close(self) -> None:
        """Close everything; what was answered may take a moment to leave."""
        self.asked.close()
        if self.door is not None:
            self.door.socket.close()
        self._context.term()


def _literal(host: str) -> str:
    """The address to bind for *host*, which ZeroMQ wants without names."""
    bare = host.strip("[]")
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        msg = f"the host {host!r} to bind has no address: {error}"
        raise ConfigError(msg, remedy="give an address of this machine") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    literal = str(found[0][4][0])
    return f"[{literal}]" if ":" in literal else literal
