"""A seed's world of whole connectors: its processes, its weather, its story and its end."""

from __future__ import annotations

import gc
import re
from collections import deque
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.errors import SimulationError
from tests.simulation.whole.books import Books
from tests.simulation.whole.clockwork import Clockwork, Violation
from tests.simulation.whole.finish import finish
from tests.simulation.whole.primitives import simulated
from tests.simulation.whole.stage import COMPRESSORS, Poisoner, Stage
from tests.simulation.whole.story import Story
from tests.simulation.whole.surroundings import RECEIVES, SENDS

from stagelink.adapters.memory import Faults, Hub, WriteFault
from stagelink.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.whole.books import Put
    from tests.simulation.whole.story import Name

    from stagelink.ports.plane import WriteOrder

ACTS = 14
"""Of each caller, in the short form; there are three to each of four processes."""

LONGEST_S = 3600.0
MOST = 300
_BYTES = re.compile(r"b'(?:[^'\\]|\\.){20,}'")
_NOISE = re.compile(
    r", (host=HostCard|planes=|report=Report)\(.*|, (instance|body|error|detail)=b?''"
)


def shown(moment_s: float, who: str, what: object) -> str:
    """A line of the trace: of messages what is said, of bytes how many."""
    text = _BYTES.sub(
        lambda found: f"<{len(found[0])}>", what if isinstance(what, str) else repr(what)
    )
    text = _NOISE.sub("", text)
    return f"  {moment_s - 1000:9.4f} {who}: {text[:MOST]}"


class World:
    """``World(seed).run()`` always does the same, and raises when a promise is broken.

    a sends to b, of which there are two; b and c send to one another. With *only* every act and
    accident not named there is left out; so a story is shrunk.
    """

    sends, receives = SENDS, RECEIVES
    slack_s = 0.04  # of virtual time: naps between two looks

    def __init__(self, seed: int, acts: int = ACTS, only: Iterable[Name] | None = None) -> None:
        self.seed, self.operations = seed, 0
        self.chance = chance = Random(seed)
        self.hub = Hub(now=lambda: self.works.now_s)
        self.works = Clockwork(seed + 1, self.hub, self._look)
        self.books = Books()
        self.receipts: deque[tuple[Put, dict[str, Any]]] = deque(maxlen=20)
        self.mode = chance.choice(("map", "write", "write"))
        self.can_fence = chance.random() < 0.5
        self.keeps, self.linger_s = chance.choice((0.1, 0.5)), chance.choice((0.01, 0.2, 1.0))
        self.high_water_mark = chance.choice((1024, 1024, 8))
        self._attach_fails = chance.choice((0.0, 0.05))
        self._weather(chance)
        self._settings(chance)
        self.stages = self._stages()
        self.story = Story(self, acts, None if only is None else frozenset(only))

    def _weather(self, chance: Random) -> None:
        """Loss, repetition and order within a link break what the channel promises: but seldom."""
        rough = chance.choice((0.0, 0.0, 0.01, 0.05))
        delay_s = chance.choice((0.0, 0.001, 0.02, 0.2))
        wrong = chance.choice((0.0, 0.05, 0.2))
        self.faults: Faults | None = Faults(
            Random(self.seed + 2),
            loss=rough, duplication=rough / 2, reordering=rough / 2,
            refuse=chance.choice((0.0, 0.0, 0.1)), delay_s=(delay_s / 10, delay_s),
            writes={WriteFault.DELAYED: 0.4, WriteFault.HALF: 0.3, WriteFault.FAILING: wrong / 2,
                    WriteFault.STUCK: wrong / 5},
            write_delay_s=(0.0, chance.choice((0.001, 0.05, 0.6))),
        )  # fmt: skip

    def _settings(self, chance: Random) -> None:
        integrity = chance.choice(("", "xxh3"))
        self.flips = chance.choice((0.0, 0.05)) if integrity else 0.0
        packed = {"b": "zstd", "c": "zstd"} if "zstd" in COMPRESSORS else {}
        self.settings: dict[str, Any] = {
            "role": "peer", "alignment": 64, "integrity": integrity,
            "compression": chance.choice(({}, {}, packed)),
            "pool_bytes": chance.choice((8192, 16384, 65536)),
            "eager_limit": chance.choice((0, 400)), "inline_bytes": chance.choice((1000, 8000)),
            "max_writes": chance.choice((1, 1, 8)), "readonly_views": True,
        }  # fmt: skip

    def _stages(self) -> dict[str, Stage]:
        a, b, c = "memory://1", "memory://2", "memory://4"
        return {
            "a": Stage(self, "a", a, stage="a", role="sender"),
            "b": Stage(self, "b", b, stage="b", senders={"a": a, "c": c, "nobody": a}),
            "b1": Stage(
                self, "b1", "memory://3", stage="b", replica=1, senders={"a": a, "c": c, "nobody": c}
            ),
            "c": Stage(
                self, "c", c, stage="c", pool_bytes=4096, senders={"b": b, "nobody": "memory://9"}
            ),
        }  # fmt: skip

    # --- faults of planes ----------------------------------------------------------------

    def perhaps_no_attach(self) -> None:
        """Raise, now and then."""
        if self.faults is not None and self.chance.random() < self._attach_fails:
            self.works.seen["attach: failed"] += 1
            msg = "cannot map"
            raise TransportError(msg)

    def perhaps_flip(self, order: WriteOrder) -> None:
        """Change a byte that has been written, where a digest will tell."""
        if not (self.faults and self.flips) or self.chance.random() >= self.flips:
            return
        for node in self.stages.values():
            if node.alive and node.instance == order.peer:
                self.works.seen["write: flipped"] += 1
                place = order.target.offset + self.chance.randrange(order.target.size)
                node.memory.buffer[place] ^= 0x10

    def calm(self) -> None:
        """End every trouble."""
        self.story.over = True
        self.faults = None
        for node in self.stages.values():
            if node.driver is not None:
                node.channel._faults = None
                node.plane._faults = None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Within, the running actor is in a call, and may be interrupted."""
        actor = self.works.current
        assert actor is not None
        actor.in_call = True
        try:
            yield
        finally:
            actor.in_call = False
            actor.interruption = None

    def _look(self) -> None:
        """Nothing waits for long for somebody to do it, and nothing grows without bound."""
        for node in self.stages.values():
            if node.alive and not (node.closing or node.process.paused):
                node.look()

    # --- the whole of it -----------------------------------------------------------------

    def run(self) -> World:
        """Live through the whole story and check its end."""
        works = self.works
        collects = gc.isenabled()
        gc.disable()  # a finalizer that runs at any moment would be another moment next time
        if not gc.get_freeze_count():
            gc.freeze()  # what was imported is no garbage, and looking at it takes long
        try:
            with simulated(works):
                self._live()
        except Exception as error:
            last = "\n".join(shown(*line) for line in works.trace)
            message = f"seed {self.seed}: {error!r}\nthe last events:\n{last}"
            raise SimulationError(message) from error
        finally:
            Poisoner.memories.clear()
            if collects:
                gc.enable()
        return self

    def _live(self) -> None:
        works = self.works
        try:
            self.story.begin()
            if not works.run(lambda: self.story.exhausted, LONGEST_S):
                msg = "the story comes to no end"
                raise Violation(msg)
            finish(self)
        finally:
            for node in self.stages.values():
                node.abandon()
                works.kill(node.process)
            works.stop()
