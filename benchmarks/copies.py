"""What several threads gain where a large value is copied into a shared pool.

``python benchmarks/copies.py``: for each size the median of copies by one, two and four threads,
taken in turns, in µs and as GB/s. More threads than processors are not asked.
"""

from __future__ import annotations

import mmap
import os
import time
from ctypes import addressof, c_char, memset
from statistics import median

from stagelink.adapters.msgspec import spread

SIZES_MIB = (4, 8, 16, 32, 64, 256)
REPEATS = 15
PAUSE_S = 0.002
"""Between two copies: a helper that has just worked is quicker to begin again."""


def place(descriptor: int, size: int) -> tuple[mmap.mmap, int]:
    """Memory whose pages are all there, and its address."""
    memory = mmap.mmap(descriptor, size)
    address = addressof(c_char.from_buffer(memory))
    memset(address, 1, size)
    return memory, address


def timed(target: int, source: int, size: int) -> float:
    """Microseconds of one copy."""
    time.sleep(PAUSE_S)
    start_s = time.perf_counter()
    spread.spread(target, source, size)
    return (time.perf_counter() - start_s) * 1e6


def main() -> None:
    """Measure and print."""
    largest = SIZES_MIB[-1] << 20
    descriptor = os.memfd_create("copies")
    os.ftruncate(descriptor, largest)
    kept, target = place(descriptor, largest)
    also_kept, source = place(-1, largest)
    processors = len(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4) if count <= processors]
    print("     size" + "".join(f"{f'{n} threads':>24}" for n in counts))
    for size_mib in SIZES_MIB:
        size = size_mib << 20
        times: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(REPEATS):
            for count in counts:
                spread.MOST = count
                times[count].append(timed(target, source, size))
        cells = [median(times[count]) for count in counts]
        print(
            f"{size_mib:5} MiB"
            + "".join(f"{us:11,.0f} µs {size / us / 1e3:5.1f} GB/s" for us in cells)
        )
    print(f"{processors} CPUs, load {os.getloadavg()[0]:.1f}")
    del kept, also_kept


if __name__ == "__main__":
    main()
