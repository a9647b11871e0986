"""A value that is measured and not yet written."""

from __future__ import annotations

from ctypes import c_ubyte
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext

from stagelink.adapters.msgspec import leaves as lv
from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ctypes import Array

    from stagelink import ports
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


class Form:
    """What all payloads have in common that are one leaf of so many bytes behind that *head*.

    Attributes:
        size: bytes of the payload.
        head: what comes before the leaf.
        nbytes: those of the leaf.
        at: the leaf's bytes as they lie at an address, once it was wanted twice.
    """

    __slots__ = ("_used", "at", "head", "nbytes", "size")

    def __init__(self, nbytes: int, head: bytes, size: int) -> None:
        self.nbytes, self.head, self.size = nbytes, head, size
        self.at: Callable[[int], Array[c_ubyte]] | None = None
        self._used = False

    def use(self) -> None:
        """Once more: a type of ctypes takes long to make, so only for what comes again."""
        if self._used:
            self.at = (c_ubyte * self.nbytes).from_address
        self._used = True


class Whole:
    """A value that is one leaf, measured; its *source* says by ``data_ptr()`` where that lies."""

    __slots__ = ("_form", "_source", "size")

    def __init__(self, source: Any, form: Form) -> None:  # noqa: ANN401
        self._source = source
        self._form = form
        self.size = form.size

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes into *target*; the leaf is copied once.

        Raises:
            PayloadError: *target* is of another size.
        """
        if len(target) != self.size:
            raise _misfit(self.size, target)
        form = self._form
        start = len(form.head)
        target[:start] = form.head
        if form.nbytes:
            lv.write_from(self._source.data_ptr(), form.nbytes, target, start)

    def packed(self) -> bytes:
        """The whole payload, in bytes of its own; for what is small."""
        form = self._form
        if form.at is None:
            form.use()
            return packed(self)
        return form.head + form.at(self._source.data_ptr())


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
