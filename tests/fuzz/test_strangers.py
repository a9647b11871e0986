"""Frames of strangers on the sockets of a connector at work: the good peer must not notice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fuzz.strangers import Siege

from stagelink.adapters.local.address import name_of
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads.exchange import MOST_STALLED, MOST_STALLED_BYTES, Backlog, Exchange
from stagelink.adapters.threads.narrator import Narrator
from stagelink.core import messages as m
from stagelink.core.events import Send
from stagelink.plugins.conformance.connector import eventually

MIB = 1 << 20


@pytest.fixture(params=[True, False], ids=["shortcut", "tcp"])
def siege(request: pytest.FixtureRequest) -> Iterator[Siege]:
    """A good pair, over Unix sockets or over TCP."""
    with Siege(shortcut=request.param) as one:
        yield one


def test_strangers_cost_the_good_peer_nothing_and_are_counted(siege: Siege) -> None:
    came = siege.run(1500)

    assert came.growth < 32 * MIB, came
    assert came.descriptors <= 0, came
    assert came.slowest_s < 5.0, came
    assert came.sender["frames_refused"] > 200
    assert came.sender["stale_messages"] > 10
    assert came.sender["pool"]["free"] == came.sender["pool"]["capacity"]


def test_a_second_greeting_on_a_connection_is_counted_and_declined(siege: Siege) -> None:
    siege.run(600)

    assert siege.sender.health()["violations"]["identity"] > 0


@pytest.mark.parametrize(
    "packet", [b"\0", b"\1", b"\2\xff\xff\xff\xff", b"\5" + bytes(99), b"\xff" * 60_000]
)
def test_a_stranger_on_the_shortcut_is_refused_and_hung_up_or_ignored(packet: bytes) -> None:
    with Siege() as siege, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        before = siege.sender.health()["frames_refused"]
        raw.connect(name_of(siege.sender.endpoint))
        raw.send(packet)

        assert eventually(lambda: siege.sender.health()["frames_refused"] > before, 5.0)
        siege.serve()


class Full:
    """A channel whose link takes nothing, or everything."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.full = True

    def send(self, link: str, frames: Any) -> bool:
        """Refuse while it is full."""
        if not self.full:
            self.sent.append(frames)
        return not self.full

    def receive(self, look: bool = True) -> None:
        """Nothing comes."""

    def close(self) -> None:
        """Nothing is open."""


def test_what_a_peer_does_not_read_is_dropped_beyond_a_limit() -> None:
    channel: Any = Full()
    narrator = Narrator(Log(stage="a"), 60.0)
    exchange = Exchange(channel, WireCodec(), print, print, narrator=narrator, clock=lambda: 0.0)
    for number in range(MOST_STALLED + 100):
        exchange.outbox.append(Send("accepted:lazy", m.Lost(number)))

    exchange.run(None, False)

    assert exchange.overflowed == 100
    channel.full = False
    exchange.run(None, False)
    codec = WireCodec()
    assert [codec.decode(frames) for frames in channel.sent] == [
        m.Lost(n) for n in range(MOST_STALLED)
    ]
    assert not exchange.stalled


def test_few_that_are_long_are_dropped_too() -> None:
    backlog, frame = Backlog(), bytes(MIB)
    while backlog.add([frame]):
        pass

    assert backlog.size == MOST_STALLED_BYTES
    backlog.pop()
    assert backlog.add([frame])
