"""What a run has found, as a table and as a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def size_name(size: int) -> str:
    """*size* bytes, shortly."""
    unit, name = next(row for row in UNITS if size >= row[0])
    return f"{size // unit} {name}"


def summary(times: list[float]) -> dict[str, float]:
    """Median, best and 99th of a hundred, microseconds."""
    ordered = sorted(times)
    return {
        "p50_us": round(statistics.median(ordered), 2),
        "best_us": round(ordered[0], 2),
        "p99_us": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
    }


def table(found: dict[str, Any]) -> str:
    """Everything in Markdown."""
    host = found["host"]
    gpus = ", ".join(host["gpus"])
    versions = ", ".join(f"{name} {value}" for name, value in host["versions"].items() if value)
    lines = [
        "; ".join(filter(None, [found["date"], gpus or "no GPU: a dry run", versions])),
        "",
        *_times("Hand-off: put called to payload held, median µs", found, "handoff"),
        *_times("The same of a payload computed in the pool (`alloc`), median µs", found, "alloc"),
        *_others(found),
    ]
    reasons = [
        (n, row["could_not"]) for n, row in found["contenders"].items() if "could_not" in row
    ]
    if reasons or found["not_run"]:
        lines += ["", "Not run:", ""]
        lines += [f"- {what}: {' '.join(why.split())[-400:]}" for what, why in reasons]
        lines += [f"- {line}" for line in found["not_run"]]
    return "\n".join(lines) + "\n"


def _times(title: str, found: dict[str, Any], kind: str) -> list[str]:
    names = [n for n, row in found["contenders"].items() if row.get(kind)]
    if not names:
        return []
    lines = [f"**{title}**", "", f"| size | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for size in found["sizes"]:
        cells = []
        for name in names:
            row = found["contenders"][name][kind].get(str(size))
            cells.append(_cell(size, row["p50_us"]) if row else "-")
        lines.append(f"| {size_name(size)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(size: int, time_us: float) -> str:
    rate = f" ({size / time_us / 1e3:.0f} GB/s)" if size >= 1 << 20 else ""
    return f"{time_us:,.1f}{rate}"


def _others(found: dict[str, Any]) -> list[str]:
    heads = (
        "", "poll that finds nothing, µs", "16 streams: chunk p50 / p99, µs",
        "CPU µs of a small hand-off", "idle, cores",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in found["contenders"].items():
        if "could_not" in row or not (row.get("miss") or row.get("streams")):
            continue
        miss, streams = row.get("miss"), row.get("streams")
        lines.append(
            f"| {name} | {miss['p50_us'] if miss else '-'} | "
            f"{_pair(streams)} | {row.get('cpu_us', '-')} | {row.get('idle_cores', '-')} |"
        )
    return lines


def _pair(streams: dict[str, float] | None) -> str:
    return f"{streams['p50_us']:.0f} / {streams['p99_us']:.0f}" if streams else "-"


def draw(found: dict[str, Any], path: Path) -> None:
    """Hand-off time and rate over size, one line a contender, into *path*.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - only for pictures
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (name, row) in enumerate(found["contenders"].items()):
        for kind, style in (("handoff", "-"), ("alloc", ":")):
            points = [(int(size), cell["p50_us"]) for size, cell in row.get(kind, {}).items()]
            label = name if kind == "handoff" else None
            look: Any = {"color": f"C{index}", "linestyle": style, "marker": ".", "label": label}
            sizes = [size for size, _ in points]
            left.plot(sizes, [time for _, time in points], **look)
            right.plot(sizes, [size / time / 1e3 for size, time in points], **look)
    for axes, what in ((left, "hand-off, µs"), (right, "GB/s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("payload, bytes (dotted: computed in the pool)")
        axes.set_ylabel(what)
        axes.grid(visible=True, alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(f"{found['date']}: {', '.join(found['host']['gpus']) or 'a dry run'}")
    with rc_context({"svg.fonttype": "none"}):  # words as words: a tenth of the bytes
        figure.savefig(path)
