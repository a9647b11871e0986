"""Where everything in memory meets: names, connections, planes and deaths of one process."""

from __future__ import annotations

import heapq
import itertools
import os
import secrets
import time
from threading import Condition, Lock
from typing import TYPE_CHECKING, ClassVar

from stagelink.adapters.memory.ends import End, join, part
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.memory.channel import MemoryChannel
    from stagelink.adapters.memory.regions import Regions
    from stagelink.core.values import Instance
    from stagelink.ports.channel import Mail

SCHEME = "memory://"


class Hub:
    """A world of its own: connectors of different hubs cannot reach one another.

    Everything in it changes under ``lock``, which is never held while calling out.

    Args:
        now: the clock, in seconds, by which delayed mail becomes due; may be a virtual one.
    """

    _default: ClassVar[Hub | None] = None

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.id = secrets.token_hex(8)
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.now = now
        self.bound: dict[str, MemoryChannel] = {}
        self.dialled: dict[str, list[End]] = {}
        self.planes: dict[tuple[Instance, str], Regions] = {}
        self.dead: set[str] = set()
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
    def forget_default(cls) -> None:
        """Have the next :meth:`default` make a new one."""
        cls._default = None

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
        """Part the channel at *address* from everybody, until :meth:`heal`."""
        with self.lock:
            self._cut.add(address)
            for end in [end for ends in self.dialled.values() for end in ends]:
                if address in {end.name, end.channel.address}:
                    part(end, f"{address} is cut off")

    def heal(self, address: str) -> None:
        """Let the channel at *address* be reached again: dialled links come up by themselves."""
        with self.lock:
            self._cut.discard(address)
            for end in [end for ends in self.dialled.values() for end in ends]:
                self.connect(end)

    def kill(self, instance: Instance) -> None:
        """From now on *instance* counts as dead."""
        with self.lock:
            self.dead.add(instance.hex())


os.register_at_fork(after_in_child=Hub.forget_default)
