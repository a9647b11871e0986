"""Stages in processes of their own, which do what a test tells them.

A test's process imports nothing of vLLM. ``forked`` stages come from a server that has imported it
once and has done no more: plugins are found, connectors made, and ports bound after the fork.
``spawned`` ones begin with nothing, as vLLM's own do, and take ten seconds for it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

OURS, SHIPPED, SHM = "StagelinkConnector", "MoriTransferEngineConnector", "SharedMemoryConnector"
PATIENCE_S = 90.0


def prepare() -> None:
    """Have the server of forked stages import vLLM before the first of them is asked for."""
    multiprocessing.set_forkserver_preload(["tests.vllm_omni.host"])


class StageFailedError(AssertionError):
    """What a stage did raised; the message is its traceback."""


class Stage:
    """A process that does one thing after the other, as told.

    Args:
        start: ``forkserver`` or ``spawn``.
        environ: what else is in its environment.
        plugins: whether it loads them at once.
    """

    def __init__(
        self,
        start: str = "forkserver",
        environ: dict[str, str] | None = None,
        *,
        plugins: bool = True,
    ) -> None:
        context = multiprocessing.get_context(start)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, environ or {}, plugins), daemon=True
        )
        self.process.start()
        theirs.close()

    def do(self, act: Callable[..., Any], *arguments: Any, patience_s: float = PATIENCE_S) -> Any:
        """Have it done there, and wait for what comes of it."""
        self.tell(act, *arguments)
        return self.answer(patience_s)

    def tell(self, act: Callable[..., Any], *arguments: Any) -> None:
        """Have it begun there."""
        self._pipe.send((act, arguments))

    def answer(self, patience_s: float = PATIENCE_S) -> Any:
        """What came of it.

        Raises:
            StageFailedError: an exception, or nothing in time.
        """
        if not self._pipe.poll(patience_s):
            self.kill()
            raise StageFailedError(f"no answer within {patience_s} s")
        try:
            raised, found = self._pipe.recv()
        except EOFError:
            self.process.join(5)
            raise StageFailedError(f"the stage ended: {self.process.exitcode}") from None
        if raised:
            raise StageFailedError(found)
        return found

    def kill(self) -> None:
        """End it, as the kernel would."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)

    def end(self) -> None:
        """Let it end; kill it if it does not."""
        try:
            self._pipe.send(None)
        except OSError:
            pass  # it has ended already
        self.process.join(10)
        self.kill()
        self._pipe.close()


def _serve(pipe: Connection, environ: dict[str, str], plugins: bool) -> None:
    os.environ.update(environ)
    _begin(plugins)
    while True:
        try:
            told = pipe.recv()
        except EOFError:
            told = None
        if told is None:
            _leave()
            return
        act, arguments = told
        try:
            answer = (False, act(*arguments))
        except BaseException:  # the test says it
            answer = (True, traceback.format_exc())
        pipe.send(answer)


def _begin(plugins: bool) -> None:
    from tests.vllm_omni import host

    host.quiet()
    if plugins:
        host.load_plugins()


def _leave() -> None:
    """Close what the acts have left open, in the order they made it."""
    from tests.vllm_omni import acts

    for one in acts.MADE.values():
        close = getattr(one, "shutdown", None) or getattr(one, "close", None)
        if close is not None:
            close()
