"""The figures for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stagelink.bench.options import size_name
from stagelink.bench.report import run_bench, steps

if TYPE_CHECKING:
    from stagelink.bench.options import Plan

MEANING = (
    "hand-off: from before put until the other process, waiting in get, has touched every page. "
    "÷ ZMQ: times one message of that size over plain ZeroMQ, its floor. "
    "÷ copy: times one plain copy of that size. A put is a copy, so 1 is its floor; "
    "alloc fills its block in place and has no such floor."
)


def run_with_progress(plan: Plan) -> dict[str, Any]:
    """Run, with a bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    # No refresh of its own accord: its thread would take the interpreter from what is measured.
    with Progress(
        console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=steps(plan))

        def step(what: str) -> None:
            progress.update(bar, description=what, advance=1, refresh=True)

        return run_bench(plan, step)


def show(found: dict[str, Any]) -> None:
    """Print tables, and what the ratios mean."""
    console = Console(file=sys.stdout)
    planes = ", ".join(found["planes"])
    name = found["backend"] if planes == found["backend"] else f"{found['backend']}: {planes}"
    alloc = {row["size"]: row["handoff_p50_us"] for row in found["alloc_rows"]}
    table = Table(title=f"Hand-off and throughput ({name})", title_justify="left")
    heads = (
        "size",
        "p50 µs",
        "p99 µs",
        "best µs",
        "÷ ZMQ",
        "÷ copy",
        "alloc µs",
        "GB/s",
        "CPU s/GB",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for row in found["rows"]:
        table.add_row(
            size_name(row["size"]),
            *(
                f"{row[field]:,.1f}"
                for field in ("handoff_p50_us", "handoff_p99_us", "handoff_best_us")
            ),
            f"{row['vs_oneway']:.2f}" if "vs_oneway" in row else "",
            f"{row['vs_memcpy']:.2f}",
            f"{alloc[row['size']]:,.1f}",
            f"{row['gbps']:.2f}",
            f"{row['cpu_s_per_gb']:.3f}",
        )
    floors, host = found["floors"], found["host"]
    console.print(table)
    console.print(
        f"floors: ZeroMQ one way {floors['zmq_oneway_us']:.1f} µs, there and back "
        f"{floors['zmq_rtt_us']:.1f} µs, copy {floors['memcpy_gbps']:.1f} GB/s"
    )
    blocks = ", ".join(f"{us:.1f} µs among {live}" for live, us in found["allocator"].items())
    console.print(
        f"a poll that misses: {found['poll_miss_us']:.1f} µs; free and allocate: {blocks}"
    )
    console.print(f"host: {host['cpus']} CPUs, load {host['load'][0]}, Python {host['python']}")
    console.print(MEANING, soft_wrap=False)
