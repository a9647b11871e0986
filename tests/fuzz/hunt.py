"""Many frames, quickly: a loop that spoils and throws, and counts."""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fuzz.decoders import Decoder, decoders, is_typed
from tests.fuzz.mutate import Mutator

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_CRASHES = 20
PAGE = 4096
REPORT_EVERY = 5000


class Crash(NamedTuple):
    """An error that is none of ours; the frames (hex) show it again."""

    decoder: str
    error: str
    frames: list[str]


class Figures(NamedTuple):
    """What came of it; ``growth`` is resident memory, after the first fifth, in bytes."""

    frames: int
    refused: int
    by_decoder: dict[str, int]
    crashes: list[Crash]
    slowest_ms: float
    slowest: str
    growth: int
    seconds: float

    def told(self) -> dict[str, Any]:
        """As JSON can hold it; of the crashes the first ones."""
        named = self._asdict()
        named["crashes"] = len(self.crashes)
        named["failures"] = [crash._asdict() for crash in self.crashes[:KEPT_CRASHES]]
        named["memory_growth_bytes"] = named.pop("growth")
        return named


def resident() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def hunt(
    frames: int, seed: int, tell: Callable[[int], None] | None = None,
    table: list[Decoder] | None = None,
) -> Figures:  # fmt: skip
    """Throw *frames* spoilt messages at the decoders, by chance and the same for a *seed*."""
    random, table = Random(seed), table or decoders()
    mutator = Mutator(random)
    shares = [decoder.share for decoder in table]
    thrown: Counter[str] = Counter()
    refused, crashes = 0, []
    slowest_s, slowest = 0.0, ""
    start_s, before = perf_counter(), 0
    for number in range(frames):
        if number == frames // 5:
            before = resident()
        if tell is not None and number % REPORT_EVERY == 0:
            tell(number)
        [decoder] = random.choices(table, shares)
        bad = mutator.spoil(
            random.choice(decoder.seeds), random.choice(decoder.seeds), decoder.head
        )
        at_s = perf_counter()
        crash = throw(decoder, bad)
        took_s = perf_counter() - at_s
        thrown[decoder.name] += 1
        if took_s > slowest_s:
            slowest_s, slowest = took_s, decoder.name
        if crash is REFUSED:
            refused += 1
        elif crash is not None:
            crashes.append(crash)
    return Figures(
        frames, refused, dict(thrown), crashes, slowest_s * 1000, slowest,
        resident() - before, perf_counter() - start_s,
    )  # fmt: skip


REFUSED = Crash("", "", [])


def throw(decoder: Decoder, frames: list[bytes]) -> Crash | None:
    """What comes of it: nothing, REFUSED, or a crash."""
    try:
        decoder.read(frames)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        if is_typed(error, decoder):
            return REFUSED
        told = "".join(traceback.format_exception(error)[-6:])
        return Crash(decoder.name, told, [frame.hex() for frame in frames])
    return None


def hunt_in_parallel(
    frames: int, seed: int, jobs: int, tell: Callable[[int], None] | None = None
) -> Figures:
    """The same in *jobs* fresh processes, each with a seed of its own; the first one tells."""
    if jobs == 1:
        return hunt(frames, seed, tell)
    parts = [frames // jobs + (place < frames % jobs) for place in range(jobs)]
    with ProcessPoolExecutor(jobs - 1, mp_context=get_context("spawn")) as others:
        begun = [others.submit(hunt, part, seed + at) for at, part in enumerate(parts[1:], 1)]
        found = [hunt(parts[0], seed, tell), *(one.result() for one in begun)]
    return merged(found)


def merged(found: list[Figures]) -> Figures:
    """One set of figures of several."""
    thrown: Counter[str] = Counter()
    for one in found:
        thrown.update(one.by_decoder)
    worst = max(found, key=lambda one: one.slowest_ms)
    crashes: list[Any] = [crash for one in found for crash in one.crashes]
    return Figures(
        sum(one.frames for one in found), sum(one.refused for one in found), dict(thrown),
        crashes, worst.slowest_ms, worst.slowest, max(one.growth for one in found),
        max(one.seconds for one in found),
    )  # fmt: skip
