"""The map plane: a reader uses the owner's pages where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.memory.provider import KIND
from stagelink.adapters.memory.regions import Regions
from stagelink.core.regions import check
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.memory.hub import Hub
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.plane import WriteOrder


class MemoryMapPlane(Regions):
    """A :class:`stagelink.ports.DataPlane`: views of the peers' pools, which keep the pages."""

    capabilities = Capabilities(
        mode="map", memory_kind=KIND, crosses_hosts=False, survives_owner=True, can_fence=True
    )

    def __init__(self, instance: Instance, *, hub: Hub | None = None) -> None:
        super().__init__(instance, self.capabilities.mode, hub)

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """The bytes of a peer's region, in place."""
        with self.hub.lock:
            whole = self.theirs(peer, where).view
        check(where, len(whole))
        return whole[where.offset : where.offset + where.size]

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """End at once with an error: this plane does not write."""
        done(order, "this plane maps, it does not write")

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Part us from *peer*, alive or dead, in both directions; views that exist stay."""
        with self.hub.lock:
            self.drop(peer)
            if not dead:
                self.cut_off(peer)
        return True

    def reset(self) -> None:
        """Nothing is ever under way here."""

    def close(self) -> None:
        """Drop every mapping that nobody views. Twice is fine."""
        self.close_foreign()
        with self.hub.lock:
            self.drop_all()
