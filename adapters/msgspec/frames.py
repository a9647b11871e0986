"""The fields of each control message as frame 0 carries them, with their bounds.

msgspec decodes these and checks every bound in C. Nested values are tuples of a fixed length;
new fields of a minor version go to the end of the message, where an older side ignores them.
"""

from __future__ import annotations

from sys import float_info
from typing import Annotated, Literal

from msgspec import Meta, Struct

from stagelink.core.errors import Reason
from stagelink.core.keys import STAGE_LIMIT
from stagelink.core.messages import ENDED_LIMIT, FIGURES_LIMIT, HEAD_LIMIT, OPEN_LIMIT
from stagelink.core.streams import DERIVED_LIMIT

BODY_LIMIT = 8192
"""Inline bytes within the fields; more have a frame of their own, which is not copied so often."""

CODEC_LIMIT = 64
COUNT_LIMIT = 65_536
DESCRIPTOR_LIMIT = 4096
DETAIL_LIMIT = 4096
NAME_LIMIT = 64
PLANE_LIMIT = 16
PROOF_LIMIT = 1024

# A natural number of 63 bits: it fits every language's signed integer.
Nat = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Key = Annotated[str, Meta(min_length=1, max_length=DERIVED_LIMIT)]
Stage = Annotated[str, Meta(min_length=1, max_length=STAGE_LIMIT)]
Name = Annotated[str, Meta(max_length=NAME_LIMIT)]
Proof = Annotated[str, Meta(max_length=PROOF_LIMIT)]
Detail = Annotated[str, Meta(max_length=DETAIL_LIMIT)]
Who = Annotated[bytes, Meta(min_length=16, max_length=16)]
WhoOrNone = Annotated[bytes, Meta(max_length=16)]  # 0 or 16; the codec checks that
Seconds = Annotated[float, Meta(ge=0.0, le=float_info.max)]  # so neither infinite nor NaN
How = Literal[0, 1, 2, 3, 4]
Body = Annotated[bytes, Meta(max_length=BODY_LIMIT)]
Head = Annotated[bytes, Meta(max_length=HEAD_LIMIT)]
Numbers = Annotated[tuple[Nat, ...], Meta(max_length=COUNT_LIMIT)]

IdentityFields = tuple[Stage, Nat, Nat]
RegionFields = tuple[Nat, Nat, Nat]
PlaneFields = tuple[Name, Name, Annotated[bytes, Meta(max_length=DESCRIPTOR_LIMIT)]]
HostFields = tuple[Proof, Proof]
GrantedFields = tuple[Nat, RegionFields]
GoneFields = tuple[Nat, Key, Nat, Reason, Detail]
ReportFields = tuple[
    Nat, Annotated[tuple[Nat, ...], Meta(max_length=OPEN_LIMIT)], Nat, Numbers
]  # fmt: skip


class HelloFields(Struct, array_like=True, gc=False):
    """Of a Hello; ``session`` stays first in every major version, for the answer to name."""

    session: Nat
    instance: Who
    identity: IdentityFields
    source: Stage
    wanted: WhoOrNone
    report: ReportFields
    host: HostFields
    planes: Annotated[tuple[PlaneFields, ...], Meta(max_length=PLANE_LIMIT)]
    codecs: Annotated[tuple[Name, ...], Meta(max_length=CODEC_LIMIT)] = ()


class AnyHelloFields(Struct, array_like=True, gc=False):
    """What is common to the Hellos of all versions."""

    session: Nat


class DeclinedFields(Struct, array_like=True, gc=False):
    """Of a Declined; the same in all versions."""

    session: Nat
    reason: Name
    detail: Detail


class LostFields(Struct, array_like=True, gc=False):
    """Of a Lost."""

    session: Nat


class InspectFields(Struct, array_like=True, gc=False):
    """Of an Inspect."""

    number: Nat


class FiguresFields(Struct, array_like=True, gc=False):
    """Of Figures."""

    number: Nat
    body: Annotated[bytes, Meta(max_length=FIGURES_LIMIT)]


class FromReceiver(Struct, array_like=True, gc=False):
    """What a packet to a sender begins with."""

    session: Nat
    sequence: Nat
    report: ReportFields


class FromSender(Struct, array_like=True, gc=False):
    """What a packet to a receiver begins with."""

    session: Nat
    sequence: Nat
    report: None


class SubscribeFields(FromReceiver, array_like=True, gc=False):
    """Of a Subscribe: nothing more."""


class QueryFields(FromReceiver, array_like=True, gc=False):
    """Of a Query."""

    key: Key


class PullFields(FromReceiver, array_like=True, gc=False):
    """Of a Pull."""

    transfer: Nat
    generation: Nat
    target: RegionFields | None
    budget_s: Seconds


class CancelFields(FromReceiver, array_like=True, gc=False):
    """Of a Cancel."""

    transfer: Nat


class GrantsFields(FromReceiver, array_like=True, gc=False):
    """Of Grants."""

    blocks: Annotated[tuple[GrantedFields, ...], Meta(max_length=OPEN_LIMIT)]


class AckFields(FromReceiver, array_like=True, gc=False):
    """Of an Ack."""

    consumed: Numbers


class ByeFields(Struct, array_like=True, gc=False):
    """Of a Bye, either way."""

    session: Nat
    sequence: Nat
    report: ReportFields | None
    viewed: Numbers


class WelcomeFields(FromSender, array_like=True, gc=False):
    """Of a Welcome."""

    instance: Who
    identity: IdentityFields
    host: HostFields
    plane: PlaneFields
    fresh: bool
    credits: bool = False


class SyncedFields(FromSender, array_like=True, gc=False):
    """Of a Synced."""

    number: Nat


class AnnounceFields(FromSender, array_like=True, gc=False):
    """Of an Announce; a body above the limit is frame 1."""

    number: Nat
    key: Key
    generation: Nat
    size: Nat
    how: How
    where: RegionFields | None
    body: Body


class LandedFields(FromSender, array_like=True, gc=False):
    """Of a Landed."""

    number: Nat
    key: Key
    generation: Nat
    size: Nat
    transfer: Nat
    there: bool
    body: Head


class EndedFields(FromSender, array_like=True, gc=False):
    """Of an Ended."""

    records: Annotated[tuple[GoneFields, ...], Meta(max_length=ENDED_LIMIT)]


class OfferFields(FromSender, array_like=True, gc=False):
    """Of an Offer; a body above the limit is frame 1."""

    transfer: Nat
    generation: Nat
    where: RegionFields | None
    body: Body


class DoneFields(FromSender, array_like=True, gc=False):
    """Of a Done."""

    transfer: Nat
    generation: Nat
    size: Nat


class RefusedFields(FromSender, array_like=True, gc=False):
    """Of a Refused."""

    transfer: Nat
    reason: Reason
    detail: Detail
