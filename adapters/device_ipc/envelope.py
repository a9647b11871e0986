"""What a peer is told of our pools: plain fields, every one of them checked, and no pickle.

``magic (4) | version u16 | runtime u8 | regions u8 | instance (16) | pid u32`` and for each region
``id u64 | size u64 | handle (64)``, then the CRC of all that; numbers big endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.core.values import Instance

HANDLE_BYTES = 64
MOST_REGIONS = 48
MAGIC = b"SLDI"
VERSION = 1
RUNTIMES = ("host", "cuda", "hip")
"""Of devices that can open each other's handles; ``host`` stands in for one in tests."""

_HEAD = struct.Struct("!4sHBB16sI")
_REGION = struct.Struct("!QQ64s")
_CRC = struct.Struct("!I")
_SIZE_LIMIT = 1 << 62


class SharedRegion(NamedTuple):
    """One region of a peer's: *size* bytes at the beginning of what *handle* opens."""

    region: int
    size: int
    handle: bytes


def pack(runtime: str, instance: Instance, pid: int, regions: Sequence[SharedRegion]) -> bytes:
    """The envelope."""
    kind = RUNTIMES.index(runtime)
    head = _HEAD.pack(MAGIC, VERSION, kind, len(regions), instance, pid)
    body = head + b"".join(_REGION.pack(*region) for region in regions)
    return body + _CRC.pack(crc32(body))


def parse(data: bytes, runtime: str, peer: Instance) -> tuple[int, list[SharedRegion]]:
    """Process id and regions of *peer*, which describes itself by *data*.

    Raises:
        TransportError: it is malformed, of another version, runtime or instance.
    """
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32(data[:-4]):
        raise _malformed(peer, f"{len(data)} bytes with a wrong checksum")
    magic, version, kind, count, instance, pid = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise _malformed(peer, f"it begins with {data[:6].hex()}", "run the same version")
    theirs = RUNTIMES[kind] if kind < len(RUNTIMES) else f"number {kind}"
    if theirs != runtime:
        raise _malformed(peer, f"its runtime is {theirs}, ours {runtime}", "use another backend")
    if instance != peer:
        raise _malformed(peer, f"it describes {instance.hex()}")
    body = data[_HEAD.size : -_CRC.size]
    if not 0 < count <= MOST_REGIONS or len(body) != count * _REGION.size:
        raise _malformed(peer, f"{count} regions in {len(data)} bytes")
    regions = [SharedRegion(*fields) for fields in _REGION.iter_unpack(body)]
    _check(regions, peer)
    return pid, regions


def _check(regions: list[SharedRegion], peer: Instance) -> None:
    if len({region.region for region in regions}) != len(regions):
        raise _malformed(peer, "a region is described twice")
    for region in regions:
        if not 0 < region.size < _SIZE_LIMIT:
            raise _malformed(peer, f"region {region.region} of {region.size} bytes")


def _malformed(peer: Instance, why: str, remedy: str = "") -> TransportError:
    msg = f"the description of peer {peer.hex()} is refused: {why}"
    return TransportError(msg, reason=Reason.PROTOCOL, remedy=remedy)
