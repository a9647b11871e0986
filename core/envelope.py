"""What may be put around a payload: a digest behind it, and a compressed form of it.

A payload and its compressed form begin alike, so that a digest is found the same way in both:

``magic (4) | version u16 | flags u16 | ... | size u64 at 16 | ... | digest u64 if flagged``

The digest is over every byte before it. A compressed form, numbers little endian:

``SLPZ, version, flags | name length u32 | zero u32 | size u64 | raw size u64 | packed size u64 |
name | packed``
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core import payload
from stagelink.core.errors import PayloadError
from stagelink.core.payload import DIGEST, DIGEST_BYTES, SHARED, VERSION

if TYPE_CHECKING:
    from stagelink.core.payload import Readable

BARE = payload.PREFIX.pack(payload.MAGIC, VERSION, 0, 0, 0, 0)[:8]
"""What a payload begins with that has nothing around it."""

MAGIC = b"SLPZ"
HEAD = Struct("<4sHHIIQQQ")  # magic, version, flags, name length, zero, size, raw, packed size
NAME_LIMIT = 64
"""Bytes of a compressor's name."""

MOST_RAW = 64 << 30
"""Bytes that a payload may have before it was compressed; a receiver may set less."""

_FLAGS = Struct("<H")
_FLAGS_AT = 6
_SIZE = Struct("<Q")
_SIZE_AT = 16


class Packed(NamedTuple):
    """A compressed form: bytes ``[start, stop)`` make a payload of *raw_size* bytes."""

    name: str
    raw_size: int
    start: int
    stop: int


def begin_seal(data: memoryview) -> memoryview:
    """Flag the finished payload in *data*, whose last 8 bytes are free, as one with a digest.

    Returns what the digest is computed over; :func:`end_seal` writes it.
    """
    (flags,) = _FLAGS.unpack_from(data, _FLAGS_AT)
    _FLAGS.pack_into(data, _FLAGS_AT, flags | DIGEST)
    _SIZE.pack_into(data, _SIZE_AT, len(data))
    return data[:-DIGEST_BYTES]


def end_seal(data: memoryview, digest: int) -> None:
    """Write *digest*, 64 bits, behind the payload."""
    _SIZE.pack_into(data, len(data) - DIGEST_BYTES, digest)


def digest_of(data: memoryview) -> int | None:
    """The digest that the payload in all of *data* carries, or None where it carries none."""
    if len(data) < payload.PREFIX.size + DIGEST_BYTES:
        return None
    known = bytes(data[:4]) in {payload.MAGIC, MAGIC}
    if not known or not _FLAGS.unpack_from(data, _FLAGS_AT)[0] & DIGEST:
        return None
    return int(_SIZE.unpack_from(data, len(data) - DIGEST_BYTES)[0])


def mark_shared(data: memoryview) -> None:
    """Flag the payload at the beginning of *data* as memory that several readers may hold."""
    (flags,) = _FLAGS.unpack_from(data, _FLAGS_AT)
    _FLAGS.pack_into(data, _FLAGS_AT, flags | SHARED)


def is_shared(head: Readable) -> bool:
    """Whether the payload that begins with *head* is so flagged."""
    return bool(_FLAGS.unpack_from(head, _FLAGS_AT)[0] & SHARED)


def is_packed(data: Readable) -> bool:
    """Whether *data* begins as a compressed form does."""
    return data[:4] == MAGIC


def pack_head(name: str, raw_size: int, packed_size: int) -> bytes:
    """What stands before *packed_size* bytes that the compressor *name* made of a payload."""
    named = name.encode()
    size = HEAD.size + len(named) + packed_size
    return HEAD.pack(MAGIC, VERSION, 0, len(named), 0, size, raw_size, packed_size) + named


def parse_packed(data: memoryview, most_raw: int) -> Packed:
    """What the compressed form in all of *data* says of itself, every number checked.

    Raises:
        PayloadError: it is none of this version, or it promises more than *most_raw* bytes.
    """
    if len(data) < HEAD.size:
        msg = f"a compressed payload of {len(data)} bytes: its head alone has {HEAD.size}"
        raise PayloadError(msg)
    magic, version, flags, named, zero, size, raw_size, packed_size = HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION) or flags & ~DIGEST or zero:
        msg = f"no compressed payload of version {VERSION}: it begins with {data[:16].hex()}"
        raise PayloadError(msg, remedy="run the same version on both sides")
    start = HEAD.size + named
    stop = start + packed_size
    tail = DIGEST_BYTES if flags & DIGEST else 0
    if not size == stop + tail == len(data) or not 0 < named <= NAME_LIMIT:
        msg = (
            f"the payload says {size} bytes with a name of {named} and {packed_size} packed, "
            f"{len(data)} arrived"
        )
        raise PayloadError(msg)
    if not payload.PREFIX.size <= raw_size <= most_raw:
        msg = f"a payload of {raw_size} bytes once decompressed, the limit is {most_raw}"
        raise PayloadError(msg, remedy="raise decompress_limit, or put it uncompressed")
    try:
        name = str(data[HEAD.size : start], "utf-8")
    except UnicodeDecodeError as error:
        msg = f"the name of the compressor is malformed: {error}"
        raise PayloadError(msg) from error
    return Packed(name, raw_size, start, stop)


def flaw(data: memoryview) -> str:
    """Why *data*, which carries no digest, cannot be what was put; empty if it may be."""
    try:
        if is_packed(data):
            parse_packed(data, payload.SIZE_LIMIT)
        else:
            payload.parse(data, len(data))
    except PayloadError as error:
        return error.message
    return ""
