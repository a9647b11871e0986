"""What a connector has, holds and remembers at one moment, as plain numbers."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink.connector import Connector

ATTEMPTS = 20

NOT_HELD = frozenset({"untaken_lost", "unacknowledged"})
"""A count, and the numbers of what was consumed from whom we spoke with last: it may come back."""


def remains(connector: Connector, own_threads: int) -> dict[str, Any]:
    """Figures that are zero when nothing is under way, and counts of what a process holds.

    *own_threads* are not the connector's. Nor are the few that help with large copies: they are
    the process's, and stay.
    """
    helpers = sum(thread.name == "stagelink-copy" for thread in threading.enumerate())
    health = connector.health()
    pool, ledger, inbox = health["pool"], health["ledger"], health["inbox"]
    readers = [row for row in health["sessions"] if row["direction"] == "out"]
    held = {
        "pool": pool["capacity"] - pool["free"],
        **{f"pool {name}": pool[name] for name in ("quarantined", "reserved", "blocks")},
        **{f"ledger {name}": count for name, count in ledger.items()},
        **{f"inbox {name}": count for name, count in inbox.items() if name not in NOT_HELD},
        "views": health["views"],
        "readers": len(readers),
    }
    return {
        "held": {name: count for name, count in held.items() if count},
        "detail": health["sessions"],
        "descriptors": descriptors(),
        "threads": len(os.listdir("/proc/self/task")) - own_threads - helpers,
        "resident_kib": resident_kib(),
    }


def descriptors() -> list[str]:
    """What is open, by the kernel's words for it."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":[")[0])
    # An actor looks there, now and then, how long it was held up.
    return sorted(name for name in found if not name.endswith("/schedstat"))


def resident_kib() -> int:
    """Memory of our own: neither files nor what is shared."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def census(connector: Connector) -> dict[str, int]:
    """Every container that stagelink's objects reach, by the path to it, with its length.

    Containers of one path, such as those of all peers, are summed. Other threads may change them
    meanwhile; then it is begun anew.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(RuntimeError):
            return _census(connector)
    return {}


def _census(connector: Connector) -> dict[str, int]:
    counts: Counter[str] = Counter()
    ours = [(name, module) for name, module in sys.modules.items() if _is_ours(name)]
    todo: deque[tuple[str, Any]] = deque([("connector", connector)])
    todo.extend((name, vars(module)) for name, module in ours)
    seen: dict[int, Any] = {}
    while todo:
        path, thing = todo.popleft()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, (dict, list, set, frozenset, deque)):
            counts[path] += len(thing)
        if isinstance(thing, dict):
            todo.extend((f"{path}{_step(key)}", value) for key, value in thing.items())
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            todo.extend((f"{path}[]", value) for value in thing)
        elif _is_ours(type(thing).__module__):
            todo.extend((f"{path}.{name}", value) for name, value in _attributes(thing))
    return {path: count for path, count in counts.items() if count > 1}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "stagelink"


def _step(key: object) -> str:
    """Names of modules' variables are part of the path, keys of tables are not."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else "[]"


def _attributes(thing: object) -> list[tuple[str, Any]]:
    names = set(getattr(thing, "__dict__", ()))
    for kind in type(thing).__mro__:
        names.update(getattr(kind, "__slots__", ()))
    return [
        (name, getattr(thing, name)) for name in names - {"__weakref__"} if hasattr(thing, name)
    ]
