"""Where the time of one hand-off goes: each step by itself, the best median of some rounds.

    python benchmarks/steps.py [SIZE] [--cold]

In one process, so nobody is woken; what the steps do not add up to is waking, and the kernel.
With --cold each call comes after half a millisecond's sleep and a walk through 4 MiB of other
memory, as in a hand-off. Told is the least median of some rounds, both ways.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import numpy as np

import stagelink
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.staged import Whole
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.bench.options import parse_sizes
from stagelink.bench.payloads import payload
from stagelink.core.messages import INLINE, OFFER, Announce, Packet
from stagelink.core.values import RegionRef

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 5, 60
COLD = "--cold" in sys.argv
PAUSE_S = 0.0005
OTHER = np.ones(4 << 20, dtype="uint8")


def best_us(work: Callable[[], object], after: Callable[[], object] | None = None) -> float:
    """Microseconds of *work*; what is done *after* each call is not counted."""
    return min(median(_timed_us(work, after) for _ in range(CALLS)) for _ in range(ROUNDS))


def _timed_us(work: Callable[[], object], after: Callable[[], object] | None) -> float:
    if COLD:
        sleep(PAUSE_S)
        OTHER[::64].copy()
    start_s = perf_counter()
    work()
    took_us = (perf_counter() - start_s) * 1e6
    if after is not None:
        after()
    return took_us


def parts(size: int, eager: bool) -> dict[str, float]:
    """Serializing and packing, without a connector."""
    serializer, codec, value = PayloadSerializer(), WireCodec(), payload(size)
    serializer.stage(value)  # the first one imports what it takes
    staged = serializer.stage(value)
    buffer = memoryview(bytearray(staged.size))
    staged.write(buffer)
    how, body = (INLINE, bytes(buffer)) if eager else (OFFER, b"")
    where = None if eager else RegionRef(1, 0, staged.size)
    packet = Packet(1, 1, None, Announce(1, "key", 1, staged.size, how, where, body))
    frames = codec.encode(packet)
    return {
        "put: measure the value": best_us(lambda: serializer.stage(value)),
        "put: copy it": best_us(
            staged.packed if eager and isinstance(staged, Whole) else partial(staged.write, buffer)
        ),
        "put: pack the announcement": best_us(lambda: codec.encode(packet)),
        "get: unpack the announcement": best_us(lambda: codec.decode(frames)),
        "get: payload.value": best_us(lambda: serializer.load(buffer.obj, staged.size)),
    }


def calls(size: int) -> dict[str, float]:
    """A whole call of a connector that wakes nobody."""
    value = payload(size)
    with stagelink.open(stage="a", role="sender") as tx:
        return {
            "put in all, with nobody to be told": best_us(
                lambda: tx.put("k", value, to="b"), lambda: tx.withdraw("k", to="b")
            )
        }


def main(size: int) -> None:
    """Print one line a step."""
    eager = size <= 64 << 10
    for what, took_us in {**parts(size, eager), **calls(size)}.items():
        print(f"{took_us:10.1f} µs  {what}")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--cold"]
    main(parse_sizes(words[0])[0] if words else 4096)
