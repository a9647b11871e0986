"""Hunt for counter-examples to every promise, and print one JSON object as the last line.

    python -m tests.prove                  all of it, in some 20 minutes on two processors
    python -m tests.prove --budget 7200    two hours of it
    python -m tests.prove --only chaos     one hunt, with its own figures

Each hunt is a command of its own; its progress goes to standard error. Exit status 1 means that a
promise was broken, or that a hunt did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any, NamedTuple

FULL_S = 1080.0
"""What the numbers below take on two processors."""


class Hunt(NamedTuple):
    """A command and the figures of its JSON object that are told; *amount* at a budget of FULL_S."""

    module: str
    option: str
    amount: int
    figures: dict[str, str]


HUNTS = {
    "model": Hunt(
        "tests.model",
        "--budget",
        480,
        {
            "states": "states",
            "depth": "depth",
            "worlds": "worlds",
            "mutations": "mutations",
            "mutations_caught": "mutations_caught",
        },
    ),
    "simulation": Hunt(
        "tests.simulation",
        "--seeds",
        2000,
        {"seeds": "seeds", "operations": "operations", "steps": "steps"},
    ),
    "chaos": Hunt("tests.chaos", "--rounds", 500, {"chaos_rounds": "rounds"}),
    "fuzz": Hunt("tests.fuzz", "--frames", 1_000_000, {"frames": "frames"}),
}


def run(name: str, scale: float) -> dict[str, Any]:
    """The figures of one hunt; its failures are counted, and it is one itself if it ends badly."""
    hunt = HUNTS[name]
    amount = max(1, round(hunt.amount * scale))
    command = [sys.executable, "-m", hunt.module, hunt.option, str(amount), "--json"]
    print(f"prove: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    start_s = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    figures = told(ended.stdout)
    print(f"prove: {name} took {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        ours: figures.get(theirs, 0) for ours, theirs in hunt.figures.items()
    }
    failures = figures.get("failures", figures.get("violations", 0))
    found = len(failures) if isinstance(failures, (list, dict)) else int(failures)
    result["failures"] = found or int(ended.returncode != 0 or not figures)
    if result["failures"]:
        told_so = ended.stdout.decode(errors="replace").strip() or "nothing at all"
        print(f"prove: {name} ended with {ended.returncode}, and said: {told_so}", file=sys.stderr)
    return result


def told(output: bytes) -> dict[str, Any]:
    """The JSON object in the last line of *output*; empty if there is none."""
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--budget", type=float, default=FULL_S, help=f"seconds ({FULL_S:.0f})")
    parser.add_argument("--only", choices=HUNTS, action="append", help="one hunt; may be repeated")
    asked = parser.parse_args()
    scale = asked.budget / FULL_S
    total: dict[str, Any] = {"failures": 0}
    for name in asked.only or HUNTS:
        figures = run(name, scale)
        total["failures"] += figures.pop("failures")
        total.update(figures)
    print(json.dumps(total))
    return int(
        total["failures"] > 0 or total.get("mutations", 0) != total.get("mutations_caught", 0)
    )


if __name__ == "__main__":
    sys.exit(main())
