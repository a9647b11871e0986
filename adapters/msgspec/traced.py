"""A value that says what it belongs to: a trace context beside it in the header.

The context is an extension around the tree: whoever loads the payload gets the value alone, and
whoever wants the context finds it at the very beginning of the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.msgpack import Ext

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.packing import PACKERS
from stagelink.core import payload
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from stagelink.adapters.msgspec.packing import Walk
    from stagelink.adapters.msgspec.paths import Path

TRACEPARENT_BYTES = 55
"""Length of a W3C ``traceparent``: version, trace id, span id and flags."""

NOWHERE = "00-" + "0" * 32 + "-" + "0" * 16 + "-00"
"""A traceparent that says nothing: room for another one."""

_PAIR = b"\x92\xd9\x37"  # an array of two, whose first is a str of 55 bytes
_EXT_BYTES = {0xC7: 3, 0xC8: 4, 0xC9: 6}
"""Where the data of a MessagePack extension begins, by its first byte; smaller ones hold less."""


class Traced(NamedTuple):
    """*value*, put in the trace that *traceparent* (55 ASCII characters) names."""

    traceparent: str
    value: Any


def pack(walk: Walk, value: Traced, path: Path, depth: int) -> Ext:
    """The extension; paths in errors are those of the value alone."""
    packed = walk.pack(value.value, path, depth)
    return Ext(lv.TRACED, lv.encode((value.traceparent, packed)))


def find(buffer: Any, size: int) -> int:  # noqa: ANN401 - any buffer
    """Where the traceparent begins in the payload of *size* bytes in *buffer*; 0: there is none.

    Nothing is decoded, and what is no payload has none.
    """
    view = memoryview(buffer).cast("B")
    try:
        layout = payload.parse(view, size)
    except PayloadError:
        return 0
    start = layout.header_start
    head = bytes(view[start : min(layout.header_stop, start + 6 + 3 + TRACEPARENT_BYTES)])
    begin = _EXT_BYTES.get(head[0], 0) if head else 0
    stop = begin + len(_PAIR)
    fits = len(head) >= stop + TRACEPARENT_BYTES
    named = fits and head[begin - 1] == lv.TRACED and head[begin:stop] == _PAIR
    return start + stop if begin and named else 0


def read(buffer: Any, size: int) -> str:  # noqa: ANN401 - any buffer
    """The traceparent of a payload, or empty. It comes from a peer: check before use."""
    start = find(buffer, size)
    raw = bytes(memoryview(buffer).cast("B")[start : start + TRACEPARENT_BYTES]) if start else b""
    text = raw.decode("ascii", "replace")
    return "" if text == NOWHERE else text


def fill(buffer: memoryview, traceparent: str) -> None:
    """Write *traceparent* into the payload that is all of *buffer*, if it has room for one."""
    start = find(buffer, len(buffer))
    if start:
        buffer[start : start + TRACEPARENT_BYTES] = traceparent.encode()


PACKERS[Traced] = pack
