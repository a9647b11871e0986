"""Regions of this process, ours and our peers', as both planes know them."""

from __future__ import annotations

import ctypes
import struct
from math import inf
from typing import TYPE_CHECKING

from stagelink.adapters.memory.foreign import Engine
from stagelink.adapters.memory.hub import Hub
from stagelink.adapters.memory.provider import KIND
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import Region, attached, registered

if TYPE_CHECKING:
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory

_HEAD = struct.Struct("!16s16s5sB")  # hub, instance, mode, number of regions
_EDITION = struct.Struct("!Q")  # how many living peers were cut off before it was written
_ROW = struct.Struct("!QQ")  # region, size
_MOST_REGIONS = 200
_REGION_LIMIT = 1 << 64


class Regions:
    """Registration, description and attachment through the hub; all under its lock."""

    def __init__(self, instance: Instance, mode: str, hub: Hub | None) -> None:
        self.instance = instance
        self.hub = hub or Hub.default()
        self.mode = mode
        self._own: dict[int, Region] = {}
        self._peers: dict[Instance, dict[int, Region]] = {}
        self._edition = 0
        self._cut_off: dict[Instance, int] = {}  # living peers, and from which edition on they may
        self._closed = False
        self._dead = False
        self._engine: Engine | None = None
        with self.hub.lock:
            self.hub.planes[instance, mode] = self

    def register(self, region: int, memory: Memory) -> None:
        """Make our *memory* reachable as *region*.

        Raises:
            TransportError: it is of another kind, or one region too many to describe.
        """
        if memory.kind != KIND:
            msg = f"private memory cannot be {memory.kind} memory named {memory.name!r}"
            remedy = "allocate the pool with PrivateMemoryProvider"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
        view = memory.buffer
        with self.hub.lock:
            if not 0 <= region < _REGION_LIMIT or len(self._own) >= _MOST_REGIONS:
                msg = f"region {region} cannot be described beside {len(self._own)} others"
                remedy = "make the pool of fewer pieces"
                raise TransportError(msg, reason=Reason.OUT_OF_BOUNDS, remedy=remedy)
            self._own[region] = Region(view, ctypes.addressof(ctypes.c_char.from_buffer(view)))

    def describe(self) -> bytes:
        """The hub, who we are, the edition, and the ids and sizes of our regions."""
        with self.hub.lock:
            rows = [_ROW.pack(region, len(own.view)) for region, own in self._own.items()]
            edition = _EDITION.pack(self._edition)
        return self._head(self.instance, len(rows)) + edition + b"".join(rows)

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Find what *peer* described; all or, on an error, none and no change.

        Raises:
            TransportError: malformed, of another hub or peer, or not there (any more).
        """
        edition, rows = self._parse(peer, descriptor)
        with self.hub.lock:
            if self._closed:
                msg = "the plane is closed"
                raise TransportError(msg, reason=Reason.CLOSED, remedy="open another")
            plane = self.hub.planes.get((peer, self.mode))
            alive = plane is not None and not plane._dead  # noqa: SLF001 - one of us
            own = plane._own if plane is not None and alive else {}  # noqa: SLF001
            if plane is not None and edition < plane._cut_off.get(self.instance, 0):  # noqa: SLF001
                msg = f"peer {peer.hex()} has cut us off since it described itself"
                raise TransportError(msg, reason=Reason.MISMATCH, remedy="it will greet again")
            self._peers[peer] = {region: _found(own, region, size) for region, size in rows}

    @property
    def foreign(self) -> Engine:
        """How peers of another protocol reach our regions, and we theirs."""
        if self._engine is None:
            key = self.instance + self.mode.encode()
            self._engine = Engine(key, self._own, self.hub)
        return self._engine

    def close_foreign(self) -> None:
        """End what is under way with such peers; the lock is not held."""
        if self._engine is not None:
            self._engine.close()

    def drop(self, peer: Instance) -> None:
        """Forget a peer, and have it forget us. The caller holds the lock."""
        self._peers.pop(peer, None)
        other = self.hub.planes.get((peer, self.mode))
        if other is not None:
            other._peers.pop(self.instance, None)  # noqa: SLF001 - one of us

    def cut_off(self, peer: Instance) -> None:
        """Have a living peer attach by later descriptions only. The caller holds the lock."""
        self._edition += 1
        self._cut_off[peer] = self._edition

    def drop_all(self) -> None:
        """Forget every region, ours and theirs, and attach no other. The caller holds the lock."""
        self._closed = True
        self._own.clear()
        self._peers.clear()
        if self.hub.planes.get((self.instance, self.mode)) is self:
            del self.hub.planes[self.instance, self.mode]

    def advance(self, now_s: float) -> None:
        """Nothing is ever delayed here."""

    def next_due_s(self) -> float:
        """When the next delayed write is due; infinite when none is. The caller holds the lock."""
        return inf

    def die(self, *, drop_writes: bool) -> None:
        """End as a crash does: nobody attaches us, no call is answered. The lock is held."""
        del drop_writes
        self._dead = True

    def forget(self) -> None:
        """Be closed without telling anybody: in a forked child it was the parent's plane."""
        self._closed = True
        self._own.clear()
        self._peers.clear()

    def theirs(self, peer: Instance, where: RegionRef) -> Region:
        """The peer's region that *where* names, unchecked. The caller holds the lock."""
        return attached(self._peers.get(peer, {}), peer, where.region)

    def ours(self, where: RegionRef) -> Region:
        """Our region that *where* names, unchecked. The caller holds the lock."""
        return registered(self._own, where.region)

    def _head(self, instance: Instance, count: int) -> bytes:
        return _HEAD.pack(self.hub.id.encode(), instance, self.mode.encode(), count)

    def _parse(self, peer: Instance, descriptor: bytes) -> tuple[int, list[tuple[int, int]]]:
        count, rest = divmod(len(descriptor) - _HEAD.size - _EDITION.size, _ROW.size)
        whole = not rest and 0 < count <= _MOST_REGIONS
        if not whole or descriptor[: _HEAD.size] != self._head(peer, count):
            msg = f"the description of peer {peer.hex()}, {len(descriptor)} bytes, is not its own"
            remedy = "both sides must be of one process, one hub and one mode"
            raise TransportError(msg, reason=Reason.PROTOCOL, remedy=remedy)
        first = _HEAD.size + _EDITION.size
        rows = [_ROW.unpack_from(descriptor, first + i * _ROW.size) for i in range(count)]
        if len(dict(rows)) != count:
            msg = f"peer {peer.hex()} describes a region twice"
            raise TransportError(msg, reason=Reason.PROTOCOL)
        (edition,) = _EDITION.unpack_from(descriptor, _HEAD.size)
        return edition, rows


def _found(own: dict[int, Region], region: int, size: int) -> Region:
    """The first *size* bytes of a region, if there are so many."""
    found = own.get(region)
    actual = len(found.view) if found is not None else 0
    if found is None or not 0 < size <= actual:
        msg = f"the peer's region {region} has {actual} bytes, it claims {size}"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="the peer must live; restart it")
    return Region(found.view[:size], found.address)
