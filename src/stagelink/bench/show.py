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
    "alloc fills its block in place and has no such floor. "
    "CPU/GB: processor seconds of both ends for 10**9 bytes."
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
    console.print(_table(found))
    floors, host = found["floors"], found["host"]
    console.print(
        f"floors: ZeroMQ one way {_digits(floors['zmq_oneway_us'])} µs, there and back "
        f"{_digits(floors['zmq_rtt_us'])} µs; copy {_digits(floors['memcpy_gbps'])} GB/s"
    )
    blocks = ", ".join(f"{_digits(us)} among {live}" for live, us in found["allocator"].items())
    console.print(f"a poll that misses: {_digits(found['poll_miss_us'])} µs")
    console.print(f"free and allocate, µs: {blocks} live blocks")
    console.print(f"host: {host['cpus']} CPUs, load {host['load'][0]}, Python {host['python']}")
    console.print(MEANING)


def _table(found: dict[str, Any]) -> Table:
    planes = ", ".join(found["planes"])
    name = found["backend"] if planes == found["backend"] else f"{found['backend']}: {planes}"
    alloc = {row["size"]: row["handoff_p50_us"] for row in found["alloc_rows"]}
    table = Table(title=f"Hand-off in µs, and throughput ({name})", title_justify="left")
    for head in ("size", "p50", "p99", "best", "÷ ZMQ", "÷ copy", "alloc", "GB/s", "CPU/GB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found["rows"]:
        figures = [row[f"handoff_{name}_us"] for name in ("p50", "p99", "best")]
        figures += [row.get("vs_oneway"), row["vs_memcpy"], alloc[row["size"]]]
        figures += [row["gbps"], row["cpu_s_per_gb"]]
        table.add_row(size_name(row["size"]), *map(_digits, figures))
    return table


def _digits(value: float | None) -> str:
    """Three digits, more only before the point; nothing of None."""
    if value is None:
        return ""
    for limit, form in ((1, ".3g"), (10, ".2f"), (100, ".1f")):
        if value < limit:
            return format(value, form)
    return f"{value:,.0f}"
