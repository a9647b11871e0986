"""One line of the table of what is hunted, and the processes that play on it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import tempfile
from typing import TYPE_CHECKING, Any

from tests.chaos.forks import ForkServer
from tests.chaos.plan import LANES, MORTALS, POOL, ROLES, SURVIVORS
from tests.chaos.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterable

PORTS = range(16000, 32000)
"""Below those that the kernel gives to who calls: a receiver that dials a port of its own range,
while nobody listens there, may come to be connected to itself."""


class Lane:
    """A fork server, two survivors of many rounds, and the mortals of the present one.

    It is opened when it is first played on, and anew after a round that failed.

    Attributes:
        survivors: by role; none while it is closed.
        base: what they had, by role, when they had met and lost a first pair of mortals.
    """

    def __init__(self, name: str, mistake: str = "") -> None:
        self.name = name
        self._mistake = mistake
        self.base: dict[str, dict[str, Any]] = {}
        self.survivors: dict[str, Process] = {}

    def open(self) -> None:
        """Start what lives long, unless it is there."""
        if self.survivors:
            return
        self._directory = tempfile.mkdtemp(dir="/dev/shm", prefix="chaos-")
        self._server = ForkServer(self._mistake)
        self._port = free_port()
        self.survivors = {role: self._process(role) for role in SURVIVORS}
        for process in self.survivors.values():
            process.ready()

    def close(self) -> None:
        """End everything."""
        if not self.survivors:
            return
        for process in self.survivors.values():
            process.end()
        self.survivors.clear()
        self.base.clear()
        self._server.close()
        shutil.rmtree(self._directory)

    def memory(self) -> dict[str, dict[str, Any]]:
        """What the survivors hold and remember, by role."""
        return {
            role: {"resident_kib": process.ask("remains")["resident_kib"]}
            | {"census": process.ask("census")}
            for role, process in self.survivors.items()
        }

    def cast(self, roles: Iterable[str] = MORTALS) -> dict[str, Process]:
        """New mortals."""
        made = {role: self._process(role) for role in roles}
        for process in made.values():
            process.ready()
        return made

    def names(self) -> list[str]:
        """What lies in our directory for shared memory."""
        return sorted(os.listdir(self._directory))

    def is_well(self, role: str, now: dict[str, Any]) -> bool:
        """Whether *role* has no more than before anybody died."""
        return not self.excess(role, now)

    def excess(self, role: str, now: dict[str, Any]) -> list[str]:
        """What *role* has now that it had not before anybody died."""
        base = self.base[role]
        faults = [f"{name} {count}" for name, count in now["held"].items()]
        if len(now["descriptors"]) > len(base["descriptors"]):
            more = list(now["descriptors"])
            for one in base["descriptors"]:
                if one in more:
                    more.remove(one)
            faults.append(f"descriptors {more}")
        if now["threads"] > base["threads"]:
            faults.append(f"threads {now['threads']} instead of {base['threads']}")
        return faults

    def _process(self, role: str) -> Process:
        return Process(self._server, role, self._settings(role))

    def _settings(self, role: str) -> dict[str, Any]:
        mortal = f"tcp://127.0.0.1:{self._port}"
        more: dict[str, Any] = {"shm_dir": self._directory, "pool_bytes": POOL}
        more["timeouts"] = {"close_s": 0.5, "credit_idle_s": 0.2}
        if role in SURVIVORS:
            more["senders"] = {"mortal": mortal}
        else:
            more["senders"] = {"hub": self.survivors["hub"].endpoint}
        if role == "mortal":
            more["zmq_port"] = self._port
        return {**LANES[self.name], **ROLES[role], **more}


def free_port() -> int:
    """A port that nobody listens at."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
