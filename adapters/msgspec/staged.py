"""A value that is measured and not yet written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from stagelink.adapters.msgspec.leaves import Leaf


class Staged:
    """A value measured, its leaves still where the user has them."""

    __slots__ = ("_head", "_layout", "_leaves", "size")

    def __init__(self, header: bytes, leaves: list[Leaf], buffers: list[tuple[int, int]]) -> None:
        self._leaves = leaves
        self._layout, prefix = payload.plan_and_pack(len(header), tuple(buffers))
        self._head = prefix + header
        self.size = self._layout.size

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes into *target*: each leaf is copied once, gaps become zeros.

        Raises:
            PayloadError: *target* is of another size.
        """
        if len(target) != self.size:
            msg = f"the payload has {self.size} bytes, the target {len(target)}"
            raise PayloadError(msg)
        end = len(self._head)
        target[:end] = self._head
        layout = self._layout
        for i, (write, source) in enumerate(self._leaves):
            offset, nbytes = layout.offsets[i], layout.buffers[i][0]
            if offset > end:  # the gap is zeros: no old bytes of the target are sent
                target[end:offset] = bytes(offset - end)
            if nbytes:
                write(source, nbytes, target, offset)
            end = offset + nbytes
