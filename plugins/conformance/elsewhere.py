"""Another process, to be frozen and killed: what it does is asked for from here."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

START_S = 60.0
"""How long a process may take to start on a busy machine, and to answer."""


class Elsewhere:
    """An object in a process of its own; *make* makes it there.

    Args:
        make: a class or function that another process can import.
        arguments: what it is called with.
    """

    def __init__(self, make: Callable[..., Any], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, make, arguments), daemon=True)
        self._process.start()
        far.close()
        self._frozen = False
        self.answer()

    def tell(self, method: str, *arguments: object) -> None:
        """Call a method there; its answer is read later, if ever."""
        self._pipe.send((method, arguments))

    def answer(self) -> Any:  # noqa: ANN401 - whatever it returns
        """What the oldest call that is not answered returned.

        Raises:
            AssertionError: it failed there, or there is no answer.
        """
        assert self._pipe.poll(START_S), "the other process does not answer"
        returned, failure = self._pipe.recv()
        assert not failure, f"in the other process: {failure}"
        return returned

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method there and wait for what it returns."""
        self.tell(method, *arguments)
        return self.answer()

    def freeze(self) -> None:
        """Stop the process (SIGSTOP); returns when the kernel has stopped it."""
        self._frozen = True
        os.kill(self._pid(), signal.SIGSTOP)
        os.waitid(os.P_PID, self._pid(), os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on (SIGCONT), if it was stopped."""
        if self._frozen:
            self._frozen = False
            os.kill(self._pid(), signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel is through with it."""
        self._process.kill()
        self._process.join()

    def peek(self, address: int, size: int) -> bytes:
        """Bytes of its memory, read from outside: it need not run for that.

        Raises:
            OSError: this host lets nobody look into another process.
        """
        with open(f"/proc/{self._pid()}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            parts = []
            while size > 0 and (part := memory.read(size)):
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def end(self) -> None:
        """Whatever has become of it, it is gone afterwards. Twice is fine."""
        if not self._pipe.closed:
            self.kill()
            self._process.close()
            self._pipe.close()

    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    """In the other process: answer until nobody asks any more."""
    made = make(*arguments)
    pipe.send((None, ""))
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((getattr(made, method)(*given), ""))
        except AssertionError as error:
            pipe.send((None, str(error) or "an assertion failed"))
