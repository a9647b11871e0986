"""What travels on the control channel.

A session is one conversation of a receiver (which dials) with a sender. Every message but Hello,
Declined, Lost and the two asides travels in a :class:`Packet`: the session's number and the
message's place in it. Each side takes an exact prefix of what the other sent in that session; a
gap ends the session and the receiver greets again. That one rule turns loss, duplication and
reordering into a cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from stagelink.core.values import HostCard, Identity, Instance, PlaneCard, RegionRef

OPEN_LIMIT = 64
"""Transfer ids a receiver may have open towards one sender; more wait."""

ENDED_LIMIT = 64
"""Ends of payloads that one message tells; a batch of consumed ones is answered by one."""

HEAD_LIMIT = 4096
"""Bytes of a payload's beginning that are told of it where it lies elsewhere."""

# How an announced payload is had.
INLINE = 0  # its bytes came with the announcement: an offer
OFFER = 1  # mapped where it lies: an offer, a lease already given
CLAIM = 2  # to be asked for with a Pull without target; answered by an Offer
PULL = 3  # to be asked for with a Pull into a block of the receiver
ERROR = 4  # the producer failed: the announcement itself is the news


class Report(NamedTuple):
    """The receiver's side of the books, on every packet to a sender.

    Transfer ids below ``low_water`` have ended, except ``open_ids`` (still pulling, claiming,
    draining or viewed). Log records up to ``cursor`` are known. ``held`` lists the offered
    generations that are gone from the log up to there, yet still have a live view.
    """

    low_water: int
    open_ids: tuple[int, ...]
    cursor: int
    held: tuple[int, ...]


class Hello(NamedTuple):
    """Receiver to sender, first on a connection: let us talk (again).

    ``codecs`` names the compressors that the receiver can undo.
    """

    session: int
    instance: Instance
    identity: Identity
    source: str
    wanted: Instance
    report: Report
    host: HostCard
    planes: tuple[PlaneCard, ...]
    codecs: tuple[str, ...] = ()


class Welcome(NamedTuple):
    """Sender to receiver: the route we take, and whether the log starts over (``fresh``).

    ``credits`` says that the sender writes into blocks that are lent to it.
    """

    instance: Instance
    identity: Identity
    host: HostCard
    plane: PlaneCard
    fresh: bool
    credits: bool = False


class Declined(NamedTuple):
    """Sender to receiver: no session, and why."""

    session: int
    reason: str
    detail: str


class Lost(NamedTuple):
    """Sender to receiver: I do not know (or no longer follow) this session; greet again."""

    session: int


class Subscribe(NamedTuple):
    """Receiver to sender: attached; send the log from my cursor on."""


class Synced(NamedTuple):
    """Sender to receiver: at Subscribe the log ended at ``number``."""

    number: int


class Announce(NamedTuple):
    """Sender to receiver: log record ``number`` published ``size`` bytes under ``key``.

    ``body`` is all of them (INLINE) or why there are none (ERROR), else their beginning or empty:
    what lies on a device is so known without a look there.
    """

    number: int
    key: str
    generation: int
    size: int
    how: int
    where: RegionRef | None
    body: bytes


class Gone(NamedTuple):
    """Log record ``number``: ``generation`` is no more."""

    number: int
    key: str
    generation: int
    reason: str
    detail: str


class Ended(NamedTuple):
    """Sender to receiver: the next ends in the log, up to :data:`ENDED_LIMIT` of them."""

    records: tuple[Gone, ...]


class Query(NamedTuple):
    """Receiver to sender: announce ``key`` again if it lives; I had to forget."""

    key: str


class Pull(NamedTuple):
    """Receiver to sender: write ``generation`` to ``target``, or offer it (None)."""

    transfer: int
    generation: int
    target: RegionRef | None
    budget_s: float


class Granted(NamedTuple):
    """A block of the receiver that may be written into once, under that transfer id."""

    transfer: int
    target: RegionRef


class Grants(NamedTuple):
    """Receiver to sender: blocks lent for puts to come. Each is asked back by a Cancel."""

    blocks: tuple[Granted, ...]


class Landed(NamedTuple):
    """Sender to receiver: a record like Announce, of what is written into a lent block.

    ``there`` says that all bytes are: the end of that transfer. Else its end is still to come.
    ``body`` is as for Announce.
    """

    number: int
    key: str
    generation: int
    size: int
    transfer: int
    there: bool
    body: bytes


class Offer(NamedTuple):
    """Sender to receiver: the claimed payload, in place (``body``: its beginning) or as bytes."""

    transfer: int
    generation: int
    where: RegionRef | None
    body: bytes


class Done(NamedTuple):
    """Sender to receiver: all ``size`` bytes are in the target."""

    transfer: int
    generation: int
    size: int


class Refused(NamedTuple):
    """Sender to receiver: the transfer has ended or never began; no write of it follows."""

    transfer: int
    reason: str
    detail: str


class Cancel(NamedTuple):
    """Receiver to sender: end this transfer and tell me when no write of it can follow."""

    transfer: int


class Ack(NamedTuple):
    """Receiver to sender: my report, and the generations I have consumed."""

    consumed: tuple[int, ...]


class Bye(NamedTuple):
    """Either way: I was closed. News for people and for who waits; proves and frees nothing.

    Transfers under way go on, and what they owe is still told; nothing new begins. ``viewed`` are
    generations that a receiver still views where they lie: its end will be that of their use, and
    until then it may touch them. Of many a receiver tells in several.
    """

    viewed: tuple[int, ...] = ()


ToSender = Union[Subscribe, Query, Pull, Cancel, Grants, Ack, Bye]
ToReceiver = Union[Welcome, Synced, Announce, Landed, Ended, Offer, Done, Refused, Bye]


class Packet(NamedTuple):
    """A message in its session: ``sequence`` counts from 0 each way."""

    session: int
    sequence: int
    report: Report | None
    message: ToSender | ToReceiver


Message = Union[Hello, Declined, Lost, Packet]
"""What endpoints say to each other."""


class Inspect(NamedTuple):
    """Anybody to a connector that listens: show me your figures."""

    number: int


class Figures(NamedTuple):
    """The answer to the Inspect of that ``number``: health() as JSON."""

    number: int
    body: bytes


Aside = Union[Inspect, Figures]
"""Beside every session: the driver answers, and no endpoint ever hears of it."""

FIGURES_LIMIT = 64 << 10
"""Bytes of JSON in one answer."""
