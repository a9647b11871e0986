"""A simulated process: a whole connector of in-memory adapters, dead or alive."""

from __future__ import annotations

import ctypes
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from tests.simulation.whole.clockwork import Process, Violation
from tests.simulation.whole.primitives import CHANNELS

from stagelink import compose
from stagelink.adapters.memory import (
    HubLiveness,
    MemoryChannel,
    MemoryMapPlane,
    MemoryWritePlane,
    PrivateMemoryProvider,
)
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads import Driver, Parts
from stagelink.adapters.threads.driver import _DRIVERS
from stagelink.adapters.wrap import Compression, Integrity, Wrapping
from stagelink.config import load_config
from stagelink.connector import Connector
from stagelink.core.allocator import Allocator
from stagelink.core.events import Complete, Published
from stagelink.plugins import Manager

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.whole.world import World

    from stagelink.adapters.memory.ends import End
    from stagelink.config import Config
    from stagelink.core.events import Action, Event
    from stagelink.core.values import Instance
    from stagelink.ports.plane import WriteOrder

FREED = 0xDD
"""What freed memory is filled with, so that nobody reads it unnoticed."""

FORGOTTEN_S = 0.1
"""Longer than any nap of the driver's threads: what waits so long waits for nobody."""

MOST_TICKETS, MOST_PENDING = 40, 1000

TIMEOUTS = {
    "transfer_base_s": 0.3, "ttl_s": 8.0, "put_s": 0.3, "query_s": 1.0, "stuck_base_s": 3.0,
    "close_s": 1.0,
}  # fmt: skip

COMPRESSORS = Manager().working_compressors()


class Channel(MemoryChannel):
    """One that wakes the stand-ins that watch its descriptor."""

    def __init__(self, world: World, address: str, instance: Instance) -> None:
        self.watchers: list[Any] = []
        super().__init__(
            address, hub=world.hub, faults=world.faults, high_water_mark=world.high_water_mark,
            instance=instance,
        )  # fmt: skip
        CHANNELS[self.fileno()] = self

    @property
    def readable(self) -> bool:
        """Whether its descriptor would poll readable."""
        return self._signalled

    def queue(self, end: End) -> None:
        """Something arrives."""
        super().queue(end)
        for one in self.watchers:
            one.look()


class WritePlane(MemoryWritePlane):
    """One whose completions a stopped process hears of only when it wakes."""

    def __init__(self, world: World, process: Process, instance: Instance) -> None:
        self._world, self._process = world, process
        super().__init__(instance, hub=world.hub, faults=world.faults)

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Start a write."""

        def told(order: WriteOrder, error: str) -> None:
            self._world.works.seen[f"write: {error or 'done'}"] += 1
            if not error:
                self._world.perhaps_flip(order)
            if self._process.paused:
                # On a thread of that process, which runs when it wakes.
                self._world.works.spawn("plane", self._process, lambda: done(order, error))
            else:
                done(order, error)

        super().post(order, told)

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Reach a peer, unless that fails."""
        self._world.perhaps_no_attach()
        super().attach(peer, descriptor)

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Cut a peer off, if this world's planes can do that to one that lives."""
        self._world.works.seen[f"fence: {'dead' if dead else 'alive'}"] += 1
        return (dead or self._world.can_fence) and super().fence(peer, dead)


