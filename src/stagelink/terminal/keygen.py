"""``stagelink keygen``: a key pair for ``security="curve"``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagelink.core.errors import StagelinkError
from stagelink.terminal.output import console, give_up, print_json, printable

if TYPE_CHECKING:
    from stagelink.adapters.zmq.keyfiles import MadeKeys

EXAMPLES = """Examples:

  stagelink keygen /etc/stagelink/thinker --name thinker

  stagelink keygen keys --json | jq -r .public
"""


def keygen(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The key directory; made if it is not there.")
    ] = Path("keys"),
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the files: the stage. [default: the host's name]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Make a key pair for security="curve": a secret file of ours, a public one for our peers.

    Nothing is ever overwritten, and a directory has one secret key.
    """
    from stagelink.adapters.zmq.keyfiles import make_keys  # noqa: PLC0415  loads zmq

    try:
        made = make_keys(directory, name or socket.gethostname())
    except StagelinkError as error:
        give_up(error, as_json=as_json)
    if as_json:
        told = made._asdict()
        print_json({name: str(value) for name, value in told.items()})
    else:
        _show(made)


def _show(made: MadeKeys) -> None:
    lines = [
        f"secret  {made.secret}  stays here, readable by you alone",
        f"public  {made.public}  copy it into the key directory of every peer",
        f"key     {made.key}",
        "",
        f"then open both sides with security='curve', keys={str(made.secret.parent)!r}",
    ]
    for line in lines:
        console().print(printable(line), soft_wrap=True)
