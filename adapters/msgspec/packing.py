"""The way into a payload: what MessagePack cannot say becomes an extension, its bulk a leaf."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext

from stagelink.adapters.msgspec import classes
from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.leaves import (
    DEPTH_LIMIT,
    Leaf,
    Writer,
    complex_bits,
    encode,
    write_bytes,
)
from stagelink.adapters.msgspec.libraries import arrays, tensors
from stagelink.adapters.msgspec.paths import Path, render
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.msgspec.staged import Whole

    Packer = Callable[["Walk", Any, "Path", int], Any]

FAR_BYTES = 256
"""Bytes-like values of this many bytes and more get a buffer of their own."""

PLAIN = frozenset({type(None), bool, int, float, str})
"""What MessagePack says as it is. An int beyond 64 bits and a str with a lone surrogate are seen
late, by the encoder; the tree is then walked once more, with care."""

INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1


class Walk:
    """One pass over a value; collects the leaves and what the layout must know of them."""

    __slots__ = ("buffers", "careful", "leaves")

    def __init__(self, careful: bool) -> None:
        self.careful = careful
        self.leaves: list[Leaf] = []
        self.buffers: list[tuple[int, int]] = []  # length, alignment

    def pack(self, value: Any, path: Path, depth: int) -> Any:  # noqa: ANN401
        """What the encoder takes for *value*, which lies *depth* containers deep."""
        kind = type(value)
        if kind in PLAIN:
            return _pack_careful(value, path) if self.careful else value
        pack = PACKERS.get(kind) or _find_packer(value, path)
        if depth > DEPTH_LIMIT:
            msg = f"{render(path)[:200]}: nested deeper than {DEPTH_LIMIT}"
            raise PayloadError(msg, remedy="flatten it, or look for a cycle")
        return pack(self, value, path, depth)

    def far(self, write: Writer, source: object, nbytes: int, alignment: int) -> int:
        """Give a leaf the next buffer; returns its number."""
        self.leaves.append((write, source))
        self.buffers.append((nbytes, alignment))
        return len(self.leaves) - 1


def _pack_items(walk: Walk, value: list[Any] | tuple[Any, ...], path: Path, depth: int) -> Any:  # noqa: ANN401
    if not walk.careful and PLAIN.issuperset(map(type, value)):
        return value
    return [walk.pack(item, (path, i), depth + 1) for i, item in enumerate(value)]


def _pack_tuple(walk: Walk, value: tuple[Any, ...], path: Path, depth: int) -> Ext:
    return Ext(lv.TUPLE, encode(_pack_items(walk, value, path, depth)))


def _pack_set(walk: Walk, value: set[Any] | frozenset[Any], path: Path, depth: int) -> Ext:
    code = lv.SET if type(value) is set else lv.FROZENSET
    return Ext(code, encode(_pack_items(walk, list(value), path, depth)))


def _pack_complex(_walk: Walk, value: complex, _path: Path, _depth: int) -> Ext:
    return Ext(lv.COMPLEX, complex_bits.pack(value.real, value.imag))


def _pack_dict(walk: Walk, value: dict[Any, Any], path: Path, depth: int) -> Any:  # noqa: ANN401
    plain = () if walk.careful else PLAIN
    packed = {
        key: item if type(item) in plain else walk.pack(item, (path, key), depth + 1)
        for key, item in value.items()
    }
    if not walk.careful and NEAR_KEYS.issuperset(map(type, value)):
        return packed
    flat = []
    for key, item in packed.items():
        if type(key) not in KEYS and not isinstance(key, Enum):
            msg = f"{render(path)}: a key {key!r:.40} of {type(key)} cannot be serialized"
            raise PayloadError(
                msg, remedy="use str, int, float, bool, bytes, None, enum members or tuples"
            )
        flat += [walk.pack(key, (path, key), depth + 1), item]
    return Ext(lv.MAP, encode(flat))


def _pack_bytes(walk: Walk, value: bytes, _path: Path, _depth: int) -> Any:  # noqa: ANN401
    if len(value) < FAR_BYTES:
        return value
    index = walk.far(write_bytes, value, len(value), lv.COPY_ALIGNMENT)
    return Ext(lv.FAR_BYTES, encode(index))


def _pack_bytearray(walk: Walk, value: bytearray, _path: Path, _depth: int) -> Ext:
    if len(value) < FAR_BYTES:
        return Ext(lv.BYTEARRAY, bytes(value))
    # The memoryview keeps it from changing its size until it is written.
    index = walk.far(write_bytes, memoryview(value), len(value), lv.COPY_ALIGNMENT)
    return Ext(lv.FAR_BYTEARRAY, encode(index))


def _pack_memoryview(walk: Walk, value: memoryview, path: Path, _depth: int) -> Ext:
    if value.ndim != 1 or value.format != "B" or not value.contiguous:
        shape = f"format {value.format!r}, {value.ndim} dimensions"
        msg = f"{render(path)}: a memoryview of {shape} cannot be serialized"
        raise PayloadError(msg, remedy='pass .cast("B"), or numpy.asarray() of it')
    if value.nbytes < FAR_BYTES:
        return Ext(lv.MEMORYVIEW, bytes(value))
    index = walk.far(write_bytes, value, value.nbytes, lv.VIEW_ALIGNMENT)
    return Ext(lv.FAR_MEMORYVIEW, encode(index))


def _pack_careful(value: Any, path: Path) -> Any:  # noqa: ANN401
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        length = value.bit_length() // 8 + 1
        return Ext(lv.BIG_INT, value.to_bytes(length, "little", signed=True))
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            msg = f"{render(path)}: a str with a lone surrogate at {error.start}"
            remedy = 'encode it with errors="surrogatepass" and put the bytes'
            raise PayloadError(msg, remedy=remedy) from error
    return value


def _find_packer(value: Any, path: Path) -> Packer:  # noqa: ANN401
    """How to pack a tensor, array or numpy scalar; no library is imported to find out."""
    for library, name, find in FOREIGN:
        base = getattr(sys.modules.get(library), name, None)
        if base is not None and isinstance(value, base):
            packer: Packer = find()
            if type(value) is base:
                PACKERS[base] = packer
            return packer
    own = classes.packer(type(value))
    if own is not None:
        return own
    msg = f"{render(path)}: {type(value)} cannot be serialized"
    raise PayloadError(msg, remedy=_advice(value))


def _advice(value: Any) -> str:  # noqa: ANN401
    for base, advice in ADVICE:
        if isinstance(value, base):
            return advice
    return "put its parts as numbers, strings, bytes, tensors, arrays, lists, tuples and dicts"


KEYS = frozenset({type(None), bool, int, float, str, bytes, tuple})
NEAR_KEYS = KEYS - {tuple}
ADVICE: tuple[tuple[Any, str], ...] = (
    (
        (dict, list, str, bytes, int, float),
        "pass a plain dict, list, str, bytes, int or float of it",
    ),
    ((tuple, set, frozenset), "pass a plain tuple, set or list of it"),
)
PACKERS: dict[type, Packer] = {
    list: _pack_items, tuple: _pack_tuple, dict: _pack_dict,
    bytes: _pack_bytes, bytearray: _pack_bytearray,
    memoryview: _pack_memoryview, set: _pack_set, frozenset: _pack_set, complex: _pack_complex,
}  # fmt: skip
WHOLE: dict[type, Callable[[Any], Whole | None]] = {}
"""Shorter ways for a value that is one leaf and nothing else, by its type; they make the very same
bytes, or None where they cannot."""
FOREIGN: tuple[tuple[str, str, Callable[[], Packer]], ...] = (
    ("torch", "Tensor", lambda: tensors().pack),
    ("numpy", "ndarray", lambda: arrays().pack),
    ("numpy", "generic", lambda: arrays().pack_scalar),
)
