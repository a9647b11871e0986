"""How a plane describes itself to its peers: Mori's descriptors in an envelope of our own.

Mori's own ``unpack`` raises three kinds of errors and accepts some malformed input, so nothing of
it is believed before it has been compared with what the envelope says, and none of it reaches
Mori before the envelope's digest has been found right.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.adapters.mori.memory import BEACON, TAIL
from stagelink.core.errors import Reason, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance

LONGEST = 4096
DIGEST = 16
NONCE = 16
MAGIC = b"stagelink-mori\0\1"
_HEAD = struct.Struct("!16s4s16s?BH")  # magic, fabric, instance, notifies, regions, engine length
_ROW = struct.Struct("!QQ16sH")  # region, size, nonce, length of Mori's descriptor
_SIZE_LIMIT = 1 << 62
_REGION_LIMIT = 1 << 64
_NAME_LIMIT = 256
_PORT_LIMIT = 1 << 16


class Row(NamedTuple):
    """One region: Mori's descriptor of *size* bytes and of the page behind them."""

    region: int
    size: int
    nonce: bytes
    memory: bytes


class Card(NamedTuple):
    """What a peer says of itself."""

    instance: Instance
    fabric: str
    notifies: bool
    engine: bytes
    rows: tuple[Row, ...]


def key_head(instance: Instance) -> str:
    """How every engine key of *instance* begins: never two processes' keys are the same."""
    return f"stagelink-{instance.hex()}-"


def beacon(instance: Instance, nonce: bytes) -> bytes:
    """What stands behind a region, for a peer to find it there."""
    return (instance + nonce).ljust(BEACON, b"\0")


def pack(card: Card) -> bytes:
    """The bytes of *card*.

    Raises:
        TransportError: they are too many; nothing else can be wrong with our own.
    """
    parts = [
        _HEAD.pack(
            MAGIC, card.fabric.encode(), card.instance, card.notifies, len(card.rows),
            len(card.engine),
        ),
        card.engine,
    ]  # fmt: skip
    for region, size, nonce, memory in card.rows:
        parts += [_ROW.pack(region, size, nonce, len(memory)), memory]
    body = b"".join(parts)
    if len(body) + DIGEST > LONGEST:
        msg = f"{len(card.rows)} regions take {len(body)} bytes to describe, of {LONGEST}"
        raise TransportError(
            msg, reason=Reason.OUT_OF_BOUNDS, remedy="make the pool of fewer segments"
        )
    return body + _digest(body)


def unpack(descriptor: bytes, peer: Instance) -> Card:
    """What *peer* says of itself, as far as it can be told without Mori.

    Raises:
        TransportError: it is malformed, or not that peer's.
    """
    body, digest = descriptor[:-DIGEST], descriptor[-DIGEST:]
    if len(descriptor) > LONGEST or len(body) < _HEAD.size or digest != _digest(body):
        raise malformed(peer, f"{len(descriptor)} bytes with no digest that fits")
    magic, fabric, instance, notifies, count, length = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise malformed(peer, f"written by another version: {magic!r}")
    if instance != peer:
        raise malformed(peer, f"it is that of {instance.hex()}")
    engine, at = _cut(body, _HEAD.size, length, peer)
    rows: dict[int, Row] = {}
    for _ in range(count):
        row, at = _row(body, at, peer)
        rows[row.region] = row
    if at != len(body) or len(rows) != count or not rows:
        raise malformed(peer, f"{count} regions in {len(body)} bytes")
    name = fabric.rstrip(b"\0").decode("ascii", "replace")
    return Card(instance, name, notifies, engine, tuple(rows.values()))


def _row(body: bytes, at: int, peer: Instance) -> tuple[Row, int]:
    if at + _ROW.size > len(body):
        raise malformed(peer, "it ends within a region")
    region, size, nonce, length = _ROW.unpack_from(body, at)
    memory, at = _cut(body, at + _ROW.size, length, peer)
    if not 0 < size < _SIZE_LIMIT:
        raise malformed(peer, f"region {region} has {size} bytes")
    return Row(region, size, nonce, memory), at


def _cut(body: bytes, at: int, length: int, peer: Instance) -> tuple[bytes, int]:
    if at + length > len(body):
        raise malformed(peer, f"{length} bytes at {at} are outside of it")
    return body[at : at + length], at + length


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST).digest()


def check_engine(engine: Any, card: Card) -> str:  # noqa: ANN401 - Mori's descriptor
    """What is wrong with a peer's EngineDesc; empty if nothing is."""
    if not engine.key.startswith(key_head(card.instance)) or len(engine.key) > _NAME_LIMIT:
        return f"its engine is called {engine.key!r:.80}"
    if not 0 <= engine.port < _PORT_LIMIT or (card.fabric == "rdma" and not engine.port):
        return f"its engine listens at port {engine.port}"
    if max(len(engine.host), len(engine.hostname), len(engine.node_id)) > _NAME_LIMIT:
        return "its engine's host has a name of more than 256 characters"
    return ""


def check_memory(memory: Any, row: Row, key: str, location: object) -> str:  # noqa: ANN401
    """What is wrong with a peer's MemoryDesc; empty if nothing is."""
    if memory.engine_key != key:
        return f"region {row.region} is that of engine {memory.engine_key!r:.80}"
    if memory.size != row.size + TAIL:
        return f"region {row.region} has {memory.size} bytes and not {row.size + TAIL}"
    if memory.loc != location:
        return f"region {row.region} is in {memory.loc}, not in {location}"
    if not 0 < memory.data < _REGION_LIMIT - memory.size:
        return f"region {row.region} lies at {memory.data:#x}"
    return ""


def read_with(unpacked: Callable[[bytes], Any], packed: bytes, peer: Instance) -> Any:  # noqa: ANN401
    """Mori's descriptor from its bytes, which must be exactly those that it would write.

    Raises:
        TransportError: they are not.
    """
    try:
        found = unpacked(packed)
        again = found.pack()
    except (RuntimeError, MemoryError, TypeError, ValueError) as error:
        raise malformed(peer, f"Mori cannot read it: {error}") from error
    if again != packed:
        raise malformed(peer, "Mori reads something else in it")
    return found


def malformed(peer: Instance, why: str) -> TransportError:
    """The error of a description that is refused."""
    msg = f"the description of peer {peer.hex()} is malformed: {why}"
    return TransportError(msg, reason=Reason.PROTOCOL)
