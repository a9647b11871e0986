"""The plane over TCP keeps the contract, and believes no number."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from stagelink.adapters.frames import FramesPlane, Place, doorway
from stagelink.adapters.frames.wire import ACK, HEAD, HELLO, MAGIC, READY, Description, pack, parse
from stagelink.adapters.memory import PrivateMemoryProvider
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import (
    REGION,
    SIZE,
    Meeting,
    Outcome,
    comes,
    difference,
    filled,
)  # fmt: skip
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 16 << 20
TOO_MUCH = (4 << 20) + 1


def party(size: int) -> Party:
    """A party on loopback, with memory that nobody could map."""
    instance = secrets.token_bytes(16)
    memory = PrivateMemoryProvider().allocate(size)
    return Party(instance, FramesPlane(instance, kind=memory.kind), memory)


class TestFramesPlane(DataPlaneContract):
    """Senders write, over TCP."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """Over loopback."""
        return party


@pytest.fixture
def pair() -> Iterator[Meeting]:
    """Two that know each other."""
    made = Meeting(party(LONG), party(LONG))
    yield made
    made.close()


def told_by(reader: Party) -> Description:
    return parse(reader.plane.describe(), reader.instance)


@contextmanager
def dialled(told: Description, hello: bytes) -> Iterator[socket.socket]:
    """A connection by hand, that has said *hello*."""
    with socket.create_connection((told.host, told.port), 5.0) as made:
        made.sendall(hello)
        yield made


def greeting(told: Description, token: bytes | None = None) -> bytes:
    """That of a writer nobody has heard of."""
    who = secrets.token_bytes(16)
    return HELLO.pack(MAGIC, True, token or told.token, told.instance, who)


def is_closed(made: socket.socket) -> bool:
    """Whether the other end has closed it."""
    try:
        return made.recv(1) == b""
    except ConnectionError:
        return True


def exactly(made: socket.socket, size: int) -> bytes:
    """So many bytes."""
    got = b""
    while len(got) < size:
        part = made.recv(size - len(got))
        assert part, "it was closed"
        got += part
    return got


# --- the reader believes nothing ----------------------------------------------------------


def test_who_does_not_know_the_token_writes_nothing(pair: Meeting) -> None:
    told, reader, plane = told_by(pair.peer), pair.peer, pair.peer.plane
    assert isinstance(plane, FramesPlane)
    bad = [
        greeting(told, secrets.token_bytes(16)),
        greeting(told._replace(instance=secrets.token_bytes(16))),
        b"GET / HTTP/1.1\r\n" * 8,
        HELLO.pack(b"SLF0", True, told.token, told.instance, b"w" * 16),
    ]
    for hello in bad:
        with dialled(told, hello + HEAD.pack(1, 1, REGION, 0, 4) + b"evil") as made:
            assert is_closed(made)
    assert comes(lambda: plane.strangers == len(bad))
    assert filled(reader.memory.buffer[:4], 0)


@pytest.mark.parametrize(
    "head",
    [
        (1, 1, REGION, LONG, 1),
        (1, 1, REGION, LONG - 1, 2),
        (1, 1, REGION, 1 << 63, 1),
        (1, 1, REGION, (1 << 64) - 1, 2),
        (1, 1, REGION + 1, 0, 1),
        (1, 1, 0, 0, 1),
        (1, 1, REGION, 0, 0),
        (1, 1, REGION, 0, TOO_MUCH),
        (1, 1, REGION, 0, (1 << 32) - 1),
        (2, 1, REGION, 0, 4),
    ],
)
def test_a_frame_that_lies_costs_its_writer_the_connection_and_others_nothing(
    pair: Meeting, head: tuple[int, int, int, int, int]
) -> None:
    told, reader, plane = told_by(pair.peer), pair.peer, pair.peer.plane
    assert isinstance(plane, FramesPlane)
    before = bytes(reader.memory.buffer)
    with dialled(told, greeting(told)) as made:
        assert made.recv(len(READY)) == READY
        made.sendall(HEAD.pack(*head) + b"evil")
        assert is_closed(made)
    assert comes(lambda: plane.lies == 1)
    assert bytes(reader.memory.buffer) == before
    content = pair.fill()
    assert not difference(pair.move(0, SIZE), content[:SIZE])


def test_chance_on_the_wire_ends_connections_and_nothing_else(pair: Meeting) -> None:
    reader, told, chance = pair.peer, told_by(pair.peer), random.Random(5)
    for _ in range(100):
        good = greeting(told) + HEAD.pack(1, 1, REGION, 9, 3) + b"abc"
        at = chance.randrange(len(good))
        bad = good[:at] + chance.randbytes(chance.randrange(1, 90))
        with dialled(told, bad) as made:
            with contextlib.suppress(OSError):  # it may have been cut off already
                made.shutdown(socket.SHUT_WR)
            while not is_closed(made):
                pass
    content = pair.fill()
    assert not difference(pair.move(0, SIZE), content[:SIZE])
    assert filled(reader.memory.buffer[SIZE:], 0)


def test_who_never_greets_is_sent_away(pair: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "GREETING_S", 0.0)
    monkeypatch.setattr("stagelink.adapters.frames.loop.TICK_S", 0.01)
    with dialled(told_by(pair.peer), b"") as made:
        made.settimeout(10.0)
        assert is_closed(made)


def test_many_who_never_greet_keep_nobody_out(
    pair: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway, "MOST_STRANGERS", 4)
    told = told_by(pair.peer)
    idle = [socket.create_connection((told.host, told.port), 5.0) for _ in range(12)]
    pair.introduce()
    content = pair.fill()
    assert not difference(pair.move(0, SIZE), content[:SIZE])
    for made in idle:
        made.close()


def test_an_older_token_opens_nothing_once_somebody_was_cut_off(pair: Meeting) -> None:
    old = told_by(pair.peer)
    assert pair.peer.plane.fence(pair.owner.instance, dead=False)
    assert told_by(pair.peer).token != old.token
    with dialled(old, greeting(old)) as made:
        assert is_closed(made)


# --- the writer believes nothing ----------------------------------------------------------


@pytest.fixture
def writer() -> Iterator[Party]:
    """One that writes, alone."""
    made = party(LONG)
    made.plane.register(REGION, made.memory)
    yield made
    made.plane.close()
    made.memory.close()


@contextmanager
def posing_as_reader(writer: Party) -> Iterator[tuple[bytes, socket.socket]]:
    """A reader by hand that *writer* is attached to: its instance, and its end."""
    instance = secrets.token_bytes(16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5.0)
        port = server.getsockname()[1]
        told = Description(instance, b"t" * 16, "127.0.0.1", port, "", {REGION: LONG})
        with ThreadPoolExecutor(1) as threads:
            attached = threads.submit(writer.plane.attach, instance, pack(told))
            made, _ = server.accept()
            hello = exactly(made, HELLO.size)
            assert hello == HELLO.pack(MAGIC, True, b"t" * 16, instance, writer.instance)
            made.sendall(READY)
            attached.result(5.0)
    with made:
        made.settimeout(5.0)
        yield instance, made


def write(writer: Party, reader: bytes, size: int) -> Outcome:
    """Begin to write so many bytes to *reader*."""
    where, outcome = RegionRef(REGION, 0, size), Outcome()
    writer.plane.post(WriteOrder(reader, 1, where, where), outcome)
    return outcome


@pytest.mark.parametrize("number", [0, 2, (1 << 64) - 1])
def test_an_acknowledgement_of_what_was_not_written_ends_the_connection(
    writer: Party, number: int
) -> None:
    with posing_as_reader(writer) as (reader, made):
        outcome = write(writer, reader, SIZE)
        made.sendall(ACK.pack(number))
        assert "cannot have" in outcome.wait()
    assert isinstance(writer.plane, FramesPlane)
    assert writer.plane.lies == 1


def test_an_acknowledgement_before_the_last_byte_has_left_is_a_lie(writer: Party) -> None:
    with posing_as_reader(writer) as (reader, made):
        outcome = write(writer, reader, LONG)
        made.sendall(ACK.pack(1))  # nobody has read a byte, and the kernel does not hold all
        assert outcome.wait()


def test_a_cut_in_the_middle_of_a_write_is_an_error(writer: Party) -> None:
    with posing_as_reader(writer) as (reader, made):
        outcome = write(writer, reader, LONG)
        exactly(made, HEAD.size + 5)
        assert not outcome.errors
    assert outcome.wait()


def test_a_short_write_overtakes_a_long_one(writer: Party) -> None:
    with posing_as_reader(writer) as (reader, made):
        long, short = write(writer, reader, LONG), write(writer, reader, 3)
        numbers: list[int] = []
        while 2 not in numbers:  # frame by frame
            _, number, _, _, size = HEAD.unpack(exactly(made, HEAD.size))
            numbers.append(number)
            exactly(made, size)
        assert len(numbers) <= 3
        made.sendall(ACK.pack(2))
        assert not short.wait()
    assert long.wait()


def test_a_reader_that_stops_reading_ends_a_reset_only_when_it_is_through(writer: Party) -> None:
    with posing_as_reader(writer) as (reader, made):
        outcome = write(writer, reader, LONG)
        writer.plane.reset()
        assert not outcome.errors, "told of an end, while bytes may still land"
        while made.recv(1 << 20):
            pass
    assert outcome.wait()


# --- both -------------------------------------------------------------------------------


def test_a_lost_connection_is_dialled_again_with_the_next_write(pair: Meeting) -> None:
    content = pair.fill()
    pair.move(0, SIZE)
    pair.peer.plane.reset()
    outcomes: list[str] = []

    def works() -> bool:
        outcomes.append(pair.post(SIZE).wait())  # the first may find that it is lost
        return not outcomes[-1]

    assert comes(works)
    assert len(outcomes) <= 2
    assert not difference(pair.peer.memory.buffer[:SIZE], content[:SIZE])


def test_a_reader_that_is_gone_is_an_error_of_each_write(pair: Meeting) -> None:
    pair.peer.plane.close()
    for _ in range(3):
        assert pair.post(SIZE).wait()


def test_nothing_is_opened_before_it_is_needed() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    plane = FramesPlane(b"i" * 16)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    sender = FramesPlane(b"s" * 16, None)
    sender.describe()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    plane.describe()
    plane.close()
    sender.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_who_only_sends_cannot_be_written_to(writer: Party) -> None:
    plane = FramesPlane(b"s" * 16, None, kind=writer.memory.kind)
    plane.register(REGION, writer.memory)
    with pytest.raises(TransportError, match="only sends"):
        writer.plane.attach(b"s" * 16, plane.describe())
    plane.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "::", "192.0.2.1", "no such name"])
def test_where_it_cannot_listen_peers_hear_why(writer: Party, host: str) -> None:
    strict = FramesPlane(b"r" * 16, Place(host))
    with pytest.raises(TransportError, match=r"listen on"):
        strict.describe()
    strict.close()
    plane = FramesPlane(b"r" * 16, Place(host), kind=writer.memory.kind, strict=False)
    plane.register(REGION, writer.memory)
    with pytest.raises(TransportError, match=r"listen on"):
        writer.plane.attach(b"r" * 16, plane.describe())
    plane.close()


def test_memory_of_another_kind_is_refused(writer: Party) -> None:
    foreign = type("Foreign", (), {"kind": "device", "space": object(), "size": 4096})()
    with pytest.raises(TransportError, match="only host-private"):
        writer.plane.register(2, foreign)


def sockets_of_ours() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in found if link.startswith("socket:")}


def test_a_forked_child_keeps_no_connection_of_its_parent() -> None:
    before = sockets_of_ours()
    pair = Meeting(party(LONG), party(LONG))
    pair.move(0, SIZE)
    assert len(sockets_of_ours() - before) >= 4
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            left = len(sockets_of_ours() - before)
            pair.close()
            os.write(theirs, bytes([left]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    assert os.read(ours, 1) == b"\0"
    os.close(ours)
    content = pair.fill()
    assert not difference(pair.move(0, SIZE), content[:SIZE])
    pair.close()
