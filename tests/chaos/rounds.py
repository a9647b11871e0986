"""One round: meet, act, be struck, part; then look at what those who live have, and have left."""

from __future__ import annotations

import time
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tests.chaos.plan import AGAIN, Plan
from tests.chaos.processes import WHOLE_S, settle
from tests.chaos.scripts import VIGIL_S, meeting, traffic, vigil
from tests.chaos.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.chaos.lanes import Lane
    from tests.chaos.plan import Strike
    from tests.chaos.processes import Process
    from tests.chaos.scripts import Part

NOTICE_S = 1.0
HELD_S = 2.0
"""So long, and so much more as a survivor was not let run, may it hold anything of the dead."""

START_S = 0.005
REST_S = 0.1

Act = tuple[float, "Callable[[], None]"]


def play(lane: Lane, plan: Plan, tally: Tally) -> list[str]:
    """Live through *plan*; what was wrong. After a failure the next round has new survivors."""
    lane.open()
    played = Round(lane, plan, tally)
    try:
        if not lane.base:
            warm_up(lane, tally)
        played.run()
    except AssertionError as error:
        played.faults.append(f"the round broke off: {error}")
    finally:
        played.clear()
    tally.rounds += 1
    if played.faults:
        tally.failures += 1
        tally.failed.append(plan.number)
        lane.close()
    return played.faults


def warm_up(lane: Lane, tally: Tally) -> None:
    """Meet and part once: what is there afterwards is there to stay."""
    first = Round(lane, Plan(0, lane.name, True, (), (), "kill"), tally)
    try:
        first.cast()
        first.perform(meeting(0, "small", first.cast_of()))
        first.perform(meeting(0, "large", first.cast_of(), 300_000))
        first.part()
        first.take_back()
    finally:
        first.clear()
    assert not first.faults, first.faults
    time.sleep(REST_S)
    for role, process in lane.survivors.items():
        now = settle(process, lambda now: not now["held"])
        assert not now["held"], f"{role} has {now['held']} after the first meeting"
        lane.base[role] = now


def last_look(lane: Lane) -> list[str]:
    """After the last round: whoever opens next finds nothing of the dead."""
    if not lane.survivors:
        return []
    last = Round(lane, Plan(0, lane.name, True, (), (), "kill"), Tally())
    try:
        last.cast()
        last.look_at_names()
    finally:
        last.clear()
    return last.faults


