"""What no hand-off can be below: one message of plain ZeroMQ, and one plain copy."""

from __future__ import annotations

import ctypes
import random
import time
from typing import TYPE_CHECKING

import zmq

from stagelink.bench.consumer import FLOOR_NAME, WAIT_MS
from stagelink.core.allocator import Allocator
from stagelink.core.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RTT_BYTES = 64
COPY_BYTES = 16 << 20
ENOUGH_TO_TIME = 256 << 10
"""Bytes of copies timed together."""

BLOCK_SIZES = (100, 4096, 20_000, 65_536, 300_000, 1 << 20)

_now_ns = time.monotonic_ns


class PlainZmq:
    """A ROUTER on loopback TCP, the kind of socket that a connector listens with."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*")
        self.address = self._router.get_string(zmq.LAST_ENDPOINT)

    def wait(self) -> None:
        """Wait for the consumer's first message."""
        self._receive()

    def sends(self, size: int, count: int) -> Iterator[Callable[[], object]]:
        """*count* times the call that sends *size* bytes."""
        message = [FLOOR_NAME, bytes([7]) * size]
        for _ in range(count):
            yield lambda: self._router.send_multipart(message)

    def round_trip_us(self) -> float:
        """Microseconds for a small message to come back."""
        start_ns = _now_ns()
        self._router.send_multipart([FLOOR_NAME, bytes(RTT_BYTES)])
        self._receive()
        return (_now_ns() - start_ns) / 1e3

    def close(self) -> None:
        """Close the sockets; twice is fine."""
        self._context.destroy(linger=0)

    def _receive(self) -> None:
        if not self._router.poll(WAIT_MS):
            msg = f"no message from the consumer for {WAIT_MS // 1000} s"
            raise PeerError(msg)
        self._router.recv_multipart()


class Copier:
    """Copies *size* bytes from a source to a destination that are both warm."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._source = ctypes.create_string_buffer(b"\7" * size, size)
        self._target = ctypes.create_string_buffer(size)
        self._times = max(1, ENOUGH_TO_TIME // size)
        self.copy_us()

    def copy_us(self) -> float:
        """Microseconds of one copy; small ones are made several times, to be seen at all."""
        target, source = ctypes.addressof(self._target), ctypes.addressof(self._source)
        memmove, size = ctypes.memmove, self._size
        start_ns = _now_ns()
        for _ in range(self._times):
            memmove(target, source, size)
        return (_now_ns() - start_ns) / 1e3 / self._times


def allocator_us(live: int, pairs: int) -> float:
    """Microseconds to replace a random block among *live* ones of mixed sizes."""
    chance = random.Random(1)  # noqa: S311 - a benchmark, no secret
    allocator = Allocator(live * (1 << 19))
    offsets = [_allocate(allocator, chance.choice(BLOCK_SIZES)) for _ in range(live)]
    _churn(allocator, offsets, chance, 2 * live)  # until the holes have settled
    return _churn(allocator, offsets, chance, pairs) / pairs


def _churn(allocator: Allocator, offsets: list[int], chance: random.Random, pairs: int) -> float:
    plan = [(chance.randrange(len(offsets)), chance.choice(BLOCK_SIZES)) for _ in range(pairs)]
    start_ns = _now_ns()
    for victim, size in plan:
        allocator.free(offsets[victim])
        offsets[victim] = _allocate(allocator, size)
    return (_now_ns() - start_ns) / 1e3


def _allocate(allocator: Allocator, size: int) -> int:
    got = allocator.allocate(size)
    assert got is not None, "the allocator holds twice what is live"
    return got[0]
