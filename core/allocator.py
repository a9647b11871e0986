"""Which bytes of a pool are free: best fit, in whole units of the alignment.

Holes are kept twice: by place, in a dict of their edges, so that a freed extent finds its
neighbours without searching; and by size, in one sorted list of integers to bisect. That list is
short, for neighbours merge and best fit reuses (10,000 live blocks of mixed sizes leave about 200
holes), and the worst case, a hole beside every block, moves 8 bytes per hole in one memmove: bins
under a bitmap were slower up to 50,000 live blocks. Which bytes are free depends on the live
extents alone, never on the order in which they came and went.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from stagelink.core.errors import ConfigError, LeaseError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Allocator:
    """Extents ``[offset, offset + size)`` of ``capacity`` bytes; neighbours merge when freed.

    Attributes:
        capacity: bytes that can be handed out: those given, rounded down to whole units.
        alignment: bytes of one unit; every offset and reserved size is a multiple of it.
        free_bytes: bytes not handed out, whether or not they are contiguous.

    Raises:
        ConfigError: the alignment is no power of two, or the capacity below one unit of it.
    """

    __slots__ = ("_edges", "_live", "_place", "_sizes", "alignment", "capacity", "free_bytes")

    def __init__(self, capacity: int, alignment: int = 4096) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            msg = f"alignment {alignment} is not a power of two"
            raise ConfigError(msg, remedy="use 4096, or the page size of the memory")
        if capacity < alignment:
            msg = f"capacity {capacity} is less than one unit of {alignment} bytes"
            raise ConfigError(msg, remedy="enlarge the pool")
        self._start(capacity & -alignment, alignment, ())

    @classmethod
    def holding(cls, capacity: int, alignment: int, live: Iterable[tuple[int, int]]) -> Allocator:
        """An allocator with the (offset, reserved size) of *live* handed out.

        Nothing is checked: the arguments come from another allocator.
        """
        allocator = cls.__new__(cls)
        allocator._start(capacity, alignment, live)
        return allocator

    def _start(self, capacity: int, alignment: int, live: Iterable[tuple[int, int]]) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self._live: dict[int, int] = dict(live)  # start -> size
        self.free_bytes = capacity - sum(self._live.values())
        self._place = capacity.bit_length()
        self._sizes: list[int] = []  # one key per hole, sorted: size << place | start
        # Merged holes never touch, so a place is an edge of at most one of them.
        self._edges: dict[int, int] = {}  # start of a hole -> its end, and end -> start
        end = 0
        for start in sorted(self._live):
            if start > end:
                self._enter(end, start)
            end = start + self._live[start]
        if end < capacity:
            self._enter(end, capacity)

    def _enter(self, start: int, end: int) -> None:
        self._edges[start], self._edges[end] = end, start
        insort(self._sizes, (end - start) << self._place | start)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest hole: exactly the sizes up to this one can be allocated."""
        return self._sizes[-1] >> self._place if self._sizes else 0

    @property
    def live(self) -> int:
        """How many extents are handed out."""
        return len(self._live)

    @property
    def holes(self) -> int:
        """How many free extents there are; 1 of the full capacity when nothing is handed out."""
        return len(self._sizes)

    def reserved_size(self, size: int) -> int:
        """Bytes that *size* bytes take: whole units, at least one.

        Raises:
            ConfigError: the size is negative.
        """
        if size < 0:
            msg = f"size {size} is negative"
            raise ConfigError(msg, remedy="ask for 0 bytes or more")
        return (size + self.alignment - 1) & -self.alignment or self.alignment

    def allocate(
        self, size: int, low: int = 0, high: int = sys.maxsize, *, at_end: bool = False
    ) -> tuple[int, int] | None:
        """Hand out the start of the smallest hole that holds *size*, the first of equal ones.

        Only a place within ``[low, high)`` will do: *low* holds for the end of a hole (*at_end*),
        *high* for its start.

        Returns:
            (offset, reserved size) in bytes, or None, nothing changed, when there is no such hole.

        Raises:
            ConfigError: the size is negative.
        """
        # Here and not in reserved_size, whose call costs as much as the bisection.
        size = (
            (size + self.alignment - 1) & -self.alignment if size > 0 else self.reserved_size(size)
        )
        sizes, place, edges = self._sizes, self._place, self._edges
        for at in range(bisect_left(sizes, size << place), len(sizes)):
            hole = sizes[at] >> place
            start = sizes[at] ^ hole << place
            if (start + hole - size >= low) if at_end else (start + size <= high):
                break
        else:
            return None
        del sizes[at]
        end = edges.pop(start)
        del edges[end]
        if hole > size:
            rest, stop = (start, end - size) if at_end else (start + size, end)
            edges[rest], edges[stop] = stop, rest
            insort(sizes, (stop - rest) << place | rest, 0, at)  # what is left is smaller
        start = end - size if at_end else start
        self._live[start] = size
        self.free_bytes -= size
        return start, size

    def allocate_all(
        self,
        sizes: tuple[int, ...],
        low: int = 0,
        high: int = sys.maxsize,
        *,
        at_end: bool = False,
    ) -> tuple[tuple[int, int], ...] | None:
        """An extent for each of *sizes*, in their order, or None and nothing changed.

        Raises:
            ConfigError: a size is negative; nothing is changed.
        """
        # Largest first, so that the small ones do not break the holes that the large ones need.
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        if sizes:
            self.reserved_size(sizes[order[-1]])
        extents: dict[int, tuple[int, int]] = {}
        for i in order:
            extent = self.allocate(sizes[i], low, high, at_end=at_end)
            if extent is None:
                for offset, _ in extents.values():
                    self.free(offset)
                return None
            extents[i] = extent
        return tuple([extents[i] for i in range(len(sizes))])

    def free(self, offset: int) -> int:
        """Take the extent at *offset* back and return its reserved size.

        Raises:
            LeaseError: no live extent starts there; nothing is changed.
        """
        size = self._live.pop(offset, 0)
        if not size:
            msg = f"no live extent at offset {offset}"
            raise LeaseError(msg, remedy="free what allocate returned, once")
        edges, sizes, place = self._edges, self._sizes, self._place
        start, end = offset, offset + size
        if start in edges:
            start = edges.pop(start)
            del sizes[bisect_left(sizes, (offset - start) << place | start)]
        if end in edges:
            right, end = end, edges.pop(end)
            del sizes[bisect_left(sizes, (end - right) << place | right)]
        edges[start], edges[end] = end, start
        insort(sizes, (end - start) << place | start)
        self.free_bytes += size
        return size
