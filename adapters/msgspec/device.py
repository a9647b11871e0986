"""Payloads whose tensors stay on a device: the header and the rest are host bytes beside them.

The layout is that of any payload. A tensor of a device says so in the header (an extension of its
own), so a reader knows which leaves to take in place and which to fetch to the host.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.foreign import Codecs, ForeignWalk
from stagelink.adapters.msgspec.leaves import encode
from stagelink.adapters.msgspec.libraries import tensors
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.unpacking import Load
from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.adapters.msgspec.leaves import Leaf
    from stagelink.adapters.msgspec.paths import Path
    from stagelink.adapters.msgspec.staged import Staged, Whole
    from stagelink.ports import TypeCodec
    from stagelink.ports.memory import DeviceSpace, Lent


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
        walk = DeviceWalk(False, self._known, self._space)
        try:
            header = encode(walk.pack(value, None, 0))
        except (OverflowError, UnicodeEncodeError):
            walk = DeviceWalk(True, self._known, self._space)
            header = encode(walk.pack(value, None, 0))
        return DeviceStaged(  # type: ignore[return-value]
            header, walk.leaves, walk.buffers, self._space
        )

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

    __slots__ = ("_head", "_layout", "_leaves", "_moment", "_space", "_thread", "size")

    def __init__(
        self,
        header: bytes,
        leaves: list[Leaf],
        buffers: list[tuple[int, int]],
        space: DeviceSpace,
    ) -> None:
        self._leaves = leaves
        self._space = space
        self._thread = get_ident()
        self._moment = space.moment([source for write, source in leaves if write is stay])
        self._layout, prefix = payload.plan_and_pack(len(header), tuple(buffers))
        self._head = prefix + header
        self.size = self._layout.size

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
        parts = self._parts()
        if not isinstance(target, memoryview):
            target.fill(parts)
            return
        for offset, source in parts:
            if isinstance(source, bytearray):
                target[offset : offset + len(source)] = source
            else:
                tensors().write_down(source, target, offset)

    def _parts(self) -> list[tuple[int, Any]]:
        """Runs of host bytes, and between them the tensors of the device."""
        parts: list[tuple[int, Any]] = []
        start, run = 0, bytearray(self._head)
        for index, (write, source) in enumerate(self._leaves):
            offset, nbytes = self._layout.offsets[index], self._layout.buffers[index][0]
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
