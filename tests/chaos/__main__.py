"""The random hunt: ``python -m tests.chaos --rounds 500 --json``; ``--only 17`` plays one again.

Progress goes to standard error, figures to standard output; the exit status is 1 after a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tests.chaos.hunt import hunt
from tests.chaos.mistakes import MISTAKES
from tests.chaos.plan import LANES, draw

if TYPE_CHECKING:
    from tests.chaos.plan import Plan


def main() -> int:
    """Hunt as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--only", type=int, help="one round, with its plan")
    parser.add_argument("--lane", choices=LANES, action="append", help="only on these")
    parser.add_argument("--troupes", type=int, default=8, help="how many play at a time")
    parser.add_argument("--mistake", choices=MISTAKES, default="", help="make one on purpose")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    lanes = tuple(told.lane or LANES)
    numbers = range(told.first, told.first + told.rounds)
    if told.only is not None:
        numbers = range(told.only, told.only + 1)
        print(draw(told.only, lanes), file=sys.stderr)

    tally = hunt([draw(number, lanes) for number in numbers], told.troupes, show, told.mistake)
    figures = tally.figures()
    print(json.dumps(figures) if told.json else "\n".join(f"{k}: {v}" for k, v in figures.items()))
    return 1 if tally.failures else 0


def show(done: int, of: int, plan: Plan | None, faults: list[str]) -> None:
    """A line now and then, and all of a failure."""
    if faults:
        print(f"\n{plan or 'afterwards'}", *faults, sep="\n  ! ", file=sys.stderr)
    if done == of or not done % 10:
        print(f"\r{done} of {of} rounds", end="\n" if done == of else "", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
