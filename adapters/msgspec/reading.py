"""From the fields of a message to the message: what msgspec's bounds cannot say is said here.

Each function takes frame 0 after its header, and the second frame or nothing. It raises
``ValueError`` for what is no such message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import ValidationError
from msgspec.msgpack import Decoder

from stagelink.adapters.msgspec import frames as f
from stagelink.core import messages as m
from stagelink.core.messages import HEAD_LIMIT, INLINE, OFFER, PULL, Packet, Report
from stagelink.core.values import HostCard, Identity, PlaneCard, RegionRef, new

if TYPE_CHECKING:
    from collections.abc import Callable

    Fields = bytes | memoryview

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

UNPACKERS: dict[type[tuple[object, ...]], Callable[[Fields, bytes], m.Message | m.Aside]] = {
    m.Hello: _hello, m.Declined: _declined, m.Lost: _lost, m.Subscribe: _subscribe,
    m.Query: _query, m.Pull: _pull, m.Cancel: _cancel, m.Ack: _ack, m.Grants: _grants,
    m.Welcome: _welcome, m.Synced: _synced, m.Announce: _announce, m.Landed: _landed,
    m.Ended: _ended, m.Offer: _offer, m.Done: _done, m.Refused: _refused, m.Bye: _bye,
    m.Inspect: _inspect, m.Figures: _figures,
}  # fmt: skip
"""How each kind of message is read."""
