"""``stagelink plan``: what a deploy file of vLLM-Omni will do, before it is started."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from stagelink.core.errors import ConfigError, StagelinkError
from stagelink.terminal.output import FAILED, console, give_up, print_json, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from stagelink.adapters.hosts.planning import Finding, Machine, Plan, Surroundings
    from stagelink.adapters.hosts.planning.values import Stage

EXAMPLES = """Examples:

  stagelink plan qwen3_omni.yaml

  stagelink plan qwen3_omni.yaml --assume mi300x       for another machine than this one

  stagelink plan qwen3_omni.yaml --json | jq '.findings[] | select(.severity == "error")'
"""
UNREADABLE = 2
_SIGNS = {"error": ("FAIL", "red"), "warning": ("warn", "yellow"), "note": ("note", "dim")}


def plan(
    deploy: Annotated[Path, typer.Argument(metavar="DEPLOY.yaml", show_default=False)],
    assume: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Plan for another machine: mi300x, nvidia, cpu, or none in particular.",
        ),
    ] = None,
    token_bytes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Hidden states of one token, to judge pools by."),
    ] = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Say what a vLLM-Omni deploy file will do: stages, edges, backends, ports, and mistakes.

    Nothing is started and vLLM-Omni need not be installed. Exit status 0: it may be started,
    perhaps with warnings; 1: it will not do what the file says; 2: the file cannot be read.
    """
    from stagelink.adapters.hosts import planning  # noqa: PLC0415  few need it

    machine = _machine(assume, as_json=as_json)
    try:
        document = planning.read_document(deploy)
    except planning.UnreadableError as error:
        _unreadable(str(error), as_json=as_json)
    except ModuleNotFoundError as error:
        _unreadable(f"{error}: pip install 'stagelink[cli]'", as_json=as_json)
    found = planning.make_plan(document, machine, _around(assume), token_bytes=token_bytes)
    if as_json:
        print_json(found.plain())
    else:
        _show(found)
    raise typer.Exit(0 if found.ok else FAILED)


def _machine(assume: str | None, *, as_json: bool) -> Machine:
    from stagelink.adapters.hosts.planning.machines import KINDS, assumed  # noqa: PLC0415

    try:
        if assume is None:
            from stagelink.inspect.surroundings import machine_here  # noqa: PLC0415  probes

            return machine_here()
        if assume not in KINDS:
            msg = f"there is no machine {assume!r} to assume"
            raise ConfigError(msg, remedy=f"known are {', '.join(KINDS)}")
        return assumed(assume)
    except StagelinkError as error:
        give_up(error, as_json=as_json)


def _around(assume: str | None) -> Surroundings:
    from stagelink.adapters.hosts import planning  # noqa: PLC0415
    from stagelink.inspect.surroundings import listening, shared_free  # noqa: PLC0415

    if assume is not None:
        return planning.Surroundings(dict(os.environ))
    return planning.Surroundings(dict(os.environ), listening(), shared_free())


def _unreadable(message: str, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"ok": False, "error": message})
    typer.echo(f"stagelink: {printable(message)}", err=True)
    raise typer.Exit(UNREADABLE) from None


def _show(found: Plan) -> None:
    out = console()
    out.print(_tree(found))
    if found.findings:
        out.print()
    for finding in found.findings:
        _show_finding(out, finding)
    counts = {kind: sum(f.severity == kind for f in found.findings) for kind in _SIGNS}
    words = "this deployment can be started" if found.ok else "this will not do what the file says"
    out.print(
        f"\n{words}; errors: {counts['error']}, warnings: {counts['warning']}", soft_wrap=True
    )


def _tree(found: Plan) -> Tree:
    """Stages from top to bottom, each with its ports and with the edges that leave it."""
    from rich.tree import Tree  # noqa: PLC0415  only people need it

    name = printable(found.files[0].rpartition("/")[2])
    tree = Tree(f"{name} on {printable(found.machine.name)}")
    if found.deployment.lost:
        tree.add("the connectors cannot be parsed: every stage gets shared memory")
    for stage in found.deployment.stages:
        branch = tree.add(printable(_stage(stage)))
        ports = _ports(found, stage.number)
        if ports:
            branch.add(ports)
        for served, load in zip(found.served, found.loads, strict=True):
            if served.edge.source == stage.number:
                line = "──>" if served.edge.declared else "┄┄>"
                way = (
                    f"{served.connector}: {served.backend}" if served.backend else served.connector
                )
                edge = branch.add(printable(f"{line} stage {served.edge.target}  {way}"))
                edge.add(printable(served.why))
                about = f", about {_size(load.single)}" if load.single else ""
                edge.add(printable(f"carries {load.what}{about}"))
    if found.shared_bytes:
        tree.add(f"the pools take up to {_size(found.shared_bytes)} of /dev/shm")
    return tree


def _stage(stage: Stage) -> str:
    parts = [f"stage {stage.number}"]
    if stage.devices:
        parts.append(f"devices {','.join(stage.devices)}")
    if stage.ranks > 1:
        parts.append(f"{stage.ranks} ranks")
    if stage.replicas > 1:
        parts.append(f"{stage.replicas} replicas")
    parts.append("chunks" if stage.async_chunk else "whole payloads")
    return ", ".join(parts)


def _ports(found: Plan, number: int) -> str:
    told = []
    for purpose in ("payload", "kv"):
        ports = [b.port for b in found.binds if b.stage == number and b.purpose == purpose]
        if ports:
            shown = str(ports[0]) if len(ports) == 1 else f"{len(ports)} from {min(ports)} on"
            told.append(f"{shown} ({purpose})")
    return f"binds {', '.join(told)}" if told else ""


def _size(count: int) -> str:
    from stagelink.inspect.checks import size  # noqa: PLC0415

    return size(count)


def _show_finding(out: Console, finding: Finding) -> None:
    from rich.text import Text  # noqa: PLC0415

    sign, colour = _SIGNS[finding.severity]
    place = finding.place
    at = f"{place.file.rpartition('/')[2]}:{place.line}: " if place is not None else ""
    line = f" {printable(at)}{printable(finding.where)}: {printable(finding.what)}"
    out.print(Text.assemble((sign, colour), line, f" [{finding.code}]"), soft_wrap=True)
    if finding.remedy:
        out.print(f"     -> {printable(finding.remedy)}", soft_wrap=True)
