"""One stage as a process of its own: ``python -m stagelink.demo.worker DESCRIPTOR``.

Commands come on standard input, the job first; events go to the descriptor named. When standard
input ends the parent has gone or has had enough, and the stage interrupts itself: one way to stop,
whatever became of the parent.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

import stagelink
from stagelink.demo.stages import Job, StoppedError, encode, run_stage

INTERRUPTED = 130


class PipeWire:
    """Reads commands on a thread, which is also the one to notice that the parent has gone."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def tell(self, **event: object) -> None:
        """Send one event; a parent that has gone is no error here."""
        line = encode(event)
        try:
            while line:
                line = line[os.write(self._events, line) :]
        except BrokenPipeError:
            raise StoppedError from None

    def ask(self) -> dict[str, Any]:
        """Wait for the next command."""
        return self._commands.get()

    def _listen(self) -> None:
        pending = b""
        while part := os.read(0, 65536):
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                self._commands.put(json.loads(line))
        self._commands.put({})
        os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Play the stage that the first line on standard input describes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" leaves it ignored
    try:
        wire = PipeWire(int(sys.argv[1]))
        command = wire.ask()
        if not command:
            return INTERRUPTED
        run_stage(Job(**command["job"]), wire, stagelink.open)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
