"""Values to payloads and back: a MessagePack header for the tree, aligned buffers for the bulk."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec.foreign import Codecs, ForeignWalk
from stagelink.adapters.msgspec.leaves import encode
from stagelink.adapters.msgspec.packing import WHOLE, Walk
from stagelink.adapters.msgspec.staged import Staged
from stagelink.adapters.msgspec.unpacking import Load, whole
from stagelink.core import payload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.adapters.msgspec.staged import Whole
    from stagelink.ports import TypeCodec


class PayloadSerializer:
    """Implements :class:`stagelink.ports.Serializer`. Stateless; any thread may call it.

    A tensor over read-only memory is a private copy, for torch cannot refuse writes; with
    ``readonly_views`` it is a view all the same, and writing to it is undefined (it may crash).
    ``codecs`` are those for types of third parties.

    Raises:
        ConfigError: two codecs are for one type, or one is for a type that needs none.
    """

    __slots__ = ("_codecs", "_readonly_views", "_walk")

    def __init__(self, *, readonly_views: bool = False, codecs: Iterable[TypeCodec] = ()) -> None:
        self._readonly_views = readonly_views
        known = tuple(codecs)
        self._codecs = Codecs(known) if known else None
        self._walk = partial(ForeignWalk, codecs=self._codecs) if self._codecs else Walk

    def stage(self, value: Any) -> Staged | Whole:  # noqa: ANN401 - any value a user puts
        """Measure *value*, which must not change until it is written.

        Raises:
            PayloadError: something in it cannot be serialized; names the path to it.
        """
        alone = WHOLE.get(type(value))
        whole = alone(value) if alone is not None else None
        if whole is not None:
            return whole
        walk = self._walk(False)
        try:
            header = encode(walk.pack(value, None, 0))
        except (OverflowError, UnicodeEncodeError):
            walk = self._walk(True)
            header = encode(walk.pack(value, None, 0))
        return Staged(header, walk.leaves, walk.buffers)

    def load(self, buffer: Any, size: int, *, writable: bool = True) -> Any:  # noqa: ANN401
        """The value in the first *size* bytes of *buffer*.

        Tensors, arrays and memoryviews are views that keep *buffer* alive; bytes and bytearrays
        are copies. Unless *writable*, arrays and memoryviews are read-only, and tensors copies.

        Raises:
            PayloadError: the bytes are no payload, or are of another version.
        """
        if writable:
            value = whole(buffer, size)
            if value is not None:
                return value
        view = memoryview(buffer).cast("B")
        if not writable:
            view = view.toreadonly()
        layout = payload.parse(view, size)
        exporter = view if view.readonly else buffer
        return Load(exporter, view, layout, self._readonly_views, self._codecs).value()
