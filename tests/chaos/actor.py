"""One connector in a forked process, and what it can be told to do.

Told by packets of JSON, ``{"do": …}``; answers have a ``reply``. A task runs on a thread of its own
and reports, whenever it ends, what came of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from tests.chaos.remains import census, remains

import stagelink

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from stagelink.connector import Connector

PRIME = 4099
"""Bytes after which contents repeat: no multiple of a page, so a block in the wrong place shows."""

HOLDER_S = 60
MEET_S = 8.0
STEP_S = 0.02
LATE = [0.0]
"""Seconds by which the metronome's steps have been too long: it waits for nothing of ours."""


def content(key: str, size: int) -> bytes:
    """The bytes put under *key*."""
    word = hashlib.shake_128(f"{key}:{size}".encode()).digest(min(size, PRIME))
    return (word * (size // PRIME + 1))[:size]


def act(control: socket.socket, settings: dict[str, Any]) -> None:
    """Be an actor until told to end, or nobody is there to tell; does not return."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Actor(control, settings).serve()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)


class Actor:
    """Serves one connector."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._threads: list[threading.Thread] = []
        try:
            self._connector = stagelink.open(**settings)
        except stagelink.StagelinkError as error:
            self._say(reply={"error": str(error)})
            raise
        instance = self._connector.health()["engine_key"]
        self._say(reply={"endpoint": self._connector.endpoint, "instance": instance})

    def serve(self) -> None:
        """Do as told."""
        threading.Thread(target=metronome, daemon=True).start()
        while said := self._control.recv(1 << 17):
            command = json.loads(said)
            self._say(reply=getattr(self, f"_do_{command.pop('do')}")(**command))

    def _say(self, **packet: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(json.dumps(packet).encode())

    # --- what it can be told -------------------------------------------------------------

    def _do_play(self, tasks: list[dict[str, Any]], start_s: float) -> int:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for task in tasks:
            thread = threading.Thread(target=self._perform, args=(task, start_s), daemon=True)
            self._threads.append(thread)
            thread.start()
        return len(tasks)

    def _do_clear(self, keys: list[str], streams: list[str]) -> int:
        """Take back what was put and nobody took."""
        ended = sum(self._connector.withdraw(key, to="mortal") for key in keys)
        return ended + sum(self._connector.cleanup(key, to="mortal") for key in streams)

    def _do_remains(self) -> dict[str, Any]:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return remains(self._connector, len(self._threads))

    def _do_starved(self) -> float:
        """Seconds so far in which this process was not let run."""
        return LATE[0]

    def _do_census(self) -> dict[str, int]:
        return census(self._connector)

    def _do_close(self) -> bool:
        self._connector.close()
        for thread in self._threads:
            thread.join(2.0)
        return True

    def _do_fork(self) -> int:
        """A child that does nothing, and holds copies of all that the connector has open."""
        pid = os.fork()
        if pid == 0:
            self._control.close()
            signal.alarm(HOLDER_S)
            while True:
                signal.pause()
        return pid

    # --- tasks ---------------------------------------------------------------------------

    def _perform(self, task: dict[str, Any], start_s: float) -> None:
        time.sleep(max(0.0, start_s + task["at_ms"] / 1e3 - time.monotonic()))
        begun_s, starved_s = time.monotonic(), starved()
        try:
            came = TASKS[task["kind"]](self._connector, task)
        except stagelink.StagelinkError as error:
            came = type(error).__name__
            task["detail"] = f"{error.reason}: {error}"
        except Exception:
            came = "crash"
            task["detail"] = traceback.format_exc()
        self._say(
            task=task["id"], came=came, begun_s=begun_s, ended_s=time.monotonic(),
            starved_s=starved() - starved_s, detail=task.get("detail", "")[:2000],
        )  # fmt: skip


def metronome() -> None:
    """Sleep in short steps for ever, and add up by how much they were too long."""
    while True:
        begun_s = time.monotonic()
        time.sleep(STEP_S)
        late_s = time.monotonic() - begun_s - STEP_S
        LATE[0] += late_s if late_s > STEP_S else 0.0


def starved() -> float:
    """Seconds in which this thread, or the process, was not let run: what a busy machine costs."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as figures:
        return int(figures.read().split()[1]) / 1e9 + LATE[0]


def put(connector: Connector, task: dict[str, Any]) -> str:
    """Publish, perhaps in place of what was there."""
    value = memoryview(content(task["key"], task["size"]))
    connector.put(
        task["key"], value, to=task["to"], readers=task["readers"], replace=task.get("replace")
    )
    return "put"


def get(connector: Connector, task: dict[str, Any]) -> str:
    """Take, look, hold, look again."""
    with connector.get(task["key"], source=task["source"], timeout=task["timeout_s"]) as payload:
        return looked_at(payload.value, task)


def meet(connector: Connector, task: dict[str, Any]) -> str:
    """Get, again and again until the other one has come."""
    until_s = time.monotonic() + MEET_S
    while True:
        try:
            return get(connector, task)
        except (stagelink.PeerError, stagelink.DeadlineError, stagelink.TransportError):
            if time.monotonic() > until_s:
                raise


def withdraw(connector: Connector, task: dict[str, Any]) -> str:
    """Take back."""
    return f"withdrawn {connector.withdraw(task['key'], to=task['to'])}"


def cancel(connector: Connector, task: dict[str, Any]) -> str:
    """End the gets of the key here."""
    return f"cancelled {connector.cancel(task['key'], source=task['source'])}"


def reject(connector: Connector, task: dict[str, Any]) -> str:
    """End them, and tell the sender."""
    return f"rejected {connector.reject(task['key'], source=task['source'])}"


def write(connector: Connector, task: dict[str, Any]) -> str:
    """Put a stream; of an aborted one half."""
    chunks = task["chunks"]
    with connector.stream(task["key"], to=task["to"], readers=task["readers"]) as stream:
        for nth in range(chunks):
            if task.get("abort") and nth >= chunks // 2:
                stream.abort("as planned")
                return "aborted"
            stream.put(memoryview(content(f"{task['key']}/{nth}", task["size"])))
            time.sleep(task["pause_ms"] / 1e3)
    return "written"


def read(connector: Connector, task: dict[str, Any]) -> str:
    """Read a stream to its end, or leave it after a chunk."""
    with connector.stream(task["key"], source=task["source"], timeout=task["timeout_s"]) as stream:
        for nth, payload in enumerate(stream):
            came = looked_at(payload.value, {**task, "key": f"{task['key']}/{nth}"})
            payload.close()
            if came != "right" or task.get("leave"):
                return came
        return "right" if stream.chunks == task["chunks"] else f"wrong: {stream.chunks} chunks"


def looked_at(value: Any, task: dict[str, Any]) -> str:
    """``right`` if it is what was put, and stays so for as long as it is held."""
    expected = content(task["key"], len(value))
    if len(value) not in task["sizes"] or bytes(value) != expected:
        return f"wrong: {len(value)} bytes"
    if task["hold_ms"]:
        time.sleep(task["hold_ms"] / 1e3)
        if bytes(value) != expected:
            return "wrong: changed while it was held"
    return "right"


TASKS: dict[str, Callable[[Connector, dict[str, Any]], str]] = {
    task.__name__: task for task in (put, get, meet, withdraw, cancel, reject, write, read)
}
