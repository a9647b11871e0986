"""Many worlds side by side, and mistakes planted on purpose: what was found, in figures."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from tests.model.credit_mistakes import CREDIT_MISTAKES
from tests.model.explorer import Explorer, Result
from tests.model.mutations import MUTATIONS, mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.model.state import Bounds

MISTAKES = {**MUTATIONS, **CREDIT_MISTAKES}

ALL = 10**9
"""More states than any world is explored for."""


def explore_all(
    worlds: dict[str, Bounds],
    most: int = ALL,
    seconds: float = 1e9,
    processes: int = 2,
    tell: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Explore *worlds* side by side, each for at most *most* states, within *seconds* in all.

    Every world has an equal share of the time that is left when it begins: what the small ones do
    not need goes to those after them. *tell* hears of each that is through.
    """
    until, left = time.monotonic() + seconds, dict(worlds)
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[Result]] = set()
        while left or running:
            while left and len(running) < processes:
                name = next(iter(left))
                share = max(0.0, until - time.monotonic()) * processes / len(left)
                running.add(pool.submit(_explore, name, left.pop(name), most, share))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                results[result.name] = result
                tell(result)
    return [results[name] for name in worlds]


def _explore(name: str, bounds: Bounds, most: int, seconds: float) -> Result:
    return Explorer(name, bounds).run(most, seconds)


def hunt_mistakes(names: Iterable[str] = tuple(MISTAKES), processes: int = 2) -> list[Result]:
    """Plant each mistake in turn, and explore the world in which it must show."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(hunt_mistake, names))


def hunt_mistake(name: str) -> Result:
    """Explore the world of one mistake with the mistake in it."""
    mutation = MISTAKES[name]
    with mutated(mutation):
        return Explorer(name, mutation.bounds, progress_every=10).run(seconds=250.0)


def figures(results: list[Result], mistakes: list[Result], seconds: float) -> dict[str, Any]:
    """What was explored and found, in numbers; ``violations`` in words."""
    return {
        "worlds": len(results),
        "states": sum(result.states for result in results),
        "steps": sum(result.steps for result in results),
        "depth": max((result.depth for result in results), default=0),
        "exhausted": sum(result.exhausted for result in results),
        "violations": [str(result) for result in results if result.violation],
        "mutations": len(mistakes),
        "mutations_caught": sum(bool(result.violation) for result in mistakes),
        "mutations_missed": [result.name for result in mistakes if not result.violation],
        "seconds": round(seconds, 1),
    }
