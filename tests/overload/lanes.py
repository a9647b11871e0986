"""32 edges through the one pool of a middle stage, at more load than it can hold.

Sixteen lanes, each a source, the middle and a sink, all in one process. The middle holds what it
got while it puts what it made of it: the way in which a pool can wait for itself for ever.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink.bench.edges import left_in, resident
from stagelink.core.errors import CapacityError, Reason, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.connector import Connector

LANES = 16
POOL = 2 << 20
LARGE = 500 << 10  # what the floor of a side holds, just so
SMALL = 70 << 10
DEADLINE_S = 0.4
"""Of a put; refused, it is tried again."""

GROWTH_MIB = 16.0
"""Of private memory, after the first quarter of the time."""

STUCK_S = 30.0
"""A get that waits so long, with a producer at work, waits for ever."""


def body(lane: int, number: int) -> bytes:
    """What a lane sends: those of odd lanes are large."""
    return bytes([lane * 8 + number % 8]) * (LARGE if lane % 2 else SMALL)


class Tally:
    """What happened; one lock for all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.delivered = Counter(dict.fromkeys(range(LANES), 0))
        self.refusals = 0
        self.late_s = 0.0
        self.faults: Counter[str] = Counter()

    def arrived(self, lane: int, *, right: bool) -> None:
        """One payload of *lane* has come to its sink."""
        with self._lock:
            self.delivered[lane] += 1
            self.faults["wrong bytes"] += not right

    def refused(self, error: CapacityError, took_s: float) -> None:
        """A put found no room in its time; it must have said so in numbers, and in time."""
        with self._lock:
            self.refusals += 1
            self.late_s = max(self.late_s, took_s - DEADLINE_S)
            if why := wrong_refusal(error, took_s):
                self.faults[why] += 1

    def failed(self, where: str, error: StagelinkError) -> None:
        """Any other error is one too many."""
        with self._lock:
            self.faults[f"{where}: {type(error).__name__} {error.cause}"] += 1


def wrong_refusal(error: CapacityError, took_s: float) -> str:
    """What is wrong with a refusal; empty when it says all that it must."""
    told = error.numbers
    wanted = {"requested", "free", "largest_free", "capacity", "leases", "oldest_lease_s"}
    if error.reason is not Reason.NO_ROOM or not wanted <= set(told):
        return f"refusal without numbers: {sorted(wanted - set(told))}"
    if not 0 <= told["largest_free"] <= told["free"] < told["capacity"] == POOL:
        return "refusal whose numbers do not fit together"
    if not (told["leases"] and all(f"{told[name]:.0f}" in str(error) for name in ("free",))):
        return "refusal that does not name its holders"
    return "" if took_s >= DEADLINE_S * 0.95 else "refusal before its deadline"


class Lanes:
    """The connectors, and three threads for each lane."""

    def __init__(self, backend: str, undo: ExitStack) -> None:
        self.tally = Tally()
        self._stop = threading.Event()
        usual: dict[str, Any] = {"backend": backend, "pool_bytes": POOL}

        def opened(**settings: Any) -> Connector:
            return undo.enter_context(stagelink.open(**usual, **settings))

        self.sources = [opened(stage=f"source{i}", role="sender") for i in range(LANES)]
        where = {source.config.stage: source.endpoint for source in self.sources}
        self.middle = opened(stage="middle", role="peer", senders=where)
        self.sinks = [
            opened(stage=f"sink{i}", role="receiver", sender=self.middle.endpoint)
            for i in range(LANES)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(work, lane), daemon=True)
            for lane in range(LANES)
            for work in (self._produce, self._pass_on, self._consume)
        ]

    def run(self, seconds: float) -> dict[str, Any]:
        """Work for so long, drain, and say what came of it."""
        for thread in self._threads:
            thread.start()
        memory = []
        for _ in range(4):
            self._stop.wait(seconds / 4)
            memory.append(resident().get("anon_mib", 0.0))
        self._stop.set()
        for thread in self._threads:
            thread.join(STUCK_S + 10.0)
        return self._figures(memory)

    def _figures(self, memory: list[float]) -> dict[str, Any]:
        tally, stuck = self.tally, sum(thread.is_alive() for thread in self._threads)
        gc.collect()
        left: Counter[str] = Counter()
        for one in (
            [*self.sources, self.middle, *self.sinks] if not (stuck or +tally.faults) else []
        ):
            left.update(left_in(one))
        counts = [tally.delivered[lane] for lane in range(LANES)]
        faults, grown_mib = +tally.faults, memory[-1] - memory[0]
        return {
            "ok": not (stuck or faults or any(left.values()))
            and min(counts) > 0
            and grown_mib < GROWTH_MIB,
            "edges": 2 * LANES,
            "payloads": sum(counts),
            "refusals": tally.refusals,
            "latest_refusal_ms": round(tally.late_s * 1e3, 1),
            "fewest_small": min(counts[0::2]),
            "fewest_large": min(counts[1::2]),
            "most_large": max(counts[1::2]),
            "grown_mib": round(grown_mib, 1),
            "stuck": stuck,
            "faults": dict(faults),
            "left": dict(+left),
        }

    def _work(self, work: Callable[[int], None], lane: int) -> None:
        try:
            work(lane)
        except StagelinkError as error:
            self.tally.failed(work.__name__.strip("_"), error)

    # --- the three threads of a lane -----------------------------------------------------

    def _produce(self, lane: int) -> None:
        number = 0
        while not self._stop.is_set():
            value = body(lane, number)
            self._put(self.sources[lane], f"{lane}/{number}", value, "middle")
            number += 1
        self._put(self.sources[lane], f"{lane}/{number}", None, "middle")

    def _pass_on(self, lane: int) -> None:
        number, going = 0, True
        while going:
            with self._get(self.middle, f"{lane}/{number}", f"source{lane}") as payload:
                going = payload.value is not None
                # The payload is held until its successor has found room.
                value = memoryview(payload.value) if going else None
                self._put(self.middle, f"{lane}/{number}", value, f"sink{lane}")
                del value
            number += 1

    def _consume(self, lane: int) -> None:
        number = 0
        while True:
            with self._get(self.sinks[lane], f"{lane}/{number}", "middle") as payload:
                if payload.value is None:
                    return
                right = bytes(payload.value) == body(lane, number)
            self.tally.arrived(lane, right=right)
            number += 1

    @staticmethod
    def _get(connector: Connector, key: str, source: str) -> Any:
        return connector.get(key, source=source, timeout=STUCK_S)

    def _put(self, connector: Connector, key: str, value: Any, to: str) -> None:
        """Try until there is room; a try is refused at its deadline.

        Raises:
            CapacityError: there was none for so long that there never will be.
        """
        until_s = time.monotonic() + STUCK_S
        while True:
            start_s = time.monotonic()
            try:
                connector.put(key, value, to=to, timeout=DEADLINE_S)
            except CapacityError as error:
                self.tally.refused(error, time.monotonic() - start_s)
                if time.monotonic() > until_s:
                    raise
            else:
                return


def overload(backend: str, seconds: float) -> dict[str, Any]:
    """Keep the lanes full for so many seconds; ``ok`` says that every promise was kept."""
    with ExitStack() as undo:
        found = Lanes(backend, undo).run(seconds)
    return {"backend": backend, "seconds": seconds, **found}
