"""Start the three stages, introduce them to one another, and see that nothing outlives us.

Stages are processes, or threads for the ``memory`` backend; the conversation (see ``stages``) is
the same. A process stops when its standard input ends, so that it also stops when we are killed.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import stagelink
from stagelink.core.errors import PeerError, Reason, StagelinkError
from stagelink.demo.stages import Job, StoppedError, encode, run_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SILENCE_S = 120.0
"""Without a word from any stage for this long, the demo gives up."""

LAST_WORDS_S = 0.5
"""After the first error, time for the others to tell theirs: the first is not always the cause."""

STOP_S = 5.0
TAIL = 2000
ECHOES = ("PeerError", "GoneError", "DeadlineError", "ClosedError")
"""Errors that say "my neighbour has trouble"."""


class Stage(Protocol):
    """One running stage, seen from the parent."""

    name: str
    events: int

    def send(self, **command: object) -> None:
        """Give a command; a stage that has died is found out by its silence."""
        ...

    def hang_up(self) -> None:
        """Make it stop, now, without waiting."""
        ...

    def bury(self, until_s: float) -> None:
        """Wait until it has ended, at the latest at *until_s*, and release what it took."""
        ...

    def last_words(self) -> str:
        """How it ended, and the end of what it wrote to standard error."""
        ...


class ProcessStage:
    """A stage as a fresh process (no fork: nothing inherited but three descriptors)."""

    def __init__(self, job: Job) -> None:
        self.name = job.stage
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by bury
        self.events, theirs = os.pipe()
        try:
            self._process = self._start(theirs)
        except BaseException:
            os.close(self.events)
            self._errors.close()
            raise
        finally:
            os.close(theirs)
        self.send(job=job._asdict())

    def _start(self, theirs: int) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C reaches the parent alone, who then stops them in order.
        return subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "stagelink.demo.worker", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=(theirs,),
            start_new_session=True,
            env=_environment(),
        )

    def send(self, **command: object) -> None:
        """Write one command to its standard input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(command))
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has died: the end of its events says so

    def hang_up(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def bury(self, until_s: float) -> None:
        """Wait; kill it (even a stopped one) when the time is over."""
        try:
            self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.events)
        self._errors.close()

    def last_words(self) -> str:
        """Its exit status, or signal, and the tail of its standard error."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "is still running but has closed its end"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - TAIL))
        return f"died of {_cause(status)}" + _quoted(self._errors.read().decode(errors="replace"))


class ThreadStage:
    """A stage as a thread of this process."""

    def __init__(self, job: Job) -> None:
        self.name = job.stage
        self.events, self._theirs = os.pipe()
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._connector: Any = None
        self._trouble = ""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, args=(job,), name=job.stage, daemon=True)
        self._thread.start()

    def tell(self, **event: object) -> None:
        """Send one event (the stage's side)."""
        os.write(self._theirs, encode(event))

    def ask(self) -> dict[str, Any]:
        """Wait for the next command (the stage's side)."""
        return self._commands.get()

    def send(self, **command: object) -> None:
        """Queue one command."""
        self._commands.put(command)

    def hang_up(self) -> None:
        """End its waits: for a command, and for a payload by closing its connector."""
        self._stopping = True
        self._commands.put({})
        if self._connector is not None:
            self._connector.close()

    def bury(self, until_s: float) -> None:
        """Wait; a thread cannot be killed, so one that stays is left to the process's end."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if not self._thread.is_alive():
            os.close(self.events)

    def last_words(self) -> str:
        """The traceback that ended it."""
        return "died" + _quoted(self._trouble)

    def _run(self, job: Job) -> None:
        try:
            run_stage(job, self, stagelink.open, self._hold)
        except Exception:  # noqa: BLE001  whatever it was, the parent reports it
            self._trouble = traceback.format_exc()
        finally:
            self._connector = None
            os.close(self._theirs)

    def _hold(self, connector: Any) -> None:  # noqa: ANN401
        self._connector = connector
        if self._stopping:
            raise StoppedError


class Told(NamedTuple):
    """Everything that the stages told, by stage; *seconds* is how long they streamed."""

    streamed: dict[str, dict[str, Any]]
    closed: dict[str, dict[str, Any]]
    seconds: float


class Board:
    """Hears all stages at once and turns trouble of any of them into one exception."""

    def __init__(self, stages: Sequence[Stage], on_progress: Callable[[], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._pending = {stage.name: b"" for stage in stages}
        self._heard: dict[tuple[str, str], dict[str, Any]] = {}
        self._troubles: list[tuple[str, str, str]] = []
        self._on_progress = on_progress
        for stage in stages:
            self._selector.register(stage.events, selectors.EVENT_READ, stage)

    def close(self) -> None:
        """Stop hearing."""
        self._selector.close()

    def wait(self, stages: Sequence[Stage], event: str) -> dict[str, dict[str, Any]]:
        """Return what each of *stages* tells with *event*.

        Raises:
            StagelinkError: a stage told an error.
            PeerError: a stage died, or all kept silent for too long.
        """
        wanted = {(stage.name, event) for stage in stages}
        while not wanted <= self._heard.keys():
            if not self._hear(SILENCE_S):
                waiting = ", ".join(sorted(name for name, _ in wanted - self._heard.keys()))
                msg = f"no word from {waiting} for {SILENCE_S:.0f} s, waiting for {event!r}"
                raise PeerError(
                    msg, reason=Reason.UNREACHABLE, remedy="is the machine overloaded?"
                )
            if self._troubles:
                self._raise_root_cause()
        return {name: self._heard[name, event] for name, _ in wanted}

    def _hear(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            stage: Stage = key.data
            part = os.read(key.fd, 1 << 20)
            if not part:
                self._ended(stage)
            *lines, self._pending[stage.name] = (self._pending[stage.name] + part).split(b"\n")
            for line in lines:
                self._note(stage, json.loads(line))
        return bool(ready)

    def _ended(self, stage: Stage) -> None:
        self._selector.unregister(stage.events)
        told = {event for name, event in self._heard if name == stage.name}
        if not told & {"closed", "error"}:
            self._troubles.append((stage.name, "", stage.last_words()))

    def _note(self, stage: Stage, event: dict[str, Any]) -> None:
        self._heard[stage.name, event["event"]] = event
        if event["event"] == "progress":
            self._on_progress()
        elif event["event"] == "error":
            self._troubles.append((stage.name, event["kind"], event["message"]))

    def _raise_root_cause(self) -> None:
        until_s = time.monotonic() + LAST_WORDS_S
        while self._selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
            self._hear(left_s)
        died = [trouble for trouble in self._troubles if not trouble[1]]
        causes = [trouble for trouble in self._troubles if trouble[1] not in ECHOES]
        name, kind, message = (died or causes or self._troubles)[0]
        if died:
            msg = f"stage {name} {message}"
            raise PeerError(msg, reason=Reason.PEER_GONE)
        msg = f"stage {name}: {message}"
        raise StagelinkError(msg) from (None if not kind else StagelinkError(kind))


def converse(
    jobs: Sequence[Job], on_progress: Callable[[], None], meanwhile: Callable[[], None]
) -> Told:
    """Run the stages from start to end, *meanwhile* while they load.

    Raises:
        StagelinkError: of the stage that is the cause; every stage has ended by then.
    """
    with _running(jobs) as stages, _hearing(stages, on_progress) as board:
        meanwhile()
        board.wait(stages, "ready")
        sender = None
        for stage in stages:
            stage.send(do="open", sender=sender)
            sender = board.wait([stage], "open")[stage.name]["endpoint"]
        started_s = time.monotonic()
        for stage in stages:
            stage.send(do="go")
        streamed = board.wait(stages, "streamed")
        seconds = time.monotonic() - started_s
        for stage in stages:
            stage.send(do="close")
        return Told(streamed, board.wait(stages, "closed"), seconds)


@contextmanager
def _running(jobs: Sequence[Job]) -> Iterator[list[Stage]]:
    stages: list[Stage] = []
    try:
        for job in jobs:
            stages.append(ProcessStage(job) if job.alone else ThreadStage(job))  # noqa: PERF401
        yield stages
    finally:
        until_s = time.monotonic() + STOP_S
        for stage in stages:
            stage.hang_up()
        for stage in stages:
            stage.bury(until_s)


@contextmanager
def _hearing(stages: Sequence[Stage], on_progress: Callable[[], None]) -> Iterator[Board]:
    board = Board(stages, on_progress)
    try:
        yield board
    finally:
        board.close()


def _environment() -> dict[str, str]:
    """Ours, able to import this very package, and nothing from the current directory."""
    root = str(Path(stagelink.__path__[0]).parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _quoted(text: str) -> str:
    lines = text.strip().splitlines()[-12:]
    return "".join(f"\n    {line}" for line in lines)
