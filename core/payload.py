"""The layout of a payload: one run of bytes that says itself what is where.

``prefix (24) | table (16 per buffer) | header | gap | buffer 0 | gap | buffer 1 ... | digest (8)``

The table holds lengths and alignments, never offsets: both ends compute the offsets by the same
rule, so that buffers cannot overlap and the header may be of any length. Numbers are little
endian; offsets count from the start of the payload, which itself is 4096-aligned. The digest is
there only if it is flagged; see :mod:`stagelink.core.envelope`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Readable = bytes | bytearray | memoryview

MAGIC = b"SLPL"
VERSION = 1
PREFIX = Struct("<4sHHIIQ")  # magic, version, flags, header length, buffer count, payload size
DIGEST = 1
"""Flag: the last ``DIGEST_BYTES`` of the payload are a digest of all before."""

DIGEST_BYTES = 8

SHARED = 2
"""Flag: several readers may be handed this very memory, so none of them may write to it."""

ENTRY_BYTES = 16  # length, alignment
ALIGNMENTS = frozenset(1 << power for power in range(13))
BUFFER_LIMIT = 1 << 20
CACHED_BUFFERS = 64
"""Tables up to this length are remembered; longer ones would keep too much memory."""
HEADER_LIMIT = (1 << 32) - 1
SIZE_LIMIT = (1 << 63) - 1


class Layout(NamedTuple):
    """Where everything lies; sizes and offsets in bytes from the start of the payload.

    ``buffers`` are (length, alignment), ``offsets`` where each begins; buffer *i* is
    ``[offsets[i], offsets[i] + buffers[i][0])`` and the payload ``[0, size)``.
    """

    header_start: int
    header_stop: int
    buffers: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...]
    size: int


def plan(header_len: int, buffers: Sequence[tuple[int, int]]) -> Layout:
    """Lay out a header of *header_len* bytes and buffers of (length, alignment) in this order.

    Raises:
        PayloadError: a number is negative or too large, or an alignment no power of two.
    """
    start = PREFIX.size + ENTRY_BYTES * len(buffers)
    if not (0 <= header_len <= HEADER_LIMIT and len(buffers) <= BUFFER_LIMIT):
        msg = f"a header of {header_len} bytes and {len(buffers)} buffers is beyond the format"
        remedy = f"split the value: at most {BUFFER_LIMIT} buffers and {HEADER_LIMIT} bytes"
        raise PayloadError(msg, remedy=remedy)
    end = start + header_len
    offsets = []
    for length, alignment in buffers:
        if alignment not in ALIGNMENTS or not 0 <= length <= SIZE_LIMIT:
            raise _bad_buffer(length, alignment)
        end = (end + alignment - 1) & -alignment
        offsets.append(end)
        end += length
    if end > SIZE_LIMIT:
        msg = f"a payload of {end} bytes is beyond the format"
        raise PayloadError(msg, remedy="split the value")
    return Layout(start, start + header_len, tuple(buffers), tuple(offsets), end)


def pack_prefix(layout: Layout) -> bytes:
    """The first ``layout.header_start`` bytes of the payload: the prefix and the table."""
    header_len = layout.header_stop - layout.header_start
    count = len(layout.buffers)
    numbers = chain.from_iterable(layout.buffers)
    return _numbers(count, "4sHHIIQ").pack(
        MAGIC, VERSION, 0, header_len, count, layout.size, *numbers
    )


def plan_and_pack(header_len: int, buffers: tuple[tuple[int, int], ...]) -> tuple[Layout, bytes]:
    """Both of :func:`plan` and :func:`pack_prefix`; the same numbers come again and again."""
    if len(buffers) > CACHED_BUFFERS:
        layout = plan(header_len, buffers)
        return layout, pack_prefix(layout)
    return _planned(header_len, buffers)


@lru_cache(256)
def _planned(header_len: int, buffers: tuple[tuple[int, int], ...]) -> tuple[Layout, bytes]:
    layout = plan(header_len, buffers)
    return layout, pack_prefix(layout)


def parse(data: Readable, size: int) -> Layout:
    """The layout of the payload in the first *size* bytes of *data*, every number checked.

    Only the prefix and the table are read. A digest is no part of the layout; it is not checked.

    Raises:
        PayloadError: it is no payload of this version, or it does not fill *size* exactly.
    """
    if not PREFIX.size <= size <= len(data):
        msg = f"a payload of {size} bytes in {len(data)}: the prefix alone has {PREFIX.size}"
        raise PayloadError(msg)
    return layout_of(data, size)


def layout_of(data: Readable, size: int) -> Layout:
    """As :func:`parse`, where *data* need not be more of it than the prefix and the table.

    Raises:
        PayloadError: as for :func:`parse`.
    """
    magic, version, flags, header_len, count, total = PREFIX.unpack_from(data)
    if magic != MAGIC or flags & ~(DIGEST | SHARED):
        msg = f"these bytes are no payload: they begin with {bytes(data[:8]).hex()}"
        raise PayloadError(msg)
    if version != VERSION:
        msg = f"the payload has version {version}, this side reads {VERSION}"
        raise PayloadError(msg, remedy="run the same version on both sides")
    if total != size or PREFIX.size + ENTRY_BYTES * count + header_len > size:
        msg = (
            f"the payload says {total} bytes with {header_len} of header and {count} buffers, "
            f"{size} arrived"
        )
        raise PayloadError(msg)
    table = bytes(data[PREFIX.size : PREFIX.size + ENTRY_BYTES * count])
    if len(table) != ENTRY_BYTES * count:
        msg = f"{len(data)} bytes do not hold the table of {count} buffers"
        raise PayloadError(msg)
    layout = (_read if count <= CACHED_BUFFERS else _read.__wrapped__)(header_len, table)
    if layout.size + (DIGEST_BYTES if flags & DIGEST else 0) != size:
        msg = f"the buffers of the payload end at {layout.size}, {size} bytes arrived"
        raise PayloadError(msg)
    return layout


@lru_cache(256)
def _read(header_len: int, table: bytes) -> Layout:
    """The layout of a table that arrived; a small one is checked once as long as it is known."""
    numbers = _numbers(len(table) // ENTRY_BYTES).unpack(table)
    return plan(header_len, [*zip(numbers[::2], numbers[1::2], strict=True)])


@lru_cache(64)
def _numbers(count: int, before: str = "") -> Struct:
    """A table of *count* entries; making a Struct takes longer than using it."""
    return Struct(f"<{before}{2 * count}Q")


def _bad_buffer(length: int, alignment: int) -> PayloadError:
    msg = f"a buffer of {length} bytes at alignment {alignment} is beyond the format"
    remedy = f"alignments are powers of two up to {max(ALIGNMENTS)}"
    return PayloadError(msg, remedy=remedy)
