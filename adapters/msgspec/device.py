"""Payloads whose tensors stay on a device: the header and the rest are host bytes beside them.

The layout is that of any payload. A tensor of a device says so in the header (an extension of its
own), so a reader knows which leaves to take in place and which to fetch to the host.
"""

from __future__ import annotations

from functools import lru_cache
from struct import error
from threading import get_ident
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext, decode

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.foreign import Codecs, ForeignWalk
from stagelink.adapters.msgspec.leaves import encode
from stagelink.adapters.msgspec.libraries import tensors
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.unpacking import Load
from stagelink.core import payload
from stagelink.core.errors import PayloadError
from stagelink.core.messages import HEAD_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.adapters.msgspec.leaves import Leaf
    from stagelink.adapters.msgspec.paths import Path
    from stagelink.adapters.msgspec.staged import Staged, Whole
    from stagelink.ports import TypeCodec
    from stagelink.ports.memory import DeviceSpace, Lent

    Parts = list[tuple[int, Any]]
    """Offsets, and the host bytes or device tensors that are to lie there."""


class DeviceSerializer(PayloadSerializer):
    """A :class:`PayloadSerializer` for pools on the device of *space*."""

    __slots__ = ("_known", "_readonly", "_space")

    def __init__(
        self,
        space: DeviceSpace,
        *,
        readonly_views: bool = False,
        codecs: Iterable[TypeCodec] = (),
    ) -> None:
        known = tuple(codecs)
        super().__init__(readonly_views=readonly_views, codecs=known)
        self._space = space
        self._known = Codecs(known)
        self._readonly = readonly_views

    def stage(self, value: Any) -> Staged | Whole:  # noqa: ANN401 - any value a user puts
        """Measure *value*; its device tensors may not change until it is written."""
        alone = tensors_of(value, self._space)
        framed = None if alone is None else tensors().frame_there(alone)
        if framed is not None:
            head, size = framed
            there: Any = DeviceStaged([(0, head), (len(head), alone)], head, size, self._space)
            return there  # type: ignore[no-any-return]
        walk = DeviceWalk(False, self._known, self._space)
        try:
            header = encode(walk.pack(value, None, 0))
        except (OverflowError, UnicodeEncodeError):
            walk = DeviceWalk(True, self._known, self._space)
            header = encode(walk.pack(value, None, 0))
        layout, prefix = payload.plan_and_pack(len(header), tuple(walk.buffers))
        head = prefix + header
        parts = _parts(head, layout, walk.leaves)
        return DeviceStaged(parts, head, layout.size, self._space)  # type: ignore[return-value]

    def load(self, buffer: Any, size: int, *, writable: bool = True) -> Any:  # noqa: ANN401
        """The value in *buffer*, lent device memory or host bytes.

        Device tensors are views of it, or (of host bytes, and not *writable*) copies on our
        device. Everything else is a copy on the host.

        Raises:
            PayloadError: the bytes are no payload, or are of another version.
        """
        if not getattr(buffer, "on_device", False):
            view = memoryview(buffer).cast("B")
            layout = payload.parse(view, size)
            exporter = buffer if writable else view.toreadonly()
            load = DeviceLoad(exporter, memoryview(exporter).cast("B"), layout, self._readonly,
                              self._known)  # fmt: skip
        else:
            value = _whole(buffer, size) if writable else None
            if value is not None:
                return value
            head = header_of(buffer, size)
            layout = payload.layout_of(head, size)
            load = DeviceLoad(head, memoryview(head), layout, self._readonly, self._known)
            load.lent, load.writable = buffer, writable
        load.space = self._space
        return load.value()


class DeviceWalk(ForeignWalk):
    """A walk that leaves the tensors of a device where they are."""

    __slots__ = ("space",)

    def __init__(self, careful: bool, codecs: Codecs, space: DeviceSpace) -> None:
        super().__init__(careful, codecs)
        self.space = space

    def pack(self, value: Any, path: Path, depth: int) -> Any:  # noqa: ANN401
        """What the encoder takes for *value*."""
        packed = tensors_of(value, self.space)
        if packed is None:
            return super().pack(value, path, depth)
        return tensors().pack_there(self, packed, path)


def tensors_of(value: Any, space: DeviceSpace) -> Any:  # noqa: ANN401 - a tensor or None
    """*value* if it is a tensor of the device; no library is imported to find out."""
    return value if hasattr(value, "is_cuda") and space.holds(value) else None


