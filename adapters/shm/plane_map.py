"""The map plane: a reader uses the owner's pages where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.shm.regions import Regions
from stagelink.adapters.shm.segment import DIRECTORY, KIND
from stagelink.core.regions import check
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.plane import WriteOrder


class ShmMapPlane(Regions):
    """A :class:`stagelink.ports.DataPlane`: readers map the owner's pages, which outlive it.

    Args:
        directory: the mount that holds the segments.
        writable: map peers for writing too. A sole reader owns what it took and may change it in
            place, and a tensor made of a read-only buffer warns, so this is the default; where
            several read one payload the driver hands out ``view.toreadonly()``. With False a
            write to a view, by whatever means, ends the process.
    """

    capabilities = Capabilities(
        mode="map", memory_kind=KIND, crosses_hosts=False, survives_owner=True, can_fence=False
    )

    def __init__(self, directory: str = DIRECTORY, *, writable: bool = True) -> None:
        super().__init__(directory, writable=writable)

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """The bytes of a peer's region, in place."""
        whole = self.theirs(peer, where).view
        check(where, len(whole))
        return whole[where.offset : where.offset + where.size]

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """End at once with an error: this plane does not write."""
        done(order, "this plane maps, it does not write")

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Drop the mappings of a peer that is dead; a living one keeps its views of our pages."""
        if dead:
            self.drop(peer)
        return dead

    def reset(self) -> None:
        """Nothing is ever under way here."""

    def close(self) -> None:
        """Drop every mapping that nobody views. Twice is fine."""
        self.drop_all()
