"""Everything that reads what others wrote, and the one kind of error that may leave each."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import DecodeError
from msgspec.msgpack import decode as unpack
from msgspec.msgpack import encode as pack
from tests.fuzz import seeds
from tests.fuzz.talk import Talk, scripts

from stagelink.adapters.local.packets import Malformed, Packets
from stagelink.adapters.msgspec import traced
from stagelink.adapters.msgspec.placing import moved
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.wire import HEADER_BYTES, WireCodec
from stagelink.adapters.shm.regions import parse
from stagelink.adapters.vllm_omni_mori import frames as their_frames
from stagelink.adapters.vllm_omni_mori import values as their_values
from stagelink.adapters.zmq.address import check_dial
from stagelink.arguments import MetadataFields
from stagelink.config import load_config
from stagelink.core.errors import (
    ConfigError,
    PayloadError,
    ProtocolViolationError,
    StagelinkError,
    TransportError,
)
from stagelink.core.keys import check_key, check_stage, parse_wire_key
from stagelink.core.payload import pack_prefix, plan
from stagelink.core.streams import is_first, parse_end, shown, stream_of
from stagelink.inspect.client import _read

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.seeds import Frames

ME = bytes(range(16))


class Decoder(NamedTuple):
    """One reader of foreign bytes.

    Attributes:
        name: what the figures call it.
        seeds: what honest parties send.
        read: takes frames; may raise *error* and nothing else.
        head: bytes of a frame before its MessagePack.
        share: how often it is chosen, relative to the others.
    """

    name: str
    seeds: list[Frames]
    read: Callable[[Frames], object]
    error: type[Exception]
    head: int = 0
    share: int = 1


def decoders() -> list[Decoder]:
    """All of them, ready."""
    codec, packets = WireCodec(), PacketReader()
    segment = b"stagelink-" + ME.hex().encode() + b"-1"
    described = len(segment).to_bytes(2, "big") + bytes(7) + b"\1" + bytes(6) + b"\x10\0" + segment
    told = {"status": "ok", "pool": {"capacity": 5, "free": 2.5}, "sessions": [{"peer": "a"}],
            "errors": {"deadline": 2}, "puts": 1, "engine_key": "x", "backends": ["shm"]}  # fmt: skip
    control = seeds.control()
    return [
        Decoder("control", control, codec.decode, ProtocolViolationError, HEADER_BYTES, 8),
        Decoder("packets", control, packets.read, Malformed, HEADER_BYTES, 3),
        Decoder("payloads", seeds.payloads(), load, PayloadError, 0, 2),
        Decoder("headers", seeds.headers(), load_header, PayloadError, 0, 4),
        Decoder("wrapped", seeds.wrapped(), unwrap, PayloadError, 16),
        Decoder("conversations", scripts(), Talk().hear, ProtocolViolationError, 0, 6),
        Decoder("descriptors", [[described]], lambda f: parse(one(f), ME), TransportError),
        Decoder("settings", seeds.settings(), configure, ConfigError),
        Decoder("metadata", seeds.metadata(), receipt, ConfigError),
        Decoder("texts", seeds.texts(), names, ConfigError),
        Decoder("dialect", seeds.dialect(), dialect, ProtocolViolationError, 0, 2),
        Decoder("their values", seeds.their_values(), their_value, PayloadError, 0, 2),
        Decoder("figures", [[pack(told)]], show, ProtocolViolationError),
    ]


def one(frames: Frames) -> bytes:
    """The bytes of a decoder that takes no frames."""
    return frames[0] if frames else b""


SERIALIZER = PayloadSerializer()


def load(frames: Frames) -> None:
    """Load a payload, look for its trace context, and copy the value out."""
    data = bytearray(one(frames))
    traced.read(data, len(data))
    value = SERIALIZER.load(data, len(data))
    if len(data) % 7 == 0:  # some: it takes longer than the rest
        moved(value, "cpu")


def load_header(frames: Frames) -> None:
    """Load a payload with this header, and with buffers of these lengths, full of zeros."""
    header = one(frames)
    try:
        lengths = unpack(frames[1], type=list[int])
        layout = plan(len(header), [(length % (1 << 16), 64) for length in lengths[:40]])
    except (DecodeError, ValueError, IndexError, RecursionError):
        return
    load([(pack_prefix(layout) + header).ljust(layout.size, b"\0")])


def unwrap(frames: Frames) -> None:
    """Check a digest, and decompress."""
    data, around = bytearray(one(frames)), seeds.wrapping()
    if not around.flaw(data, len(data)) or len(data) % 2:
        raw = around.unpacked(data, len(data))
        if raw is not None:
            raw.close()


def configure(frames: Frames) -> None:
    """Load settings, whatever their types."""
    found = mapping(frames)
    if all(isinstance(name, str) for name in found):  # they are keyword arguments
        load_config(found)


def receipt(frames: Frames) -> None:
    """Read metadata, and dial what it names."""
    fields = MetadataFields.of(mapping(frames))
    if fields.key:
        parse_wire_key(fields.key)
    if fields.endpoint:
        check_dial(fields.endpoint)


def mapping(frames: Frames) -> dict[Any, Any]:
    """What may be a dictionary of anything."""
    try:
        found = unpack(one(frames))
    except (DecodeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def names(frames: Frames) -> None:
    """Take some text for all that text is taken for; each refuses it or not."""
    text = one(frames).decode("utf-8", "surrogateescape")
    parse_end(text), is_first(text), shown(text), stream_of(text)
    for check in (check_key, check_stage, parse_wire_key, check_dial):
        with contextlib.suppress(ConfigError):
            check(text)


def show(frames: Frames) -> None:
    """Show the figures that a stranger sent for a connector's."""
    from stagelink.inspect.rates import rates_between
    from stagelink.terminal.top import view

    body = one(frames)
    with contextlib.suppress(DecodeError, ValueError, TypeError, RecursionError):
        body = json.dumps(unpack(body, ext_hook=lambda *_: None), default=str).encode()
    found = _read(body)
    rates_between({}, found, 1.0)
    view(found, None)


