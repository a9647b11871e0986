"""What befalls a world: calls of many callers, and accidents."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.whole.acts import Act
from tests.simulation.whole.surroundings import RECEIVES, SENDS

from stagelink.adapters.memory.ends import part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.whole.stage import Stage
    from tests.simulation.whole.world import World

CALLERS = 3
SENDING = ((Act.put, 34), (Act.fail, 3), (Act.take_back, 4), (Act.write_stream, 7))
RECEIVING = (
    (Act.get, 34), (Act.poll, 8), (Act.wait, 6), (Act.get_many, 6), (Act.refuse, 3),
    (Act.read_stream, 8),
)  # fmt: skip
Name = tuple[str, int]
"""Whose act, and which: what is left of a story when it is shrunk."""


class Story:
    """Every act has a source of chance of its own: without one the others are drawn alike."""

    def __init__(self, world: World, acts: int, only: frozenset[Name] | None) -> None:
        self._world = world
        self._only = only
        self._seed = world.seed
        self.done: list[Name] = []
        self._left = acts
        self._next: dict[str, int] = {}
        self._spent = 0
        chance = world.chance
        self._pace_s = chance.choice((0.002, 0.02, 0.1))
        self._troubles_every_s = chance.choice((0.0, 5.0, 1.0, 0.3)) * (1 + self._pace_s * 10)
        self.over = False

    # --- callers -------------------------------------------------------------------------

    def call(self, node: Stage) -> None:
        """Let the callers of an instance begin: one of them is the actor that opened it."""
        for number in range(CALLERS):
            name = f"{node.name}/{number}"
            self._world.works.spawn(name, node.process, partial(self._caller, node, name))

    def _caller(self, node: Stage, name: str) -> None:
        works, most = self._world.works, self._left
        while self._next.get(name, 0) < most and not (self.over or node.closing):
            number = self._next[name] = self._next.get(name, 0) + 1
            self._spent += number == most
            chance = self.chance_of(name, number)
            works.block(chance.expovariate(1 / self._pace_s))
            if node.closing or not self._happens((name, number)):
                continue
            self.done.append((name, number))
            drawn(node.stage, chance)(Act(self._world, node, chance, f"{name}.{number}"))

    def _happens(self, name: Name) -> bool:
        return self._only is None or name in self._only

    def chance_of(self, name: str, number: int) -> Random:
        return Random(f"{self._seed} {name} {number}")

    @property
    def exhausted(self) -> bool:
        """Whether every caller has made all its calls."""
        return self._spent == CALLERS * len(self._world.stages)

    # --- accidents -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start every process, and the accidents."""
        for node in self._world.stages.values():
            node.start()
        if self._troubles_every_s:
            self._trouble(0)

    def _trouble(self, number: int) -> None:
        if self.over:
            return
        chance, name = self.chance_of("trouble", number), ("trouble", number)
        self._world.works.after(
            chance.expovariate(1 / self._troubles_every_s), partial(self._strike, chance, name)
        )

    def _strike(self, chance: Random, name: Name) -> None:
        if self.over:
            return
        if self._happens(name):
            self.done.append(name)
            troubles = ((self._break, 5), (self._cut, 3), (self._pause, 3), (self._crash, 2),
                        (self._close, 2))  # fmt: skip
            strikes, weights = zip(*troubles, strict=True)
            strike = chance.choices(strikes, weights)[0]
            node = chance.choice(list(self._world.stages.values()))
            if node.alive and not node.process.paused:
                self._world.works.seen[f"trouble: {strike.__name__.strip('_')}"] += 1
                strike(node, chance)
        self._trouble(name[1] + 1)

    def _break(self, node: Stage, chance: Random) -> None:
        """Part two ends of a connection; they meet again at once or a little later."""
        world, hub = self._world, self._world.hub
        with hub.lock:
            ends = [
                e for dialled in hub.dialled.values() for e in dialled if e.channel is node.channel
            ]
            if not ends:
                return
            end = chance.choice(ends)
            world.works.note(node.name, f"is parted from {end.name}")
            part(end, "parted", lose_mail=chance.random() < 0.5)

        def meet() -> None:
            with hub.lock:
                if end in hub.dialled.get(end.name, []):
                    hub.connect(end)

        world.works.after(chance.choice((0.0, 0.1, 1.0)), meet)

    def _cut(self, node: Stage, chance: Random) -> None:
        world = self._world
        world.works.note(node.name, "is cut off")
        world.hub.cut(node.address)
        world.works.after(chance.choice((0.1, 1.0, 4.0)), partial(world.hub.heal, node.address))

    def _pause(self, node: Stage, chance: Random) -> None:
        works, process = self._world.works, node.process
        works.note(node.name, "is stopped")
        works.pause(process)
        for_s = chance.choice((0.05, 0.5, 3.0))
        if for_s > 1 and chance.random() < 0.5:  # its silence is noticed
            self._world.hub.cut(node.address)
            works.after(for_s, partial(self._world.hub.heal, node.address))

        def wake() -> None:
            if process.paused and not process.dead:
                works.note(node.name, "goes on")
                works.resume(process)

        works.after(for_s, wake)

    def _crash(self, node: Stage, chance: Random) -> None:
        self._world.books.disturbed = True
        node.crash()
        self.again(node, chance.choice((0.0, 0.2, 2.0)))

    def _close(self, node: Stage, chance: Random) -> None:
        """Close a connector under its callers' hands; then another process takes its place."""
        self._world.books.disturbed = True
        works, after_s = self._world.works, chance.choice((0.0, 0.2, 2.0))

        def close() -> None:
            if node.closing:
                return
            node.close()
            self.again(node, after_s)

        works.note(node.name, "closes")
        works.spawn(f"{node.name} closer", node.process, close)

    def again(self, node: Stage, after_s: float) -> None:
        """Start the next instance later, unless somebody has meanwhile."""
        starts = node.starts

        def start() -> None:
            if node.starts == starts:
                node.start()

        self._world.works.after(after_s, start)


def drawn(stage: str, chance: Random) -> Callable[[Act], None]:
    """What a caller at *stage* does next."""
    choices = (*(SENDING if SENDS[stage] else ()), *(RECEIVING if RECEIVES[stage] else ()))
    acts, weights = zip(*choices, strict=True)
    chosen: Callable[[Act], None] = chance.choices(acts, weights)[0]
    return chosen
