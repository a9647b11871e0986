"""Real processes for chaos tests, and the questions that the tests ask."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import stagelink

if TYPE_CHECKING:
    from stagelink.connector import Connector

SCRIPT = Path(__file__).with_name("stage_process.py")
SOURCES = str(Path(stagelink.__file__).resolve().parents[1])
POOL = 8 << 20
PATIENCE_S = 15.0
TIMEOUTS = {"close_s": 1.0, "credit_idle_s": 0.2}


class Mode(NamedTuple):
    """A way that a payload takes, and what makes it take it."""

    backend: str
    size: int
    receivers: int = 1

    @property
    def pool_bytes(self) -> int:
        """Room for a payload of this size, in half of it: the other direction has a share."""
        return max(POOL, 2 * self.size)


MODES = {
    "eager": Mode("shm", 4 << 10),
    "offer": Mode("shm", 1 << 20),
    "pull": Mode("shm-write", 1 << 20),
    "long pull": Mode("shm-write", 64 << 20),
    "claim": Mode("shm", 1 << 20, receivers=2),
}


def content(key: str, size: int) -> bytes:
    """The bytes put under *key*, as the script makes them."""
    word = f"{key}:{size};".encode()
    return (word * (size // len(word) + 1))[:size]


def eventually(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether *holds* comes true in time."""
    until_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.005)
    return True


def is_whole(health: dict[str, Any]) -> bool:
    """Whether the pool is whole and no transfer under way."""
    pool, ledger = health["pool"], health["ledger"]
    return bool(
        pool["free"] == pool["capacity"]
        and not pool["quarantined"]
        and not (ledger["leases"] or ledger["writes"] or health["inbox"]["gets"])
    )


class Process:
    """A connector in another process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        command = [sys.executable, str(SCRIPT), json.dumps(settings)]
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": SOURCES},
        )  # fmt: skip
        self._stopped = False
        self.endpoint = str(self.answer()["endpoint"])

    def tell(self, **command: Any) -> None:
        """Give a command; its answer is read later, if ever."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(command) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest command that has not been answered."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, f"the process ended with {self._popen.wait()}"
        reply: dict[str, Any] = json.loads(line)
        return reply

    def ask(self, **command: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.tell(**command)
        return self.answer()

    def put(self, key: str, size: int, readers: int = 1) -> None:
        """Publish under *key*."""
        reply = self.ask(do="put", key=key, size=size, to="talker", readers=readers)
        assert reply == {"put": key}

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel is through with it."""
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    def stop(self) -> None:
        """SIGSTOP."""
        self._stopped = True
        self._popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        if self._stopped:
            self._stopped = False
            self._popen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Whatever has become of it, it is gone afterwards."""
        self.go_on()
        self._popen.kill()
        with contextlib.suppress(BrokenPipeError):
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        self._popen.wait()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


class Call:
    """A get on a thread of its own; ``outcome`` is ``right``, ``wrong`` or an error's class."""

    def __init__(self, connector: Connector, key: str, timeout_s: float = PATIENCE_S) -> None:
        self.outcome = ""
        self.error: stagelink.StagelinkError | None = None
        self.ended_s = 0.0
        self._args = (connector, key, timeout_s)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connector, key, timeout_s = self._args
        try:
            with connector.get(key, source="thinker", timeout=timeout_s) as payload:
                value = payload.value
                self.outcome = "right" if bytes(value) == content(key, len(value)) else "wrong"
                del value
        except stagelink.StagelinkError as error:
            self.error, self.outcome = error, type(error).__name__
        self.ended_s = time.monotonic()

    def join(self, patience_s: float = PATIENCE_S + 5.0) -> Call:
        """Wait for the end."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "the get never ended"
        return self


class Scene:
    """A directory for shared memory, and everything that was started over it."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(dir="/dev/shm", prefix="chaos-")
        self._processes: list[Process] = []
        self._connectors: list[Connector] = []

    def settings(self, mode: Mode, **more: Any) -> dict[str, Any]:
        """Of a connector for *mode*."""
        return {
            "backend": mode.backend, "pool_bytes": mode.pool_bytes, "shm_dir": self.directory,
            "timeouts": TIMEOUTS, **more,
        }  # fmt: skip

    def process(self, mode: Mode, **more: Any) -> Process:
        """A connector that may die."""
        self._processes.append(Process(self.settings(mode, **more)))
        return self._processes[-1]

    def connector(self, mode: Mode, **more: Any) -> Connector:
        """A connector of ours, which survives."""
        self._connectors.append(stagelink.open(**self.settings(mode, **more)))
        return self._connectors[-1]

    def sender_process(self, mode: Mode) -> Process:
        """Stage ``thinker``, that may die."""
        return self.process(mode, stage="thinker", role="sender")

    def receivers(self, mode: Mode, sender: str) -> list[Connector]:
        """Stage ``talker``, ours, as many as the mode needs, and linked."""
        made = [
            self.connector(mode, stage="talker", role="receiver", sender=sender, replica=replica)
            for replica in range(mode.receivers)
        ]
        for receiver in made:
            # The first one may be over before the connection stands.
            with contextlib.suppress(stagelink.DeadlineError, stagelink.PeerError):
                receiver.get("nothing", source="thinker", timeout=0.01)
            assert eventually(partial(linked, receiver))
        return made

    def receiver_processes(self, mode: Mode, sender: Connector) -> list[Process]:
        """Stage ``talker``, that may die, as many as the mode needs, and linked."""
        where = {"stage": "talker", "role": "receiver", "sender": sender.endpoint}
        made = [self.process(mode, replica=replica, **where) for replica in range(mode.receivers)]
        for process in made:
            process.ask(do="get", key="nothing", timeout=0.01)
        assert eventually(lambda: links(sender) == mode.receivers)
        return made

    def names(self) -> set[str]:
        """What lies in the directory."""
        return {path.name for path in Path(self.directory).iterdir()}

    def close(self) -> None:
        """End processes and connectors; nothing but what the dead left may remain."""
        for process in self._processes:
            process.end()
        for connector in sorted(self._connectors, key=lambda one: one.config.role != "receiver"):
            connector.close()
        shutil.rmtree(self.directory)


def linked(connector: Connector) -> bool:
    """Whether *connector* talks with somebody."""
    return links(connector) > 0


def links(connector: Connector) -> int:
    """With how many it talks."""
    rows = connector.health()["sessions"]
    return sum(row["state"] == "open" for row in rows)