def dialect(frames: Frames) -> None:
    """Read a body as either side of vLLM-Omni's Mori connector sends it."""
    body = one(frames)
    try:
        their_frames.decode_request(body)
    except ProtocolViolationError:
        their_frames.decode_answer(body)


def their_value(frames: Frames) -> None:
    """Load a value that vLLM-Omni packed, and pack it again."""
    with contextlib.suppress(PayloadError):  # not every key that is read can be written
        their_values.encode(their_values.decode(one(frames)))
    their_values.decode(one(frames))


class PacketReader:
    """A packet of the Unix-socket lane: split into frames, then decoded."""

    def __init__(self) -> None:
        self._packets = Packets(1 << 16)
        self._codec = WireCodec()

    def read(self, frames: Frames) -> None:
        """Send the frames as one packet, and the first as one whose head lies; read both."""
        lengths = b"".join(len(frame).to_bytes(4, "little") for frame in frames[:-1])
        whole = bytes((len(frames) % 256,)) + lengths + b"".join(frames)
        for packet in filter(None, (whole, one(frames))):
            with contextlib.suppress(Malformed, ProtocolViolationError):
                self._codec.decode(self._sent(packet[: 1 << 17]))

    def _sent(self, packet: bytes) -> Frames:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
            theirs.send(packet)
            found = self._packets.receive(ours.fileno())
        assert found
        return found


def is_typed(error: BaseException, decoder: Decoder) -> bool:
    """Whether *error* is what *decoder* may raise: its one kind, with words for people."""
    if not isinstance(error, decoder.error):
        return False
    return not isinstance(error, StagelinkError) or bool(error.message)
