"""``stagelink doctor``: can a connector work here?"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelink.core.errors import ConfigError, StagelinkError
from stagelink.terminal.output import FAILED, console, give_up, print_json, printable

if TYPE_CHECKING:
    from stagelink.inspect.checks import Check

EXAMPLES = """Examples:

  stagelink doctor

  stagelink doctor --backend shm --pool 8GiB --port 50051

  stagelink doctor --config talker.toml --peer tcp://10.0.0.7:50051

  stagelink doctor --json | jq '.checks[] | select(.ok == false)'
"""


def doctor(  # noqa: PLR0917  one per option
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of stagelink.open: .json, .toml, .yaml."),
    ] = None,
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="Instead of auto.")] = None,
    pool: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of the pool, for example 8GiB.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="H", help="The address to bind, or auto.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="P", help="The port; 0 is any.")] = None,
    peer: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="A connector that must answer.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of the key files; sets security=curve.")
    ] = None,
    server_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="The senders' key among those.")
    ] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Ask torch for GPUs; that takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Check whether a connector of this configuration can work here, and what to do if not.

    It ends by passing one array between two connectors of its own. Exit status 1 means that the
    configuration cannot work; warnings alone do not fail.
    """
    from stagelink.inspect.doctor import examine  # noqa: PLC0415  loads zmq

    try:
        settings = _from_file(config)
    except StagelinkError as error:
        give_up(error, as_json=as_json)
    options: dict[str, Any] = {
        "backend": backend, "pool_bytes": pool, "host": host, "zmq_port": port,
        "security": keys and "curve", "keys": keys and str(keys), "server_key": server_key,
    }  # fmt: skip
    settings |= {name: value for name, value in options.items() if value is not None}
    checks = []
    for check in examine(settings, peer=peer, ask_torch=gpu):
        checks.append(check)
        if not as_json:
            _show(check)
    ok = all(check.ok is not False for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        _conclude(checks)
    raise typer.Exit(0 if ok else FAILED)


def _from_file(path: Path | None) -> dict[str, Any]:
    from stagelink.inspect.doctor import read_settings  # noqa: PLC0415

    if path is None:
        return {}
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"the configuration file {path} cannot be read: {error.strerror}"
        raise ConfigError(msg) from error
    return read_settings(data, path.suffix)


def _show(check: Check) -> None:
    from rich.text import Text  # noqa: PLC0415

    warns = check.ok is None and check.remedy
    sign, colour = (
        ("ok  ", "green") if check.ok
        else ("FAIL", "red") if check.ok is False
        else ("warn", "yellow") if warns
        else ("-   ", "dim")
    )  # fmt: skip
    out = console()
    name = printable(check.name)
    line = Text.assemble((sign, colour), f" {name}: {printable(check.found)}")
    out.print(line, soft_wrap=True)
    if check.remedy and not check.ok:
        out.print(f"     -> {printable(check.remedy)}", soft_wrap=True)


def _conclude(checks: list[Check]) -> None:
    failed = [check.name for check in checks if check.ok is False]
    warnings = sum(1 for check in checks if check.ok is None and check.remedy)
    words = f"cannot work: {', '.join(failed)}" if failed else "this configuration works here"
    console().print(f"\n{printable(words)}; warnings: {warnings}", soft_wrap=True)
