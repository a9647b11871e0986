"""Lets go of lent memory once the device has done with it."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink.adapters.device.streams import Streams


class Reaper:
    """One thread, started with the first loan: waits for streams in turn, then drops a token.

    The last view of a payload may go while kernels that read it are still queued. Its memory is
    given back by the end of the token, so that must come after them.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        # Its put() is reentrant: finalizers may call it wherever the collector runs.
        self._queue: SimpleQueue[tuple[tuple[Any, ...], list[object]] | None] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._started = self._closed = False

    def start(self) -> None:
        """Be ready for :meth:`give`."""
        if self._thread is not None:
            return
        with self._lock:
            if not self._started and not self._closed:
                self._started = True
                thread = Thread(target=self._run, name="stagelink-device", daemon=True)
                thread.start()
                self._thread = thread

    def give(self, streams: tuple[Any, ...], token: list[object]) -> None:
        """Empty *token* once what is queued on *streams* is done. Finalizers may call it."""
        if not self._closed:
            self._queue.put((streams, token))

    def close(self) -> None:
        """Finish what was given, within a second or so, and take no more. Twice is fine."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(1.0)

    def _run(self) -> None:
        while True:
            given = self._queue.get()
            if given is None:
                return
            streams, token = given
            try:
                for stream in streams:
                    self._streams.wait(stream)
            except RuntimeError:
                pass  # the device has failed: nothing on it reads any more
            token.clear()
            given = token = None  # type: ignore[assignment]  # the frame would keep it
