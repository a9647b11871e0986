"""Is memory flat? Many transfers of mixed sizes between two connectors, and what they leave.

Run: ``python benchmarks/steady.py [TRANSFERS]``. Prints the resident memory of the process, with
both connectors in it, as it goes, and at the end what the pools, ledgers and inboxes still hold.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import stagelink

SIZES = (64, 4 << 10, 60 << 10, 200 << 10)
STEPS = 10
PAGE_KIB = 4


def main(transfers: int) -> None:
    """Put and get, and look at the memory ten times on the way."""
    with (
        stagelink.open(stage="a", role="sender", pool_bytes=16 << 20) as tx,
        stagelink.open(stage="b", role="receiver", sender=tx.endpoint, pool_bytes=16 << 20) as rx,
    ):
        bodies = [bytes(size) for size in SIZES]
        start_s = time.perf_counter()
        for number in range(1, transfers + 1):
            key = f"request-{number}"
            tx.put(key, bodies[number % len(bodies)], to="b", timeout=30)
            rx.get(key, source="a", timeout=30).close()
            if number % (transfers // STEPS) == 0:
                rate = number / (time.perf_counter() - start_s)
                print(f"{number:8d} transfers  {resident_kib():8d} KiB  {rate:8.0f} a second")
        tx.drain(10)
        print(left(tx, rx))


def resident_kib() -> int:
    """Resident memory of this process, KiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_KIB


def left(tx: stagelink.Connector, rx: stagelink.Connector) -> dict[str, object]:
    """What is still held on both sides."""
    sent, got = tx.health(), rx.health()
    return {
        "entries": sent["ledger"]["entries"], "inline_bytes": sent["ledger"]["inline_bytes"],
        "used": sent["pool"]["capacity"] - sent["pool"]["free"], "inbox": got["inbox"],
        "errors": {**sent["errors"], **got["errors"]},
    }  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
