"""Base ports that this worker's tests have to themselves."""

from __future__ import annotations

import os
import random
import socket

# of 4 stages, 4 ranks, 2 replicas, and of KV caches
OFFSETS = [
    kind + 1024 * replica + 16 * rank + stage
    for kind in (0, 100)
    for replica in (0, 1)
    for rank in range(4)
    for stage in range(4)
]


def free_base() -> int:
    """A base port whose neighbours are free.

    Raises:
        RuntimeError: a hundred are not.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    for _ in range(100):
        base = 12000 + 2500 * worker + random.randrange(1200)
        if all(_free(base + offset) for offset in OFFSETS):
            return base
    raise RuntimeError("no base port with free neighbours")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
