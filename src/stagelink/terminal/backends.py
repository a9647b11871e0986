"""``stagelink backends``: what is installed and what can work here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelink import StagelinkError
from stagelink.terminal.output import console, give_up, print_json, printable

if TYPE_CHECKING:
    from stagelink.inspect.backends import BackendRow

EXAMPLES = """Examples:

  stagelink backends

  stagelink backends --json | jq '.backends[] | select(.available) | .name'
"""


def backends(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """List the backends: which can work here, why others cannot, and what each can do."""
    from stagelink.inspect.backends import list_backends  # noqa: PLC0415  loads plugins

    try:
        rows = list_backends()
    except StagelinkError as error:
        give_up(error, as_json=as_json)
    if as_json:
        print_json({"backends": [row._asdict() for row in rows]})
    else:
        _show(rows)


def _show(rows: list[BackendRow]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title="Backends", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("name", "works", "auto", "mode", "memory", "hosts", "fences", "from"):
        table.add_column(name, no_wrap=name != "from")
    for row in rows:
        table.add_row(
            printable(row.name),
            "yes" if row.available else "no",
            "yes" if row.automatic else "",
            *_abilities(row.capabilities),
            printable(row.provided_by),
        )
    out = console()
    out.print(table)
    for row in rows:
        if row.summary:
            out.print(f"{printable(row.name)}: {printable(row.summary)}", soft_wrap=True)
        if not row.available:
            remedy = f"; {row.remedy}" if row.remedy else ""
            out.print(
                f"{printable(row.name)} cannot work here: {printable(row.reason + remedy)}",
                soft_wrap=True,
            )


def _abilities(found: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if found is None:
        return "?", "?", "?", "?"
    return (
        printable(found["mode"]),
        printable(found["memory_kind"]),
        "many" if found["crosses_hosts"] else "one",
        "any" if found["can_fence"] else "dead",
    )