class MapPlane(MemoryMapPlane):
    """One that cannot always be attached."""

    def __init__(self, world: World, instance: Instance) -> None:
        self._world = world
        super().__init__(instance, hub=world.hub)

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Reach a peer, unless that fails."""
        self._world.perhaps_no_attach()
        super().attach(peer, descriptor)


class Poisoner(Allocator):
    """Overwrites what is freed, after a look whether a posted write may still touch it."""

    __slots__ = ()
    memories: ClassVar[dict[int, tuple[memoryview, World]]] = {}

    def free(self, offset: int) -> int:
        """Take an extent back."""
        size = super().free(offset)
        memory, world = self.memories[id(self)]
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset
        for plane in world.hub.planes.values():
            for job in getattr(plane, "_pending", ()):
                ends = (job.source, job.target)
                if any(
                    at < address + size and address < at + job.order.source.size for at in ends
                ):
                    msg = f"[{offset}, +{size}) is freed under the write {job.order}"
                    raise Violation(msg)
        memory[offset : offset + size] = bytes([FREED]) * size
        return size


class Stage:
    """One of the world's processes; a restart makes it another instance at the same address."""

    def __init__(self, world: World, name: str, address: str, **settings: object) -> None:
        self.world, self.name, self.address = world, name, address
        self.settings = settings
        self.starts = 0
        self.instance = b""
        self.process = Process(name)
        self.driver: Any = None
        self.plane: Any = None
        self.memory: Any = None
        self.alive = self.closing = False
        self.published = 0
        self.held: deque[Callable[[], None]] = deque()

    @property
    def stage(self) -> str:
        """The stage's name; several processes may be of one stage."""
        return str(self.settings["stage"])

    def open(self) -> None:
        """Open the next instance as compose does; only an actor of ``process`` may."""
        world = self.world
        config = load_config({**world.settings, **self.settings, "timeouts": TIMEOUTS})
        compression = Compression(config.compression, COMPRESSORS, config.decompress_limit)
        wrapping = Wrapping(Integrity(config.integrity), compression)
        self.driver = Driver(self._parts(config, compression.names), world.works.clock)
        self.connector = Connector(config, self.driver, PayloadSerializer(), wrapping)
        self.alive, self.closing, self._since_s = True, False, inf

    def _parts(self, config: Config, codecs: tuple[str, ...]) -> Parts:
        world, instance = self.world, self.instance
        liveness = HubLiveness(instance, hub=world.hub)
        self.memory = memory = PrivateMemoryProvider().allocate(config.pool_bytes)
        self.channel = Channel(world, self.address, instance)
        if world.mode == "map":
            self.plane = MapPlane(world, instance)
        else:
            self.plane = WritePlane(world, self.process, instance)
        self.plane.register(compose.REGION, memory)
        planes = {"plane": self.plane}
        endpoint = compose._endpoint(config, instance, liveness, planes, codecs)
        endpoint.pool._allocator.__class__ = Poisoner
        Poisoner.memories[id(endpoint.pool._allocator)] = memory.buffer, world
        watch(endpoint, self, world.works.note)
        log = Log(world.works.clock, stage=config.stage)
        return Parts(endpoint, self.channel, WireCodec(), planes, memory, liveness, log)

    def start(self) -> None:
        """Begin a process that opens a connector and calls it."""
        self.let_go()  # views outlive their connector
        self.starts += 1
        self.instance = f"{self.name}.{self.starts}".encode().ljust(16, b".")
        self.driver = None
        self.process = Process(f"{self.name}.{self.starts}")
        self.world.works.note(self.name, "starts")
        self.world.works.spawn(f"{self.process.name} main", self.process, self._main)

    def _main(self) -> None:
        self.open()
        self.world.story.call(self)

    def crash(self) -> None:
        """Kill it: what it has posted may still land."""
        world = self.world
        world.works.note(self.name, "crashes")
        self.alive = False
        self.abandon()
        writes: Any = world.chance.choice(("land", "drop"))
        world.hub.kill(self.instance, writes)
        world.works.kill(self.process)
        self.held.clear()

    def abandon(self) -> None:
        """Take its driver for that of an ended process, which lets go of nothing by itself."""
        if self.driver is not None:
            self.driver.forked, self.driver.usable = True, False
            _DRIVERS.discard(self.driver)

    def look(self) -> None:
        """Whatever is to be done is done soon, by some thread, or none knows of it."""
        driver, now_s = self.driver, self.world.works.now_s
        waits = driver.exchange.outbox or driver.work.todo or driver._mail or driver.views.gone
        if not (waits or self.channel.readable):
            self._since_s = inf
        elif self._since_s == inf or self.process.woke_s > self._since_s:
            self._since_s = now_s
        elif now_s - self._since_s > FORGOTTEN_S:
            msg = f"{self.name} leaves {waits or 'its mail'} undone for {now_s - self._since_s} s"
            raise Violation(msg)
        tickets, pending = len(driver.tickets._open), len(driver.exchange.outbox)
        if tickets > MOST_TICKETS or pending > MOST_PENDING:
            msg = f"{self.name} has {tickets} open calls and {pending} messages to send"
            raise Violation(msg)

    def close(self) -> None:
        """Close the connector in the time that it promises; only an actor may."""
        works, start_s = self.world.works, self.world.works.now_s
        self.closing, process = True, self.process
        self.connector.close()
        self.alive = False
        late_s = works.now_s - start_s - TIMEOUTS["close_s"] - 1.0
        if late_s > 0 and process.woke_s < start_s:
            msg = f"the close of {self.name} takes {late_s} s more than it may"
            raise Violation(msg)

    def let_go(self) -> None:
        """Drop everything that callers still look at."""
        while self.held:
            self.held.popleft()()


def watch(endpoint: Any, node: Any, note: Callable[[str, object], None]) -> None:
    """Note every fact that a core hears, and count in *node* what it publishes."""
    handle = endpoint.handle
    node.published = 0

    def watched(event: Event, now_s: float) -> list[Action]:
        note(node.name, event)
        actions: list[Action] = handle(event, now_s)
        for action in actions:
            if isinstance(action, Complete) and isinstance(action.result, Published):
                node.published += 1
        return actions

    endpoint.handle = watched
