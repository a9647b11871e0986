"""Breadth first through every state of a bounded world, with the shortest trace to a violation.

Nothing here is left to chance: moves come in one order, states are told apart by a digest of
their normal form (:mod:`tests.model.names`), and the same world gives the same numbers each time.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tests.model.acts import ADVERSE, BENIGN, Move
from tests.model.calls import greet
from tests.model.invariants import OF_AN_ENDPOINT, OF_THE_WORLD
from tests.model.moves import apply, moves, nudge, place_of
from tests.model.rest import quiescent, unanswered
from tests.model.state import Violation
from tests.model.world import World, limited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.model.state import Bounds, State

PATIENCE = 400
"""Kind moves after which a state must have come to rest."""

OF_MAIL = {"deliver", "lose", "deliver and copy", "deliver late", "cut, and delay"}
"""Moves that are about a message."""

LOOK_AT_CLOCK = 256
"""States between two looks at the clock."""


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
    """One world, explored; coming to rest is tried from every *progress_every*-th state."""

    def __init__(self, name: str, bounds: Bounds, progress_every: int = 50) -> None:
        self.name = name
        self.world = World(bounds)
        self._every = progress_every
        self._checked = 0
        self._parents = array("l", [-1])
        self._choices = array("h", [0])

    def run(self, most: int = 10**9, seconds: float = 1e9) -> Result:
        """Explore until everything, *most* states or *seconds* are through, or one is wrong."""
        with limited(self.world.bounds.limits):
            return self._run(most, seconds)

    def _run(self, most: int, seconds: float) -> Result:
        began = time.monotonic()
        digest = self.world.names.digest
        first = self._begin()
        seen, todo = {digest(first)}, deque([(first, 0, 0)])
        steps = depth = 0
        exhausted, violation, trace = True, "", []
        move: Move | None = None
        while todo:
            state, index, depth = todo.popleft()
            late = index % LOOK_AT_CLOCK == 0 and time.monotonic() - began > seconds
            if len(seen) >= most or late:
                exhausted = False
                break
            try:
                if index % self._every == 0:
                    self._comes_to_rest(state)
                for choice, move in enumerate(moves(self.world, state)):
                    steps += 1
                    after = apply(self.world, state, move)
                    name = digest(after)
                    if name not in seen:
                        seen.add(name)
                        self._check(after)
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

    def _begin(self) -> State:
        """The first state: endpoints that have not met, or have; then what the world starts with."""
        state = self.world.first()
        if self.world.bounds.met:
            for place in dict(self.world.dials):
                state = self._mail(apply(self.world, state, Move(BENIGN, ("meet", place), greet)))
        for step in self.world.bounds.start:
            if step in {"mail", "writes"}:
                state = self._mail(state, writes=step == "writes")
                continue
            named = {" ".join(map(str, move.what)): move for move in moves(self.world, state)}
            state = apply(self.world, state, named[step])
        return state

    def _mail(self, state: State, *, writes: bool = False) -> State:
        """The state when all that is being sent has arrived, and drivers have attached.

        With *writes* also when all that is being written has landed.
        """
        soon = {"deliver", "connect", "perform", *(("a write lands",) if writes else ())}
        while True:
            first = next(moves(self.world, state), None)
            if first is None or first.what[0] not in soon:
                return state
            state = apply(self.world, state, first)

    def _check(self, state: State) -> None:
        """Every invariant; those of one endpoint once for each endpoint that was ever met."""
        while self._checked < len(self.world.machines):
            self._checked += 1
            endpoint = self.world.machines.look(self._checked)
            for check_endpoint in OF_AN_ENDPOINT:
                check_endpoint(endpoint)
        for check in OF_THE_WORLD:
            check(self.world, state)

    # --- progress ------------------------------------------------------------------------

    def _comes_to_rest(self, state: State) -> None:
        """12, 13: a kind world comes to rest from *state*, with nothing left over.

        A place that is silent (stopped, or cut off for ever) does nothing, and every other must
        end its calls all the same; then it goes on, and everything comes to rest. That silence
        needs no moves of its own: whatever happens during it is an interleaving like any other.
        """
        for silent in self.world.places if self.world.bounds.silent else "":
            after, trace = self._kindly(state, [], silent)
            left = unanswered(after, silent)
            if left:
                raise Stuck(f"7 while {silent} is silent, there are {left}", trace)
            self._rest(after, trace)
        self._rest(state, [])

    def _rest(self, state: State, trace: list[str]) -> None:
        state, trace = self._kindly(state, trace, "")
        left = quiescent(self.world, state)
        if left:
            raise Stuck(f"12 at rest, but there is {left}", trace)

    def _kindly(self, state: State, trace: list[str], silent: str) -> tuple[State, list[str]]:
        """Kind moves until none leads to anything new; none of a place that is *silent*."""
        met: set[State] = {state}
        trace = [*trace, f"{silent} falls silent"] if silent else list(trace)
        while True:
            for move in moves(self.world, state):
                if move.kind == ADVERSE or (silent and place_of(move) == silent):
                    continue
                after = self._kind(state, move, trace)
                if after not in met:
                    break
            else:
                last = None if silent else nudge(self.world, state)
                if last is None:
                    return state, trace
                move, after = last, self._kind(state, last, trace)
            trace.append(self._tell(move))
            state = after
            met.add(state)
            if len(met) > PATIENCE:
                raise Stuck(f"13 no rest after {PATIENCE} kind moves", trace)

    def _kind(self, state: State, move: Move, trace: list[str]) -> State:
        try:
            after = apply(self.world, state, move)
            self._check(after)
        except Violation as wrong:
            raise Stuck(str(wrong), [*trace, self._tell(move)]) from wrong
        return after

    # --- telling -------------------------------------------------------------------------

    def _trace(self, index: int) -> list[str]:
        """How the state of that index was reached, in words: by doing it again."""
        choices = []
        while index > 0:
            choices.append(self._choices[index])
            index = self._parents[index]
        state, told = self._begin(), []
        for choice in reversed(choices):
            move = list(moves(self.world, state))[choice]
            told.append(self._tell(move))
            state = apply(self.world, state, move)
        return told

    def _tell(self, move: Move | None) -> str:
        if move is None:
            return "the first state"
        what, *rest = move.what
        if what in OF_MAIL:
            place, dialer, mail = rest
            return f"{what} to {place} ({dialer}): {self.world.machines.mail(mail)}"
        return " ".join(map(str, (what, *rest)))


class Stuck(Violation):
    """A kind world does not come to rest; ``trace`` are the kind moves tried."""

    def __init__(self, message: str, trace: Iterable[str]) -> None:
        super().__init__(message)
        self.trace = [f"(kindly) {step}" for step in trace]
