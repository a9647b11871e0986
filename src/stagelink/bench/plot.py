"""The figures as a picture: latency and throughput over size, with their floors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from stagelink.bench.options import size_name
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

FLOOR: dict[str, Any] = {"linestyle": "--", "color": "0.5"}


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw what a run has *found* into *path*, whose ending says how.

    Raises:
        ConfigError: it cannot be written.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _latency(left, found)
    _throughput(right, found)
    host = found["host"]
    figure.suptitle(
        f"stagelink, {', '.join(found['planes'])}: {host['cpus']} CPUs, "
        f"load {host['load'][0]}, Python {host['python']}"
    )
    try:
        figure.savefig(path)
    except OSError as error:
        msg = f"the plot {str(path)!r} cannot be written: {error.strerror}"
        raise ConfigError(msg, remedy="choose another file") from error


def _latency(axes: Axes, found: dict[str, Any]) -> None:
    rows = found["rows"]
    sizes = [row["size"] for row in rows]
    axes.fill_between(
        sizes,
        [row["handoff_p50_us"] for row in rows],
        [row["handoff_p99_us"] for row in rows],
        alpha=0.2,
        label="to p99",
    )
    axes.plot(sizes, [row["handoff_p50_us"] for row in rows], marker="o", label="put, p50")
    drafts = [row["handoff_p50_us"] for row in found["alloc_rows"]]
    axes.plot(sizes, drafts, marker="s", label="alloc, p50")
    axes.plot(sizes, [row["memcpy_us"] for row in rows], label="one copy", **FLOOR)
    axes.axhline(
        found["floors"]["zmq_oneway_us"], linestyle=":", color="0.5", label="ZeroMQ one way, 4 KiB"
    )
    _dress(axes, sizes, "hand-off, µs")


def _throughput(axes: Axes, found: dict[str, Any]) -> None:
    rows = found["rows"]
    sizes = [row["size"] for row in rows]
    axes.plot(sizes, [row["gbps"] for row in rows], marker="o", label="four outstanding")
    axes.axhline(found["floors"]["memcpy_gbps"], label="one copy, 16 MiB", **FLOOR)
    _dress(axes, sizes, "throughput, GB/s")


def _dress(axes: Axes, sizes: list[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_name(round(size))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("payload")
    axes.set_ylabel(what)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
