"""Engines of Mori's that do not speak our protocol: writes to them, and theirs to us.

They show Mori's own descriptors without our envelope: no instance, no beacon, no digest. What can
be checked of them is; that the memory is still the one that was described is for them to know.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from stagelink.adapters.mori.card import Card, Row
from stagelink.adapters.mori.jobs import Job
from stagelink.adapters.mori.lane import Lane
from stagelink.adapters.mori.link import Link, Peer
from stagelink.adapters.mori.memory import BEACON, TAIL
from stagelink.core.errors import Reason, TransportError, translating
from stagelink.core.regions import check, registered
from stagelink.core.values import NO_INSTANCE, RegionRef
from stagelink.ports.foreign import ForeignCard
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.mori.home import Home
    from stagelink.ports.foreign import ForeignOrder

MOST_LANES = 64
"""Memories of others that we keep a way to; the one used longest ago gives way, once idle."""

THEIRS = 0
"""How a lane calls the one region of the other side."""

SHORTEST_KEY = 16
NAME_LIMIT = 256
ADDRESSES = 1 << 64


class Foreign:
    """A :class:`stagelink.ports.ForeignWriter` beside a plane of ours.

    By RDMA others write to us through an engine of its own, opened with the first card: to fence
    is to shut it and open another, for an engine that has met one error never reaches the same
    engine again. A GPU that has our memory open cannot be kept from it.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = Lock()
        self._lanes: dict[ForeignCard, tuple[int, Lane]] = {}  # the one used last comes last
        self._door: Any = None
        self._known: dict[int, Any] = {}
        self._closed = False

    @property
    def lanes(self) -> list[Lane]:
        """The ways to others that there are."""
        with self._lock:
            return [lane for _, lane in self._lanes.values()]

    def card(self, region: int) -> ForeignCard:
        """What an engine needs to write into our *region*.

        Raises:
            TransportError: there is no such region, or Mori refuses it.
        """
        self._refuse_notices()
        with self._lock:
            own = registered({} if self._closed else self._home.regions, region)
            if not self._home.fabric.capabilities.can_fence:
                engine, memory = self._home.engine, own.described
            else:
                engine, memory = self._opened(region)
            return ForeignCard(engine.get_engine_desc().pack(), memory.pack())

    def post(self, order: ForeignOrder, done: Callable[[ForeignOrder, str], None]) -> None:
        """Begin a write, or queue it; *done* is called once.

        Raises:
            TransportError: the card is no descriptor of one engine, or a range is outside.
        """
        self._refuse_notices()
        own = self._home.regions.get(order.source.region)
        check(order.source, own.size if own is not None else -1)
        size, lane = self._lane(order.card)
        target = RegionRef(THEIRS, order.offset, order.source.size)
        check(target, size)
        whole = WriteOrder(NO_INSTANCE, order.number, order.source, target)
        lane.post(Job(whole, lambda _, error: done(order, error)))

    def fence(self) -> bool:
        """Destroy what others reach us through; False where their mappings are their own."""
        if not self._home.fabric.capabilities.can_fence:
            return False
        with self._lock:
            self._shut()
        return True

    def close(self) -> None:
        """End every write and every connection. Twice is fine."""
        with self._lock:
            self._closed = True
            lanes, self._lanes = self._lanes, {}
            self._shut()
        for _, lane in lanes.values():
            lane.stop()

    def _refuse_notices(self) -> None:
        if self._home.fabric.notifies:
            msg = "the engines of others take no notice of writes, and ours is told to give it"
            remedy = "leave mori.enable_notification off: the second transfer would hang"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)

    # --- ways to others ------------------------------------------------------------------

    def _lane(self, card: ForeignCard) -> tuple[int, Lane]:
        """The size of the memory that *card* describes, and the way there."""
        with self._lock:
            found = self._lanes.pop(card, None)
            if found is None:
                peer = meet(self._home, card)
                found = peer.sizes[THEIRS], self._new(peer)
            if self._closed:
                msg = "the plane is closed"
                raise TransportError(msg, reason=Reason.CLOSED)
            self._lanes[card] = found
            spare = self._spare()
        if spare is not None:
            spare.stop()
        return found

    def _new(self, peer: Peer) -> Lane:
        fabric = self._home.fabric
        return Lane(
            None, lambda: Link(self._home, peer), breaks=fabric.breaks,
            inline_bytes=fabric.inline_bytes, settle=fabric.settle,
        )  # fmt: skip

    def _spare(self) -> Lane | None:
        """One way too many, if one of the others is idle."""
        if len(self._lanes) > MOST_LANES:
            for card, (_, lane) in list(self._lanes.items())[:-1]:
                if lane.idle:
                    del self._lanes[card]
                    return lane
        return None

    # --- the way to us -------------------------------------------------------------------

    def _opened(self, region: int) -> tuple[Any, Any]:
        """The engine that others write to us through, and its descriptor of *region*.

        Mori registers memory with a NIC when it is first used, and aborts if it cannot: so room
        for that is looked for first, and it is used once.
        """
        home = self._home
        fabric, own = home.fabric, home.regions[region]
        if self._door is None:
            self._door = fabric.open(home.key())
            self._door.register_remote_engine(self._door.get_engine_desc())
        if region not in self._known:
            memory = own.memory
            fabric.admit(memory)
            with translating(RuntimeError, f"Mori: {own.size} bytes cannot be registered"):
                described = self._door.register_memory(
                    memory.address, own.size + TAIL, memory.device, fabric.location
                )
            home.read_beacon(self._door, own, described, described, own.size)
            self._known[region] = described
        return self._door, self._known[region]

    def _shut(self) -> None:
        door, self._door = self._door, None
        self._known.clear()
        if door is not None:
            self._home.fabric.shut(door)


