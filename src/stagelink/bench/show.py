"""The figures for people."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stagelink.bench.options import size_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEANING = (
    "hand-off: from before put until the other process, waiting in get, has touched every page. "
    "÷ ZMQ: times one message of that size over plain ZeroMQ, its floor. "
    "÷ copy: times one plain copy of that size. A put is a copy, so 1 is its floor; "
    "alloc fills its block in place and has no such floor. "
    "CPU/GB: processor seconds of both ends for 10**9 bytes."
)


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, if that is a terminal; what is given is to be told each step."""
    console = Console(stderr=True)
    # No refresh of its own accord: its thread would take the interpreter from what is measured.
    with Progress(
        console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bars:
        bar = bars.add_task("", total=steps)
        yield lambda what: bars.update(bar, description=what, advance=1, refresh=True)


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
    _show_extras(console, found)
    console.print(f"host: {host['cpus']} CPUs, load {host['load'][0]}, Python {host['python']}")
    console.print(MEANING)


def _show_extras(console: Console, found: dict[str, Any]) -> None:
    if "peers" in found:
        by_peers = ", ".join(f"{name}: {_digits(us)}" for name, us in found["peers"].items())
        console.print(f"hand-off of 4 KiB by receivers connected, µs: {by_peers}")
    if "busy_put" in found:
        put = found["busy_put"]
        by_interval = put["by_switchinterval_s"].items()
        busy = ", ".join(f"{_digits(us)} at {interval}" for interval, us in by_interval)
        console.print(f"put of 4 KiB, µs: {_digits(put['quiet_us'])} quiet; beside a busy thread")
        console.print(f"  {busy} s switch interval")


def _table(found: dict[str, Any]) -> Table:
    alloc = {row["size"]: row["handoff_p50_us"] for row in found["alloc_rows"]}
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        title=f"Hand-off in µs, and throughput ({_backend(found)})",
        title_justify="left",
    )
    for head in ("size", "p50", "p99", "best", "÷ ZMQ", "÷ copy", "alloc", "GB/s", "CPU/GB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found["rows"]:
        figures = [row[f"handoff_{name}_us"] for name in ("p50", "p99", "best")]
        figures += [row.get("vs_oneway"), row["vs_memcpy"], alloc[row["size"]]]
        figures += [row["gbps"], row["cpu_s_per_gb"]]
        table.add_row(size_name(row["size"]), *map(_digits, figures))
    return table


def show_soak(found: dict[str, Any]) -> None:
    """Print what became of a soak."""
    console = Console(file=sys.stdout)
    pressure, fair = found["back_pressure"], found["fairness"]
    rows = [
        ("delivered", f"{found['payloads']:,} payloads, {_digits(found['gbps'])} GB/s"),
        ("waited for room", f"{pressure['waited']:,} puts"),
        (
            "  p50, p99",
            f"{_digits(pressure['wait_p50_ms'])}, {_digits(pressure['wait_p99_ms'])} ms",
        ),
        ("  in vain", f"{pressure['capacity_errors']:,} puts"),
        (
            "an edge's payloads",
            f"least {fair['min']}, median {fair['median']}, most {fair['max']}",
        ),
        *((f"memory, {when}", _memory(both)) for when, both in found["memory"].items()),
        ("wrong bytes", f"{found['wrong']} payloads"),
        ("lost, stuck", f"{found['lost']} payloads, {found['stuck']} threads"),
        ("left", ", ".join(f"{name} {number}" for name, number in found["left"].items())),
    ]
    rows += [
        (
            f"errors of the {side}",
            ", ".join(f"{cause} {n}" for cause, n in causes.items()) or "none",
        )
        for side, causes in found["errors"].items()
    ]
    title = f"{found['edges']} edges for {found['seconds']:g} s ({_backend(found)})"
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print("ok: every byte right, nothing left" if found["ok"] else "FAILED")


def _memory(both: dict[str, dict[str, float]]) -> str:
    return ", ".join(
        f"{side} {figures['rss_mib']:.0f} MiB ({figures['anon_mib']:.0f} its own)"
        for side, figures in both.items()
    )


def _backend(found: dict[str, Any]) -> str:
    """The name asked for, and what it stood for."""
    planes = ", ".join(found["planes"])
    return planes if planes == found["backend"] else f"{found['backend']}: {planes}"


def _digits(value: float | None) -> str:
    """Three digits, more only before the point; nothing of None."""
    if value is None:
        return ""
    for limit, form in ((0.1, ".4f"), (1, ".3f"), (10, ".2f"), (100, ".1f")):
        if value < limit:
            return format(value, form)
    return f"{value:,.0f}"
