"""The two processes of a contender, told what to do by this one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 170.0
LONGEST = 1 << 20


class CannotError(Exception):
    """A contender could not run, or no longer; says why."""


class Pair:
    """A contender's ends. Any failure closes it, and is raised once as :exc:`CannotError`."""

    def __init__(self, name: str, ends: list[dict[str, Any]], env: dict[str, str]) -> None:
        """*ends* are the terms of each end; one of them makes a copier, two a pair."""
        self.name = name
        self._bosses: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        roles = ["copier"] if len(ends) == 1 else ["producer", "consumer"]
        for role, terms, talk in zip(roles, ends, (here, there), strict=False):
            self._start(role, terms, talk, env)
        here.close()
        there.close()

    def ready(self) -> None:
        """Wait until both ends stand."""
        self._hear_all()

    def ask(self, do: str, **fields: object) -> list[dict[str, Any]]:
        """What each end answers, the producer first."""
        for boss in self._bosses:
            boss.send(json.dumps({"do": do, **fields}).encode())
        return self._hear_all()

    def close(self) -> None:
        """End both, gently if they still listen. Twice is fine."""
        for boss in self._bosses:
            with suppress(OSError):  # it may have gone
                boss.send(json.dumps({"do": "stop"}).encode())
        for process in self._processes:
            _end(process)
        for boss in self._bosses:
            boss.close()
        self._bosses, self._processes = [], []
        self._log.close()

    def _start(
        self, role: str, terms: dict[str, Any], talk: socket.socket, env: dict[str, str]
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_S)
        with theirs:
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - our own module
                    [
                        sys.executable, "-m", "benchmarks.h200_parts.end", role, self.name,
                        str(theirs.fileno()), str(talk.fileno()), json.dumps(terms),
                    ],
                    pass_fds=(theirs.fileno(), talk.fileno()), cwd=ROOT, env=env,
                    stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                )
            )  # fmt: skip
        self._bosses.append(ours)

    def _hear_all(self) -> list[dict[str, Any]]:
        try:
            return [self._hear(boss) for boss in self._bosses]
        except CannotError:
            for process in self._processes:
                process.kill()
            self.close()
            raise

    def _hear(self, boss: socket.socket) -> dict[str, Any]:
        try:
            data = boss.recv(LONGEST)
        except TimeoutError:
            msg = f"no answer within {ANSWER_S:.0f} s{self._last_words()}"
            raise CannotError(msg) from None
        except OSError:
            data = b""
        if not data:
            msg = f"an end of it has died{self._last_words()}"
            raise CannotError(msg)
        answer: dict[str, Any] = json.loads(data)
        if "failed" in answer:
            raise CannotError(answer["failed"])
        return answer

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 1000))
        return ": " + self._log.read().decode(errors="replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
