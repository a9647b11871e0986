"""The data plane over Mori: the owner of the data writes it into the reader's pool."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from stagelink.adapters.mori.fabric import RdmaFabric, XgmiFabric
from stagelink.adapters.mori.foreign import Foreign
from stagelink.adapters.mori.home import Home
from stagelink.adapters.mori.jobs import Job
from stagelink.adapters.mori.lane import Lane
from stagelink.adapters.mori.link import Link, Peer, meet
from stagelink.adapters.mori.memory import DEVICE, HOST
from stagelink.adapters.mori.options import RdmaOptions, XgmiOptions
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import attached, check, not_attached, registered, same_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.mori.home import Fabric
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import WriteOrder

CLOSED = "the plane is closed"
PATIENCE_S = 2.0
"""How long a reset waits for writes before it takes the engine from under them."""


def xgmi_plane(instance: Instance, options: XgmiOptions | None = None) -> MoriPlane:
    """A plane between GPUs of one host.

    Raises:
        ConfigError: Mori is not installed.
        TransportError: it finds no device.
    """
    return MoriPlane(instance, XgmiFabric(options or XgmiOptions()))


def rdma_plane(
    instance: Instance, options: RdmaOptions | None = None, *, on_device: bool = False
) -> MoriPlane:
    """A plane through NICs, for memory of the host or (*on_device*) of a GPU.

    Raises:
        ConfigError: Mori is not installed, or a device is named that is not there.
        TransportError: no device is active, or Mori cannot use it.
    """
    return MoriPlane(instance, RdmaFabric(options or RdmaOptions(), DEVICE if on_device else HOST))


class MoriPlane:
    """A :class:`stagelink.ports.DataPlane` on ``mori.io.IOEngine``.

    Mori checks little: every offset, length and description has been checked before it sees them.
    A write cannot be called back: what ends writes waits for those that have begun.
    """

    def __init__(self, instance: Instance, fabric: Fabric) -> None:
        self.capabilities = fabric.capabilities
        self._fabric = fabric
        self._home = Home(instance, fabric)
        self._lock = Lock()
        self._changing = Lock()
        self._lanes: dict[Instance, tuple[Peer, Lane]] = {}
        self._closed = False
        self.foreign = Foreign(self._home)

    def register(self, region: int, memory: Memory) -> None:
        """Make *memory* of our own provider reachable as *region*, and use it once.

        Raises:
            TransportError: Mori or the hardware refuses it, or it is not of a kind for it.
        """
        with self._changing:
            self._refuse_closed()
            self._home.register(region, memory)

    def describe(self) -> bytes:
        """Mori's descriptors, in an envelope of our own."""
        return self._home.describe() if not self._closed else b""

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Connect to what *peer* described, and see that its memory is reached.

        The same description again only looks, while the connection is good.

        Raises:
            TransportError: malformed, or not reachable; says why and what to do.
        """
        met = meet(self._fabric, descriptor, peer)
        with self._changing:
            self._refuse_closed()
            found = self._lanes.get(peer)
            if found is not None and found[0] == met and self._is_good(found[1]):
                return
            link = Link(self._home, met)
            lane = self._lane(peer, link) if found is None else found[1]
            with self._lock:
                closed = self._closed
                if not closed:
                    self._lanes[peer] = met, lane
            if closed:
                link.close()
                raise TransportError(CLOSED, reason=Reason.CLOSED)
            lane.use(link)

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """Refuse: this plane does not map."""
        msg = f"this plane writes, it shows no bytes of peer {peer.hex()} ({where})"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="use a map plane")

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Begin a write, or queue it behind those under way; *done* is called once."""
        try:
            lane = self._checked(order)
        except TransportError as error:
            done(order, str(error))
            return
        if order.source.size:
            lane.post(Job(order, done))
        else:
            done(order, "")

    def fence(self, peer: Instance, dead: bool) -> bool:
        """End our writes to *peer*, and by RDMA its writes to us: our memory is registered anew.

        By RDMA that cuts off every peer, and all but this one may attach again by what we say of
        ourselves from now on. A GPU that has our memory open cannot be kept from it while its
        process lives; then the answer is False.
        """
        if not dead and not self.capabilities.can_fence:
            return False
        with self._changing:
            with self._lock:
                _, lane = self._lanes.pop(peer, (None, None))
            if lane is not None:
                lane.stop()
            if not dead and not self._closed:
                self._renew()
        return True

    def reset(self) -> None:
        """End every write under way and every connection; each is made anew with the next write.

        What has begun is waited for: a GPU does not let go of a copy. A NIC does, if its engine
        goes: so it does, if a write does not end within :data:`PATIENCE_S`. Then peers reach us by
        another description.
        """
        with self._changing:
            lanes = [lane for _, lane in self._lanes.values()] + self.foreign.lanes
            for lane in lanes:
                lane.hold(flush=True)
            until_s = time.monotonic() + PATIENCE_S
            whole = [lane.is_idle(max(0.0, until_s - time.monotonic())) for lane in lanes]
            if self._fabric.breaks and not all(whole):
                self._home.replace()
                for lane in lanes:
                    lane.abandon()
            for lane in lanes:
                lane.is_idle()
                lane.resume()

    def close(self) -> None:
        """End all writes, connections and the engine. Twice is fine."""
        with self._lock:
            self._closed = True
            lanes, self._lanes = self._lanes, {}
        for _, lane in lanes.values():
            lane.stop()
        self.foreign.close()
        with self._changing:
            self._home.close()

    def _checked(self, order: WriteOrder) -> Lane:
        """The lane to the peer of *order*, all of whose numbers are right.

        Raises:
            TransportError: they are not, or the plane is closed.
        """
        source, target = order.source, order.target
        same_size(source, target)
        self._refuse_closed()
        found = self._lanes.get(order.peer)
        if found is None:
            raise not_attached(order.peer, target.region)
        met, lane = found
        check(target, attached(met.sizes, order.peer, target.region))
        check(source, registered(self._home.regions, source.region).size)
        return lane

    def _lane(self, peer: Instance, link: Link) -> Lane:
        return Lane(
            link, lambda: self._connected(peer), breaks=self._fabric.breaks,
            inline_bytes=self._fabric.inline_bytes, settle=self._fabric.settle,
        )  # fmt: skip

    def _connected(self, peer: Instance) -> Link:
        """A new connection to *peer*, by what it last said of itself."""
        met, _ = self._lanes.get(peer, (None, None))
        if met is None:
            msg = f"peer {peer.hex()} is not attached"
            raise TransportError(msg, reason=Reason.UNKNOWN, remedy="attach the peer first")
        return Link(self._home, met)

    def _is_good(self, lane: Lane) -> bool:
        """Whether a connection still reaches the memory that was described."""
        link = lane.link
        if link is None or link.epoch != self._home.epoch:
            return False
        try:
            link.check()
        except TransportError:
            return False
        return True

    def _renew(self) -> None:
        """Register our memory anew while nothing of ours is under way."""
        lanes = [lane for _, lane in self._lanes.values()]
        lanes += self.foreign.lanes
        for lane in lanes:
            lane.hold()
        for lane in lanes:
            lane.is_idle()
        try:
            self._home.renew()
        finally:
            for lane in lanes:
                lane.resume()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise TransportError(CLOSED, reason=Reason.CLOSED)
