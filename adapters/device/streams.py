"""Order on a device: which stream a caller uses, and when what is queued there is done."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

SPIN_S = 300e-6
"""Seconds to ask an event before sleeping for it: to be woken up takes about as long."""


class Streams(Protocol):
    """The streams of one device. Any thread may call it; a stream is any hashable value."""

    def current(self) -> Any:  # noqa: ANN401 - a stream
        """The calling thread's current stream. Takes no lock: finalizers ask."""
        ...

    def wait(self, stream: Any) -> None:  # noqa: ANN401 - a stream
        """Return once what is queued on *stream* now is done; other streams go on."""
        ...

    def moment(self, sources: Sequence[Any]) -> tuple[Any, ...]:
        """The calling thread's current streams on the devices of *sources*."""
        ...

    def within(self, moment: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """Those streams are current again, on whatever thread."""
        ...

    def aside(self) -> int:
        """The runtime's handle of a stream that nobody else queues anything on."""
        ...

    def handle(self, stream: Any) -> int:  # noqa: ANN401 - a stream
        """The runtime's handle of *stream*."""
        ...

    def after(self, sources: Sequence[Any]) -> AbstractContextManager[Any]:
        """Within it, what is queued on our device comes after what each *source* tensor awaits.

        Our device's current stream is not made to wait for another device, and without sources
        nothing is waited for.
        """
        ...


class TorchStreams:
    """The streams of ``torch.cuda``, be it CUDA or HIP."""

    def __init__(self, index: int) -> None:
        import torch.cuda  # noqa: PLC0415 - heavy

        self._cuda: Any = torch.cuda
        self._index = index
        self._aside: Any = None

    def current(self) -> Any:  # noqa: ANN401 - a torch stream
        """The calling thread's current stream on our device."""
        return self._cuda.current_stream(self._index)

    def wait(self, stream: Any) -> None:  # noqa: ANN401 - a torch stream
        """By an event; asks it for a moment, then sleeps until the device interrupts."""
        if stream.query():
            return
        event: Any = self._cuda.Event(blocking=True)
        event.record(stream)
        until_s = time.perf_counter() + SPIN_S
        while not event.query():
            if time.perf_counter() > until_s:
                event.synchronize()
                return

    def moment(self, sources: Sequence[Any]) -> tuple[Any, ...]:
        """One stream a device."""
        homes = {source.get_device() for source in sources}
        return tuple(self._cuda.current_stream(index) for index in homes)

    def within(self, moment: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """A thread of ours has streams of its own, which know nothing of the caller's."""
        stack = ExitStack()
        for stream in moment:
            stack.enter_context(self._cuda.stream(stream))
        return stack

    def aside(self) -> int:
        """Of torch's pool, whose streams wait for no other."""
        return self.handle(self._private())

    def handle(self, stream: Any) -> int:  # noqa: ANN401 - a torch stream
        """As torch knows it; 0 is the default one."""
        return int(stream.cuda_stream)

    def after(self, sources: Sequence[Any]) -> AbstractContextManager[Any]:
        """The caller's stream if all *sources* are ours, else one of our own.

        torch orders a copy between two devices with the current streams of both. For what comes
        from another device we so make a private stream current on ours, that nobody else's work
        waits for that device.
        """
        homes = {source.get_device() for source in sources}
        if homes == {self._index}:
            ours: AbstractContextManager[Any] = self._cuda.device(self._index)
            return ours
        private = self._private()
        if self._index in homes:
            private.wait_stream(self.current())
        aside: AbstractContextManager[Any] = self._cuda.stream(private)
        return aside

    def _private(self) -> Any:  # noqa: ANN401 - a torch stream
        if self._aside is None:
            self._aside = self._cuda.Stream(self._index)
        return self._aside


class NoStreams:
    """A device on which everything is done when it returns: the host's own memory."""

    def current(self) -> Any:  # noqa: ANN401 - nothing
        """There is one order, that of the calls."""
        return None

    def wait(self, stream: Any) -> None:  # noqa: ANN401 - nothing
        """It is done."""

    def moment(self, sources: Sequence[Any]) -> tuple[Any, ...]:
        """There is one order."""
        del sources
        return ()

    def within(self, moment: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """There is one order."""
        del moment
        return nullcontext()

    def aside(self) -> int:
        """None is needed."""
        return 0

    def handle(self, stream: Any) -> int:  # noqa: ANN401 - nothing
        """None is needed."""
        del stream
        return 0

    def after(self, sources: Sequence[Any]) -> AbstractContextManager[Any]:
        """They are ready."""
        del sources
        return nullcontext()
