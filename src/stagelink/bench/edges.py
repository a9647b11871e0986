"""The two ends of a soak: a thread for each edge, and every byte known at both.

Every payload is a part of one block of random bytes that both processes know, so that each byte
can be compared where it arrives.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.bench.figures import percentile
from stagelink.bench.payloads import library
from stagelink.core.errors import CapacityError, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.connector import Connector

EDGES = 32
SMALLEST, LARGEST = 1 << 10, 8 << 20
SHIFTS = 1 << 16
"""Places where a payload may start; bytes from another place are nearly all different."""

WAIT_S = 60.0
SETTLE_S = 10.0
BREATH_S = 0.05


class Part(NamedTuple):
    """Where in the common block the payload *number* of *edge* lies."""

    start: int
    size: int

    @classmethod
    def of(cls, edge: int, number: int) -> Part:
        """The same at both ends; sizes are evenly spread over the powers of two and between."""
        chance = random.Random(edge << 32 | number)  # noqa: S311 - reproducible, no secret
        size = round(SMALLEST * (LARGEST / SMALLEST) ** chance.random())
        return cls(chance.randrange(SHIFTS), size)


@lru_cache(maxsize=1)
def common_block() -> Any:  # noqa: ANN401
    """The random bytes that both processes know."""
    data = bytearray(random.Random(1).randbytes(LARGEST + SHIFTS))  # noqa: S311 - reproducible
    made = library()
    return made.frombuffer(data, dtype=made.uint8)


def expected(edge: int, number: int) -> Any:  # noqa: ANN401
    """The payload *number* of *edge*."""
    part = Part.of(edge, number)
    return common_block()[part.start : part.start + part.size]


def same(left: Any, right: Any) -> bool:  # noqa: ANN401
    """Whether two tensors, or two arrays, hold the same bytes."""
    made = library()
    compare = made.equal if hasattr(made, "from_numpy") else made.array_equal
    return bool(compare(left, right))


def stage_of(edge: int) -> str:
    """The receiving stage."""
    return f"sink{edge}"


def resident() -> dict[str, float]:
    """MiB of this process in memory: all, and what is not shared."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {
        name: int(rows[field].split()[0]) / 1024
        for name, field in (("rss_mib", "VmRSS"), ("anon_mib", "RssAnon"))
        if field in rows
    }


def left_in(connector: Connector) -> dict[str, int]:
    """What a connector still holds; waits a moment for what is on its way back."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        health = connector.health()
        pool, lent = health["pool"], health["credits"]["lent_bytes"]
        left = {
            "pool_bytes": pool["capacity"] - pool["free"] - lent,
            "published": health["ledger"]["entries"],
            "received": health["inbox"]["entries"],
            "views": health["views"],
        }
        if not any(left.values()) or time.monotonic() > until_s:
            return left
        time.sleep(0.01)


def cause_of(error: StagelinkError) -> str:
    """One word."""
    return error.reason.value if error.reason else type(error).__name__


class Sending:
    """The producing threads of one sender, one for each edge."""

    def __init__(self, tx: Connector) -> None:
        self._tx = tx
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = dict.fromkeys(range(EDGES), 0)
        self.bytes_put = 0
        self.waits_s: list[float] = []
        self.errors: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(edge,), name=f"edge{edge}", daemon=True)
            for edge in range(EDGES)
        ]

    def start(self) -> None:
        """Let every edge offer what it can."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let no edge begin another put."""
        self._stop.set()

    def finish(self) -> None:
        """Stop, and put an end mark on every edge."""
        self.stop()
        for thread in self._threads:
            thread.join(WAIT_S)
        for edge, sent in self.sent.items():
            self._tx.put(f"{sent}", None, to=stage_of(edge), timeout=WAIT_S)

    def _run(self, edge: int) -> None:
        number = 0
        while not self._stop.is_set():
            value = expected(edge, number)
            if self._put(edge, number, value):
                number += 1
                with self._lock:
                    self.bytes_put += len(value)
                    self.sent[edge] = number

    def _put(self, edge: int, number: int, value: Any) -> bool:  # noqa: ANN401
        """At once if there is room, else after a wait that is noted; False if it failed."""
        try:
            try:
                self._tx.put(f"{number}", value, to=stage_of(edge), timeout=0.0)
            except CapacityError:
                self._put_later(edge, number, value)
        except StagelinkError as error:
            with self._lock:
                self.errors[cause_of(error)] += 1
            self._stop.wait(BREATH_S)
            return False
        return True

    def _put_later(self, edge: int, number: int, value: Any) -> None:  # noqa: ANN401
        start_s = time.monotonic()
        try:
            self._tx.put(f"{number}", value, to=stage_of(edge))
        finally:
            with self._lock:
                self.waits_s.append(time.monotonic() - start_s)

    def figures(self, seconds: float) -> dict[str, Any]:
        """Back-pressure and fairness, as plain numbers."""
        counts = sorted(self.sent.values())
        return {
            "payloads": sum(counts),
            "gbps": self.bytes_put / seconds / 1e9,
            "back_pressure": {
                "waited": len(self.waits_s),
                "wait_p50_ms": percentile(self.waits_s, 0.5) * 1e3,
                "wait_p99_ms": percentile(self.waits_s, 0.99) * 1e3,
                "capacity_errors": self.errors["no_room"] + self.errors["never_fits"],
            },
            "fairness": {
                "min": counts[0],
                "median": counts[len(counts) // 2],
                "max": counts[-1],
            },
            "errors": dict(self.errors),
        }


class Receiving:
    """The consuming threads, one for each edge."""

    def __init__(self, connectors: Sequence[Connector], source: str) -> None:
        self._connectors = connectors
        self._source = source
        self._lock = threading.Lock()
        self.got = 0
        self.wrong = 0
        self.errors: Counter[str] = Counter()
        common_block()
        self._threads = [
            threading.Thread(target=self._run, args=(edge, connector), daemon=True)
            for edge, connector in enumerate(connectors)
        ]

    def start(self) -> None:
        """Let every edge take what comes."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> dict[str, Any]:
        """Wait for the end marks, and say what came."""
        for thread in self._threads:
            thread.join(WAIT_S)
        left: Counter[str] = Counter()
        for connector in self._connectors:
            left.update(left_in(connector))
        stuck = sum(thread.is_alive() for thread in self._threads)
        return {
            "payloads": self.got,
            "wrong": self.wrong,
            "stuck": stuck,
            "errors": dict(self.errors),
            "left": dict(left),
        }

    def _run(self, edge: int, connector: Connector) -> None:
        number = 0
        try:
            while self._took(edge, number, connector):
                number += 1
        except StagelinkError as error:
            with self._lock:
                self.errors[cause_of(error)] += 1

    def _took(self, edge: int, number: int, connector: Connector) -> bool:
        with connector.get(f"{number}", source=self._source, timeout=WAIT_S) as payload:
            value = payload.value
            if value is None:
                return False
            right = same(value, expected(edge, number))
            del value
        with self._lock:
            self.got += 1
            self.wrong += not right
        return True
