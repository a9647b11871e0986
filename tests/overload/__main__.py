"""``python -m tests.overload --seconds 60 --backend shm-write``: figures as one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys

from tests.overload.lanes import overload


def main() -> int:
    """0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--backend", default="shm-write")
    given = parser.parse_args()
    found = overload(given.backend, given.seconds)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
