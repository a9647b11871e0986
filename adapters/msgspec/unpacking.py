"""The way out of a payload: extensions become values as the decoder meets them."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext, decode

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.classes import unpack_enum, unpack_object
from stagelink.adapters.msgspec.foreign import unpack_foreign
from stagelink.adapters.msgspec.leaves import DEPTH_LIMIT, complex_bits
from stagelink.adapters.msgspec.libraries import arrays, tensors
from stagelink.core.errors import PayloadError
from stagelink.core.payload import ENTRY_BYTES, PREFIX, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.msgspec.foreign import Codecs
    from stagelink.core.payload import Layout

HEAD_BYTES = lv.VIEW_ALIGNMENT
"""All that comes before the items of a value that is one tensor, unless its shape is long."""

EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)})
"""How an extension begins in MessagePack."""

_head = Struct(f"{HEAD_BYTES}s")
_TREE_AT = PREFIX.size + ENTRY_BYTES


class Load:
    """One pass over a header; extensions become values as the decoder meets them."""

    __slots__ = ("buffer", "codecs", "depth", "layout", "readonly_views", "view")

    def __init__(
        self,
        buffer: Any,  # noqa: ANN401
        view: memoryview,
        layout: Layout,
        readonly_views: bool,
        codecs: Codecs | None,
    ) -> None:
        self.buffer = buffer
        self.view = view
        self.layout = layout
        self.readonly_views = readonly_views
        self.codecs = codecs
        self.depth = 0

    def value(self) -> Any:  # noqa: ANN401
        """The value, made of views of the buffer."""
        layout = self.layout
        header = self.view[layout.header_start : layout.header_stop]
        try:
            return decode(header, ext_hook=self.unpack)
        except PayloadError:
            raise
        except Exception as error:  # besides our own, what a class of the user's raises as a key
            msg = f"the header of the payload is malformed: {type(error).__name__}: {error}"
            raise PayloadError(msg) from error

    def unpack(self, code: int, data: memoryview) -> Any:  # noqa: ANN401
        """The value of one extension."""
        unpack = UNPACKERS.get(code)
        if unpack is None:
            msg = f"the payload holds an unknown extension {code}"
            raise PayloadError(msg, remedy="run the same version on both sides")
        return unpack(self, data)

    def place(self, index: int) -> tuple[int, int]:
        """Offset and length of a buffer, by its number from 0."""
        layout = self.layout
        if index >= len(layout.offsets):
            msg = f"the payload has {len(layout.offsets)} buffers, it names number {index}"
            raise PayloadError(msg)
        return layout.offsets[index], layout.buffers[index][0]

    def device_tensor(self, data: memoryview) -> Any:  # noqa: ANN401 - a tensor
        """A tensor that was put from a device; only a pool on a device takes it."""
        del data
        msg = "the payload holds tensors of a device, this side's pool is host memory"
        raise PayloadError(msg, remedy="open both sides with the same backend")

    def items(self, data: memoryview) -> list[Any]:
        """The items of an extension that is an array."""
        self.depth += 1
        if self.depth > DEPTH_LIMIT + 1:
            msg = f"the payload is nested deeper than {DEPTH_LIMIT}"
            raise PayloadError(msg)
        items = decode(data, ext_hook=self.unpack)
        self.depth -= 1
        if type(items) is not list:
            msg = f"an array was expected in the header, not {type(items).__name__}"
            raise PayloadError(msg)
        return items


def whole(buffer: Any, size: int) -> Any:  # noqa: ANN401
    """The value of the payload in *buffer* if it is one tensor: a view of *buffer*.

    Any other value is None, and so is what is malformed or read-only: a :class:`Load` sees to it.
    """
    data, readonly = buffer, False
    if type(buffer) is not bytearray:
        data = memoryview(buffer).cast("B")
        readonly = data.readonly
    if readonly or not HEAD_BYTES < size <= len(data):
        return None
    (head,) = _head.unpack_from(data)
    make = _maker(head, size) if head[_TREE_AT] in EXTENSIONS else None
    try:
        return None if make is None else make(buffer)
    except (ValueError, RuntimeError, OverflowError, TypeError):
        return None


@lru_cache(256)
def _maker(head: bytes, size: int) -> Callable[[Any], Any] | None:
    """All payloads of one tensor of the same dtype and shape begin with the same *head*."""
    make: Callable[[Any], Any] | None = None
    try:
        layout = layout_of(head, size)
        tree = decode(head[layout.header_start : layout.header_stop])
        alone = layout.header_stop <= HEAD_BYTES and type(tree) is Ext and tree.code == lv.TENSOR
        if alone and len(layout.buffers) == 1 and layout.buffers[0][0]:
            index, name, shape = lv.decode_array_fields(tree.data)
            nbytes, offset = layout.buffers[index][0], layout.offsets[index]
            make = tensors().viewer(offset, nbytes, name, shape)
    except (PayloadError, ValueError, TypeError, IndexError, RecursionError):
        pass
    return make


def _first_tensor(load: Load, data: memoryview) -> Any:  # noqa: ANN401
    UNPACKERS[lv.TENSOR] = tensors().unpack  # torch is imported by now
    return load.unpack(lv.TENSOR, data)


def _first_array(load: Load, data: memoryview) -> Any:  # noqa: ANN401
    UNPACKERS[lv.ARRAY] = arrays().unpack
    return load.unpack(lv.ARRAY, data)


def _map(load: Load, data: memoryview) -> dict[Any, Any]:
    flat = load.items(data)
    if len(flat) % 2:
        msg = f"a map of {len(flat)} keys and values misses one"
        raise PayloadError(msg)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _complex(data: memoryview) -> complex:
    if len(data) != complex_bits.size:
        msg = f"a complex number has {complex_bits.size} bytes, not {len(data)}"
        raise PayloadError(msg)
    return complex(*complex_bits.unpack(data))


def _far(load: Load, data: memoryview) -> memoryview:
    offset, nbytes = load.place(lv.decode_index(data))
    return load.view[offset : offset + nbytes]


def _traced(load: Load, data: memoryview) -> Any:  # noqa: ANN401
    """The value alone; who wants its trace context looks with ``traced.read``."""
    items = load.items(data)
    if len(items) != 2:  # noqa: PLR2004 - the context and the value
        msg = f"a traced value is a context and a value, not {len(items)} items"
        raise PayloadError(msg)
    return items[1]


def _big_int(_load: Load, data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


UNPACKERS: dict[int, Callable[[Load, memoryview], Any]] = {
    lv.TENSOR: _first_tensor,
    lv.ARRAY: _first_array,
    lv.DEVICE_TENSOR: lambda load, data: load.device_tensor(data),
    lv.TUPLE: lambda load, data: tuple(load.items(data)),
    lv.SET: lambda load, data: set(load.items(data)),
    lv.FROZENSET: lambda load, data: frozenset(load.items(data)),
    lv.COMPLEX: lambda _, data: _complex(data),
    lv.OBJECT: unpack_object,
    lv.ENUM: unpack_enum,
    lv.CODEC: lambda load, data: unpack_foreign(load.codecs, load.items(data)),
    lv.MAP: _map,
    lv.TRACED: _traced,
    lv.BIG_INT: _big_int,
    lv.BYTEARRAY: lambda _, data: bytearray(data),
    lv.MEMORYVIEW: lambda _, data: memoryview(bytes(data)),
    lv.NUMPY_SCALAR: lambda load, data: arrays().unpack_scalar(load, data),
    lv.FAR_BYTES: lambda load, data: bytes(_far(load, data)),
    lv.FAR_BYTEARRAY: lambda load, data: bytearray(_far(load, data)),
    lv.FAR_MEMORYVIEW: _far,
}
