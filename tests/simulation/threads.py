"""The same acts from real threads on real drivers, and the same books afterwards.

Chance chooses what each thread does; the kernel, when. So a seed that fails need not fail again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import stagelink
from tests.simulation.errors import SimulationError
from tests.simulation.whole.acts import Act
from tests.simulation.whole.books import Books
from tests.simulation.whole.clockwork import Violation
from tests.simulation.whole.finish import all_is_counted, get, left_by, put
from tests.simulation.whole.stage import watch
from tests.simulation.whole.story import drawn
from tests.simulation.whole.surroundings import RECEIVES, SENDS

if TYPE_CHECKING:
    from collections.abc import Callable


BACKENDS = ("memory", "memory-write", "shm", "shm-write")
TIMEOUTS = {"transfer_base_s": 0.3, "ttl_s": 1.5, "put_s": 0.3, "query_s": 1.0, "close_s": 0.5}
REST_S = 10.0


class RealClock:
    """The clock of this host, and notes."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.trace: deque[tuple[float, str, object]] = deque(maxlen=60)

    @property
    def now_s(self) -> float:
        """Seconds."""
        return time.monotonic()

    def note(self, who: str, what: object) -> None:
        """One line of the trace."""
        self.trace.append((time.monotonic(), who, what))

    def block(self, timeout_s: float) -> None:
        """Sleep; of nothing, let others run."""
        time.sleep(timeout_s)


class Host:
    """This process, by the name of a connector in it; it is never stopped."""

    woke_s = -1.0

    def __init__(self, name: str) -> None:
        self.name = name


class RealNode:
    """An open connector of a stage; after its close another node takes its place."""

    def __init__(self, world: ThreadsWorld, name: str, number: int) -> None:
        self.world, self.name = world, name
        self.held: deque[Callable[[], None]] = deque()
        self.published = 0
        self.process = Host(f"{name}.{number}")
        role = "peer" if RECEIVES[name] else "sender"
        self.connector = stagelink.open(**world.settings, stage=name, role=role)
        self.driver = self.connector._driver
        endpoint = self.driver.parts.endpoint
        self.instance = endpoint.settings.instance
        watch(endpoint, self, world.works.note)

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.name

    def close(self) -> None:
        """Close it in the time that it promises."""
        start_s = time.monotonic()
        self.connector.close()
        took_s = time.monotonic() - start_s
        if took_s > TIMEOUTS["close_s"] + 1.0 + self.world.slack_s:
            msg = f"the close of {self.name} takes {took_s} s"
            raise Violation(msg)


class ThreadsWorld:
    """Three connectors in one process, of one backend, and threads that call them."""

    sends, receives = SENDS, RECEIVES
    slack_s = 3.0  # the host may have other things to do
    flips = 0.0

    def __init__(self, seed: int, acts: int, threads: int = 8) -> None:
        self.seed, self.operations = seed, 0
        self.works, self.books = RealClock(), Books()
        self.receipts: deque[tuple[Any, dict[str, Any]]] = deque(maxlen=20)
        self._chance = chance = Random(seed)
        self.keeps, self.linger_s = chance.choice((0.1, 0.5)), chance.choice((0.001, 0.02))
        self._acts, self._threads = acts, threads
        self.backend = BACKENDS[seed % len(BACKENDS)]
        self.settings: dict[str, Any] = {
            "backend": self.backend, "pool_bytes": chance.choice((16384, 65536)), "alignment": 64,
            "eager_limit": chance.choice((0, 400)), "inline_bytes": 4000, "timeouts": TIMEOUTS,
            "max_writes": chance.choice((1, 8)), "integrity": chance.choice(("", "xxh3")),
            "readonly_views": True,
        }  # fmt: skip
        self._failure: BaseException | None = None
        self._over = False
        self.nodes: dict[str, RealNode] = {}
        self._closed: list[RealNode] = []

    def run(self) -> ThreadsWorld:
        """Live through it and check its end."""
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(self._chance.choice((1e-5, 1e-4, 5e-3)))
        try:
            self._live()
        except Exception as error:
            last = "\n".join(f"  {t:.4f} {who}: {what}" for t, who, what in self.works.trace)
            msg = f"seed {self.seed} of {self.backend}: {error!r}\nthe last events:\n{last}"
            raise SimulationError(msg) from error
        finally:
            sys.setswitchinterval(interval_s)
            for node in self.nodes.values():
                node.connector.close()
        return self

    def _live(self) -> None:
        self.nodes = {name: RealNode(self, name, 0) for name in SENDS}
        self._introduce()
        threads = [
            threading.Thread(target=self._guarded, args=(partial(self._caller, number),))
            for number in range(self._threads)
        ]
        closer = threading.Thread(target=self._guarded, args=(self._closer,))
        for thread in (*threads, closer):
            thread.start()
        for thread in threads:
            thread.join(120.0)
        self._over = True
        closer.join(30.0)
        stuck = [thread.name for thread in (*threads, closer) if thread.is_alive()]
        if stuck and self._failure is None:
            msg = f"{stuck} do not come home"
            raise Violation(msg)
        if self._failure is not None:
            raise self._failure
        self._finish()

    def _introduce(self) -> None:
        """Tell everybody the present addresses."""
        for node in self.nodes.values():
            for stage in RECEIVES[node.stage]:
                senders = node.connector._senders
                senders._by_stage[stage] = self.nodes[stage].connector.endpoint
                senders._found = {}

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._failure = self._failure or error

    def _caller(self, number: int) -> None:
        for place in range(self._acts):
            if self._failure is not None:
                return
            chance = Random(f"{self.seed} {number} {place}")
            node = self.nodes[chance.choice("abc")]
            if chance.random() < 0.3:
                time.sleep(chance.expovariate(500))
            drawn(node.stage, chance)(Act(self, node, chance, f"{node.name}/{number}.{place}"))

    def _closer(self) -> None:
        """Close a connector under the threads' hands now and then, and open the next."""
        chance = Random(f"{self.seed} closer")
        every_s = chance.choice((0.1, 0.5, 1e9))
        next_s = time.monotonic() + chance.uniform(0, every_s)
        while not self._over and self._failure is None:
            time.sleep(0.005)
            if time.monotonic() >= next_s:
                node = self.nodes[chance.choice("abc")]
                self.works.seen["trouble: close"] += 1
                self.books.disturbed = True
                node.close()
                self._closed.append(node)
                self.nodes[node.name] = RealNode(self, node.name, len(self._closed))
                self._introduce()
                next_s = time.monotonic() + chance.uniform(0, every_s)

    def _finish(self) -> None:
        nodes = list(self.nodes.values())
        for node in (*nodes, *self._closed):
            while node.held:
                node.held.popleft()()
        end_s = time.monotonic() + REST_S
        while any(left_by(node) for node in nodes) and time.monotonic() < end_s:
            time.sleep(0.02)
        for node in nodes:
            found = left_by(node)
            if found:
                msg = f"at rest, {node.name} still has {found}"
                raise Violation(msg)
            all_is_counted(self.books, node)
        for source, target in (("a", "b"), ("b", "c"), ("c", "b")):
            put(self.books, self.nodes[source], self.nodes[target], "last")
            get(self.books, self.nodes[source], self.nodes[target], "last")
        for node in nodes:
            node.close()
