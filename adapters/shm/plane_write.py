"""The write plane: the owner of the data copies it into the reader's pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.shm.copier import Copier, Ends
from stagelink.adapters.shm.regions import Regions
from stagelink.adapters.shm.segment import DIRECTORY, KIND
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import same_size
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.plane import WriteOrder


class ShmWritePlane(Regions):
    """A :class:`stagelink.ports.DataPlane` that maps the receiver's pool and copies into it.

    Small writes are done within :meth:`post`; the others one after another on a thread of the
    plane, so a small one may overtake.
    """

    capabilities = Capabilities(
        mode="write", memory_kind=KIND, crosses_hosts=False, survives_owner=True, can_fence=False
    )

    def __init__(self, directory: str = DIRECTORY) -> None:
        super().__init__(directory, writable=True)
        self._copier = Copier(self._ends)

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """Refuse: this plane does not map."""
        msg = f"this plane writes, it shows no bytes of peer {peer.hex()} ({where})"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="use a map plane")

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Copy now if it is little, else on the plane's thread; *done* is called once."""
        self._copier.post(order, done)

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Stop writing to a dead peer. A living one has our pool mapped, and we cannot stop it."""
        if dead:
            self.drop(peer)
            self._copier.stop(peer)
        return dead

    def reset(self) -> None:
        """End every write under way with an error; peers stay attached."""
        self._copier.stop(None)

    def close(self) -> None:
        """End every write and the thread, drop every mapping. Twice is fine."""
        self.drop_all()
        self._copier.close()

    def _ends(self, order: WriteOrder) -> Ends:
        """Where to copy from and to, checked; the copier asks under its lock."""
        same_size(order.source, order.target)
        source, target = self.ours(order.source), self.theirs(order.peer, order.target)
        return Ends(source.at(order.source), target.at(order.target), (source, target))
