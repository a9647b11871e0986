"""A server that has imported everything a connector needs, and forks actors: milliseconds each.

It has one thread and opens no connector itself, so what it forks is whole. ``ForkServer`` is the
hunt's end of it; as a script it is the server, with its socket's number as the argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import stagelink

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(stagelink.__file__).resolve().parents[1]
BIGGEST = 1 << 17
NEEDED = (
    "stagelink.compose", "stagelink.plugins.builtin", "stagelink.adapters.local",
    "stagelink.adapters.zmq.channel", "stagelink.adapters.shm", "tests.chaos.actor",
)  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36
PLAIN_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""So that what is freed goes back, and growth is growth."""


class ForkServer:
    """Starts processes; *mistake* names one of :mod:`tests.chaos.mistakes` that all of them make."""

    def __init__(self, mistake: str = "") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        path = os.pathsep.join(map(str, (SOURCES, ROOT)))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.forks", str(theirs.fileno()), mistake],
                pass_fds=[theirs.fileno()], cwd=ROOT, env={**os.environ, **PLAIN_MALLOC, "PYTHONPATH": path},
            )  # fmt: skip

    def fork(self, settings: dict[str, Any]) -> tuple[int, socket.socket]:
        """A process with a connector of *settings*: its pid, and what it is spoken to through."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [json.dumps(settings).encode()], [theirs.fileno()])
        return int(self._answer()), ours

    def reap(self, pid: int) -> int:
        """Wait until the kernel is through with *pid*, an actor or what it forked; its status."""
        self._control.send(json.dumps({"reap": pid}).encode())
        return int(self._answer())

    def close(self) -> None:
        """End it, and everything that it started."""
        self._control.close()
        self._process.wait()

    def _answer(self) -> bytes:
        said = self._control.recv(BIGGEST)
        assert said, "the fork server has ended"
        return said


def serve(control: socket.socket) -> None:
    """Fork and reap as told, until the other end closes."""
    from tests.chaos.actor import act

    children: set[int] = set()
    while True:
        said, descriptors, *_ = socket.recv_fds(control, BIGGEST, 1)
        if not said:
            break
        message = json.loads(said)
        if "reap" in message:
            _, status = os.waitpid(message["reap"], 0)
            children.discard(message["reap"])
            _answer(control, status)
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            act(socket.socket(fileno=descriptors[0]), message)
        os.close(descriptors[0])
        children.add(pid)
        _answer(control, pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _answer(control: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the hunt was ended: the next read says so
        control.send(str(number).encode())


def main() -> None:
    """Import, check that we may fork, serve."""
    for name in NEEDED:
        importlib.import_module(name)
    if sys.argv[2:] and sys.argv[2]:
        from tests.chaos.mistakes import MISTAKES

        MISTAKES[sys.argv[2]]()
    assert "torch" not in sys.modules
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # of what an actor leaves behind
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
