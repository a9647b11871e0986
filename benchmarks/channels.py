"""One way through a control channel to another process that waits: ZeroMQ against the shortcut.

    python benchmarks/channels.py [SIZE]

Both channels are used in turns, with half a millisecond between messages, and timed by the
monotonic clock that the processes share.
"""

from __future__ import annotations

import multiprocessing
import select
import statistics
import sys
import time
from typing import TYPE_CHECKING

from stagelink.adapters.local import LocalChannel
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.ports.channel import LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from stagelink.ports import ControlChannel
    from stagelink.ports.channel import Arrival

ROUNDS, REPEATS, PAUSE_S, LONGEST = 400, 5, 0.0005, 128 << 10

_now_ns = time.monotonic_ns


def zeromq(host: str | None = None) -> ControlChannel:
    """TCP by ZeroMQ's threads."""
    return ZmqChannel(host, max_frame_bytes=LONGEST)


def shortcut(host: str | None = None) -> ControlChannel:
    """A Unix socket from thread to thread."""
    return LocalChannel(ZmqChannel(host, max_frame_bytes=LONGEST), longest=LONGEST)


KINDS: dict[str, Callable[[str | None], ControlChannel]] = {
    "ZeroMQ": zeromq,
    "shortcut": shortcut,
}


def wait(channel: ControlChannel, kind: type[Arrival]) -> Arrival:
    """The next arrival of that kind."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        arrival = channel.receive()
        if type(arrival) is kind:
            return arrival
        if arrival is None:
            poll.poll()


def listen(kind: str, pipe: Connection) -> None:
    """Say when each message came."""
    channel = KINDS[kind]("127.0.0.1")
    pipe.send(channel.address)
    for _ in range(ROUNDS * REPEATS):
        wait(channel, Mail)
        pipe.send(_now_ns())
    channel.close()


class Way:
    """One channel to a process of its own."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=listen, args=(kind, far))
        self._process.start()
        self._channel = KINDS[kind](None)
        self._address = self._pipe.recv()
        self._channel.dial(self._address)
        wait(self._channel, LinkUp)

    def one_way_us(self, message: bytes) -> float:
        """Microseconds from send to the other process's having it."""
        time.sleep(PAUSE_S)
        start_ns = _now_ns()
        assert self._channel.send(self._address, [message])
        return (self._pipe.recv() - start_ns) / 1e3

    def close(self) -> None:
        """End both processes' parts."""
        self._channel.close()
        self._process.join()


def main() -> None:
    """Print what both take."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    ways = {kind: Way(kind) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(REPEATS):
        for kind, way in ways.items():
            times[kind] += [way.one_way_us(bytes(size)) for _ in range(ROUNDS)]
    for kind, way in ways.items():
        way.close()
        cuts = statistics.quantiles(times[kind], n=100)
        print(f"{kind:10} {size} bytes: p50 {cuts[49]:6.1f} µs, p99 {cuts[98]:6.1f} µs one way")


if __name__ == "__main__":
    main()
