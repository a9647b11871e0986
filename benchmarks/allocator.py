"""Microseconds to replace a random block among many live ones of mixed sizes."""

from __future__ import annotations

import random
from time import perf_counter

from stagelink.core.allocator import Allocator

SIZES = (100, 4096, 20_000, 65_536, 300_000, 1 << 20)
PAIRS = 50_000


def microseconds_per_pair(live: int, seed: int = 1) -> tuple[float, Allocator]:
    """Churn *live* blocks until the holes have settled, then time the pairs."""
    chance = random.Random(seed)  # noqa: S311 - a benchmark, no secret
    allocator = Allocator(live * (1 << 19))
    offsets = []
    for _ in range(live):
        got = allocator.allocate(chance.choice(SIZES))
        assert got is not None
        offsets.append(got[0])
    churn(allocator, offsets, chance)
    took_s = churn(allocator, offsets, chance)
    return took_s / PAIRS * 1e6, allocator


def churn(allocator: Allocator, offsets: list[int], chance: random.Random) -> float:
    """Replace random blocks ``PAIRS`` times and return the seconds of it."""
    plan = [(chance.randrange(len(offsets)), chance.choice(SIZES)) for _ in range(PAIRS)]
    start_s = perf_counter()
    for victim, size in plan:
        allocator.free(offsets[victim])
        got = allocator.allocate(size)
        assert got is not None
        offsets[victim] = got[0]
    return perf_counter() - start_s


def main() -> None:
    """Print one line per number of live blocks."""
    for live in (100, 1_000, 10_000, 50_000):
        cost_us, allocator = microseconds_per_pair(live)
        print(
            f"{live:6} live: {cost_us:5.2f} us per free+allocate; {allocator.holes} holes, "
            f"{allocator.free_bytes >> 20} MiB free, largest {allocator.largest_free >> 20} MiB"
        )


if __name__ == "__main__":
    main()
