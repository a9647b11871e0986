"""``python -m tests.fuzz``: throw spoilt messages at every decoder."""

from __future__ import annotations

import argparse
import json
import sys

from tests.fuzz.hunt import hunt_in_parallel
from tests.fuzz.strangers import Siege

GROWTH = 64 << 20
"""Bytes of memory that the last four fifths may add: caches fill, and the allocator keeps."""


def main() -> int:
    """Parse the command line, hunt, and tell; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--seed", type=int, default=0, help="another one finds other things (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--live", type=int, default=0, metavar="N",
        help="then so many at the sockets of a connector at work",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    chosen = parser.parse_args()

    def tell(number: int) -> None:
        sys.stderr.write(f"\r{number * chosen.jobs:,} of {chosen.frames:,} frames")
        sys.stderr.flush()

    found = hunt_in_parallel(chosen.frames, chosen.seed, max(1, chosen.jobs), tell)
    sys.stderr.write("\n")
    told = found.told() | besieged(chosen.live, chosen.seed)
    if chosen.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name}: {value}")
    return int(bool(found.crashes) or found.growth > GROWTH)


def besieged(frames: int, seed: int) -> dict[str, object]:
    """The figures of a siege; whatever goes wrong in it is an exception."""
    if not frames:
        return {}
    with Siege(seed) as siege:
        came = siege.run(frames)
    assert came.growth < GROWTH, came
    assert not came.descriptors, came
    health = came.sender
    counted = {name: health[name] for name in ("frames_refused", "stale_messages", "violations")}
    return {"live": {**came._asdict(), "sender": counted}}


if __name__ == "__main__":
    sys.exit(main())
