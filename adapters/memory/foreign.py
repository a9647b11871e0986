"""Engines that reach one another by packed cards alone, as those of another protocol do.

The reference for :class:`stagelink.ports.ForeignWriter`, and the other side of it for tests: an
:class:`Engine` belongs to a plane, or stands for a foreign process with memory of its own.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stagelink.adapters.memory.hub import Hub
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import check, registered
from stagelink.core.values import RegionRef
from stagelink.ports.foreign import ForeignCard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.core.regions import Region
    from stagelink.ports.foreign import ForeignOrder

_ENGINE = struct.Struct("!4s16s32s")  # magic, hub, key
_MEMORY = struct.Struct("!4s32sQQQ")  # magic, key, edition, region, size
_HEADS = (b"ENGI", b"MEMO")


class Engine:
    """A :class:`stagelink.ports.ForeignWriter` over *regions*, known in *hub* by *key*.

    Attributes:
        holding: writes are begun and end only by :meth:`finish`, for tests of what may happen
            meanwhile.
        can_fence: what :meth:`fence` answers.
    """

    def __init__(self, key: bytes, regions: Mapping[int, Region], hub: Hub | None = None) -> None:
        self.hub = hub or Hub.default()
        self.key = key.ljust(32, b"\0")
        self.holding = False
        self.can_fence = True
        self._regions = regions
        self._edition = 1
        self._held: list[tuple[ForeignOrder, Callable[[ForeignOrder, str], None]]] = []
        with self.hub.lock:
            self.hub.engines[self.key] = self

    def card(self, region: int) -> ForeignCard:
        """The engine and the memory, as of now."""
        with self.hub.lock:
            size = len(registered(self._regions, region).view)
            memory = _MEMORY.pack(_HEADS[1], self.key, self._edition, region, size)
        return ForeignCard(_ENGINE.pack(_HEADS[0], self.hub.id.encode(), self.key), memory)

    def post(self, order: ForeignOrder, done: Callable[[ForeignOrder, str], None]) -> None:
        """Copy now, and call *done*; or begin, while :attr:`holding`."""
        with self.hub.lock:
            self._check(order)
            if self.holding:
                self._held.append((order, done))
                return
            error = self._copy(order)
        done(order, error)

    def finish(self, error: str = "") -> int:
        """End the writes that are held, with *error* or by copying; how many there were."""
        with self.hub.lock:
            held, self._held = self._held, []
            ends = [error or self._copy(order) for order, _ in held]
        for (order, done), end in zip(held, ends, strict=True):
            done(order, end)
        return len(held)

    def fence(self) -> bool:
        """Make every card given before useless."""
        with self.hub.lock:
            self._edition += self.can_fence
        return self.can_fence

    def close(self) -> None:
        """End every write, and be known no more. Twice is fine."""
        with self.hub.lock:
            if self.hub.engines.get(self.key) is self:
                del self.hub.engines[self.key]
        self.finish("the engine was closed")

    # --- the caller holds the lock -------------------------------------------------------

    def _copy(self, order: ForeignOrder) -> str:
        """Copy all of it; why it cannot be (any more), or nothing."""
        try:
            source, target = self._check(order)
        except TransportError as error:
            return str(error)
        target[:] = source
        return ""

    def _check(self, order: ForeignOrder) -> tuple[memoryview, memoryview]:
        """The bytes to copy and the place for them, every number looked at."""
        own = self._regions.get(order.source.region)
        check(order.source, len(own.view) if own is not None else -1)
        assert own is not None
        theirs, edition, region = _unpacked(order.card, self.hub)
        target = theirs._regions.get(region)  # noqa: SLF001 - one of us
        if target is None or edition != theirs._edition:  # noqa: SLF001 - one of us
            msg = "the card of that memory is out of date"
            raise TransportError(msg, reason=Reason.FENCED, remedy="ask for it anew")
        check(RegionRef(region, order.offset, order.source.size), len(target.view))
        return _bytes(own.view, order.source.offset, order), _bytes(
            target.view, order.offset, order
        )


def _bytes(view: memoryview, offset: int, order: ForeignOrder) -> memoryview:
    return view[offset : offset + order.source.size]


def _unpacked(card: ForeignCard, hub: Hub) -> tuple[Engine, int, int]:
    """The engine, edition and region of a card, which a peer showed us."""
    try:
        magic, where, key = _ENGINE.unpack(card.engine)
        head, owner, edition, region, _ = _MEMORY.unpack(card.memory)
    except struct.error as error:
        msg = f"a card of {len(card.engine)} and {len(card.memory)} bytes is none: {error}"
        raise TransportError(msg, reason=Reason.PROTOCOL) from error
    if (magic, head) != _HEADS or owner != key or where != hub.id.encode():
        msg = "the two parts of a card are not of one engine of this hub"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="show both of the same engine")
    engine = hub.engines.get(key)
    if engine is None:
        msg = "there is no such engine (any more)"
        raise TransportError(msg, reason=Reason.PEER_GONE)
    return engine, edition, region
