"""Values of third parties' types, by codecs that plugins contribute.

The header says ``[codec name, what encode made]``; tensors in that lie in buffers of their own, as
anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Ext

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.leaves import DEPTH_LIMIT, encode
from stagelink.adapters.msgspec.packing import PLAIN, Walk
from stagelink.adapters.msgspec.paths import Path, render
from stagelink.core.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.ports import TypeCodec


NATIVE = (
    *PLAIN, list, tuple, dict, set, frozenset, complex, bytes, bytearray, memoryview,
)  # fmt: skip


class Codecs:
    """Every codec of one serializer, by type and by name; any thread may call it.

    Raises:
        ConfigError: two are for one type, or one is for a type that needs none.
    """

    def __init__(self, codecs: Iterable[TypeCodec] = ()) -> None:
        self.by_name = {codec.name: codec for codec in codecs}
        self._by_path: dict[str, TypeCodec] = {}
        # Grows by one entry for each type that was ever put.
        self._by_type: dict[type, TypeCodec | None] = dict.fromkeys(NATIVE)
        for codec in self.by_name.values():
            self._add(codec)

    def of(self, kind: type) -> TypeCodec | None:
        """The codec for exactly *kind*."""
        try:
            return self._by_type[kind]
        except KeyError:
            found = self._by_type[kind] = self._by_path.get(_path_of(kind))
            return found

    def _add(self, codec: TypeCodec) -> None:
        path = codec.type if isinstance(codec.type, str) else _path_of(codec.type)
        if path in NATIVE_PATHS:
            msg = f"codec {codec.name!r} of plugin {codec.plugin!r} is for {path}"
            raise ConfigError(msg, remedy="such values travel as they are; remove the codec")
        other = self._by_path.setdefault(path, codec)
        if other is not codec:
            msg = f"plugins {other.plugin!r} and {codec.plugin!r} both have a codec for {path}"
            names = f"{other.name!r} and {codec.name!r}"
            raise ConfigError(msg, remedy=f"uninstall one of them; the codecs are {names}")
        if not isinstance(codec.type, str):
            self._by_type[codec.type] = codec


class ForeignWalk(Walk):
    """A walk that asks the codecs first."""

    __slots__ = ("codecs",)

    def __init__(self, careful: bool, codecs: Codecs) -> None:
        super().__init__(careful)
        self.codecs = codecs

    def pack(self, value: Any, path: Path, depth: int) -> Any:  # noqa: ANN401
        """What the encoder takes for *value*, by its codec if there is one."""
        codec = self.codecs.of(type(value))
        if codec is None:
            return super().pack(value, path, depth)
        if depth > DEPTH_LIMIT:
            msg = f"{render(path)[:200]}: nested deeper than {DEPTH_LIMIT}"
            raise PayloadError(msg, remedy=f"codec {codec.name!r} may encode what it has made")
        try:
            encoded = codec.encode(value)
        except Exception as error:
            raise _failed(codec, f"encode {render(path)}", error) from error
        return Ext(lv.CODEC, encode((codec.name, self.pack(encoded, path, depth + 1))))


def unpack_foreign(codecs: Codecs | None, items: list[Any]) -> Any:  # noqa: ANN401
    """The value that the named codec makes of what arrived.

    Raises:
        PayloadError: nobody here has registered that codec, or it failed.
    """
    if len(items) != 2 or type(items[0]) is not str:  # noqa: PLR2004 - a name and a value
        msg = f"a codec's name and one value were expected in the header, not {len(items)} items"
        raise PayloadError(msg)
    name, encoded = items
    known = codecs.by_name if codecs else {}
    codec = known.get(name)
    if codec is None:
        msg = f"the payload holds a value of codec {name!r:.80}, which is not registered here"
        said = ", ".join(sorted(known)) or "none"
        raise PayloadError(msg, remedy=f"install its plugin on this side too; known: {said}")
    try:
        return codec.decode(encoded)
    except Exception as error:
        raise _failed(codec, "decode a value", error) from error


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _failed(codec: TypeCodec, what: str, error: Exception) -> PayloadError:
    msg = (
        f"codec {codec.name!r} of plugin {codec.plugin!r} cannot {what}: "
        f"{type(error).__name__}: {error}"
    )
    return PayloadError(msg, remedy="see the cause, which is the plugin's own error")


NATIVE_PATHS = frozenset({*map(_path_of, NATIVE), "torch:Tensor", "numpy:ndarray"})
"""Types that travel as they are; a codec for one would change what others have put."""
