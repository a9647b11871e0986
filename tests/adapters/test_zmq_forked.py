"""A forked child holds neither its parent's connections over ZeroMQ nor its port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stagelink
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.adapters.zmq.forked import Place, close_copies, place_of
from stagelink.plugins.conformance.kit import AT_ONCE_S
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = str(Path(stagelink.__file__).resolve().parents[1])
PATIENCE_S = 15.0

FORKS = """
import os, select, sys, time
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.ports.channel import LinkUp
with ZmqChannel("127.0.0.1") as channel:
    channel.dial(sys.argv[1])
    while not isinstance(channel.receive(), LinkUp):
        select.select([channel.fileno()], [], [], 0.05)
    channel.send(sys.argv[1], [b"a message"])
    print(channel.address, flush=True)
    sys.stdin.readline()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def here() -> Iterator[ZmqChannel]:
    """Our end."""
    with ZmqChannel("127.0.0.1") as channel:
        yield channel


def until(channel: ZmqChannel, kind: type, link: str = "") -> str:
    """The link of the next arrival of *kind*."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        arrival = channel.receive()
        if arrival is None:
            time.sleep(0.002)
        elif isinstance(arrival, kind) and link in {"", arrival.link}:
            return arrival.link
    pytest.fail(f"no {kind.__name__} came")


def kill_one_with_a_child(here: ZmqChannel, stack: ExitStack) -> tuple[str, str]:
    """Where the dead one listened, and the link by which it had dialled us; its child lives."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", FORKS, here.address], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES},
        )
    )  # fmt: skip
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdin is not None
    there = process.stdout.readline().strip()
    accepted = until(here, Mail)
    here.dial(there)
    until(here, LinkUp, there)
    process.stdin.write("fork\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    stack.callback(os.kill, child, signal.SIGKILL)
    process.kill()
    process.wait()
    return there, accepted


def test_a_death_is_told_at_once_although_a_forked_child_lives(here: ZmqChannel) -> None:
    """On the link that it had dialled, and on that which we had: no heart-beat is waited for."""
    with ExitStack() as stack:
        there, accepted = kill_one_with_a_child(here, stack)
        began_s = time.monotonic()
        downs = {until(here, LinkDown) for _ in range(2)}
        assert downs == {there, accepted}
        assert time.monotonic() - began_s < AT_ONCE_S


def test_the_port_of_a_dead_process_is_free_although_its_forked_child_lives(
    here: ZmqChannel,
) -> None:
    with ExitStack() as stack:
        there, _ = kill_one_with_a_child(here, stack)
        until(here, LinkDown, there)
        port = int(there.rpartition(":")[2])
        with ZmqChannel("127.0.0.1", port) as successor:
            assert successor.address == there
            until(here, LinkUp, there)


def test_only_what_has_one_of_the_addresses_is_closed() -> None:
    """At our end that where we listen, at the other end those that we dialled."""
    with ExitStack() as stack:
        ours, theirs, strange = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)
        )
        dialled = stack.enter_context(socket.create_connection(theirs.getsockname()))
        other = stack.enter_context(socket.create_connection(strange.getsockname()))
        pair = socket.socketpair()
        stack.enter_context(pair[0])
        stack.enter_context(pair[1])
        every = {"ours": ours, "theirs": theirs, "dialled": dialled, "other": other}
        numbers = {name: one.fileno() for name, one in every.items()}

        child = os.fork()
        if child == 0:
            bound, peer = (f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in (ours, theirs))
            close_copies(bound, {peer})
            is_open = {name: _is_open(number) for name, number in numbers.items()}
            wanted = {"ours": False, "theirs": True, "dialled": False, "other": True}
            os._exit(int(is_open != wanted or not _is_open(pair[0].fileno())))
        assert os.waitpid(child, 0)[1] == 0


def _is_open(number: int) -> bool:
    return Path(f"/proc/self/fd/{number}").exists()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("tcp://127.0.0.1:5", Place("127.0.0.1", 5)),
        ("tcp://localhost:5", Place("127.0.0.1", 5)),
        ("tcp://[::1]:5", Place("::1", 5)),
        ("tcp://0.0.0.0:5", Place("*", 5)),
        ("tcp://elsewhere.example:5", Place("elsewhere.example", 5)),
        ("ipc:///tmp/x", Place("/tmp/x", 0)),
        ("ipc://@x", Place("@x", 0)),
        ("", None),
    ],
)
def test_the_place_of_an_address(address: str, place: Place | None) -> None:
    assert place_of(address) == place