class DeviceStaged:
    """A value measured, its leaves still where the user has them.

    It may be written by another thread (``put_async``): in the order of the streams that were
    current where it was staged.
    """

    __slots__ = ("_head", "_moment", "_parts", "_space", "_thread", "size")

    def __init__(self, parts: Parts, head: bytes, size: int, space: DeviceSpace) -> None:
        self._parts = parts
        self._head = head
        self._space = space
        self._thread = get_ident()
        self._moment = space.moment([what for _, what in parts if hasattr(what, "device")])
        self.size = size

    @property
    def head(self) -> bytes:
        """Prefix, table and header, with which the payload begins; empty if they are long."""
        return self._head if len(self._head) <= HEAD_LIMIT else b""

    def write(self, target: Any) -> None:  # noqa: ANN401 - host or device memory
        """Write all ``size`` bytes into *target*: each tensor is copied once.

        Raises:
            PayloadError: *target* is of another size.
        """
        if len(target) != self.size:
            msg = f"the payload has {self.size} bytes, the target {len(target)}"
            raise PayloadError(msg)
        if get_ident() == self._thread:
            self._write(target)
        else:
            with self._space.within(self._moment):
                self._write(target)

    def _write(self, target: Any) -> None:  # noqa: ANN401 - host or device memory
        if not isinstance(target, memoryview):
            target.fill(self._parts)
            return
        for offset, source in self._parts:
            found = source
            if hasattr(source, "device"):
                found = self._space.read(source)
                if found is None:
                    tensors().write_down(source, target, offset)
                    continue
            target[offset : offset + len(found)] = found


def _parts(head: bytes, layout: payload.Layout, leaves: list[Leaf]) -> Parts:
    """Runs of host bytes, and between them the tensors of the device."""
    parts: Parts = []
    start, run = 0, bytearray(head)
    for index, (write, source) in enumerate(leaves):
        offset, nbytes = layout.offsets[index], layout.buffers[index][0]
        run.extend(bytes(offset - start - len(run)))  # the gap before it
        if write is not stay:
            run.extend(bytes(nbytes))
            if nbytes:
                write(source, nbytes, memoryview(run), offset - start)
            continue
        if run:
            parts.append((start, run))
        if nbytes:
            parts.append((offset, source))
        start, run = offset + nbytes, bytearray()
    return [*parts, (start, run)] if run else parts


def stay(source: Any, nbytes: int, target: memoryview, offset: int) -> None:  # noqa: ANN401
    """Mark a leaf as a device tensor; :class:`DeviceStaged` copies it in its own way."""
    del nbytes
    tensors().write_down(source, target, offset)


class DeviceLoad(Load):
    """A load whose device tensors are views, and whose other leaves are fetched one by one."""

    __slots__ = ("lent", "space", "writable")

    lent: Lent | None
    space: DeviceSpace
    writable: bool

    def __init__(self, *fields: Any) -> None:  # noqa: ANN401 - those of Load
        super().__init__(*fields)
        self.lent, self.writable = None, True

    def place(self, index: int) -> tuple[int, int]:
        """Offset and length of a leaf in :attr:`buffer`, which now is a copy of just that leaf."""
        offset, nbytes = super().place(index)
        if self.lent is None:
            return offset, nbytes
        self.buffer = self.lent.host(offset, nbytes)
        self.view = memoryview(self.buffer)
        return 0, nbytes

    def device_tensor(self, data: memoryview) -> Any:  # noqa: ANN401 - a torch tensor
        """The tensor of :func:`~stagelink.adapters.msgspec.tensors.pack_there`."""
        index, name, shape = lv.decode_array_fields(data)
        offset, nbytes = super().place(index)
        if self.lent is None:
            flat = self.space.upload(self.view[offset : offset + nbytes])
        else:
            flat = self.lent.tensor(offset, nbytes)
            if not (self.writable or self.readonly_views):
                flat = flat.clone()
        return tensors().shaped(flat, nbytes, name, shape)


def _whole(lent: Lent, size: int) -> Any:  # noqa: ANN401 - a torch tensor or None
    """The value of a payload that is one tensor of a device; None: a :class:`DeviceLoad` looks."""
    found = _plan(bytes(lent.head[: lv.VIEW_ALIGNMENT]), size)
    if found is None:
        return None
    offset, nbytes, name, shape = found
    return tensors().shaped(lent.tensor(offset, nbytes), nbytes, name, shape)


@lru_cache(256)
def _plan(head: bytes, size: int) -> tuple[int, int, object, tuple[int, ...]] | None:
    """Where the one tensor lies, its dtype and shape: payloads of its like begin alike."""
    try:
        layout = payload.layout_of(head, size)
        tree = decode(head[layout.header_start : layout.header_stop])
        alone = layout.header_stop <= len(head) and type(tree) is Ext
        if not alone or tree.code != lv.DEVICE_TENSOR or len(layout.buffers) != 1:
            return None
        index, name, shape = lv.decode_array_fields(tree.data)
        return layout.offsets[index], layout.buffers[index][0], name, shape
    except (PayloadError, ValueError, TypeError, IndexError, RecursionError, error):
        return None


def header_of(lent: Lent, size: int) -> bytearray:
    """Prefix, table and header of a lent payload: its head, or more if that is too short.

    Raises:
        PayloadError: the payload is shorter than a prefix, or its numbers lie.
    """
    head = bytearray(lent.head)
    if size < payload.PREFIX.size or len(head) < payload.PREFIX.size:
        msg = f"a payload of {size} bytes: the prefix alone has {payload.PREFIX.size}"
        raise PayloadError(msg)
    _, _, _, header_len, count, _ = payload.PREFIX.unpack_from(head)
    stop = payload.PREFIX.size + payload.ENTRY_BYTES * count + header_len
    if stop <= len(head):
        return head
    if stop > size:
        msg = f"the payload says {header_len} bytes of header and {count} buffers, it has {size}"
        raise PayloadError(msg)
    return lent.host(0, stop)
