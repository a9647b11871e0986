"""The commands of ``stagelink``: arguments in, text or JSON out; the work is done elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from stagelink import StagelinkError, __version__
from stagelink.terminal import backends, bench, doctor, keygen, plan, top
from stagelink.terminal.output import FAILED, INTERRUPTED
from stagelink.terminal.output import give_up as _give_up

if TYPE_CHECKING:
    from stagelink.demo.report import Options, Outcome

EXAMPLES = """Examples:

  stagelink demo                            three processes, the best backend

  stagelink demo --backend memory --json    one process, one JSON object

  stagelink demo --input voice.wav --output out.wav --realtime
"""

ALL_EXAMPLES = f"""{EXAMPLES}
  stagelink backends                        what can work here

  stagelink doctor --pool 8GiB              whether it can work here, and what to do if not

  stagelink bench --quick                   what a hand-off costs on this machine

  stagelink keygen keys --name thinker      keys for security="curve"

  stagelink plan deploy.yaml                what a deployment of vLLM-Omni will do

  stagelink top tcp://127.0.0.1:50051       what a running connector does
"""

app = typer.Typer(
    help="Move tensors between the stages of an inference pipeline.",
    epilog=ALL_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stagelink {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Move tensors between the stages of an inference pipeline."""


# Commands with a module of their own; the order is that of the help.
app.command(epilog=backends.EXAMPLES)(backends.backends)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command(epilog=keygen.EXAMPLES)(keygen.keygen)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=top.EXAMPLES)(top.top)


@app.command(epilog=EXAMPLES)
def demo(  # noqa: PLR0917  one per option
    wav: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A WAV to stream instead of ours."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="auto, shm, shm-write, frames or memory.")
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what arrived as a WAV.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", help="Stream it N times [ours: 8, yours: 1].")
    ] = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="At the pace of speech.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Stream a recording through Thinker, Talker and Code2Wav, and check every bit.

    Three processes (threads, with --backend memory) hand hidden states and codec frames to one
    another; the sound that comes out is compared with the same computation in one process. Exit
    status 0 means: every bit right and nothing left behind.
    """
    from stagelink.demo.report import Options  # noqa: PLC0415  loads torch

    options = Options(wav, backend, output, realtime, repeat)
    try:
        outcome = _run(options)
    except StagelinkError as error:
        _give_up(error, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("stagelink: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(outcome.plain()))
    else:
        _show(outcome)
    raise typer.Exit(0 if outcome.ok else FAILED)


def _run(options: Options) -> Outcome:
    from rich.console import Console  # noqa: PLC0415  only a run shows progress
    from rich.progress import Progress  # noqa: PLC0415

    from stagelink.demo.report import run_demo  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting three stages", total=None)
        return run_demo(
            options,
            lambda chunks: progress.update(bar, description="streaming", total=chunks),
            lambda: progress.advance(bar),
        )


def _show(outcome: Outcome) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(file=sys.stdout)
    planes = ", ".join(outcome.planes)
    backend = outcome.backend if planes == outcome.backend else f"{outcome.backend}: {planes}"
    edges = Table(title=f"Edges ({backend}, {outcome.chunks} chunks)", title_justify="left")
    for name in ("from", "to", "transfers", "bytes", "p50 µs", "p99 µs", "GB/s"):
        edges.add_column(name, justify="left" if name in {"from", "to"} else "right")
    for edge in outcome.edges:
        source, target, transfers, size, p50_us, p99_us, gbps = edge
        figures = (
            f"{transfers:,}",
            f"{size:,}",
            f"{p50_us:,.0f}",
            f"{p99_us:,.0f}",
            f"{gbps:.2f}",
        )
        edges.add_row(source, target, *figures)
    leaks = Table(title="Left behind", title_justify="left")
    for name in outcome.leaks:
        leaks.add_column(name, justify="right")
    leaks.add_row(*map(str, outcome.leaks.values()))
    console.print(edges, leaks, sep="\n")
    verdict = "every bit right" if outcome.bit_exact else "BITS DIFFER"
    console.print(f"{'ok' if outcome.ok else 'FAILED'}: {verdict}, {outcome.seconds:.2f} s")
