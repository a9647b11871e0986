"""Control messages as frames: the wire format of docs/reference/wire.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import DecodeError, ValidationError
from msgspec.msgpack import Decoder, Encoder

from stagelink.adapters.msgspec import frames as f
from stagelink.adapters.msgspec.frames import BODY_LIMIT
from stagelink.core import messages as m
from stagelink.core.errors import ProtocolViolationError, Reason
from stagelink.core.messages import HEAD_LIMIT, INLINE, OFFER, PULL, Packet, Report
from stagelink.core.values import HostCard, Identity, PlaneCard, RegionRef, new

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Fields = bytes | memoryview

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


# --- fields to values; what msgspec's bounds cannot say is said here -----------------------
# new() skips a NamedTuple's own constructor, which checks what the decoder has checked: it takes
# half the time, and there are up to four values in a message.


def _region(fields: tuple[int, int, int] | None) -> RegionRef | None:
    return None if fields is None else new(RegionRef, fields)


def _hello(data: Fields, _: bytes) -> m.Hello:
    x = HELLO_FIELDS.decode(data)
    if x.wanted and len(x.wanted) != len(x.instance):
        msg = f"wanted has {len(x.wanted)} bytes, not 0 or {len(x.instance)}"
        raise ValidationError(msg)
    return m.Hello(
        x.session, x.instance, Identity(*x.identity), x.source, x.wanted, Report(*x.report),
        HostCard(*x.host), tuple([PlaneCard(*plane) for plane in x.planes]), x.codecs,
    )  # fmt: skip


def _declined(data: Fields, _: bytes) -> m.Declined:
    x = DECLINED_FIELDS.decode(data)
    return m.Declined(x.session, x.reason, x.detail)


def _lost(data: Fields, _: bytes) -> m.Lost:
    return m.Lost(LOST_FIELDS.decode(data).session)


def _inspect(data: Fields, _: bytes) -> m.Inspect:
    return m.Inspect(INSPECT_FIELDS.decode(data).number)


def _figures(data: Fields, _: bytes) -> m.Figures:
    x = FIGURES_FIELDS.decode(data)
    return m.Figures(x.number, x.body)


def _from_receiver(x: f.FromReceiver, message: m.ToSender) -> Packet:
    return new(Packet, (x.session, x.sequence, new(Report, x.report), message))


def _from_sender(x: f.FromSender, message: m.ToReceiver) -> Packet:
    return new(Packet, (x.session, x.sequence, None, message))


def _subscribe(data: Fields, _: bytes) -> Packet:
    return _from_receiver(SUBSCRIBE_FIELDS.decode(data), m.Subscribe())


def _query(data: Fields, _: bytes) -> Packet:
    x = QUERY_FIELDS.decode(data)
    return _from_receiver(x, m.Query(x.key))


def _pull(data: Fields, _: bytes) -> Packet:
    x = PULL_FIELDS.decode(data)
    pull = new(m.Pull, (x.transfer, x.generation, _region(x.target), x.budget_s))
    return _from_receiver(x, pull)


def _cancel(data: Fields, _: bytes) -> Packet:
    x = CANCEL_FIELDS.decode(data)
    return _from_receiver(x, m.Cancel(x.transfer))


def _ack(data: Fields, _: bytes) -> Packet:
    x = ACK_FIELDS.decode(data)
    return _from_receiver(x, new(m.Ack, (x.consumed,)))


def _grants(data: Fields, _: bytes) -> Packet:
    x = GRANTS_FIELDS.decode(data)
    blocks = [m.Granted(transfer, new(RegionRef, target)) for transfer, target in x.blocks]
    return _from_receiver(x, m.Grants(tuple(blocks)))


def _welcome(data: Fields, _: bytes) -> Packet:
    x = WELCOME_FIELDS.decode(data)
    host, plane = HostCard(*x.host), PlaneCard(*x.plane)
    told = (x.instance, Identity(*x.identity), host, plane, x.fresh, x.credits)
    return _from_sender(x, m.Welcome(*told))


def _bye(data: Fields, _: bytes) -> Packet:
    x = BYE_FIELDS.decode(data)
    report = None if x.report is None else new(Report, x.report)
    return new(Packet, (x.session, x.sequence, report, m.Bye(x.viewed)))


def _synced(data: Fields, _: bytes) -> Packet:
    x = SYNCED_FIELDS.decode(data)
    return _from_sender(x, m.Synced(x.number))


def _body(near: bytes, far: bytes) -> bytes:
    if far and near:
        msg = f"{len(near)} inline bytes in the fields and {len(far)} in a frame"
        raise ValidationError(msg)
    return far or near


def _announce(data: Fields, far: bytes) -> Packet:
    x = decode_announce(data)
    how, size, where, body = x.how, x.size, x.where, x.body
    if far:
        body = _body(body, far)
    if how == INLINE and len(body) != size:
        msg = f"{size} bytes announced inline, {len(body)} came"
        raise ValidationError(msg)
    if (how == OFFER) != (where is not None) or (
        OFFER <= how <= PULL and len(body) > min(size, HEAD_LIMIT)
    ):
        msg = f"how {how} with {len(body)} bytes and region {where}"
        raise ValidationError(msg)
    region = None if where is None else new(RegionRef, where)
    announce = new(m.Announce, (x.number, x.key, x.generation, size, how, region, body))
    return new(Packet, (x.session, x.sequence, None, announce))


def _landed(data: Fields, _: bytes) -> Packet:
    x = LANDED_FIELDS.decode(data)
    if len(x.body) > x.size:
        msg = f"{x.size} bytes landed, {len(x.body)} of them are told"
        raise ValidationError(msg)
    said = (x.number, x.key, x.generation, x.size, x.transfer, x.there, x.body)
    return _from_sender(x, new(m.Landed, said))


def _ended(data: Fields, _: bytes) -> Packet:
    x = ENDED_FIELDS.decode(data)
    gone = [
        new(m.Gone, (number, key, generation, reason.value, detail))
        for number, key, generation, reason, detail in x.records
    ]
    return _from_sender(x, m.Ended(tuple(gone)))


def _offer(data: Fields, far: bytes) -> Packet:
    x = OFFER_FIELDS.decode(data)
    body = _body(x.body, far)
    if x.where is not None and len(body) > min(x.where[2], HEAD_LIMIT):
        msg = f"an offer of {len(body)} bytes and of region {x.where}"
        raise ValidationError(msg)
    return _from_sender(x, m.Offer(x.transfer, x.generation, _region(x.where), body))


def _done(data: Fields, _: bytes) -> Packet:
    x = DONE_FIELDS.decode(data)
    return _from_sender(x, new(m.Done, (x.transfer, x.generation, x.size)))


def _refused(data: Fields, _: bytes) -> Packet:
    x = REFUSED_FIELDS.decode(data)
    return _from_sender(x, m.Refused(x.transfer, x.reason.value, x.detail))


encode_fields = Encoder().encode
ANY_HELLO = Decoder(f.AnyHelloFields)
HELLO_FIELDS = Decoder(f.HelloFields)
DECLINED_FIELDS = Decoder(f.DeclinedFields)
LOST_FIELDS = Decoder(f.LostFields)
INSPECT_FIELDS = Decoder(f.InspectFields)
FIGURES_FIELDS = Decoder(f.FiguresFields)
SUBSCRIBE_FIELDS = Decoder(f.SubscribeFields)
QUERY_FIELDS = Decoder(f.QueryFields)
PULL_FIELDS = Decoder(f.PullFields)
CANCEL_FIELDS = Decoder(f.CancelFields)
ACK_FIELDS = Decoder(f.AckFields)
GRANTS_FIELDS = Decoder(f.GrantsFields)
BYE_FIELDS = Decoder(f.ByeFields)
WELCOME_FIELDS = Decoder(f.WelcomeFields)
SYNCED_FIELDS = Decoder(f.SyncedFields)
decode_announce = Decoder(f.AnnounceFields).decode
LANDED_FIELDS = Decoder(f.LandedFields)
ENDED_FIELDS = Decoder(f.EndedFields)
OFFER_FIELDS = Decoder(f.OfferFields)
DONE_FIELDS = Decoder(f.DoneFields)
REFUSED_FIELDS = Decoder(f.RefusedFields)

HEADERS = {kind: header(number) for kind, number in KINDS.items()}
WITH_BODY = frozenset({m.Announce, m.Offer})
# Details may hold anything a foreign error said.
CLEANERS: dict[type[tuple[object, ...]], Callable[[Any], tuple[object, ...]]] = {
    m.Declined: _clean, m.Refused: _clean, m.Ended: _clean_ended,
}  # fmt: skip
FORMS = {kind: (head, kind in WITH_BODY, CLEANERS.get(kind)) for kind, head in HEADERS.items()}
UNPACKERS: dict[type[tuple[object, ...]], Callable[[Fields, bytes], m.Message | m.Aside]] = {
    m.Hello: _hello, m.Declined: _declined, m.Lost: _lost, m.Subscribe: _subscribe,
    m.Query: _query, m.Pull: _pull, m.Cancel: _cancel, m.Ack: _ack, m.Grants: _grants,
    m.Welcome: _welcome, m.Synced: _synced, m.Announce: _announce, m.Landed: _landed,
    m.Ended: _ended, m.Offer: _offer, m.Done: _done, m.Refused: _refused, m.Bye: _bye,
    m.Inspect: _inspect, m.Figures: _figures,
}  # fmt: skip
# The whole header is the look-up key: one hash checks magic, version, kind and flags.
SHAPES = {
    HEADERS[kind]: Shape(kind.__name__, 2 if kind in WITH_BODY else 1, unpack)
    for kind, unpack in UNPACKERS.items()
}
