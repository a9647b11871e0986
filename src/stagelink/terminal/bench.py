"""``stagelink bench``: what does a hand-off cost here?"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelink.core.errors import StagelinkError
from stagelink.terminal.output import FAILED, INTERRUPTED, give_up, print_json

if TYPE_CHECKING:
    from stagelink.bench.options import Options

EXAMPLES = """Examples:

  stagelink bench                                 all sizes, the best backend, under a minute

  stagelink bench --quick --json                  ten seconds, one JSON object

  stagelink bench --sizes 4K,1M --backend shm-write --rounds 5000

  stagelink bench --plot bench.svg                draws what it measured

  stagelink bench --integrity xxh3                what the digest costs

  stagelink bench --soak 60                       32 edges, every byte compared
"""


def bench(  # noqa: PLR0917  one per option
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Payload sizes [4K,64K,1M,16M,256M]."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="auto, shm, shm-write, frames or memory.")
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
    integrity: Annotated[
        str, typer.Option(metavar="NAME", help="With a digest of every payload: xxh3.")
    ] = "",
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

    options = Options(sizes, backend, rounds, quick, plot, peers, busy, soak, integrity)
    try:
        found = _soak(options) if soak is not None else _measure(options)
    except StagelinkError as error:
        give_up(error, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("stagelink: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(found)
    else:
        from stagelink.bench import show  # noqa: PLC0415

        (show.show if soak is None else show.show_soak)(found)
    raise typer.Exit(0 if found.get("ok", True) else FAILED)


def _measure(options: Options) -> dict[str, Any]:
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


def _soak(options: Options) -> dict[str, Any]:
    from stagelink.bench.options import plan  # noqa: PLC0415
    from stagelink.bench.show import progress  # noqa: PLC0415
    from stagelink.bench.soak import run_soak, steps  # noqa: PLC0415

    assert options.soak is not None
    made = plan(options._replace(sizes="1K"))
    with progress(steps()) as on_step:
        return run_soak(made, options.soak, on_step)
