"""What peers tell each other: a description in the greeting, then frames on the connection.

The writer dials the reader, so every number here that a reader acts upon is a stranger's until the
token has been seen, and a peer's afterwards: all are checked.
"""

# writer -> reader: HELLO, then any number of (HEAD, so many bytes)
# reader -> writer: READY, then an ACK for each write whose last frame is in place
# Whoever reads the end of the stream, or anything else than the above, closes the connection.

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from stagelink.core.values import Instance

MAGIC = b"SLF1"
TOKEN_BYTES = 16
FRAME_BYTES = 4 << 20
"""The most that one frame carries: writes to one peer take turns after each."""

HELLO = struct.Struct("!4s?16s16s16s")
"""Magic, whether it is to carry writes (else it only asks), token, reader, writer."""

READY = MAGIC + b"+"
HEAD = struct.Struct("!BQQQI")
"""1 in the last frame of a write (else 0), the write's number, region, offset, bytes that follow.
"""

ACK = struct.Struct("!Q")

_START = struct.Struct("!4s16s16sHBBB")  # magic, instance, token, port, host, why, regions
_REGION = struct.Struct("!QQ")
_DIGEST_BYTES = 8
MOST_REGIONS = 64
MOST_TEXT = 255
_SIZE_LIMIT = 1 << 62


class Description(NamedTuple):
    """How a peer is written to.

    Attributes:
        instance: whose it is.
        token: what opens its connections.
        host, port: where it listens; empty and 0 where it does not.
        why: why it does not.
        sizes: bytes of each region, by its id.
    """

    instance: Instance
    token: bytes
    host: str
    port: int
    why: str
    sizes: dict[int, int]


def pack(told: Description) -> bytes:
    """At most 1.6 KiB; texts are cut to 255 bytes."""
    host, why = told.host.encode()[:MOST_TEXT], told.why.encode("ascii", "replace")[:MOST_TEXT]
    start = _START.pack(
        MAGIC, told.instance, told.token, told.port, len(host), len(why), len(told.sizes)
    )
    rows = b"".join(_REGION.pack(*row) for row in told.sizes.items())
    content = start + host + why + rows
    return content + _digest(content)


def parse(descriptor: bytes, peer: Instance) -> Description:
    """What *peer* described, all checked.

    Raises:
        TransportError: it is malformed, damaged, or not that peer's own.
    """
    content, digest = descriptor[:-_DIGEST_BYTES], descriptor[-_DIGEST_BYTES:]
    if len(content) < _START.size or _digest(content) != digest:
        raise _malformed(peer, f"{len(descriptor)} bytes that do not fit together")
    magic, instance, token, port, *lengths = _START.unpack_from(content)
    if magic != MAGIC or instance != peer:
        raise _malformed(peer, f"it is that of {instance.hex()}")
    size, texts = _START.size, []
    for length in lengths[:2]:
        texts.append(content[size : size + length].decode("ascii", "replace"))
        size += length
    rows = content[size:]
    if len(rows) != lengths[2] * _REGION.size:
        raise _malformed(peer, f"{lengths[2]} regions in {len(rows)} bytes")
    sizes = dict(_REGION.iter_unpack(rows))
    if len(sizes) != lengths[2] or not sizes or max(sizes.values()) >= _SIZE_LIMIT:
        raise _malformed(peer, f"regions {sizes}")
    return Description(instance, token, texts[0], port, texts[1], sizes)


def _digest(content: bytes) -> bytes:
    """Against accidents: who means harm makes one that fits, and is believed no more for it."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _malformed(peer: Instance, what: str) -> TransportError:
    msg = f"the description of peer {peer.hex()} is malformed: {what}"
    return TransportError(msg, reason=Reason.PROTOCOL)
