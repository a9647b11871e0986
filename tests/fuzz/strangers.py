"""Strangers on the sockets of a connector that serves a good peer meanwhile."""

from __future__ import annotations

import contextlib
import socket
import time
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq
from tests.fuzz import seeds
from tests.fuzz.hunt import resident
from tests.fuzz.mutate import Mutator

import stagelink
from stagelink.adapters.local.address import name_of
from stagelink.adapters.msgspec.wire import HEADER_BYTES, WireCodec
from stagelink.core import messages as m
from stagelink.core.values import HostCard, Identity
from stagelink.plugins.conformance.listening import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.connector import Connector
    from stagelink.core.settings import Settings

POOL = 8 << 20
PATIENCE_S = 20.0
BURST = 50
SIZES = (100, 20_000, 300_000)
REPORT = m.Report(0, (), 0, ())


class Outcome(NamedTuple):
    """What came of it; ``growth`` of memory in bytes, ``slowest_s`` of the good peer's rounds."""

    frames: int
    transfers: int
    growth: int
    descriptors: int
    slowest_s: float
    sender: dict[str, Any]


class Stranger:
    """One that throws: by ZeroMQ, by bare TCP, or by the Unix socket beside the address.

    It never reads, and knows of us what a process of this host can: *ours* are good settings.
    """

    def __init__(
        self, context: zmq.Context[Any], address: str, random: Random, ours: Settings
    ) -> None:
        self._context, self._address, self._random = context, address, random
        self._ours = ours
        self._mutator, self._codec = Mutator(random), WireCodec()
        self._seeds = seeds.control()
        self._cards = tuple(own.card for own in ours.planes)
        self._dealer = self._dial()
        self.frames = 0

    def burst(self) -> None:
        """Throw some, in one way or another."""
        way: Callable[[], None] = self._random.choice(
            (self._spoilt, self._spoilt, self._forged, self._bare, self._local, self._leave)
        )
        way()

    def close(self) -> None:
        """Go away."""
        self._dealer.close(0)

    def _dial(self) -> zmq.Socket[Any]:
        dealer: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(self._address)
        return dealer

    def _send(self, frames: list[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            self._dealer.send_multipart(frames or [b""], zmq.NOBLOCK)
            self.frames += 1

    def _spoilt(self) -> None:
        for _ in range(BURST):
            one, other = self._random.choice(self._seeds), self._random.choice(self._seeds)
            self._send(self._mutator.spoil(one, other, HEADER_BYTES))

    def _forged(self) -> None:
        """Well-formed messages of conversations that there are not, and greetings of nobody."""
        for number in range(BURST):
            instance = self._random.randbytes(16)
            hello = m.Hello(
                number, instance, Identity(instance.hex()), "sender", b"", REPORT,
                HostCard(self._ours.host.host, "no proof"), self._cards,
            )  # fmt: skip
            packet = m.Packet(number, 0, REPORT, m.Query("k"))
            self._send(self._codec.encode(self._random.choice((hello, packet, m.Inspect(number)))))

    def _bare(self) -> None:
        """A connection that speaks no ZeroMQ, or only begins to."""
        host, _, port = self._address.removeprefix("tcp://").rpartition(":")
        noise = self._random.choice(
            (
                b"GET / HTTP/1.0\r\n\r\n",
                self._random.randbytes(500),
                b"\xff" + bytes(8) + b"\x7f\x03",
            )
        )
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0) as raw:
            raw.sendall(noise)
            self.frames += 1

    def _local(self) -> None:
        """Packets on the shortcut, until it hangs up."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
            raw.setblocking(False)
            with contextlib.suppress(OSError):
                raw.connect(name_of(self._address))
                for _ in range(BURST):
                    one, other = self._random.choice(self._seeds), self._random.choice(self._seeds)
                    frames = self._mutator.spoil(one, other, HEADER_BYTES)
                    head = bytes((self._random.choice((1, 1, 1, len(frames) % 256, 0, 9, 255)),))
                    raw.send(head + b"".join(frames)[:60_000])
                    self.frames += 1

    def _leave(self) -> None:
        """End the connection, and come again."""
        self._dealer.close(0)
        self._dealer = self._dial()


class Siege:
    """A sender, a good receiver, and a stranger."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self._random = Random(seed)
        self.sender: Connector = stagelink.open(
            stage="sender", role="sender", pool_bytes=POOL, **settings
        )
        self.receiver: Connector = stagelink.open(
            stage="good", role="receiver", sender=self.sender.endpoint, pool_bytes=POOL, **settings
        )
        self._transfers, self._slowest_s = 0, 0.0
        self.serve()

    def serve(self) -> None:
        """A transfer of each size between the good: the bytes must be right, and in time."""
        start_s = time.monotonic()
        for size in SIZES:
            key, body = f"good-{self._transfers}", self._random.randbytes(size)
            self.sender.put(key, body, to="good")
            with self.receiver.get(key, source="sender", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == body
            self._transfers += 1
        self._slowest_s = max(self._slowest_s, time.monotonic() - start_s)

    def run(self, frames: int) -> Outcome:
        """Throw *frames*; a fifth of them before the memory is looked at."""
        with zmq.Context() as context:
            self._throw(context, frames // 5)
            before, opened = resident(), open_descriptors()
            thrown = frames // 5 + self._throw(context, frames - frames // 5)
            until_s = time.monotonic() + PATIENCE_S
            while open_descriptors() > opened and time.monotonic() < until_s:
                self.serve()  # the last stranger's end is yet to be heard
            growth, left = resident() - before, open_descriptors() - opened
        assert self.sender.drain(PATIENCE_S)
        return Outcome(
            thrown, self._transfers, growth, left, self._slowest_s, self.sender.health()
        )

    def _throw(self, context: zmq.Context[Any], frames: int) -> int:
        settings = self.receiver._driver.parts.endpoint.settings
        stranger = Stranger(context, self.sender.endpoint, self._random, settings)
        while stranger.frames < frames:
            stranger.burst()
            self.serve()
        thrown = stranger.frames
        stranger.close()
        time.sleep(0.05)  # for its end to be heard: what it had open is what we count
        self.serve()
        return thrown

    def __enter__(self) -> Self:
        """The siege itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close both."""
        self.receiver.close()
        self.sender.close()
