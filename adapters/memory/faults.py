"""What can go wrong, on purpose and the same way again for the same seed."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from stagelink.adapters.memory.ends import End
    from stagelink.adapters.memory.hub import Hub
    from stagelink.ports.channel import Mail
    from stagelink.ports.plane import WriteOrder


class WriteFault(str, Enum):
    """How a write goes wrong."""

    NONE = "none"
    DELAYED = "delayed"
    FAILING = "failing"
    HALF = "half"
    STUCK = "stuck"


class Faults:
    """Chances, each from 0 to 1, drawn from *chance* for every message or write in turn.

    Without a fault, order is kept, whatever the delays. A reordered message is overtaken by the
    next one of its link (and is lost if the connection ends before).

    Args:
        chance: where chance comes from; only this object may draw from it.
        loss: a message vanishes.
        duplication: it arrives twice.
        reordering: the next message overtakes it.
        refuse: send() says that the link is full.
        delay_s: the least and the longest delay of a message, by the hub's clock.
        writes: the chance of each :class:`WriteFault`; their sum is at most 1.
        write_delay_s: the least and the longest delay of what is left of a delayed or half write;
            None leaves it to whoever calls ``finish``.

    Attributes:
        trace: what was done to each message and write, in order.
    """

    def __init__(
        self,
        chance: Random,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
        refuse: float = 0.0,
        delay_s: tuple[float, float] = (0.0, 0.0),
        writes: dict[WriteFault, float] | None = None,
        write_delay_s: tuple[float, float] | None = None,
    ) -> None:
        self.trace: list[str] = []
        self._chance = chance
        self._loss = loss
        self._duplication = duplication
        self._reordering = reordering
        self._refuse = refuse
        self._delay_s = delay_s
        self._writes = writes or {}
        self._write_delay_s = write_delay_s

    def pass_on(self, hub: Hub, end: End, mail: Mail, now_s: float) -> bool:
        """Send *mail* from *end* to the other, or not; the hub's lock is held."""
        fate = self._draw()
        self.trace.append(fate)
        target = end.other
        if target is None or fate == "refused":
            return target is None
        if fate == "reordered" and target.held is None:
            target.held = mail
            return True
        if fate != "lost":
            for _ in range(2 if fate == "duplicated" else 1):
                self._hand_over(hub, end, mail, now_s)
        held, target.held = target.held, None
        if held is not None:
            self._hand_over(hub, end, held, now_s)
        return True

    def write_fault(self, order: WriteOrder) -> WriteFault:
        """What becomes of a write."""
        drawn, sum_so_far, fate = self._chance.random(), 0.0, WriteFault.NONE
        for fault, part in self._writes.items():
            sum_so_far += part
            if drawn < sum_so_far:
                fate = fault
                break
        self.trace.append(f"write {order.transfer} {fate.value}")
        return fate

    def write_due_s(self, now_s: float) -> float:
        """When the rest of a write lands by itself; infinite: never."""
        if self._write_delay_s is None:
            return inf
        due_s = now_s + self._chance.uniform(*self._write_delay_s)
        self.trace.append(f"due {due_s:.6f}")
        return due_s

    def _draw(self) -> str:
        """Always four draws, so that one chance does not shift the others."""
        drawn = [self._chance.random() for _ in range(4)]
        limits = (self._refuse, self._loss, self._duplication, self._reordering)
        fates = ("refused", "lost", "duplicated", "reordered")
        for value, limit, fate in zip(drawn, limits, fates, strict=True):
            if value < limit:
                return fate
        return "passed"

    def _hand_over(self, hub: Hub, end: End, mail: Mail, now_s: float) -> None:
        target = end.other
        if target is None:
            return
        least_s, longest_s = self._delay_s
        if longest_s <= 0:
            target.push(mail)
            return
        target.due_s = max(target.due_s, now_s + self._chance.uniform(least_s, longest_s))
        self.trace.append(f"due {target.due_s:.6f}")
        hub.post_late(target.due_s, target, end, mail)
