"""The map plane on a device: a reader uses the owner's memory where it lies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from stagelink.adapters.device_ipc.envelope import MOST_REGIONS, SharedRegion, pack, parse
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import attached, check
from stagelink.ports.memory import DEVICE
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import DeviceBytes, Memory
    from stagelink.ports.plane import WriteOrder

_REGION_LIMIT = 1 << 64


class Ipc(Protocol):
    """How device memory is shared between processes.

    Attributes:
        runtime: whose handles they are: ``cuda`` or ``hip``.
    """

    runtime: str

    def share(self, memory: Memory) -> bytes:
        """What another process opens *memory* by; 64 bytes.

        Raises:
            TransportError: it cannot be shared; why, and what to do.
        """
        ...

    def open(self, handle: bytes, size: int) -> DeviceBytes:
        """The first *size* bytes of what *handle* names; unmapped with the last view of them.

        Raises:
            TransportError: it cannot be opened here, or is smaller.
        """
        ...


class DeviceIpcPlane:
    """A :class:`stagelink.ports.DataPlane`: readers map the owner's device memory.

    The bytes are complete when they are announced, so any stream of the reader's may read them;
    the lease ends once the streams that used them are done. What a dead owner leaves is undefined.
    """

    capabilities = Capabilities(
        mode="map", memory_kind=DEVICE, crosses_hosts=False, survives_owner=False, can_fence=False
    )

    def __init__(self, instance: Instance, ipc: Callable[[Memory], Ipc]) -> None:
        """*ipc* is called with our memory: peers' is opened for the device that it lies on."""
        self._instance = instance
        self._make = ipc
        self._ipc: Ipc | None = None
        self._own: dict[int, SharedRegion] = {}
        self._peers: dict[Instance, dict[int, DeviceBytes]] = {}
        self._described: dict[Instance, bytes] = {}
        self._closed = False

    def register(self, region: int, memory: Memory) -> None:
        """Make device memory reachable as *region*.

        Raises:
            TransportError: it is not on a device, cannot be shared, or is one too many.
        """
        if memory.kind != DEVICE:
            msg = f"device_ipc cannot serve {memory.kind} memory"
            raise TransportError(
                msg, reason=Reason.MISMATCH, remedy="allocate the pool with DevicePoolProvider"
            )
        more = region not in self._own
        if not 0 <= region < _REGION_LIMIT or (more and len(self._own) >= MOST_REGIONS):
            msg = f"region {region} cannot be described beside {len(self._own)} others"
            raise TransportError(
                msg, reason=Reason.OUT_OF_BOUNDS, remedy="make the pool of fewer segments"
            )
        ipc = self._ipc or self._make(memory)
        self._own[region] = SharedRegion(region, memory.size, ipc.share(memory))
        self._ipc = ipc

    def describe(self) -> bytes:
        """The envelope of our regions."""
        regions = list(self._own.values())
        return pack(self._registered().runtime, self._instance, os.getpid(), regions)

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Open all that *peer* described; all or, on an error, none and no change."""
        if self._closed:
            msg = "the plane is closed"
            raise TransportError(msg, reason=Reason.CLOSED)
        if self._described.get(peer) == descriptor:
            return
        ipc = self._registered()
        _, regions = parse(descriptor, ipc.runtime, peer)
        opened = {row.region: ipc.open(row.handle, row.size) for row in regions}
        self._peers[peer] = opened
        self._described[peer] = descriptor

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """The bytes of a peer's region, in place: device bytes, whatever the port's type says."""
        whole = attached(self._peers.get(peer, {}), peer, where.region)
        check(where, len(whole))
        return whole[where.offset : where.offset + where.size]  # type: ignore[return-value]

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """End at once with an error: this plane does not write."""
        done(order, "this plane maps, it does not write")

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Drop the mappings of a peer that is dead; a living one keeps its views of our memory."""
        if dead:
            self._peers.pop(peer, None)
            self._described.pop(peer, None)
        return dead

    def reset(self) -> None:
        """Nothing is ever under way here."""

    def close(self) -> None:
        """Drop every mapping that nobody views. Twice is fine."""
        self._closed = True
        self._own.clear()
        self._peers.clear()
        self._described.clear()

    def _registered(self) -> Ipc:
        if self._ipc is None:
            msg = "nothing is registered here, so peers' memory has no device to be opened for"
            raise TransportError(msg, reason=Reason.UNKNOWN, remedy="register a pool first")
        return self._ipc
