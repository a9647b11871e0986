"""``stagelink top``: a running connector's figures, live."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelink import StagelinkError
from stagelink.terminal.output import console, give_up, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from stagelink.inspect.client import Onlooker
    from stagelink.inspect.rates import Rates

EXAMPLES = """Examples:

  stagelink top tcp://127.0.0.1:50051

  stagelink top tcp://127.0.0.1:50051 --interval 0.5

  stagelink top tcp://127.0.0.1:50051 --json | jq .pool

  stagelink top tcp://10.0.0.7:50051 --keys /etc/stagelink/admin
"""

BAR = 30
COLOURS = {"ok": "green", "degraded": "yellow"}


def top(  # noqa: PLR0917  one per option
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Connector.endpoint of what runs.")
    ],
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds between looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for an answer.")
    ] = 3.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object only; implies --once.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Our keys, for one with security=curve.")
    ] = None,
    server_key: Annotated[
        str, typer.Option(metavar="NAME", help="Its key among those, if there are several.")
    ] = "",
) -> None:
    """Show the health of a running connector, live until Ctrl-C. Reads, changes nothing.

    It asks over the control channel, so any connector that listens (role sender or peer) can be
    watched from wherever it can be dialled. Where standard output is no terminal, it looks once.
    """
    from stagelink.adapters.zmq.keyring import read_keyring  # noqa: PLC0415  loads zmq
    from stagelink.inspect.client import Onlooker  # noqa: PLC0415

    try:
        keyring = None if keys is None else read_keyring(keys, server=server_key)
        with Onlooker(endpoint, keyring=keyring) as onlooker:
            if as_json:
                print_json(onlooker.look(timeout))
            elif once or not console().is_terminal:
                console().print(view(onlooker.look(timeout), None))
            else:
                _watch(onlooker, interval, timeout)
    except StagelinkError as error:
        give_up(error, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _watch(onlooker: Onlooker, interval_s: float, timeout_s: float) -> None:
    """Until interrupted; the first look must succeed, a later one may fail and come back."""
    from rich.live import Live  # noqa: PLC0415

    views = _views(onlooker, timeout_s)
    with Live(next(views), console=console(), auto_refresh=False, transient=False) as live:
        for shown in views:
            live.update(shown, refresh=True)
            time.sleep(interval_s)


def _views(onlooker: Onlooker, timeout_s: float) -> Iterator[RenderableType]:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from stagelink.inspect.rates import rates_between  # noqa: PLC0415

    health, seen_s = onlooker.look(timeout_s), time.monotonic()
    yield view(health, None)
    while True:
        before, before_s = health, seen_s
        try:
            health, seen_s = onlooker.look(timeout_s), time.monotonic()
        except StagelinkError as error:
            yield Group(view(before, None), Text(printable(error), style="red"))
        else:
            yield view(health, rates_between(before, health, seen_s - before_s))


def view(health: dict[str, Any], rates: Rates | None) -> RenderableType:
    """All of it as one renderable; figures that *health* lacks are shown as 0 or left out."""
    from rich.console import Group  # noqa: PLC0415

    parts = [_head(health), _figures(health, rates), _sessions(health)]
    if health.get("errors"):
        parts.append(_errors(health))
    return Group(*parts)


def _head(health: dict[str, Any]) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    status = printable(health.get("status", "?"))
    backends = health.get("backends")
    names = ", ".join(map(str, backends)) if isinstance(backends, list) else "?"
    return Text.assemble(
        (f"{status} ", COLOURS.get(status, "red")),
        printable(f"{health.get('stage', '?')} ({health.get('role', '?')}) "),
        printable(f"at {health.get('host', '?')}, {names}"),
    )


def _figures(health: dict[str, Any], rates: Rates | None) -> RenderableType:
    from stagelink.inspect.rates import number, table  # noqa: PLC0415

    pool, ledger, inbox = (table(health, name) for name in ("pool", "ledger", "inbox"))
    lines = _grid()
    lines.add_row("pool", _pool(pool))
    lines.add_row("", f"blocks {_n(pool, 'blocks')}, waiting for room {_n(pool, 'waiting')}")
    for name in ("puts", "gets"):
        pace = "" if rates is None else f"  {getattr(rates, name):,.1f}/s"
        lines.add_row(name, f"{number(health, name):,.0f}{pace}")
    pace = "" if rates is None else f"  {rates.megabytes:,.1f} MB/s"
    lines.add_row("bytes", f"{number(health, 'bytes_transferred'):,.0f}{pace}")
    lines.add_row(
        "published",
        f"{_n(ledger, 'entries')}, leases {_n(ledger, 'leases')}, writes {_n(ledger, 'writes')}, "
        f"queued {_n(ledger, 'queued')}",
    )
    lines.add_row("inbox", f"{_n(inbox, 'entries')}, gets {_n(inbox, 'gets')}")
    lines.add_row(
        "views",
        f"{number(health, 'views'):,.0f}, time-outs {number(health, 'timeouts'):,.0f}, "
        f"frames refused {number(health, 'frames_refused'):,.0f}",
    )
    refused = {cause: count for cause, count in table(health, "peers_refused").items() if count}
    if refused:
        words = (f"{printable(cause)} {count:,.0f}" for cause, count in refused.items())
        lines.add_row("refused", ", ".join(words))
    return lines


def _pool(pool: dict[str, float]) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    capacity = pool.get("capacity", 0)
    used = capacity - pool.get("free", 0)
    part = min(1.0, max(0.0, used / capacity)) if capacity > 0 else 0.0
    full = round(part * BAR)
    colour = "green" if part < 0.75 else "yellow" if part < 0.95 else "red"  # noqa: PLR2004
    words = f" {part:4.0%} of {capacity / (1 << 20):,.0f} MiB"
    if pool.get("quarantined"):
        words += f", in quarantine {pool['quarantined'] / (1 << 20):,.1f} MiB"
    return Text.assemble(("█" * full, colour), ("░" * (BAR - full), "dim"), words)


def _sessions(health: dict[str, Any]) -> RenderableType:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from stagelink.inspect.rates import number, rows  # noqa: PLC0415

    found = rows(health, "sessions")
    title = f"Sessions: {len(found) or number(health, 'sessions_left_out'):,.0f}"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = ("direction", "peer", "state", "synced", "watch", "detail")
    for name in columns:
        shown.add_column(name)
    for row in found:
        shown.add_row(*(printable(row.get(name, "")) for name in columns))
    return shown


def _errors(health: dict[str, Any]) -> RenderableType:
    from stagelink.inspect.rates import table  # noqa: PLC0415

    lines = _grid()
    ranked = sorted(table(health, "errors").items(), key=lambda item: -item[1])
    for cause, count in ranked:
        lines.add_row(printable(cause), f"{count:,.0f}")
    lines.title, lines.title_justify = "Errors", "left"
    return lines


def _grid() -> Table:
    from rich.table import Table  # noqa: PLC0415

    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    return lines


def _n(figures: dict[str, float], name: str) -> str:
    return f"{figures.get(name, 0):,.0f}"
