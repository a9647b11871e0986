"""Our own end: the engine that peers reach, and the memory registered with it."""

from __future__ import annotations

import secrets
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from stagelink.adapters.mori.card import NONCE, Card, Row, beacon, key_head, pack
from stagelink.adapters.mori.library import outcome
from stagelink.adapters.mori.memory import (
    BEACON,
    SCRATCH,
    TAIL,
    DeviceMemory,
    PinnedMemory,
)
from stagelink.core.errors import Reason, TransportError, translating

if TYPE_CHECKING:
    from stagelink.adapters.mori.fabric import RdmaFabric, XgmiFabric
    from stagelink.adapters.mori.memory import MoriMemory
    from stagelink.core.values import Instance

    Fabric = Union[XgmiFabric, RdmaFabric]

REGION_LIMIT = 1 << 64
SLOTS = (TAIL - SCRATCH) // BEACON


class Own(NamedTuple):
    """A region of ours: its memory, what keeps that, and Mori's descriptor of it."""

    memory: MoriMemory
    anchor: object
    size: int
    nonce: bytes
    described: Any


class Home:
    """One engine for the life of a plane; ``regions`` are ours.

    Memory is registered only after the backend has been made, or its descriptors lack the handle
    by which others open it. ``epoch`` grows whenever they change: connections made before then
    are of no use any more.
    """

    def __init__(self, instance: Instance, fabric: Fabric) -> None:
        self.instance = instance
        self.fabric = fabric
        self.regions: dict[int, Own] = {}
        self.epoch = 0
        self._lock = Lock()
        self._serial = 0
        self._slots = list(range(SLOTS))
        self.engine: Any = fabric.open(self.key())

    def serial(self) -> int:
        """A number that no connection of ours has had."""
        with self._lock:
            self._serial += 1
            return self._serial

    def key(self) -> str:
        """A name for an engine of ours that none has had: a peer never meets a dead one's."""
        return f"{key_head(self.instance)}{self.serial():08x}.00000000"

    def register(self, region: int, memory: Any) -> None:  # noqa: ANN401 - any memory
        """Register *memory* as *region*, and use it once.

        Raises:
            TransportError: Mori or the hardware refuses it, or it is not of a kind for it.
        """
        if not isinstance(memory, (PinnedMemory, DeviceMemory)) or memory.kind != self.fabric.kind:
            kind = getattr(memory, "kind", type(memory).__name__)
            msg = f"mori-{self.fabric.name} cannot use {kind} memory, only {self.fabric.kind}"
            remedy = "allocate the pool with this backend's own provider"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
        if region in self.regions and self.regions[region].memory is memory:
            return
        if not 0 <= region < REGION_LIMIT or region in self.regions:
            msg = f"region {region} is that of other memory already, or no number for one"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy="take another number")
        self.fabric.admit(memory)
        own = self._described(memory)
        self.describe((region, own))  # or it could not be told
        self.regions[region] = own
        self.epoch += 1
        self._prove(own)

    def renew(self) -> None:
        """Take the registrations back and make others: who holds the old ones reaches nothing."""
        for region, own in list(self.regions.items()):
            self.engine.deregister_memory(own.described)
            self.regions[region] = self._described(own.memory)
        self.epoch += 1

    def replace(self) -> None:
        """Take another engine; after that no transfer of the one before can land."""
        before, self.engine = self.engine, self.fabric.open(self.key())
        self.regions = {
            region: self._described(own.memory) for region, own in self.regions.items()
        }
        self.epoch += 1
        self.fabric.shut(before)

    def describe(self, *more: tuple[int, Own]) -> bytes:
        """What a peer needs to reach our regions (and *more*)."""
        rows = tuple(
            Row(region, own.size, own.nonce, own.described.pack())
            for region, own in [*self.regions.items(), *more]
        )
        engine, fabric = self.engine.get_engine_desc().pack(), self.fabric
        return pack(Card(self.instance, fabric.name, fabric.notifies, engine, rows))

    def close(self) -> None:
        """Give the engine up; nothing of it may be under way."""
        engine, self.engine = self.engine, None
        self.regions.clear()
        if engine is not None:
            self.fabric.shut(engine)

    def read_beacon(self, engine: Any, own: Own, mine: Any, theirs: Any, size: int) -> bytes:  # noqa: ANN401
        """What stands behind *theirs*, *size* bytes on; connects where there is no connection.

        Other threads run meanwhile, as they would not if a session were made first.
        """
        with self._lock:
            slot = self._slots.pop() if self._slots else -1
        if slot < 0:
            msg = f"{SLOTS} connections are being made at once"
            raise TransportError(msg, reason=Reason.NO_ROOM, remedy="try again")
        at = SCRATCH + slot * BEACON
        own.memory.put_tail(at, bytes(BEACON))
        try:
            with translating(RuntimeError, "Mori: no connection"):
                uid = engine.allocate_transfer_uid()
                status = engine.read(mine, own.size + at, theirs, size, BEACON, uid)
            status.Wait()
            error = outcome(status)
            found = b"" if error else own.memory.get_tail(at, BEACON)
        finally:
            self._slots.append(slot)
        if error:
            raise TransportError(error, reason=Reason.TRANSFER_FAILED)
        return found

    def _described(self, memory: MoriMemory) -> Own:
        size, nonce = memory.size, secrets.token_bytes(NONCE)
        memory.put_tail(0, beacon(self.instance, nonce))
        with translating(RuntimeError, f"Mori: {size} bytes cannot be registered"):
            described = self.engine.register_memory(
                memory.address, size + TAIL, memory.device, self.fabric.location
            )
        wrong = self.fabric.check(described)
        if wrong:
            self.engine.deregister_memory(described)
            msg = f"Mori cannot offer this memory to others: {wrong}"
            remedy = "see Mori's log (MORI_IO_LOG_LEVEL=info), and that the device exists"
            raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
        return Own(memory, memory.anchor, size, nonce, described)

    def _prove(self, own: Own) -> None:
        """Reach our own memory as a peer would: what fails there fails before anybody waits."""
        self.engine.register_remote_engine(self.engine.get_engine_desc())
        found = self.read_beacon(self.engine, own, own.described, own.described, own.size)
        if found != beacon(self.instance, own.nonce):
            msg = f"{self.fabric.name} does not reach our own memory: read {found[:8].hex()}…"
            raise TransportError(msg, reason=Reason.CORRUPT, remedy="see Mori's log")
