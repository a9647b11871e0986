"""A virtual clock, and threads of which exactly one runs: the same seed, the same interleaving.

Every actor is a greenlet that stands for a thread. It gives way where a thread would block, and now
and then where it takes a lock or lets one go. Time moves only when nobody can run.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from math import inf
from random import Random
from typing import TYPE_CHECKING

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.memory import Hub

TICK_S = 1e-6
"""What a sleep takes at least, as poll() rounds up: else a sleep of one ulp would never end."""

MOST_TURNS = 200_000
"""Turns at one moment of the clock: then threads keep one another awake for nothing."""

TRACE = 60


class Violation(AssertionError):
    """The world saw something that must never happen."""


class Killed(BaseException):
    """The actor's process has crashed: it must do nothing more."""


class Process:
    """What is stopped, woken and killed as one; ``stopped`` actors run when it wakes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.paused = False
        self.woke_s = -1.0
        self.deferred: list[Actor] = []
        self.actors: list[Actor] = []


class Actor:
    """One thread; ``sleep`` tells its present sleep from earlier ones."""

    def __init__(self, works: Clockwork, name: str, process: Process, run: Callable[[], object]):
        self.name, self.process = name, process
        self.sleep = 0
        self.asleep = False
        self.over = False
        self.joiners: list[Actor] = []
        self.in_call = False
        self.interruption: BaseException | None = None
        self._works, self._run = works, run
        self.thread = greenlet(self._live, works.own)  # where to go on at its end

    def _live(self) -> None:
        works = self._works
        try:
            if not self.process.dead:
                self._run()
        except Killed:
            pass
        except BaseException as error:
            if not self.process.dead:
                works.failure = works.failure or error
        self.over = True
        for one in self.joiners:
            works.wake(one)


class Clockwork:
    """Clock, agenda and turns; ``preempt`` is the chance to lose one's turn at a lock.

    ``look`` is called whenever nobody can run, before time moves on.
    """

    def __init__(self, seed: int, hub: Hub, look: Callable[[], None]) -> None:
        self.now_s = 1000.0
        self.chance = Random(seed)
        self.preempt = self.chance.choice((0.0, 0.02, 0.02, 0.2))
        self.hub = hub
        self.look = look
        self.current: Actor | None = None
        self.failure: BaseException | None = None
        self.trace: deque[tuple[float, str, object]] = deque(maxlen=TRACE)
        self.seen: Counter[str] = Counter()
        self.turns = self.steps = 0
        self._ready: list[Actor] = []
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self.own = getcurrent()
        self._device = self.spawn("device", Process("device"), self._move_bytes)

    def clock(self) -> float:
        """Virtual monotonic seconds."""
        return self.now_s

    def note(self, who: str, what: object) -> None:
        """One line of the trace."""
        self.trace.append((self.now_s, who, what))

    def after(self, delay_s: float, act: Callable[[], object]) -> None:
        """Let *act* happen then, on the world's own thread; it must take no lock of a driver."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now_s + max(0.0, delay_s), self._count, act))

    # --- for actors ----------------------------------------------------------------------

    def spawn(self, name: str, process: Process, run: Callable[[], object]) -> Actor:
        """A new actor, which may run from now on."""
        actor = Actor(self, name, process, run)
        process.actors.append(actor)
        self._ready.append(actor)
        return actor

    def block(self, timeout_s: float | None) -> None:
        """Sleep until somebody wakes the running actor, or for *timeout_s* (None: for ever)."""
        actor = self.current
        assert actor is not None, "only an actor can sleep"
        if actor.process.dead:
            raise Killed
        actor.sleep += 1
        actor.asleep = True
        if timeout_s is not None:
            number = actor.sleep
            self.after(timeout_s + TICK_S, lambda: self._due(actor, number))
        self._give_up(actor)

    def stumble(self) -> None:
        """Perhaps let others run first: called wherever a lock is taken or let go."""
        actor = self.current
        if actor is None:
            return
        if actor.process.dead:
            raise Killed
        if self.preempt and self.chance.random() < self.preempt:
            self.seen["preemption"] += 1
            self._ready.append(actor)
            self._give_up(actor)

    def wake(self, actor: Actor) -> None:
        """End the sleep of *actor*, if it sleeps."""
        if actor.asleep:
            actor.asleep = False
            self._ready.append(actor)

    def _due(self, actor: Actor, number: int) -> None:
        if actor.sleep == number:
            self.wake(actor)

    def interrupt(self, actor: Actor) -> None:
        """Raise KeyboardInterrupt where *actor* sleeps, as a signal's handler does."""
        actor.interruption = KeyboardInterrupt()
        self.wake(actor)

    def _give_up(self, actor: Actor) -> None:
        self.own.switch()
        if actor.process.dead:
            raise Killed
        error, actor.interruption = actor.interruption, None
        if error is not None:
            raise error

    # --- processes -----------------------------------------------------------------------

    def pause(self, process: Process) -> None:
        """Stop it as SIGSTOP does."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let it go on."""
        process.paused, process.woke_s = False, self.now_s
        deferred, process.deferred = process.deferred, []
        self._ready.extend(deferred)

    def kill(self, process: Process) -> None:
        """End every actor of it where it is."""
        process.dead = True
        self.resume(process)
        for actor in process.actors:
            self.wake(actor)

    # --- the world's own thread ----------------------------------------------------------

    def run(self, over: Callable[[], bool], limit_s: float) -> bool:
        """Live until *over*, or for *limit_s*; whether it is over."""
        end_s = self.now_s + limit_s
        while self._ready or not over():
            if self._ready:
                self._turn()
                continue
            due_s = self._agenda[0][0] if self._agenda else end_s
            moved_s = self._next_move_s()
            if moved_s <= due_s and moved_s <= end_s:
                self._advance(moved_s)
                self.wake(self._device)
            elif self._agenda and due_s <= end_s:
                moment_s, _, act = heapq.heappop(self._agenda)
                self._advance(moment_s)
                self.steps += 1
                act()
            else:
                self._advance(end_s)
                return over()
        return True

    def stop(self) -> None:
        """End every actor there is."""
        self.kill(self._device.process)
        while self._ready:
            self._turn(ending=True)

    def _next_move_s(self) -> float:
        """What ``hub.next_event_s()`` says, without a lock: it is asked at every step."""
        hub = self.hub
        due_s = hub._late[0][0] if hub._late else inf
        for plane in hub.planes.values():
            for job in getattr(plane, "_pending", ()):
                due_s = min(due_s, job.due_s)
        return due_s

    def _advance(self, moment_s: float) -> None:
        if moment_s > self.now_s:
            self.look()  # nobody can run: whatever waits to be done now has been forgotten
            self.now_s, self.turns = moment_s, 0

    def _turn(self, *, ending: bool = False) -> None:
        """Let one of those that can run do so, until it sleeps."""
        ready = self._ready
        actor = ready.pop(self.chance.randrange(len(ready)) if len(ready) > 1 else 0)
        if actor.over:
            return
        if actor.process.paused:
            actor.process.deferred.append(actor)
            return
        self.turns += 1
        self.steps += 1
        if self.turns > MOST_TURNS and not ending:
            msg = f"{actor.name} and others keep one another awake, and time stands still"
            raise Violation(msg)
        self.current = actor
        actor.thread.switch()
        self.current = None
        if self.failure is not None and not ending:
            raise self.failure

    def _move_bytes(self) -> None:
        """The device: writes land and mail comes when they are due."""
        while True:
            self.block(None)
            self.hub.advance(self.now_s)
