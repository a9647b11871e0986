"""Microseconds to stage and write, and to load, small payloads; the best of several rounds."""

from __future__ import annotations

import ctypes
from timeit import Timer
from typing import Any

import numpy as np
import torch

from stagelink.adapters.msgspec.serializer import PayloadSerializer

CALLS = 200
ROUNDS = 200
NUMBERS = torch.arange(1024, dtype=torch.float32)  # 4 KiB
VALUES: dict[str, Any] = {
    "dict of tensor, int, str": {"x": NUMBERS, "i": 3, "s": "abc"},
    "tensor of 4 KiB": NUMBERS,
    "array of 4 KiB": np.arange(1024, dtype=np.float32),
    "bytes of 4 KiB": bytes(4096),
    "list of 8 tensors": [NUMBERS] * 8,
}


def best_us(timer: Timer) -> float:
    """Microseconds of one call in the quickest round."""
    return min(timer.repeat(ROUNDS, CALLS)) / CALLS * 1e6


def measure(value: Any) -> tuple[float, float]:  # noqa: ANN401
    """Microseconds to stage and write *value*, and to load it."""
    serializer = PayloadSerializer()
    staged = serializer.stage(value)
    memory = (ctypes.c_ubyte * staged.size)()
    target = memoryview(memory).cast("B")

    def write() -> None:
        serializer.stage(value).write(target)

    def load() -> None:
        serializer.load(memory, staged.size)

    write()
    return best_us(Timer(write)), best_us(Timer(load))


def main() -> None:
    """Print one line per kind of value."""
    for name, value in VALUES.items():
        write_us, load_us = measure(value)
        both_us = write_us + load_us
        print(f"{name:25} write {write_us:6.2f} us, load {load_us:6.2f} us, both {both_us:6.2f}")


if __name__ == "__main__":
    main()
