"""A value that is measured and not yet written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext

from stagelink.adapters.msgspec import leaves as lv
from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from stagelink import ports
    from stagelink.adapters.msgspec.leaves import Copy, Leaf


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
            raise _misfit(self.size, target)
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


def packed(staged: ports.Staged) -> bytes:
    """The whole payload of *staged*, in bytes of its own."""
    body = bytearray(staged.size)
    staged.write(memoryview(body))
    return bytes(body)


class Whole:
    """A value that is one leaf, measured: *nbytes* behind *head*, in *size* bytes of payload."""

    __slots__ = ("_head", "_nbytes", "_read", "_source", "_write", "size")

    def __init__(self, copy: Copy, source: Any, nbytes: int, head: bytes, size: int) -> None:  # noqa: ANN401
        self._write, self._read = copy
        self._source = source
        self._nbytes = nbytes
        self._head = head
        self.size = size

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes into *target*; the leaf is copied once.

        Raises:
            PayloadError: *target* is of another size.
        """
        if len(target) != self.size:
            raise _misfit(self.size, target)
        start = len(self._head)
        target[:start] = self._head
        if self._nbytes:
            self._write(self._source, self._nbytes, target, start)

    def packed(self) -> bytes:
        """The whole payload, in bytes of its own; for what is small."""
        return self._head + self._read(self._source, self._nbytes)


def framed(
    code: int, dtype: object, shape: tuple[int, ...], nbytes: int, traceparent: str = ""
) -> tuple[bytes, int]:
    """What comes before the *nbytes* of a payload's only leaf, and the size of the payload.

    With a *traceparent* it is the payload of a traced value.
    """
    tree = Ext(code, lv.encode((0, dtype, shape)))
    if traceparent:
        tree = Ext(lv.TRACED, lv.encode((traceparent, tree)))
    header = lv.encode(tree)
    layout = payload.plan(len(header), [(nbytes, lv.VIEW_ALIGNMENT)])
    head = payload.pack_prefix(layout) + header
    return head.ljust(layout.offsets[0], b"\0"), layout.size


def _misfit(size: int, target: memoryview) -> PayloadError:
    return PayloadError(f"the payload has {size} bytes, the target {len(target)}")
