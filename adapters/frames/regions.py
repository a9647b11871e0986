"""Our memory, by region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.frames.wire import MOST_REGIONS
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import check, registered
from stagelink.ports.memory import space_of

if TYPE_CHECKING:
    from stagelink.core.values import RegionRef
    from stagelink.ports.memory import Memory


class Regions:
    """What is registered, all of it memory of the host of one *kind*."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._views: dict[int, memoryview] = {}

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of each region."""
        return {region: len(view) for region, view in self._views.items()}

    def register(self, region: int, memory: Memory) -> None:
        """Make *memory* that of *region*.

        Raises:
            TransportError: it lies on a GPU, is of another kind, or is one too many.
        """
        if space_of(memory) is not None or memory.kind != self._kind:
            msg = f"frames cannot serve {memory.kind} memory, only {self._kind}"
            raise TransportError(
                msg, reason=Reason.MISMATCH, remedy="use a backend with a pool of the host"
            )
        more = region not in self._views
        if not 0 <= region < 1 << 64 or (more and len(self._views) >= MOST_REGIONS):
            msg = f"region {region} cannot be described beside {len(self._views)} others"
            raise TransportError(
                msg, reason=Reason.OUT_OF_BOUNDS, remedy="make the pool of fewer segments"
            )
        self._views[region] = memory.buffer

    def part(self, where: RegionRef) -> memoryview:
        """The bytes of *where*, whose numbers may be anybody's.

        Raises:
            TransportError: there are none.
        """
        found = registered(self._views, where.region)
        check(where, len(found))
        return found[where.offset : where.offset + where.size]

    def clear(self) -> None:
        """Forget them all."""
        self._views.clear()
