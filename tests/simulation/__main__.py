"""``python -m tests.simulation --seeds 2000 --json``: the hunt; with ``--seed`` one story again."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque

from tests.simulation import hunt
from tests.simulation.errors import SimulationError
from tests.simulation.whole import world as connectors

ENOUGH = 1000
"""Seeds in which every reason must have been seen: else the hunt never gets there."""


def main() -> int:
    """Hunt, or replay; the exit status says whether anything failed, or was never seen."""
    options = _options()
    return _replay(options) if options.seed is not None else _hunt(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=2000, help="how many")
    add("--first", type=int, default=0, help="the first of them")
    add(
        "--world",
        choices=(*hunt.WORLDS, hunt.THREADS, "both"),
        default="both",
        help="what is simulated",
    )
    add("--acts", type=int, default=connectors.ACTS, help="of each caller; 200 is the long form")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    add("--json", action="store_true", help="print one JSON object")
    add("--seed", type=int, help="live through one story again")
    add("--trace", action="store_true", help="with --seed: print all of it")
    add(
        "--only",
        type=hunt.read,
        help="with --seed: these acts alone, as a shrunk story names them",
    )
    add("--no-shrink", action="store_true", help="do not look for a shorter story that fails")
    return parser.parse_args()


def _worlds(options: argparse.Namespace) -> tuple[str, ...]:
    return hunt.WORLDS if options.world == "both" else (options.world,)


def _hunt(options: argparse.Namespace) -> int:
    begun_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    lived = hunt.hunt(seeds, _worlds(options), options.acts, options.jobs)
    failed = [one for one in lived if one.error]
    seen = hunt.coverage(lived)
    report = {
        "seeds": len(seeds), "stories": len(lived),
        "operations": sum(one.operations for one in lived),
        "steps": sum(one.steps for one in lived), "failures": len(failed),
        "failed": [f"{one.world} {one.seed}" for one in failed],
        "never_seen": hunt.never_seen(seen), "seconds": round(time.monotonic() - begun_s, 1),
        "seen": seen,
    }  # fmt: skip
    if options.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name}: {value}")
    if failed and not options.json:
        _explain(failed[0], options)
    missed = report["never_seen"] and options.world == "both" and len(seeds) >= ENOUGH
    return bool(failed or missed)


def _explain(one: hunt.Lived, options: argparse.Namespace) -> None:
    """The trace of a failure, of as short a story as can be found soon."""
    again = (
        f"python -m tests.simulation --world {one.world} --seed {one.seed} --acts {options.acts}"
    )
    print(one.error)
    if one.world == hunt.THREADS:
        return  # another time the threads run otherwise
    if one.world == "connectors" and not options.no_shrink:
        names = hunt.written(hunt.shrink(one.seed, options.acts))
        again += f" --only {names}"
    print(f"again: {again} --trace")


def _replay(options: argparse.Namespace) -> int:
    failures = 0
    for kind in _worlds(options):
        world = hunt.world_of(options.seed, kind, options.acts, options.only)
        works = world.works if kind == "connectors" else world
        if options.trace:
            works.trace = deque()
        print(f"seed {options.seed} of {kind}: ", end="")
        try:
            world.run()
        except SimulationError as error:
            failures += 1
            print("fails")
            print(str(error) if options.trace else error.__cause__)
        else:
            print(f"ends well, {world.operations} operations")
            if options.trace:
                print("\n".join(connectors.shown(*line) for line in works.trace))
    if failures and options.only is None and not options.no_shrink and kind == "connectors":
        names = hunt.written(hunt.shrink(options.seed, options.acts))
        print(f"again, shorter: --world connectors --seed {options.seed} --only {names} --trace")
    return bool(failures)


raise SystemExit(main())
