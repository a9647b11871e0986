"""What a digest costs: GB/s of xxh3 beside those of a copy of the same bytes."""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import TYPE_CHECKING

from stagelink.adapters.wrap import Integrity
from stagelink.core.payload import PREFIX, pack_prefix, plan

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
ROUNDS = 7


def gigabytes_per_second(work: Callable[[], object], size: int) -> float:
    """The best of some rounds: the others met other work of the machine."""
    repeat = max(1, (16 << 20) // size)
    best_s = 1e9
    for _ in range(ROUNDS):
        start_s = perf_counter()
        for _ in range(repeat):
            work()
        best_s = min(best_s, (perf_counter() - start_s) / repeat)
    return size / best_s / 1e9


def main() -> None:
    """Print one line a size."""
    integrity = Integrity("xxh3")
    for size in SIZES:
        layout = plan(0, [(size - PREFIX.size - 16, 8)])
        data = bytearray(pack_prefix(layout).ljust(size, b"\x5a") + bytes(8))
        copy = bytearray(len(data))
        view, target = memoryview(data), ctypes.addressof(ctypes.c_char.from_buffer(copy))
        source = ctypes.addressof(ctypes.c_char.from_buffer(data))
        copied = gigabytes_per_second(
            lambda t=target, s=source, n=size: ctypes.memmove(t, s, n), size
        )
        sealed = gigabytes_per_second(lambda v=view: integrity.seal(v), size)
        checked = gigabytes_per_second(lambda v=view: integrity.flaw(v), size)
        print(
            f"{size >> 10:7d} KiB: memcpy {copied:5.1f} GB/s, "
            f"xxh3 seal {sealed:5.1f} GB/s, check {checked:5.1f} GB/s"
        )


if __name__ == "__main__":
    main()
