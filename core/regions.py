"""Where a byte range lies in registered memory, and whether it lies there at all.

The numbers of a range may be a peer's: no plane uses them before :func:`check` has seen them. What
planes know of a region is their own affair; that they know it is asked here, in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.core.values import Instance, RegionRef

Known = TypeVar("Known")


class Region(NamedTuple):
    """Bytes of a pool; *view* keeps them there, *address* is where they lie (0: read-only)."""

    view: memoryview
    address: int

    def at(self, where: RegionRef) -> int:
        """The address of *where*, checked.

        Raises:
            TransportError: it is outside.
        """
        check(where, len(self.view))
        return self.address + where.offset


def check(where: RegionRef, length: int) -> None:
    """Refuse a range that is not wholly inside *length* bytes.

    Raises:
        TransportError: it is not, or its numbers are no integers.
    """
    _, offset, size = where
    if type(offset) is not int or type(size) is not int:
        msg = f"offset {offset!r} and size {size!r} must be integers"
        raise TransportError(msg, reason=Reason.OUT_OF_BOUNDS)
    if offset < 0 or size < 0 or offset + size > length:
        msg = f"bytes [{offset}, {offset + size}) are outside a region of {length} bytes"
        raise TransportError(msg, reason=Reason.OUT_OF_BOUNDS)


def same_size(source: RegionRef, target: RegionRef) -> None:
    """Refuse a write of one size into a place of another.

    Raises:
        TransportError: they differ.
    """
    if source.size != target.size:
        msg = f"source has {source.size} bytes, target {target.size}"
        raise TransportError(msg, reason=Reason.MISMATCH)


def registered(regions: Mapping[int, Known], region: int) -> Known:
    """What is known of our *region*.

    Raises:
        TransportError: it is none of *regions*.
    """
    known = regions.get(region)
    if known is None:
        msg = f"region {region} is not registered here"
        raise TransportError(msg, reason=Reason.UNKNOWN, remedy="register it first")
    return known


def attached(regions: Mapping[int, Known], peer: Instance, region: int) -> Known:
    """What is known of a *peer*'s *region*; *regions* are those of it that are attached.

    Raises:
        TransportError: it is none of them.
    """
    known = regions.get(region)
    if known is None:
        raise not_attached(peer, region)
    return known


def not_attached(peer: Instance, region: int) -> TransportError:
    """What a plane answers that knows nothing of *peer*, or not this *region* of it."""
    msg = f"region {region} of peer {peer.hex()} is not attached"
    return TransportError(msg, reason=Reason.UNKNOWN, remedy="attach the peer first")
