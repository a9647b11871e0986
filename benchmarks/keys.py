"""What ``security="curve"`` costs: a hand-off to another process, with and without, in turns.

    python benchmarks/keys.py

A hand-off is from the call of ``put`` to the other process's having the payload, by the monotonic
clock that both share. The first way is the default: on one host CURVE also costs the shortcut.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink.adapters.zmq.keyfiles import make_keys

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZES = {4 << 10: 300, 64 << 10: 300, 16 << 20: 30}
"""Hand-offs of each size in one turn."""

TURNS, PAUSE_S, PATIENCE_S = 5, 0.0005, 30.0
WAYS: dict[str, dict[str, Any]] = {
    "shortcut": {},
    "ZeroMQ": {"shortcut": False},
    "ZeroMQ and CURVE": {"security": "curve"},
}
COMMON: dict[str, Any] = {"backend": "shm", "pool_bytes": "128MiB"}

_now_ns = time.monotonic_ns


def settings_of(way: str, folder: str) -> dict[str, Any]:
    """Both ends have the one key of *folder*."""
    chosen = WAYS[way]
    return {**COMMON, **chosen, **({"keys": folder} if "security" in chosen else {})}


def consume(way: str, folder: str, endpoint: str, pipe: Connection) -> None:
    """Say when each payload was there."""
    settings = settings_of(way, folder)
    with stagelink.open(stage="b", role="receiver", sender=endpoint, **settings) as receiver:
        while key := pipe.recv():
            pipe.send(0)  # about to wait
            receiver.get(key, source="a", timeout=PATIENCE_S).close()
            pipe.send(_now_ns())


class Way:
    """A connector, and another in a process of its own that gets from it."""

    def __init__(self, way: str, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._sender = stagelink.open(stage="a", role="sender", **settings_of(way, folder))
        self._pipe, far = context.Pipe()
        arguments = (way, folder, self._sender.endpoint, far)
        self._process = context.Process(target=consume, args=arguments)
        self._process.start()
        self._number = 0

    def hand_off_us(self, value: bytes) -> float:
        """Microseconds until the other process has *value*."""
        self._number += 1
        key = str(self._number)
        self._pipe.send(key)
        self._pipe.recv()
        time.sleep(PAUSE_S)  # it waits by now
        start_ns = _now_ns()
        self._sender.put(key, value, to="b")
        taken_ns: int = self._pipe.recv()
        return (taken_ns - start_ns) / 1e3

    def close(self) -> None:
        """End both processes' parts."""
        self._pipe.send("")
        self._process.join()
        self._sender.close()


def main() -> None:
    """Print a line for each size and way."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder), "bench")
        ways = {name: Way(name, folder) for name in WAYS}
        for size, rounds in SIZES.items():
            value = bytes(size)
            took: dict[str, list[float]] = {name: [] for name in WAYS}
            for turn in range(TURNS + 1):
                for name, way in ways.items():
                    times = [way.hand_off_us(value) for _ in range(rounds)]
                    took[name] += times if turn else []  # the first warms up
            for name, times in took.items():
                print(
                    f"{size >> 10:6d} KiB, {name:16}: p50 {statistics.median(times):7.0f} µs, "
                    f"best {min(times):7.0f} µs"
                )
        for way in ways.values():
            way.close()
    print(f"{os.cpu_count()} CPUs, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
