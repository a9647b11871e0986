"""Where everything in memory meets: names, connections, planes and deaths of one process."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import secrets
import time
from math import inf
from threading import Condition, Lock
from typing import TYPE_CHECKING, ClassVar, Literal
from weakref import WeakSet

from stagelink.adapters.memory.ends import End, join, part
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.memory.channel import MemoryChannel
    from stagelink.adapters.memory.foreign import Engine
    from stagelink.adapters.memory.regions import Regions
    from stagelink.core.values import Instance
    from stagelink.ports.channel import Mail

SCHEME = "memory://"
MOST_DEAD = 1 << 16
"""Deaths remembered; of an older one nobody asks, and then it counts as unproved."""


class Hub:
    """A world of its own: connectors of different hubs cannot reach one another.

    Everything in it changes under ``lock``, which is never held while calling out.

    Args:
        now: the clock, in seconds, by which delayed mail becomes due; may be a virtual one.
    """

    _default: ClassVar[Hub | None] = None
    _all: ClassVar[WeakSet[Hub]] = WeakSet()

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.begin()
        Hub._all.add(self)

    def begin(self) -> None:
        """Be empty, and a world that no other process has heard of."""
        self.id = secrets.token_hex(8)
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.bound: dict[str, MemoryChannel] = {}
        self.dialled: dict[str, list[End]] = {}
        self.planes: dict[tuple[Instance, str], Regions] = {}
        self.engines: dict[bytes, Engine] = {}
        self.dead: dict[str, None] = {}
        self._cut: set[str] = set()
        self._late: list[tuple[float, int, End, End, Mail]] = []
        self._numbers = itertools.count(1)

    @classmethod
    def default(cls) -> Hub:
        """The hub of this process; a forked child gets another."""
        if cls._default is None:
            cls._default = cls()
        return cls._default

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child everything here is a copy, perhaps half changed and locked for ever.

        The parent's channels and planes are closed, silently: their descriptors are shared.
        """
        for hub in list(cls._all):
            for channel in list(hub.bound.values()):
                channel.forget()
            for plane in list(hub.planes.values()):
                plane.forget()
            hub.begin()

    # --- channels; the caller holds the lock ---------------------------------------------

    def mint(self) -> str:
        """A fresh part of a name."""
        return str(next(self._numbers))

    def bind(self, address: str, channel: MemoryChannel) -> str:
        """Have *channel* listen at *address* (empty: anywhere), and those who wait connect.

        Raises:
            ConfigError: somebody listens there already.
        """
        if address in self.bound:
            msg = f"{address} is taken"
            raise ConfigError(msg, remedy="close who listens there, or take another address")
        while not address or address in self.bound:
            address = SCHEME + self.mint()
        self.bound[address] = channel
        return address

    def welcome(self, address: str) -> None:
        """Connect all that dialled *address* and are not connected."""
        for end in self.dialled.get(address, []):
            self.connect(end)

    def connect(self, end: End) -> None:
        """Connect a dialled *end*, if somebody listens there and nothing is cut."""
        listener = self.bound.get(end.name)
        if listener is None or end.other is not None:
            return
        if end.name in self._cut or end.channel.address in self._cut:
            return
        join(end, listener.accept(f"accepted by {end.name}: {self.mint()}"))

    def undial(self, end: End) -> None:
        """Forget a dialled *end*."""
        ends = self.dialled.get(end.name, [])
        if end in ends:
            ends.remove(end)
        if not ends:
            self.dialled.pop(end.name, None)

    def post_late(self, due_s: float, target: End, origin: End, mail: Mail) -> None:
        """Keep *mail* until the clock shows *due_s*."""
        heapq.heappush(self._late, (due_s, next(self._numbers), target, origin, mail))
        target.late += 1

    # --- for tests and simulations; these take the lock ----------------------------------

    def deliver(self) -> float | None:
        """Hand over what is due, and wake its readers; returns when the next mail will be due.

        A channel's receive() does this too; who sleeps on a descriptor while a virtual clock
        moves needs somebody to call it.
        """
        if not self._late:
            return None
        now_s = self.now()
        with self.lock:
            while self._late and self._late[0][0] <= now_s:
                _, _, target, origin, mail = heapq.heappop(self._late)
                if target.other is origin:  # else that connection has ended meanwhile
                    target.late -= 1
                    target.push(mail)
            return self._late[0][0] if self._late else None

    def cut(self, address: str) -> None:
        """Part the channel at *address* from everybody until :meth:`heal`; unread mail is lost."""
        with self.lock:
            self._cut.add(address)
            for end in [end for ends in self.dialled.values() for end in ends]:
                if address in {end.name, end.channel.address}:
                    part(end, f"{address} is cut off", lose_mail=True)

    def heal(self, address: str) -> None:
        """Let the channel at *address* be reached again: dialled links come up by themselves."""
        with self.lock:
            self._cut.discard(address)
            for end in [end for ends in self.dialled.values() for end in ends]:
                self.connect(end)

    def advance(self, now_s: float) -> None:
        """Let the writes land that are due at or before *now_s*, and deliver the mail."""
        with self.lock:
            planes = list(self.planes.values())
        for plane in planes:
            plane.advance(now_s)
        self.deliver()

    def next_event_s(self) -> float | None:
        """When the next delayed mail or write is due; None when nothing is."""
        with self.lock:
            due = [plane.next_due_s() for plane in self.planes.values()]
            due += [self._late[0][0]] if self._late else []
        return min((at_s for at_s in due if at_s < inf), default=None)

    def bury(self, instance: Instance) -> None:
        """From now on *instance* counts as dead; without the lock, for a finalizer may say so."""
        self.dead[instance.hex()] = None
        while len(self.dead) > MOST_DEAD:
            with contextlib.suppress(RuntimeError):  # another thread buries somebody too
                self.dead.pop(next(iter(self.dead)), None)

    def kill(self, instance: Instance, writes: Literal["land", "drop"] = "land") -> None:
        """End *instance* as a crash does: its channel vanishes, and it hears of nothing more.

        Its posted writes may still *land* until somebody fences it. Pages stay with their viewers.
        """
        with self.lock:
            self.bury(instance)
            for channel in [one for one in self.bound.values() if one.instance == instance]:
                channel.vanish(f"{channel.address} was killed")
            for plane in [one for (who, _), one in self.planes.items() if who == instance]:
                plane.die(drop_writes=writes == "drop")


os.register_at_fork(after_in_child=Hub.forget_all)
