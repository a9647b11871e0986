"""How every command speaks: text for people, or one JSON object and nothing else."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stagelink import StagelinkError

FAILED = 1
INTERRUPTED = 130


def give_up(error: StagelinkError, *, as_json: bool) -> NoReturn:
    """Say what stands in the way, with its remedy, and end with status 1."""
    if as_json:
        print_json({"ok": False, "error": str(error)})
    typer.echo(f"stagelink: {error}", err=True)
    raise typer.Exit(FAILED) from None


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    typer.echo(json.dumps(value))


def console() -> Console:
    """Standard output as rich sees it; plain when it is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - only people need it

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def printable(text: object) -> str:
    """*text*, which anybody may have sent, without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
