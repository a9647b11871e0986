"""Control messages as frames: the wire format of docs/reference/wire.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from stagelink.adapters.msgspec import frames as f
from stagelink.adapters.msgspec.frames import BODY_LIMIT
from stagelink.adapters.msgspec.reading import UNPACKERS
from stagelink.core import messages as m
from stagelink.core.errors import ProtocolViolationError, Reason
from stagelink.core.messages import Packet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.adapters.msgspec.reading import Fields

MAGIC = b"SLNK"
MAJOR = 1
MINOR = 0
HEADER_BYTES = 8
MOST_FRAMES = 2

# Numbers of kinds are never given twice, and these two mean the same in every major version.
HELLO, DECLINED = 1, 2
KINDS: dict[type[tuple[object, ...]], int] = {
    m.Hello: HELLO, m.Declined: DECLINED, m.Lost: 3, m.Inspect: 4, m.Figures: 5,
    m.Subscribe: 16, m.Query: 17, m.Pull: 18, m.Cancel: 19, m.Ack: 20, m.Grants: 21,
    m.Welcome: 32, m.Synced: 33, m.Announce: 34, m.Ended: 35, m.Offer: 36, m.Done: 37,
    m.Refused: 38, m.Landed: 39, m.Bye: 48,
}  # fmt: skip


def header(kind: int, version: tuple[int, int] = (MAJOR, MINOR)) -> bytes:
    """What every message begins with: magic, major, minor, kind, flags (0)."""
    return MAGIC + bytes((*version, kind, 0))


class VersionMismatchError(ProtocolViolationError):
    """The peer speaks another major version.

    Attributes:
        theirs: its (major, minor).
        answer: what to send back on the same link, or None: only a Hello is answered.
    """

    def __init__(self, theirs: tuple[int, int], answer: m.Declined | None) -> None:
        self.theirs = theirs
        self.answer = answer
        super().__init__(
            _mismatch(theirs),
            reason=Reason.MISMATCH,
            remedy="run the same major version of stagelink on both sides",
        )


class WireCodec:
    """Implements :class:`stagelink.ports.Codec`. Stateless; any thread may call it."""

    __slots__ = ()

    def encode(self, message: m.Message | m.Aside) -> list[bytes]:
        """The frames of *message*: header and fields, and the inline bytes if they are many.

        Details longer than the format allows are cut.
        """
        inside: Any = message
        if type(message) is not Packet:
            head, _, clean = FORMS[type(message)]
            return [head + encode_fields(tuple(clean(inside) if clean else inside))]
        session, sequence, report, inside = message
        head, has_body, clean = FORMS[type(inside)]
        if has_body and len(inside[-1]) > BODY_LIMIT:
            near = encode_fields((session, sequence, report, *inside[:-1], b""))
            return [head + near, inside[-1]]
        if clean is not None:
            inside = clean(inside)
        return [head + encode_fields((session, sequence, report, *inside))]

    def decode(self, frames: Sequence[bytes]) -> m.Message | m.Aside:
        """The message of *frames*, every field checked for type and range.

        Raises:
            VersionMismatchError: its major version is not ours; ``answer`` is what to send back.
            ProtocolViolationError: the frames are no message of this version.
        """
        count = len(frames)
        if not 1 <= count <= MOST_FRAMES:
            msg = f"a message has 1 or {MOST_FRAMES} frames, not {count}"
            raise _violation(msg)
        first = frames[0]
        name, most, unpack = SHAPES.get(first[:HEADER_BYTES]) or _other_version(first)
        if count > most:
            msg = f"{name} has at most {most} frames, not {count}"
            raise _violation(msg)
        try:
            # A copy of the fields takes less than a view: there are few of them, and it is cold.
            return unpack(first[HEADER_BYTES:], frames[1] if count > 1 else b"")
        except (ValueError, RecursionError, MemoryError) as error:
            msg = f"malformed {name}: {error}"
            raise _violation(msg) from error


class Shape(NamedTuple):
    """How one kind of message is read."""

    name: str
    frames: int
    unpack: Callable[[Fields, bytes], m.Message | m.Aside]


def _violation(what: str) -> ProtocolViolationError:
    return ProtocolViolationError(
        what, reason=Reason.PROTOCOL, remedy="check what else connects to this address"
    )


def _mismatch(theirs: tuple[int, int]) -> str:
    return f"protocol {theirs[0]}.{theirs[1]} meets {MAJOR}.{MINOR}: the majors differ"


def _other_version(first: bytes) -> Shape:
    """Read a header that is not exactly one of ours."""
    if len(first) < HEADER_BYTES or first[:4] != MAGIC:
        msg = f"a frame of {len(first)} bytes begins with no header: {first[:HEADER_BYTES].hex()}"
        raise _violation(msg)
    major, minor, kind, flags = first[4:HEADER_BYTES]
    known = SHAPES.get(header(kind))
    if major != MAJOR and not (kind == DECLINED and known):
        answer = _answer(kind, first[HEADER_BYTES:], (major, minor))
        raise VersionMismatchError((major, minor), answer)
    if flags or known is None:
        msg = f"unknown kind {kind} or flags {flags} of protocol {major}.{minor}"
        raise _violation(msg)
    return known


def _answer(kind: int, fields: bytes, theirs: tuple[int, int]) -> m.Declined | None:
    if kind != HELLO:
        return None
    try:
        session = ANY_HELLO.decode(fields).session
    except (DecodeError, RecursionError):
        return None
    return m.Declined(session, Reason.MISMATCH.value, _mismatch(theirs))


def _clean_ended(message: m.Ended) -> tuple[object, ...]:
    return (tuple([_clean(record) for record in message.records]),)


def _clean(message: m.Declined | m.Gone | m.Refused) -> tuple[object, ...]:
    """Make the detail fit for the wire."""
    detail = message.detail
    if len(detail) <= f.DETAIL_LIMIT and detail.isascii():
        return message
    detail = detail.encode("utf-8", "backslashreplace").decode()
    return message._replace(detail=detail[: f.DETAIL_LIMIT])


encode_fields = Encoder().encode
ANY_HELLO = Decoder(f.AnyHelloFields)

HEADERS = {kind: header(number) for kind, number in KINDS.items()}
WITH_BODY = frozenset({m.Announce, m.Offer})
# Details may hold anything a foreign error said.
CLEANERS: dict[type[tuple[object, ...]], Callable[[Any], tuple[object, ...]]] = {
    m.Declined: _clean, m.Refused: _clean, m.Ended: _clean_ended,
}  # fmt: skip
FORMS = {kind: (head, kind in WITH_BODY, CLEANERS.get(kind)) for kind, head in HEADERS.items()}
# The whole header is the look-up key: one hash checks magic, version, kind and flags.
SHAPES = {
    HEADERS[kind]: Shape(kind.__name__, 2 if kind in WITH_BODY else 1, unpack)
    for kind, unpack in UNPACKERS.items()
}
