"""``python -m tests.fuzz``: throw spoilt messages at every decoder."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.hunt import hunt_in_parallel

GROWTH = 64 << 20
"""Bytes of memory that the last four fifths may add: caches fill, and the allocator keeps."""


def main() -> int:
    """Parse the command line, hunt, and tell; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--seed", type=int, default=0, help="another one finds other things (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument(
        "--atheris",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds of atheris first, guided by coverage; needs it installed",
    )
    chosen = parser.parse_args()
    if chosen.atheris:
        from tests.fuzz.guided import guided

        return guided(chosen.atheris)

    def tell(number: int) -> None:
        sys.stderr.write(f"\r{number * chosen.jobs:,} of {chosen.frames:,} frames")
        sys.stderr.flush()

    found = hunt_in_parallel(chosen.frames, chosen.seed, max(1, chosen.jobs), tell)
    sys.stderr.write("\r")
    if chosen.json:
        print(found.to_json())
    else:
        for name, value in found._asdict().items():
            print(f"{name}: {value}")
    return int(bool(found.crashes) or found.growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
