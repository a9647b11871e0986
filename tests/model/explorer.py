"""Breadth first through every state of a bounded world, with the shortest trace to a violation."""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from marshal import dumps
from typing import TYPE_CHECKING, NamedTuple

from tests.model.acts import ADVERSE
from tests.model.invariants import OF_AN_ENDPOINT, OF_THE_WORLD, quiescent
from tests.model.moves import apply, moves, nudge
from tests.model.state import State, Violation
from tests.model.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.model.acts import Move
    from tests.model.state import Bounds

PATIENCE = 300
"""Kind moves after which a state must have come to rest."""


class Result(NamedTuple):
    """What an exploration found; ``violation`` and ``trace`` are empty where all is well."""

    name: str
    states: int
    endpoints: int
    steps: int
    depth: int
    seconds: float
    exhausted: bool
    violation: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        """One line, and the trace under it."""
        end = "exhausted" if self.exhausted else "stopped"
        if self.violation:
            end = f"VIOLATION {self.violation}"
        line = (
            f"{self.name:28} {self.states:8,} states {self.endpoints:7,} endpoints "
            f"depth {self.depth:3} {self.seconds:6.1f} s  {end}"
        )
        steps = [f"    {number:3}. {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([line, *steps])


class Explorer:
    """One world, explored."""

    def __init__(self, name: str, bounds: Bounds, progress_every: int = 50) -> None:
        self.name = name
        self.world = World(bounds)
        self._every = progress_every
        self._checked = 0
        self._parents = array("l", [-1])
        self._choices = array("h", [0])
        self._parts: dict[object, int] = {}

    def run(self, most: int = 10**9, seconds: float = 1e9) -> Result:
        """Explore until everything, *most* states or *seconds* are through, or one is wrong."""
        began = time.monotonic()
        first = self.world.first()
        seen, todo = {self._digest(first)}, deque([(first, 0, 0)])
        steps = depth = 0
        exhausted, violation, trace = True, "", []
        move: Move | None = None
        while todo:
            if len(seen) >= most or time.monotonic() - began > seconds:
                exhausted = False
                break
            state, index, depth = todo.popleft()
            try:
                if index % self._every == 0:
                    self._comes_to_rest(state)
                for choice, move in enumerate(moves(self.world, state)):
                    steps += 1
                    after = self._after(state, move)
                    digest = self._digest(after)
                    if digest not in seen:
                        seen.add(digest)
                        self._parents.append(index)
                        self._choices.append(choice)
                        todo.append((after, len(self._parents) - 1, depth + 1))
            except Stuck as stuck:
                violation, trace = str(stuck), [*self._trace(index), *stuck.trace]
            except Violation as wrong:
                violation, trace = str(wrong), [*self._trace(index), self._tell(move)]
            if violation:
                exhausted = False
                break
        taken = time.monotonic() - began
        sizes = (len(seen), len(self.world.machines), steps, depth)
        return Result(self.name, *sizes, taken, exhausted, violation, tuple(trace))

    def _after(self, state: State, move: Move) -> State:
        """The state after *move*, checked."""
        after = apply(self.world, state, move)
        while self._checked < len(self.world.machines):
            self._checked += 1
            endpoint = self.world.machines.look(self._checked)
            for check_endpoint in OF_AN_ENDPOINT:
                check_endpoint(endpoint)
        for check in OF_THE_WORLD:
            check(self.world, after)
        return after

    def _comes_to_rest(self, state: State) -> None:
        """12, 13: a kind world comes to rest from *state*, with nothing left over."""
        met: set[State] = {state}
        trace: list[str] = []
        while True:
            for move in moves(self.world, state):
                if move.kind == ADVERSE:
                    continue
                try:
                    after = self._after(state, move)
                except Violation as wrong:
                    raise Stuck(str(wrong), [*trace, self._tell(move)]) from wrong
                if after not in met:
                    break
            else:
                last = nudge(self.world, state)
                if last is None:
                    break
                move, after = last, self._after(state, last)
            trace.append(self._tell(move))
            state = after
            met.add(state)
            if len(met) > PATIENCE:
                raise Stuck(f"13 no rest after {PATIENCE} kind moves", trace)
        left = quiescent(self.world, state)
        if left:
            raise Stuck(f"12 at rest, but there is {left}", trace)

    def _digest(self, state: State) -> bytes:
        """A state in 12 bytes: marshal knows no named tuples, so parts are numbered first."""
        parts = self._parts
        flat = tuple([parts.setdefault(part, len(parts)) for part in state])
        return blake2b(dumps(flat, 2), digest_size=12).digest()

    def _trace(self, index: int) -> list[str]:
        """How the state of that index was reached, in words: by doing it again."""
        choices = []
        while index > 0:
            choices.append(self._choices[index])
            index = self._parents[index]
        state, told = self.world.first(), []
        for choice in reversed(choices):
            move = list(moves(self.world, state))[choice]
            told.append(self._tell(move))
            state = apply(self.world, state, move)
        return told

    def _tell(self, move: Move | None) -> str:
        if move is None:
            return "the first state"
        what, *rest = move.what
        if what in {
            "deliver",
            "lose",
            "deliver and keep a copy of",
            "deliver late",
            "cut, and delay",
        }:
            role, mail = rest
            return f"{what} to {role}: {self.world.machines.mail(mail)}"
        return " ".join(map(str, (what, *rest)))


class Stuck(Violation):
    """A kind world does not come to rest; ``trace`` are the kind moves tried."""

    def __init__(self, message: str, trace: Iterable[str]) -> None:
        super().__init__(message)
        self.trace = [f"(kindly) {step}" for step in trace]


def explore(name: str, bounds: Bounds, most: int, seconds: float) -> Result:
    """Explore one world."""
    return Explorer(name, bounds).run(most, seconds)


def explore_all(
    worlds: dict[str, Bounds], most: int, seconds: float, processes: int
) -> list[Result]:
    """Explore *worlds* side by side; *most* states and *seconds* hold for each."""
    with ProcessPoolExecutor(processes) as pool:
        # The last worlds are the largest: begin with them, so that no process idles at the end.
        waits = [
            pool.submit(explore, name, worlds[name], most, seconds) for name in reversed(worlds)
        ]
        results = []
        for wait in waits:
            results.append(wait.result())
            print(results[-1], flush=True)
    return results


def main() -> int:
    """Explore from the command line: names of worlds (or parts of them), and limits."""
    from tests.model.worlds import LARGE, SMALL

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds whose name contains one of these")
    parser.add_argument("--states", type=int, default=10**6, help="at most this many per world")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most so long per world")
    parser.add_argument("--large", action="store_true", help="the worlds too large for every day")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    worlds = {**SMALL, **LARGE} if chosen.large else SMALL
    if chosen.names:
        worlds = {n: b for n, b in worlds.items() if any(part in n for part in chosen.names)}
    results = explore_all(worlds, chosen.states, chosen.seconds, chosen.processes)
    print(f"{sum(result.states for result in results):,} states")
    return int(any(result.violation for result in results))


if __name__ == "__main__":
    sys.exit(main())
