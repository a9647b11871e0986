"""Peers that are replaced, links that end, processes that are told to go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.behaviours.kit import MIB, PATIENCE_S, body, is_body, linked, opening, pair
from tests.chaos.stages import MODES, SOURCES, Scene, content

import stagelink
from stagelink import PeerError, StagelinkError
from stagelink.core.errors import Reason
from stagelink.plugins.conformance.connector import Waiter, eventually, waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

MODE = MODES["offer"]


def test_a_replaced_peer_is_known_by_its_instance_and_not_by_its_address(scene: Scene) -> None:
    sender = scene.sender_process(MODE)
    (receiver,) = scene.receivers(MODE, sender.endpoint)
    sender.put("key", MODE.size)
    receiver.get("key", source="thinker", timeout=PATIENCE_S).close()
    first = receiver.health()["sessions"]
    sender.kill()
    port = int(sender.endpoint.rpartition(":")[2])
    again = scene.process(MODE, stage="thinker", role="sender", zmq_port=port)
    again.put("key", MODE.size)

    assert eventually(partial(gets_right, receiver, "key"))
    for number in range(5):  # all later ones work
        again.put(f"more {number}", MODE.size)
        assert gets_right(receiver, f"more {number}")
    assert len(receiver.health()["sessions"]) == len(first) == 1


def gets_right(receiver: Connector, key: str) -> bool:
    """Whether a get brings the right bytes; the first one may be told of the replacement."""
    try:
        with receiver.get(key, source="thinker", timeout=PATIENCE_S) as payload:
            return bytes(payload.value) == content(key, MODE.size)
    except PeerError:
        return False


def test_what_the_old_peer_promised_is_not_taken_from_the_new_one() -> None:
    with opening("shm") as open_:
        sender, receiver = pair(open_)
        linked(sender, receiver)
        old = sender.put("key", body(1, MIB), to="talker").metadata
        port = int(sender.endpoint.rpartition(":")[2])
        sender.close()
        again = open_(stage="thinker", role="sender", zmq_port=port)
        again.put("key", body(2, MIB), to="talker")
        # The receiver knows that the old one has gone, and has met the new one.
        assert eventually(lambda: is_open(again) and is_open(receiver))

        with pytest.raises(StagelinkError) as caught:
            receiver.get("key", metadata=old, timeout=PATIENCE_S)
        assert caught.value.reason in {Reason.PEER_RESTARTED, Reason.WITHDRAWN}
        assert is_body(receiver.get("key", source="thinker").value, 2, MIB)


def is_open(connector: Connector) -> bool:
    """Whether it talks with somebody now."""
    return any(row["state"] == "open" for row in connector.health()["sessions"])


class Wire:
    """A relay before a port of ours, which can be cut and joined again."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._is_cut = False
        self.refused: list[float] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._server.accept()
                if self._is_cut:
                    self.refused.append(time.monotonic())
                    here.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [here, there]
                for pipe in ((here, there), (there, here)):
                    thread = threading.Thread(target=self._relay, args=pipe, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End what is connected, and refuse what comes."""
        self._is_cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Let through again."""
        self._is_cut = False

    def close(self) -> None:
        """End everything."""
        self.cut()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for end in self._ends:
            end.close()


@pytest.fixture
def wired() -> Iterator[tuple[Connector, Connector, Wire]]:
    """A sender, a receiver, and the wire between them."""
    with opening("shm") as open_:
        sender = open_(stage="thinker", role="sender")
        wire = Wire(int(sender.endpoint.rpartition(":")[2]))
        receiver = open_(stage="talker", role="receiver", sender=wire.address)
        linked(sender, receiver)
        yield sender, receiver, wire
        receiver.close()
        wire.close()


def test_a_lost_connection_is_shown_told_and_renewed_with_growing_pauses(
    wired: tuple[Connector, Connector, Wire],
) -> None:
    sender, receiver, wire = wired
    waiter = Waiter(lambda: receiver.get("key", source="thinker", timeout=PATIENCE_S))
    assert waits(receiver)

    wire.cut()
    error = waiter.join().error
    assert isinstance(error, PeerError), "what was in flight fails typed, before its deadline"
    assert receiver.health()["status"] == "degraded"
    assert eventually(lambda: len(wire.refused) >= 4)
    pauses = [b - a for a, b in zip(wire.refused, wire.refused[1:])]  # noqa: B905
    assert max(pauses[1:]) > min(pauses)
    assert len(wire.refused) < 60, "no storm of attempts"
    wire.join()

    sender.put("key", body(1, MIB), to="talker")
    assert is_body(receiver.get("key", source="thinker", timeout=PATIENCE_S).value, 1, MIB)
    assert receiver.health()["status"] == "ok"


TRAFFIC = r"""
import sys, threading, stagelink
directory = sys.argv[1]
settings = {"backend": sys.argv[2], "shm_dir": directory, "pool_bytes": 16 << 20}
tx = stagelink.open(stage="a", role="sender", **settings)
rx = stagelink.open(stage="b", role="receiver", sender=tx.endpoint, **settings)
def move(name):
    for turn in range(10**9):
        tx.put(f"{name}/{turn}", bytes(200_000), to="b")
        rx.get(f"{name}/{turn}", source="a").close()
        if turn == 1:
            sys.stdout.write("moving\n")
sys.stdout.reconfigure(line_buffering=True)
for name in range(10):
    threading.Thread(target=move, args=(name,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("backend", "number"), [("shm-write", signal.SIGTERM), ("shm", signal.SIGINT)]
)
def test_a_process_told_to_end_amid_transfers_is_gone_and_leaves_nothing(
    tmp_path: Path, backend: str, number: signal.Signals
) -> None:
    """What SIGTERM left, which asks nobody, goes with the next opening."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAFFIC, str(tmp_path), backend],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": SOURCES}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for _ in range(10):
            assert process.stdout.readline() == "moving\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=10.0)
    finally:
        process.kill()
        process.communicate()

    assert said.count("Traceback") <= 1, said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no child is left
    with stagelink.open(stage="c", role="sender", shm_dir=str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


def test_a_reader_of_many_lasting_payloads_comes_back_after_a_cut(
    wired: tuple[Connector, Connector, Wire],
) -> None:
    """It says again what it has used: more than one message can hold."""
    sender, receiver, wire = wired
    used = dict.fromkeys(range(1 << 40, (1 << 40) + 100_000), True)
    receiver._driver.look(
        lambda endpoint: next(iter(endpoint.incoming.sources.values())).consumed.update(used)
    )
    wire.cut()
    assert eventually(lambda: receiver.health()["status"] == "degraded")
    wire.join()

    sender.put("next", body(1, MIB), to="talker")
    assert is_body(receiver.get("next", source="thinker", timeout=PATIENCE_S).value, 1, MIB)
