"""Where a byte range lies in registered memory, and whether it lies there at all.

The numbers of a range may be a peer's: no plane uses them before :func:`check` has seen them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from stagelink.core.values import RegionRef


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
