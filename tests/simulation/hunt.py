"""Many seeds in parallel processes: what failed, and what was seen how often."""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation import world as endpoints
from tests.simulation.errors import SimulationError
from tests.simulation.threads import ThreadsWorld
from tests.simulation.whole import world as connectors

from stagelink.core.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.simulation.whole.story import Name

CHUNK = 10
"""Seeds that a process is given at once."""

SHRINK_S = 20.0

WORLDS = ("endpoints", "connectors")
"""Those of which a seed is always the same story."""

THREADS = "threads"

UNREACHED = frozenset({Reason.PROTOCOL, Reason.OUT_OF_BOUNDS, Reason.REJECTED, Reason.FENCED})
"""Not demanded: honest peers never give the first two, which ``tests/adapters`` and ``tests/core``
provoke; a get that is ended by reject() is told "cancelled"; and a fence must come between an
answer and the first look at its bytes to be told of.
"""


class Lived(NamedTuple):
    """What came of one seed in one world."""

    seed: int
    world: str
    operations: int
    seen: Counter[str]
    steps: int = 0
    error: str = ""


def world_of(seed: int, world: str, acts: int, only: Iterable[Name] | None = None) -> Any:
    """The world of a seed, not lived yet."""
    if world == "endpoints":
        return endpoints.World(seed, 5 * acts, impatient=seed % 2 == 1)
    if world == THREADS:
        return ThreadsWorld(seed, acts)
    return connectors.World(seed, acts, only)


def live(seed: int, world: str, acts: int) -> Lived:
    """Live through one seed."""
    lived = world_of(seed, world, acts)
    error = ""
    try:
        lived.run()
    except SimulationError as failure:
        error = str(failure)
    works = lived if world == "endpoints" else lived.works
    steps = 0 if world == THREADS else works.steps  # real threads take turns that nobody counts
    return Lived(seed, world, lived.operations, works.seen, steps, error)


def _live_all(jobs: Sequence[tuple[int, str, int]]) -> list[Lived]:
    return [live(*job) for job in jobs]


def hunt(seeds: Sequence[int], worlds: Sequence[str], acts: int, processes: int) -> list[Lived]:
    """Live through all *seeds* in each of *worlds*, with progress on stderr."""
    jobs = [(seed, world, acts) for seed in seeds for world in worlds]
    chunks = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
    lived: list[Lived] = []
    begun_s = time.monotonic()
    for some in _performed(chunks, processes):
        lived += some
        failed = sum(1 for one in lived if one.error)
        text = f"\r{len(lived)} of {len(jobs)} stories, {failed} failed, "
        print(text + f"{time.monotonic() - begun_s:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return sorted(lived)


def _performed(
    chunks: list[list[tuple[int, str, int]]], processes: int
) -> Iterator[list[Lived]]:  # fmt: skip
    if processes == 1:
        yield from map(_live_all, chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(_live_all, chunk) for chunk in chunks]):
            yield future.result()


def coverage(lived: Iterable[Lived]) -> dict[str, int]:
    """How often each thing was seen, over all stories."""
    total: Counter[str] = Counter()
    for one in lived:
        total.update(one.seen)
    return dict(sorted(total.items()))


def never_seen(seen: Iterable[str]) -> list[str]:
    """The reasons of errors that no call ended with, though they can occur."""
    causes = {name.rpartition(": ")[2] for name in seen}
    return [one.value for one in Reason if one not in UNREACHED and one.value not in causes]


# --- shrinking ---------------------------------------------------------------------------


def shrink(seed: int, acts: int, limit_s: float = SHRINK_S) -> list[Name]:
    """Few acts and accidents of whole connectors with which *seed* still fails alike."""
    end_s = time.monotonic() + limit_s
    kept, kind = _fails(seed, acts, None)
    size = len(kept) // 2
    while size and time.monotonic() < end_s:
        start = 0
        while start < len(kept) and time.monotonic() < end_s:
            fewer = kept[:start] + kept[start + size :]
            done, found = _fails(seed, acts, fewer)
            if found == kind:
                kept = [name for name in fewer if name in set(done)]
            else:
                start += size
        size //= 2
    return kept


def _fails(seed: int, acts: int, only: list[Name] | None) -> tuple[list[Name], str]:
    """What happened, and by which class and first words it fails; empty if it does not."""
    world = connectors.World(seed, acts, only)
    try:
        world.run()
    except SimulationError as error:
        words = str(error.__cause__).split()
        return world.story.done, f"{type(error.__cause__).__name__} {_kind(words)}"
    return world.story.done, ""


def _kind(words: list[str]) -> str:
    """The words that say what is wrong, not where and with what."""
    return " ".join(word for word in words if word.isalpha() and len(word) > 1)[:40]


def written(names: Iterable[Name]) -> str:
    """Names of acts for a command line."""
    return ",".join(f"{whose}:{number}" for whose, number in names)


def read(text: str) -> list[Name]:
    """The names that :func:`written` wrote."""
    pairs = (one.rpartition(":") for one in text.split(",") if one)
    return [(whose, int(number)) for whose, _, number in pairs]
