"""The end that gets: a process, ``python -m stagelink.bench.consumer DESCRIPTOR``, or a thread.

Commands and answers are JSON, acknowledgements eight bytes, on a socket of the operating system:
nothing that is measured carries them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import zmq

import stagelink
from stagelink.bench.edges import Receiving, resident
from stagelink.bench.figures import percentile
from stagelink.bench.payloads import library, touch
from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.connector import Connector

FROM = "source"
TO = "sink"
WAIT_S = 60.0
WAIT_MS = 60_000
ACK = struct.Struct("=q")
"""The moment, of the monotonic clock in nanoseconds, at which every page had been touched."""

LONGEST = 1 << 16
FLOOR_NAME = b"floor"

_now_ns = time.monotonic_ns


class Consumer:
    """Does what the producer says; every command has one answer."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._rx: Connector | None = None
        self._crowd: list[Connector] = []
        self._receiving: Receiving | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.set(zmq.IDENTITY, FLOOR_NAME)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._commands: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self.open,
            "take": self.take,
            "floor": self.floor,
            "echo": self.echo,
            "poll": self.poll,
            "cpu": self.cpu,
            "crowd": self.crowd,
            "leave": self.leave,
            "soak": self.soak,
            "resident": resident,
            "soaked": self.soaked,
        }

    def serve(self) -> None:
        """Obey until the producer hangs up."""
        try:
            while packet := self._talk.recv(LONGEST):
                command = json.loads(packet)
                self._talk.send(json.dumps(self._answer(command.pop("do"), command)).encode())
        except (BrokenPipeError, ConnectionResetError):
            return  # the producer has gone
        finally:
            self.leave()
            self._context.destroy(linger=0)

    def _answer(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._commands[name](**fields)
        except StagelinkError as error:
            return {"error": str(error), "kind": type(error).__name__}

    def open(self, settings: dict[str, Any], floor: str) -> dict[str, Any]:
        """Open the connector, and the socket for the floor."""
        library()  # seconds, that would count as the first hand-off's
        self._rx = stagelink.open(**settings)
        self._dealer.connect(floor)
        self._dealer.send(b"here")
        return {}

    def take(self, prefix: str, count: int) -> dict[str, Any]:
        """Get *count* payloads; acknowledge each with the moment its last page was touched."""
        assert self._rx is not None
        get, send = self._rx.get, self._talk.send
        for number in range(count):
            with get(f"{prefix}{number}", source=FROM, timeout=WAIT_S) as payload:
                touch(payload.value)
                now_ns = _now_ns()
            send(ACK.pack(now_ns))
        return {}

    def floor(self, count: int) -> dict[str, Any]:
        """The same with plain ZeroMQ."""
        for _ in range(count):
            touch(self._receive())
            now_ns = _now_ns()
            self._talk.send(ACK.pack(now_ns))
        return {}

    def echo(self, count: int) -> dict[str, Any]:
        """Send *count* messages back."""
        for _ in range(count):
            self._dealer.send(self._receive())
        return {}

    def poll(self, count: int) -> dict[str, Any]:
        """Microseconds of a poll for what is not there."""
        assert self._rx is not None
        times = []
        for number in range(count):
            key = f"missing{number}"
            start_ns = _now_ns()
            found = self._rx.poll(key, source=FROM)
            times.append((_now_ns() - start_ns) / 1e3)
            assert found is None
        return {"us": percentile(times, 0.5)}

    def cpu(self) -> dict[str, Any]:
        """Seconds of processor time so far."""
        return {"cpu_s": time.process_time(), "pid": os.getpid()}

    def crowd(self, members: list[dict[str, Any]], source: str) -> dict[str, Any]:
        """Open a connector for each of *members*, and let it connect."""
        for member in members:
            self._crowd.append(stagelink.open(**member))
            self._crowd[-1].poll("hello", source=source)
        return {}

    def soak(self, members: list[dict[str, Any]]) -> dict[str, Any]:
        """Open a connector for each of *members*, and take what comes on a thread of each."""
        library()
        self._crowd += [stagelink.open(**member) for member in members]
        self._receiving = Receiving(self._crowd, FROM)
        self._receiving.start()
        return {"instances": [connector.health()["engine_key"] for connector in self._crowd]}

    def soaked(self) -> dict[str, Any]:
        """What came until the end mark of every edge."""
        assert self._receiving is not None
        return self._receiving.finish()

    def leave(self) -> dict[str, Any]:
        """Close every connector."""
        for connector in (*self._crowd, *filter(None, [self._rx])):
            connector.close()
        self._crowd.clear()
        return {}

    def _receive(self) -> bytes:
        if not self._poller.poll(WAIT_MS):
            msg = f"no message came in {WAIT_S:.0f} s"
            raise StagelinkError(msg)
        return self._dealer.recv()


def _stop_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Serve on the descriptor named, until standard input ends: it does when the parent dies."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    try:
        with socket.socket(fileno=int(sys.argv[1])) as talk:
            Consumer(talk).serve()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
