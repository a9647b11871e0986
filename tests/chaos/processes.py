"""An actor in its process, as the director of a round has it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from tests.chaos.forks import BIGGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.forks import ForkServer

WHOLE_S = 8.0
"""How long a process is looked at until it is well; how soon it has to be, a round judges."""


class Process:
    """An actor, from outside."""

    def __init__(self, server: ForkServer, role: str, settings: dict[str, Any]) -> None:
        self.role, self.said = role, dict[str, dict[str, Any]]()
        self.ended_s = self.killed_s = self.went_on_s = self.stopped_s = 0.0
        self.alive, self.closed, self.holder = True, False, 0
        self._server, self._replies = server, list[Any]()
        self._stopped_at: float | None = None
        self.pid, self.channel = server.fork(settings)

    def ready(self) -> None:
        """Wait until its connector is open."""
        came = self.reply()
        assert "error" not in came, came["error"]
        self.endpoint, self.instance = came["endpoint"], came["instance"]

    def tell(self, do: str, **arguments: Any) -> None:
        """Have it do something; it replies later."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(json.dumps({"do": do, **arguments}).encode())

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something, and wait for the reply."""
        self.tell(do, **arguments)
        return self.reply()

    def reply(self, patience_s: float = 20.0) -> Any:
        """The next reply; None from one that has ended."""
        until_s = time.monotonic() + patience_s
        while not self._replies:
            if not self.hear(until_s - time.monotonic()):
                assert time.monotonic() < until_s, f"{self.role} does not answer"
                return None
        return self._replies.pop(0)

    def hear(self, patience_s: float = 0.0) -> bool:
        """Take one packet; False if none came in time, or no more will."""
        if not select.select([self.channel], [], [], max(0.0, patience_s))[0]:
            return False
        try:
            packet = self.channel.recv(BIGGEST)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        said = json.loads(packet)
        if "task" in said:
            self.said[said["task"]] = said
        else:
            self._replies.append(said["reply"])
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel is through with it."""
        if self.alive:
            self.alive = False
            self.ended_s = self.killed_s = time.monotonic()
            os.kill(self.pid, signal.SIGKILL)
            self._server.reap(self.pid)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.alive and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        if self.alive and self._stopped_at is not None:
            os.kill(self.pid, signal.SIGCONT)
            self.went_on_s = time.monotonic()
            self.stopped_s += self.went_on_s - self._stopped_at
            self._stopped_at = None

    def close(self) -> None:
        """Have it close its connector in order, and end."""
        if self.alive:
            self.closed = True
            self.go_on()
            self.ended_s = time.monotonic()
            self.ask("close")
            self.channel.shutdown(socket.SHUT_WR)
            self.alive = False
            self._server.reap(self.pid)

    def fork(self) -> None:
        """Have it fork a child that holds its descriptors."""
        if self.alive and self._stopped_at is None and not self.holder:
            self.holder = int(self.ask("fork") or 0)

    def end(self) -> None:
        """Whatever has become of it: it has gone, and what it forked."""
        if self.alive:
            self.kill()
        if self.holder:
            os.kill(self.holder, signal.SIGKILL)
            self._server.reap(self.holder)
            self.holder = 0
        self.channel.close()


def settle(
    process: Process, is_well: Callable[[dict[str, Any]], bool], until_s: float = 0.0
) -> dict[str, Any]:
    """Look at what *process* has until it is well, or until then (or :data:`WHOLE_S` from now)."""
    until_s = until_s or time.monotonic() + WHOLE_S
    while True:
        asked_s = time.monotonic()
        now: dict[str, Any] = process.ask("remains")
        if is_well(now) or asked_s > until_s:
            return now
        time.sleep(0.01)
