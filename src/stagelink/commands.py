"""The commands of ``stagelink``: arguments in, text or JSON out; the work is done elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from stagelink import StagelinkError, __version__

if TYPE_CHECKING:
    from stagelink.bench.options import Options as BenchOptions
    from stagelink.demo.report import Options, Outcome

FAILED = 1
INTERRUPTED = 130

EXAMPLES = """Examples:

  stagelink demo                            three processes, the best backend

  stagelink demo --backend memory --json    one process, one JSON object

  stagelink demo --input voice.wav --output out.wav --realtime
"""

BENCH_EXAMPLES = """Examples:

  stagelink bench                                 all sizes, the best backend, under a minute

  stagelink bench --quick --json                  ten seconds, one JSON object

  stagelink bench --sizes 4K,1M --backend shm-write --rounds 5000

  stagelink bench --plot bench.svg                draws what it measured

  stagelink bench --soak 60                       32 edges, every byte compared
"""

app = typer.Typer(
    help="Move tensors between the stages of an inference pipeline.",
    epilog=EXAMPLES,
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


@app.command(epilog=EXAMPLES)
def demo(  # noqa: PLR0917  one per option
    wav: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A WAV to stream instead of ours."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="auto, shm, shm-write or memory.")
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


@app.command(epilog=BENCH_EXAMPLES)
def bench(  # noqa: PLR0917  one per option
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Payload sizes [4K,64K,1M,16M,256M]."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="auto, shm, shm-write or memory.")
    ] = "auto",
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Hand-offs of each small size [1000].")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, no 256M.")] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also with 64 receivers connected.")
    ] = False,
    busy: Annotated[
        bool, typer.Option("--busy", help="Also puts beside a thread that computes.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it, as .png or .svg.")
    ] = None,
    soak: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Instead: 32 edges, more than the pool can hold."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Measure hand-offs between two processes of this machine, beside what they cannot be below.

    The floors are one message over plain ZeroMQ sockets and one plain copy; they are measured in
    turns with ours, so that whatever disturbs the machine disturbs both.
    """
    from stagelink.bench.options import Options  # noqa: PLC0415

    options = Options(sizes, backend, rounds, quick, plot, peers, busy, soak)
    try:
        found = _soak(options) if soak is not None else _bench(options)
    except StagelinkError as error:
        _give_up(error, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("stagelink: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(found))
    else:
        from stagelink.bench import show  # noqa: PLC0415

        (show.show if soak is None else show.show_soak)(found)
    raise typer.Exit(0 if found.get("ok", True) else FAILED)


def _bench(options: BenchOptions) -> dict[str, Any]:
    from stagelink.bench.options import plan  # noqa: PLC0415
    from stagelink.bench.report import run_bench, steps  # noqa: PLC0415
    from stagelink.bench.show import progress  # noqa: PLC0415

    made = plan(options)
    with progress(steps(made)) as on_step:
        found = run_bench(made, on_step)
    if options.plot is not None:
        from stagelink.bench.plot import draw  # noqa: PLC0415  loads matplotlib

        draw(found, options.plot)
    return found


def _soak(options: BenchOptions) -> dict[str, Any]:
    from stagelink.bench.options import plan  # noqa: PLC0415
    from stagelink.bench.show import progress  # noqa: PLC0415
    from stagelink.bench.soak import run_soak, steps  # noqa: PLC0415

    assert options.soak is not None
    made = plan(options._replace(sizes="1K"))
    with progress(steps()) as on_step:
        return run_soak(made, options.soak, on_step)


def _give_up(error: StagelinkError, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"ok": False, "error": str(error)}))
    typer.echo(f"stagelink: {error}", err=True)
    raise typer.Exit(FAILED) from None


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
