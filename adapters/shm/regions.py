"""Regions of shared memory, ours and our peers', as both planes know them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stagelink.adapters.shm.names import owner_of_segment
from stagelink.adapters.shm.populate import address_of
from stagelink.adapters.shm.segment import KIND, map_segment
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import Region, attached, registered

if TYPE_CHECKING:
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory

_HEAD = struct.Struct("!HQQ")  # name length, region, size; the name follows
_LONGEST = 4096
_SIZE_LIMIT = 1 << 62
_REGION_LIMIT = 1 << 64


class Regions:
    """Registration, description and mapping: what the two planes have in common."""

    def __init__(self, directory: str, *, writable: bool) -> None:
        self._directory = directory
        self._writable = writable
        self._own: dict[int, tuple[Memory, Region]] = {}
        self._peers: dict[Instance, dict[int, Region]] = {}
        self._described: dict[Instance, bytes] = {}
        self._closed = False

    def register(self, region: int, memory: Memory) -> None:
        """Make a shared segment reachable as *region*.

        Raises:
            TransportError: it is no shared segment, or one too many to describe.
        """
        if memory.kind != KIND or not owner_of_segment(memory.name):
            msg = f"shared memory cannot serve {memory.kind} memory named {memory.name!r}"
            raise TransportError(
                msg, reason=Reason.MISMATCH, remedy="allocate the pool with SharedMemoryProvider"
            )
        if not 0 <= region < _REGION_LIMIT or len(self.describe()) + _HEAD.size + 99 > _LONGEST:
            msg = f"region {region} cannot be described beside {len(self._own)} others"
            raise TransportError(
                msg, reason=Reason.OUT_OF_BOUNDS, remedy="make the pool of fewer segments"
            )
        view = memory.buffer
        self._own[region] = memory, Region(view, address_of(view))

    def describe(self) -> bytes:
        """Region ids, sizes and segment names."""
        return b"".join(
            _HEAD.pack(len(memory.name), region, memory.size) + memory.name.encode()
            for region, (memory, _) in list(self._own.items())
        )

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Map every segment that *peer* described; all or, on an error, none and no change.

        The same description again costs nothing: a segment's name is never used twice.
        """
        if self._closed:
            msg = "the plane is closed"
            raise TransportError(msg, reason=Reason.CLOSED)
        if self._described.get(peer) == descriptor:
            return
        mapped: dict[int, Region] = {}
        for region, size, name in parse(descriptor, peer):
            mapping = map_segment(self._directory, name, size, writable=self._writable)
            address = address_of(mapping) if self._writable else 0
            mapped[region] = Region(memoryview(mapping), address)
        self._peers[peer] = mapped
        self._described[peer] = descriptor

    def drop(self, peer: Instance) -> None:
        """Forget a peer; what is viewed stays mapped until its last view has gone."""
        self._peers.pop(peer, None)
        self._described.pop(peer, None)

    def drop_all(self) -> None:
        """Forget every region, ours and theirs, and attach no other."""
        self._closed = True
        self._own.clear()
        self._peers.clear()
        self._described.clear()

    def theirs(self, peer: Instance, where: RegionRef) -> Region:
        """The region of a peer that *where* names; its range is still unchecked."""
        return attached(self._peers.get(peer, {}), peer, where.region)

    def ours(self, where: RegionRef) -> Region:
        """The region of ours that *where* names; its range is still unchecked."""
        return registered(self._own, where.region)[1]


def parse(descriptor: bytes, peer: Instance) -> list[tuple[int, int, str]]:
    """Region id, size and segment name of each region that a peer describes, all checked.

    Raises:
        TransportError: it is malformed, or names what is not that peer's own.
    """
    rows: dict[int, tuple[int, int, str]] = {}
    rest = descriptor[:_LONGEST]
    while len(rest) >= _HEAD.size:
        length, region, size = _HEAD.unpack_from(rest)
        raw, rest = rest[_HEAD.size : _HEAD.size + length], rest[_HEAD.size + length :]
        name = raw.decode("ascii", "replace")
        if (
            len(raw) != length
            or owner_of_segment(name) != peer.hex()
            or not 0 < size < _SIZE_LIMIT
        ):
            msg = f"peer {peer.hex()} describes {size} bytes of a segment not its own: {name!r}"
            raise TransportError(msg, reason=Reason.PROTOCOL)
        if region in rows:
            msg = f"peer {peer.hex()} describes region {region} twice"
            raise TransportError(msg, reason=Reason.PROTOCOL)
        rows[region] = (region, size, name)
    if rest or not rows or len(descriptor) > _LONGEST:
        msg = f"the description of peer {peer.hex()}, {len(descriptor)} bytes, is malformed"
        raise TransportError(msg, reason=Reason.PROTOCOL)
    return list(rows.values())