class Round:
    """The course of one plan, and its faults."""

    def __init__(self, lane: Lane, plan: Plan, tally: Tally) -> None:
        self.faults: list[str] = []
        self._lane, self._plan, self._tally = lane, plan, tally
        self._mortals: dict[str, Process] = {}
        self._past: list[Process] = []
        self._put: set[tuple[str, str]] = set()

    def run(self) -> None:
        """All of it."""
        plan = self._plan
        self.cast()
        self.look_at_names()
        if plan.meets:
            self.perform(meeting(plan.number, "before", self.cast_of()))
        parts = traffic(plan)
        watched = [part for part in parts if part.name.startswith("vigil")]
        players = self.cast_of()
        start_s = self._start(parts, players)
        self._strike(start_s)
        self._finish([part for part in parts if part not in watched], players)
        if self._mortals["mortal"].alive:
            self.perform(meeting(plan.number, "after", self.cast_of()))
            watched += self._watch_again(watched)
        self.part()
        known_s = self._notice(watched)
        self._look_at_survivors(known_s)

    def cast(self, *roles: str) -> None:
        """New mortals; those who had the roles are past."""
        self._past += [self._mortals[role] for role in roles]
        self._mortals |= self._lane.cast(*([roles] if roles else []))

    def cast_of(self) -> dict[str, Process]:
        """Who is there now, by role."""
        alive = {role: one for role, one in self._mortals.items() if one.alive}
        return {**self._lane.survivors, **alive}

    def perform(self, parts: list[Part]) -> None:
        """Have *parts* played and wait for their ends."""
        players = self.cast_of()
        self._start(parts, players)
        self._finish(parts, players)

    def part(self) -> None:
        """The mortals end, as planned."""
        for process in self._mortals.values():
            if self._plan.end == "kill":
                self._kill(process)
            elif process.alive:
                process.close()

    def take_back(self) -> None:
        """What the hub has put and nobody took."""
        keys, streams = (
            [key for kind, key in self._put if kind == one] for one in ("put", "write")
        )
        self._lane.survivors["hub"].ask("clear", keys=keys, streams=streams)
        self._put.clear()

    def clear(self) -> None:
        """Nobody of this round is left."""
        for process in (*self._past, *self._mortals.values()):
            process.end()
        for process in self._lane.survivors.values():
            process.go_on()
            process.said.clear()
            process.stopped_s = process.went_on_s = 0.0

    # --- acting --------------------------------------------------------------------------

    def _start(self, parts: list[Part], players: dict[str, Process]) -> float:
        start_s = time.monotonic() + START_S
        for role, process in players.items():
            tasks = [part.task for part in parts if part.role == role]
            process.tell("play", tasks=tasks, start_s=start_s)
            if role == "hub":
                self._put |= {(task["kind"], task["key"]) for task in tasks}
        for process in players.values():
            process.reply()
        return start_s

    def _finish(self, parts: list[Part], players: dict[str, Process]) -> None:
        """Wait for every part of who lives; judge them all."""
        longest_s = max((part.task["at_ms"] / 1e3 + part.limit_s() for part in parts), default=0.0)
        until_s = time.monotonic() + longest_s + 3.0
        for part in parts:
            process = players[part.role]
            while part.name not in process.said:
                if not process.hear(until_s - time.monotonic()):
                    break
        for part in parts:
            process = players[part.role]
            said = process.said.get(part.name)
            self._count(part, said)
            if said is None and process.killed_s:
                continue
            closed = process.closed or bool(process.killed_s)
            fault = part.fault(said, process.stopped_s, closed=closed)
            if fault:
                self.faults.append(fault)

    def _count(self, part: Part, said: dict[str, Any] | None) -> None:
        kind, came = part.task["kind"], said["came"] if said else ""
        self._tally.gets += kind in {"get", "meet", "read"}
        self._tally.right += came == "right"
        aborted = kind in {"withdraw", "cancel", "reject"} or " replace by " in part.name
        self._tally.aborts += bool(aborted or part.task.get("abort") or part.task.get("leave"))

    def _watch_again(self, watched: list[Part]) -> list[Part]:
        """Where the first vigil has ended with somebody's death: another one for who came then."""
        ended = {part.role for part in watched if self._said(part)}
        again = [vigil(role, self._plan.number, "second") for role in ended]
        self._start(again, {role: self._lane.survivors[role] for role in ended})
        for role in ended:
            begun = settle(
                self._lane.survivors[role], lambda now: now["held"].get("inbox gets", 0) > 0
            )
            if not begun["held"].get("inbox gets"):
                self.faults.append(f"{role}: the second vigil does not wait: {begun['held']}")
        return again

    def _said(self, part: Part) -> dict[str, Any] | None:
        process = self._lane.survivors[part.role]
        while process.hear():
            pass
        return process.said.get(part.name)

    # --- being struck --------------------------------------------------------------------

    def _strike(self, start_s: float) -> None:
        """Everything at its time, as well as one thread can."""
        acts = [act for strike in self._plan.strikes for act in self._acts(strike)]
        for at_ms, act in sorted(acts, key=itemgetter(0)):
            time.sleep(max(0.0, start_s + at_ms / 1e3 - time.monotonic()))
            act()

    def _acts(self, strike: Strike) -> Iterable[Act]:
        at_ms, what, whom, for_ms = strike
        process = {**self._lane.survivors, **self._mortals}[whom]
        if what.startswith("fork"):
            yield at_ms, process.fork
        if what.startswith("stop"):
            yield at_ms, lambda: self._stop(process)
            if what == "stop":
                yield at_ms + for_ms, process.go_on
        if what in {"close", "reopen"}:
            yield at_ms, lambda: self._close(process)
        elif what != "stop":
            when_ms = at_ms + for_ms if what == "stop and kill" else at_ms
            yield when_ms, lambda: self._kill(process)
        if what in AGAIN:
            yield at_ms, lambda: self._again(whom)

    def _kill(self, process: Process) -> None:
        self._tally.kills += process.alive
        process.kill()

    def _stop(self, process: Process) -> None:
        self._tally.stops += process.alive
        process.stop()

    def _close(self, process: Process) -> None:
        self._tally.aborts += process.alive
        process.close()

    def _again(self, whom: str) -> None:
        self._tally.restarts += 1
        self.cast(whom)

    # --- looking -------------------------------------------------------------------------

    def _notice(self, watched: list[Part]) -> float:
        """Wait for the vigils' ends; when the last of all deaths was known.

        Who had not met the sender before its first vigil may just as well be told of its
        predecessor's end, or that it cannot be reached. And who slept while a successor came has
        gone on waiting for that one, and is told of its death.
        """
        ends = [one for one in (*self._past, *self._mortals.values()) if one.role == "mortal"]
        known_s = max(one.ended_s for one in (*self._past, *self._mortals.values()))
        for part in watched:
            process = self._lane.survivors[part.role]
            until_s = time.monotonic() + VIGIL_S + 3.0
            while part.name not in process.said and process.hear(until_s - time.monotonic()):
                pass
            said = process.said.get(part.name)
            fault = part.fault(said, process.stopped_s, closed=False)
            if said is None or fault:
                self.faults.append(fault)
                continue
            known_s = max(known_s, said["ended_s"])
            if self._plan.meets or not part.name.startswith("vigil first"):
                before = [one for one in ends if one.ended_s <= said["ended_s"]]
                self._took(part, said, before[-1] if before else ends[0])
        return known_s

    def _took(self, part: Part, said: dict[str, Any], dead: Process) -> None:
        """How long after the death of its sender a vigil ended."""
        went_on_s = self._lane.survivors[part.role].went_on_s
        notice_s = said["ended_s"] - max(dead.ended_s, went_on_s, said["begun_s"])
        where = f"{part.role}: {part.name}: {said['came']} {said['detail']}"
        if said["ended_s"] < dead.ended_s:
            self.faults.append(f"told of a death before it happened: {where}")
        if notice_s - said["starved_s"] > NOTICE_S:
            self.faults.append(f"heard of the death only after {notice_s:.3f} s: {where}")
        if dead.killed_s:
            self._tally.slowest_notice_ms = max(self._tally.slowest_notice_ms, notice_s * 1e3)

    def _look_at_survivors(self, known_s: float) -> None:
        """They take back what nobody took; then nothing is left of those who died."""
        self.take_back()
        survivors = self._lane.survivors
        starved_s = {role: process.ask("starved") for role, process in survivors.items()}
        since_s = max(time.monotonic(), known_s)
        for role, process in survivors.items():
            now = settle(process, partial(self._lane.is_well, role), since_s + WHOLE_S)
            held_s = time.monotonic() - since_s - (process.ask("starved") - starved_s[role])
            if held_s > HELD_S:
                self.faults.append(f"{role} was whole only after {held_s:.3f} s: {now['detail']}")
            excess = self._lane.excess(role, now)
            if excess:
                self.faults.append(f"{role} still has {', '.join(excess)}: {now['detail']}")
        took_ms = (time.monotonic() - known_s) * 1e3
        self._tally.slowest_whole_ms = max(self._tally.slowest_whole_ms, took_ms)

    def look_at_names(self) -> None:
        """Whoever opened for this round has swept what the dead of the last one left."""
        own = [process.instance for process in self.cast_of().values()]
        left = [name for name in self._lane.names() if not any(one in name for one in own)]
        if left:
            self.faults.append(f"left in shared memory by the round before: {left}")
