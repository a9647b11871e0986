"""Values to payloads and back: a MessagePack header for the tree, aligned buffers for the bulk."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Union

import msgspec
from msgspec.msgpack import Decoder, Ext

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.leaves import BytesLeaf, Leaf, Place, encode
from stagelink.adapters.msgspec.staged import Staged
from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

    Packer = Callable[["_Walk", Any, "Path", int], Any]

DEPTH_LIMIT = 100
FAR_BYTES = 256
"""Bytes-like values of this many bytes and more get a buffer of their own."""

PLAIN = frozenset({type(None), bool, int, float, str})
"""What MessagePack says as it is. An int beyond 64 bits and a str with a lone surrogate are seen
late, by the encoder; the tree is then walked once more, with care."""

INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1

Path = Union["tuple[Path, object]", None]
"""The way from the value to a field: made of the way to its container, rendered only in errors."""


class PayloadSerializer:
    """Implements :class:`stagelink.ports.Serializer`. Stateless; any thread may call it.

    A tensor over read-only memory is a private copy, for torch cannot refuse writes; with
    ``readonly_views`` it is a view all the same, and writing to it is undefined (it may crash).
    """

    __slots__ = ("_readonly_views",)

    def __init__(self, *, readonly_views: bool = False) -> None:
        self._readonly_views = readonly_views

    def stage(self, value: Any) -> Staged:  # noqa: ANN401 - any value a user puts
        """Measure *value*, which must not change until it is written.

        Raises:
            PayloadError: something in it cannot be serialized; names the path to it.
        """
        walk = _Walk(careful=False)
        try:
            header = encode(walk.pack(value, None, 0))
        except (OverflowError, UnicodeEncodeError):
            walk = _Walk(careful=True)
            header = encode(walk.pack(value, None, 0))
        return Staged(header, walk.leaves)

    def load(self, buffer: Any, size: int) -> Any:  # noqa: ANN401 - any buffer, any value
        """The value in the first *size* bytes of *buffer*.

        Tensors, arrays and memoryviews are views that keep *buffer* alive; bytes and bytearrays
        are copies.

        Raises:
            PayloadError: the bytes are no payload, or are of another version.
        """
        view = memoryview(buffer).cast("B")
        return _Load(buffer, view, payload.parse(view, size), self._readonly_views).value()


class _Walk:
    """One pass over a value: what MessagePack cannot say becomes an extension."""

    __slots__ = ("_careful", "leaves")

    def __init__(self, *, careful: bool) -> None:
        self._careful = careful
        self.leaves: list[Leaf] = []

    def pack(self, value: Any, path: Path, depth: int) -> Any:  # noqa: ANN401
        kind = type(value)
        if kind in PLAIN:
            return self._careful_scalar(value, path) if self._careful else value
        pack = PACKERS.get(kind) or _find_packer(value, path)
        if depth > DEPTH_LIMIT:
            msg = f"{render(path)[:200]}: nested deeper than {DEPTH_LIMIT}"
            raise PayloadError(msg, remedy="flatten it, or look for a cycle")
        return pack(self, value, path, depth)

    def pack_items(self, value: list[Any] | tuple[Any, ...], path: Path, depth: int) -> Any:  # noqa: ANN401
        """The items of a list or tuple, packed."""
        if not self._careful and PLAIN.issuperset(map(type, value)):
            return value
        return [self.pack(item, (path, i), depth + 1) for i, item in enumerate(value)]

    def pack_tuple(self, value: tuple[Any, ...], path: Path, depth: int) -> Ext:
        return Ext(lv.TUPLE, encode(self.pack_items(value, path, depth)))

    def pack_dict(self, value: dict[Any, Any], path: Path, depth: int) -> Any:  # noqa: ANN401
        plain = () if self._careful else PLAIN
        packed = {
            key: item if type(item) in plain else self.pack(item, (path, key), depth + 1)
            for key, item in value.items()
        }
        if not self._careful and NEAR_KEYS.issuperset(map(type, value)):
            return packed
        flat = []
        for key, item in packed.items():
            if type(key) not in KEYS:
                msg = f"{render(path)}: a key {key!r:.40} of {type(key)} cannot be serialized"
                raise PayloadError(msg, remedy="use str, int, float, bool, bytes, None or tuples")
            flat += [self.pack(key, (path, key), depth + 1), item]
        return Ext(lv.MAP, encode(flat))

    def pack_bytes(self, value: bytes, _path: Path, _depth: int) -> Any:  # noqa: ANN401
        if len(value) < FAR_BYTES:
            return value
        return self._far(lv.FAR_BYTES, BytesLeaf(value, len(value), lv.COPY_ALIGNMENT))

    def pack_bytearray(self, value: bytearray, _path: Path, _depth: int) -> Ext:
        if len(value) < FAR_BYTES:
            return Ext(lv.BYTEARRAY, bytes(value))
        # The memoryview keeps it from changing its size until it is written.
        leaf = BytesLeaf(memoryview(value), len(value), lv.COPY_ALIGNMENT)
        return self._far(lv.FAR_BYTEARRAY, leaf)

    def pack_memoryview(self, value: memoryview, path: Path, _depth: int) -> Ext:
        if value.ndim != 1 or value.format != "B" or not value.contiguous:
            shape = f"format {value.format!r}, {value.ndim} dimensions"
            msg = f"{render(path)}: a memoryview of {shape} cannot be serialized"
            raise PayloadError(msg, remedy='pass .cast("B"), or numpy.asarray() of it')
        if value.nbytes < FAR_BYTES:
            return Ext(lv.MEMORYVIEW, bytes(value))
        return self._far(lv.FAR_MEMORYVIEW, BytesLeaf(value, value.nbytes, lv.VIEW_ALIGNMENT))

    def _far(self, code: int, leaf: Leaf) -> Ext:
        self.leaves.append(leaf)
        return Ext(code, encode(len(self.leaves) - 1))

    def _careful_scalar(self, value: Any, path: Path) -> Any:  # noqa: ANN401
        if type(value) is int and not INT_MIN <= value <= INT_MAX:
            return Ext(
                lv.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            )
        if type(value) is str:
            try:
                value.encode()
            except UnicodeEncodeError as error:
                msg = f"{render(path)}: a str with a lone surrogate at {error.start}"
                remedy = 'encode it with errors="surrogatepass" and put the bytes'
                raise PayloadError(msg, remedy=remedy) from error
        return value

    def pack_tensor(self, value: Any, path: Path, _depth: int) -> Ext:  # noqa: ANN401
        try:
            return self._described(lv.TENSOR, _tensors().describe(value))
        except PayloadError as error:
            raise _at(path, error) from error.__cause__

    def pack_array(self, value: Any, path: Path, _depth: int) -> Ext:  # noqa: ANN401
        try:
            return self._described(lv.ARRAY, _arrays().describe(value))
        except PayloadError as error:
            raise _at(path, error) from error.__cause__

    def pack_numpy_scalar(self, value: Any, path: Path, _depth: int) -> Ext:  # noqa: ANN401
        try:
            return Ext(lv.NUMPY_SCALAR, encode(_arrays().pack_scalar(value)))
        except PayloadError as error:
            raise _at(path, error) from error.__cause__

    def _described(self, code: int, described: tuple[Leaf, object, tuple[int, ...]]) -> Ext:
        leaf, dtype, shape = described
        leaves = self.leaves
        leaves.append(leaf)
        return Ext(code, encode((len(leaves) - 1, dtype, shape)))


class _Load:
    """One pass over a header; extensions become values as the decoder meets them."""

    __slots__ = ("_buffer", "_depth", "_layout", "_readonly_views", "_view")

    def __init__(
        self,
        buffer: Any,  # noqa: ANN401
        view: memoryview,
        layout: payload.Layout,
        readonly_views: bool,
    ) -> None:
        self._buffer = buffer
        self._view = view
        self._layout = layout
        self._readonly_views = readonly_views
        self._depth = 0

    def value(self) -> Any:  # noqa: ANN401
        header = self._view[self._layout.header_start : self._layout.header_stop]
        try:
            return self._decode(header)
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            msg = f"the header of the payload is malformed: {error}"
            raise PayloadError(msg) from error

    def _decode(self, data: memoryview) -> Any:  # noqa: ANN401
        return msgspec.msgpack.decode(data, ext_hook=self._unpack)

    def _unpack(self, code: int, data: memoryview) -> Any:  # noqa: ANN401
        if code == lv.TENSOR:
            index, dtype, shape = lv.decode_array_fields(data)
            return _tensors().make(self._place(index), dtype, shape, self._readonly_views)
        if code == lv.ARRAY:
            index, dtype, shape = lv.decode_array_fields(data)
            return _arrays().make(self._place(index), dtype, shape)
        unpack = UNPACKERS.get(code)
        if unpack is None:
            msg = f"the payload holds an unknown extension {code}"
            raise PayloadError(msg, remedy="run the same version on both sides")
        return unpack(self, data)

    def _place(self, index: int) -> Place:
        if not 0 <= index < len(self._layout.offsets):
            msg = f"the payload has {len(self._layout.offsets)} buffers, it names number {index}"
            raise PayloadError(msg)
        nbytes = self._layout.buffers[index][0]
        return Place(self._buffer, self._view, self._layout.offsets[index], nbytes)

    def unpack_list(self, data: memoryview) -> list[Any]:
        self._depth += 1
        if self._depth > DEPTH_LIMIT + 1:
            msg = f"the payload is nested deeper than {DEPTH_LIMIT}"
            raise PayloadError(msg)
        items = self._decode(data)
        self._depth -= 1
        if type(items) is not list:
            msg = f"an array was expected in the header, not {type(items).__name__}"
            raise PayloadError(msg)
        return items

    def unpack_tuple(self, data: memoryview) -> tuple[Any, ...]:
        return tuple(self.unpack_list(data))

    def unpack_map(self, data: memoryview) -> dict[Any, Any]:
        flat = self.unpack_list(data)
        if len(flat) % 2:
            msg = f"a map of {len(flat)} keys and values misses one"
            raise PayloadError(msg)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def far_view(self, data: memoryview) -> memoryview:
        place = self._place(lv.decode_index(data))
        return self._view[place.offset : place.offset + place.nbytes]


def render(path: Path) -> str:
    """*path* as one would write it in Python, the whole being ``value``."""
    steps = []
    while path is not None:
        path, step = path
        steps.append(f"[{step!r:.60}]")
    return "value" + "".join(reversed(steps))


def _at(path: Path, error: PayloadError) -> PayloadError:
    return PayloadError(f"{render(path)}: {error.message}", remedy=error.remedy)


def _find_packer(value: Any, path: Path) -> Packer:  # noqa: ANN401
    """How to pack a tensor, array or numpy scalar; no library is imported to find out."""
    for library, name, packer in FOREIGN:
        base = getattr(sys.modules.get(library), name, None)
        if base is not None and isinstance(value, base):
            if type(value) is base:
                PACKERS[base] = packer
            return packer
    msg = f"{render(path)}: {type(value)} cannot be serialized"
    raise PayloadError(msg, remedy=_advice(value))


def _advice(value: Any) -> str:  # noqa: ANN401
    for base, advice in ADVICE:
        if isinstance(value, base):
            return advice
    return "put its parts as numbers, strings, bytes, tensors, arrays, lists, tuples and dicts"


def _big_int(_load: _Load, data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _numpy_scalar(_load: _Load, data: memoryview) -> Any:  # noqa: ANN401
    return _arrays().unpack_scalar(*decode_scalar(data))


def _tensors() -> Any:  # noqa: ANN401 - a module
    return MODULES.get("tensors") or _import("tensors")


def _arrays() -> Any:  # noqa: ANN401 - a module
    return MODULES.get("arrays") or _import("arrays")


def _import(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        module = import_module(f"stagelink.adapters.msgspec.{name}")
    except ImportError as error:
        msg = f"the payload holds {name}, which need a library that is not here: {error}"
        raise PayloadError(msg, remedy="install it on this side too") from error
    MODULES[name] = module
    return module


MODULES: dict[str, Any] = {}
KEYS = frozenset({type(None), bool, int, float, str, bytes, tuple})
NEAR_KEYS = KEYS - {tuple}
ADVICE: tuple[tuple[Any, str], ...] = (
    (
        (dict, list, str, bytes, int, float),
        "pass a plain dict, list, str, bytes, int or float of it",
    ),
    (tuple, "pass tuple(...) or ._asdict() of it"),
    ((set, frozenset), "pass a sorted list of it"),
    (complex, "pass numpy.complex128(...) of it"),
)
PACKERS: dict[type, Packer] = {
    list: _Walk.pack_items, tuple: _Walk.pack_tuple, dict: _Walk.pack_dict,
    bytes: _Walk.pack_bytes, bytearray: _Walk.pack_bytearray,
    memoryview: _Walk.pack_memoryview,
}  # fmt: skip
FOREIGN: tuple[tuple[str, str, Packer], ...] = (
    ("torch", "Tensor", _Walk.pack_tensor),
    ("numpy", "ndarray", _Walk.pack_array),
    ("numpy", "generic", _Walk.pack_numpy_scalar),
)
UNPACKERS: dict[int, Callable[[_Load, memoryview], Any]] = {
    lv.TUPLE: _Load.unpack_tuple,
    lv.MAP: _Load.unpack_map,
    lv.BIG_INT: _big_int,
    lv.BYTEARRAY: lambda _, data: bytearray(data),
    lv.MEMORYVIEW: lambda _, data: memoryview(bytes(data)),
    lv.NUMPY_SCALAR: _numpy_scalar,
    lv.FAR_BYTES: lambda load, data: bytes(load.far_view(data)),
    lv.FAR_BYTEARRAY: lambda load, data: bytearray(load.far_view(data)),
    lv.FAR_MEMORYVIEW: lambda load, data: load.far_view(data),
}
decode_scalar = Decoder(tuple[Any, bytes]).decode
