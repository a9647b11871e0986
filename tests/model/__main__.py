"""Explore worlds, plant mistakes, and say what was found.

With --json the last line is one JSON object with the figures. The exit status says whether every
promise held and every mistake was caught. More seconds explore more states of the large worlds;
with --states instead, the same states are explored each time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from tests.model.hunt import ALL, explore_all, figures, hunt_mistakes
from tests.model.worlds import LARGE, SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.explorer import Result
    from tests.model.state import Bounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, hunt, and print the figures; 0 if all is well."""
    asked = _parser().parse_args(arguments)
    began = time.monotonic()
    mistakes = [] if asked.no_mutations else hunt_mistakes(processes=asked.processes)
    worlds = _chosen(asked.names, asked.small)
    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("worlds", total=len(worlds))
        states = 0

        def tell(result: Result) -> None:
            nonlocal states
            states += result.states
            shown.update(task, advance=1, description=f"{states:,} states, {result.name}")

        left_s = asked.budget - (time.monotonic() - began)
        results = explore_all(worlds, asked.states, left_s, asked.processes, tell)
    found = figures(results, mistakes, time.monotonic() - began)
    if asked.json:
        print(json.dumps(found))
    else:
        print(*results, *mistakes, sep="\n")
        print(f"{found['states']:,} states of {found['worlds']} worlds")
    return int(bool(found["violations"] or found["mutations_missed"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds whose name contains one of these")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all")
    parser.add_argument("--states", type=int, default=ALL, help="at most this many a world")
    parser.add_argument("--small", action="store_true", help="only the worlds of every day")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-mutations", action="store_true", help="plant no mistakes")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and no table")
    return parser


def _chosen(names: list[str], small: bool) -> dict[str, Bounds]:
    """Every world, or those whose name contains one of *names*."""
    worlds = SMALL if small else {**SMALL, **LARGE}
    return {n: b for n, b in worlds.items() if not names or any(part in n for part in names)}


if __name__ == "__main__":
    sys.exit(main())
