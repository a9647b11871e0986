"""Run everything and put the figures into one plain object."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from stagelink.bench.extras import busy_put, peers_us
from stagelink.bench.figures import Times, ratio
from stagelink.bench.floors import allocator_us
from stagelink.bench.producer import Producer, Stream, producing

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.bench.options import Plan

FLOOR_SIZE = 4096
POLLS = 2000
LIVE_BLOCKS = (100, 1_000, 10_000)


def steps(plan: Plan) -> int:
    """How often :func:`run_bench` reports progress."""
    return 2 * len(plan.sizes) + 3 + plan.peers + plan.busy


def run_bench(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Measure what *plan* says; *on_step* hears what comes next.

    Raises:
        StagelinkError: an end could not be opened, failed or died.
    """
    load = os.getloadavg()[0]
    on_step("starting")
    with producing(plan) as producer:
        on_step("floors")
        floors = producer.floors(FLOOR_SIZE)
        times = {}
        for size in plan.sizes:
            on_step(f"hand-offs of {size:,} bytes")
            times[size] = producer.hand_offs(size)
        streams = {}
        for size in plan.sizes:
            on_step(f"stream of {size:,} bytes")
            streams[size] = producer.stream(size)
        more = _extras(producer, on_step)
        on_step("polls and the allocator")
        return {
            "floors": _floors(floors, times, producer),
            "rows": [_row(size, times[size], streams[size]) for size in plan.sizes],
            "alloc_rows": [
                {"size": size, "handoff_p50_us": _short(times[size]["alloc"].p50_us)}
                for size in plan.sizes
            ],
            "poll_miss_us": _short(producer.partner.ask("poll", count=POLLS)["us"]),
            "allocator": {str(live): _short(allocator_us(live, 10_000)) for live in LIVE_BLOCKS},
            "host": _host(load),
            "backend": plan.backend,
            "planes": plan.planes,
            "integrity": plan.integrity,
            "noise": _noise(times),
            **more,
        }


def _extras(producer: Producer, on_step: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if producer.plan.peers:
        on_step("many peers")
        found["peers"] = {name: _short(us) for name, us in peers_us(producer).items()}
    if producer.plan.busy:
        on_step("a busy interpreter")
        found["busy_put"] = busy_put(producer)
    return found


def _floors(
    floors: dict[str, Times], times: dict[int, dict[str, Times]], producer: Producer
) -> dict[str, float]:
    oneway = times.get(FLOOR_SIZE, floors)["floor"]  # the one taken in turns with our hand-offs
    return {
        "zmq_oneway_us": _short(oneway.p50_us),
        "zmq_oneway_best_us": _short(oneway.best_us),
        "zmq_rtt_us": _short(floors["rtt"].p50_us),
        "memcpy_gbps": _short(producer.copy_gbps()),
    }


def _row(size: int, times: dict[str, Times], stream: Stream) -> dict[str, Any]:
    put, copy = times["put"], times["copy"]
    row = {
        "size": size,
        "handoff_p50_us": _short(put.p50_us),
        "handoff_p99_us": _short(put.p99_us),
        "handoff_best_us": _short(put.best_us),
        "gbps": _short(stream.gbps),
        "cpu_s_per_gb": _short(stream.cpu_s_per_gb),
        "memcpy_us": _short(copy.p50_us),
        "vs_memcpy": ratio(put.p50_us, copy.p50_us),
    }
    if "floor" in times:
        floor = times["floor"]
        row |= {
            "zmq_oneway_us": _short(floor.p50_us),
            "zmq_oneway_best_us": _short(floor.best_us),
            "vs_oneway": ratio(put.p50_us, floor.p50_us),
            "vs_oneway_best": ratio(put.best_us, floor.best_us),
        }
    return row


def _noise(times: dict[int, dict[str, Times]]) -> dict[str, dict[str, float]]:
    """How far the repeats of one measurement lie apart, by kind and size."""
    return {
        kind: {str(size): round(t[kind].spread, 3) for size, t in times.items() if kind in t}
        for kind in ("put", "floor", "copy")
    }


def _host(load: float) -> dict[str, Any]:
    return {
        "cpus": os.cpu_count() or 0,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
    }


def _short(value: float) -> float:
    """Four digits say all that was measured."""
    return float(f"{value:.4g}")
