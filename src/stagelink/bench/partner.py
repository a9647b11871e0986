"""Start the consumer, talk with it, and see that it ends."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink.bench.consumer import ACK, LONGEST, Consumer
from stagelink.core.errors import PeerError, Reason, StagelinkError

if TYPE_CHECKING:
    from types import TracebackType

SILENCE_S = 90
STOP_S = 10.0
TAIL = 2000


class Partner:
    """The consumer, seen from the producer: a process of its own, or a thread.

    Raises:
        PeerError: from any method: it has died or keeps silent; holds its last words.
        StagelinkError: from any method: it told an error.
    """

    def __init__(self, *, alone: bool) -> None:
        self._talk, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # In the kernel: a timeout of Python's would cost a system call for every packet.
        self._talk.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENCE_S, 0)
        )
        self._runner: _Process | _Thread = _Process(theirs) if alone else _Thread(theirs)

    def tell(self, do: str, **fields: object) -> None:
        """Give a command."""
        try:
            self._talk.send(json.dumps({"do": do, **fields}).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._died()

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.tell(do, **fields)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What the command given last has led to."""
        return self._checked(self._hear())

    def acknowledged_ns(self) -> int:
        """The next acknowledgement: when the payload had been touched."""
        packet = self._hear()
        if len(packet) != ACK.size:
            self._checked(packet)
        moment: int = ACK.unpack(packet)[0]
        return moment

    def close(self) -> None:
        """End it: gently, then not."""
        self._talk.close()
        self._runner.end()

    def __enter__(self) -> Partner:  # noqa: PYI034 - typing has no Self in 3.10
        """Talk with it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()

    def _hear(self) -> bytes:
        try:
            packet = self._talk.recv(LONGEST)
        except BlockingIOError:
            msg = f"no word from the consumer for {SILENCE_S} s"
            remedy = "is the machine overloaded?"
            raise PeerError(msg, reason=Reason.UNREACHABLE, remedy=remedy) from None
        except ConnectionResetError:
            packet = b""
        if not packet:
            self._died()
        return packet

    def _died(self) -> None:
        msg = f"the consumer has died{self._runner.last_words()}"
        raise PeerError(msg, reason=Reason.PEER_GONE)

    def _checked(self, packet: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(packet)
        if "error" in answer:
            msg = f"the consumer: {answer['error']}"
            raise StagelinkError(msg) from StagelinkError(answer["kind"])
        return answer


class _Process:
    """A fresh process (no fork: nothing inherited but its end of the talk)."""

    def __init__(self, theirs: socket.socket) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by end
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "stagelink.bench.consumer", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the parent alone
                env=_environment(),
            )

    def end(self) -> None:
        """Wait for it, which has been hung up on; kill it when the time is over."""
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._errors.close()

    def last_words(self) -> str:
        """Its exit status and the tail of its standard error."""
        try:
            status = f" with status {self._process.wait(1.0)}"
        except subprocess.TimeoutExpired:
            status = ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - TAIL))
        return status + _quoted(self._errors.read().decode(errors="replace"))


class _Thread:
    """A thread of this process, for backends that do not leave it."""

    def __init__(self, theirs: socket.socket) -> None:
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="consumer")
        self._thread.start()

    def end(self) -> None:
        """Wait for it; a thread cannot be killed, so one that stays ends with its last wait."""
        self._thread.join(STOP_S)

    def last_words(self) -> str:
        """The traceback that ended it."""
        return _quoted(self._trouble)

    def _run(self, theirs: socket.socket) -> None:
        with theirs:
            try:
                Consumer(theirs).serve()
            except Exception:  # noqa: BLE001  whatever it was, the producer reports it
                self._trouble = traceback.format_exc()


def _environment() -> dict[str, str]:
    """Ours, able to import this very package, and nothing from the current directory."""
    root = str(Path(stagelink.__path__[0]).parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _quoted(text: str) -> str:
    lines = text.strip().splitlines()[-12:]
    return "".join(f"\n    {line}" for line in lines)