def meet(home: Home, card: ForeignCard) -> Peer:
    """Check what a foreign engine says of itself.

    Raises:
        TransportError: it is malformed, of two engines, or where this fabric does not reach.
    """
    mori, fabric = home.fabric.library, home.fabric
    engine = _read(mori.EngineDesc.unpack, card.engine, "engine")
    memory = _read(mori.MemoryDesc.unpack, card.memory, "memory")
    try:
        wrong = _wrong_engine(engine, card, rdma=fabric.breaks)
        wrong = wrong or _wrong_memory(memory, engine.key)
        if not wrong and not fabric.breaks and memory.loc != fabric.location:
            wrong = f"its memory is in {memory.loc}, not in {fabric.location}"
        wrong = wrong or fabric.check(memory)
    except ValueError as error:  # text that is none
        wrong = str(error)
    if wrong:
        raise _malformed(wrong)
    row = Row(THEIRS, memory.size, b"", card.memory)
    said = Card(NO_INSTANCE, fabric.name, fabric.notifies, card.engine, (row,))
    return Peer(b"", said, engine.key, {THEIRS: memory.size})


def _wrong_engine(engine: Any, card: ForeignCard, *, rdma: bool) -> str:  # noqa: ANN401 - Mori's
    key = engine.key
    if not SHORTEST_KEY <= len(key) <= NAME_LIMIT:
        return f"its engine is called {key!r:.80}"
    if not (card.engine.count(key.encode()) == card.memory.count(key.encode()) == 1):
        return f"the engine key {key!r:.80} cannot be told apart in it"
    if not 0 <= engine.port < 1 << 16 or (rdma and not engine.port):
        return f"its engine listens at port {engine.port}"
    if max(len(engine.host), len(engine.hostname), len(engine.node_id)) > NAME_LIMIT:
        return "its engine's host has a name of more than 256 characters"
    return ""


def _wrong_memory(memory: Any, key: str) -> str:  # noqa: ANN401 - Mori's descriptor
    if memory.engine_key != key:
        return f"its memory is that of engine {memory.engine_key!r:.80}"
    if not BEACON <= memory.size < ADDRESSES >> 2:
        return f"its memory has {memory.size} bytes"
    if not 0 < memory.data < ADDRESSES - memory.size:
        return f"its memory lies at {memory.data:#x}"
    return ""


def _read(unpacked: Callable[[bytes], Any], packed: bytes, what: str) -> Any:  # noqa: ANN401
    """Mori's descriptor from its bytes, which must be exactly those that it would write."""
    try:
        found = unpacked(packed)
        again = found.pack()
    except (RuntimeError, MemoryError, TypeError, ValueError) as error:
        msg = f"Mori cannot read the {what} of a foreign card: {error}"
        raise TransportError(msg, reason=Reason.PROTOCOL) from error
    if again != packed:
        why = f"Mori reads something else in its {what}"
        raise _malformed(why)
    return found


def _malformed(why: str) -> TransportError:
    remedy = "run the same version of Mori on both sides"
    return TransportError(f"a foreign card: {why}", reason=Reason.PROTOCOL, remedy=remedy)
