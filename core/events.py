"""Facts that the endpoint takes (commands of callers, news of the world) and orders it gives.

Facts are in the past tense or are commands; orders are imperative and are performed by a driver in
the order given, each at least once. A *ticket* is the driver's name for a waiting call; a command
with a ticket is answered by exactly one :class:`Complete`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Union

from stagelink.core.pool import SEND, Block, Refusal
from stagelink.core.values import NO_INSTANCE, Instance, Link, PlaneCard, RegionRef

if TYPE_CHECKING:
    from stagelink.core.messages import Message

# --- commands of callers -------------------------------------------------------------------


class Reserve(NamedTuple):
    """Want ``size`` bytes of the pool; answered by Block or Refusal.

    ``use`` is SEND for a put, RECEIVE for what a peer of another protocol is to write.
    """

    ticket: int
    size: int
    deadline_s: float
    use: int = SEND


class Abandon(NamedTuple):
    """The reserved block is not needed any more, and nobody can write to it."""

    block: Block


class Strand(NamedTuple):
    """A write that nobody can call off may still reach the reserved block: quarantine it.

    ``transfer`` names that write until :class:`Ashore`; it is below 0, unlike our own ids.
    """

    block: Block
    transfer: int


class Ashore(NamedTuple):
    """No write of ``transfer`` can land any more. Unknown ones are fine."""

    transfer: int


class Lend(NamedTuple):
    """Want the live payload of ``key`` for ``reader``, who has no conversation with us.

    Answered by Delivery (in ``block`` or ``body``, to be repaid), by Failure where the producer
    published one, or by None: there is none, or not for this reader.
    """

    ticket: int
    to: str
    key: str
    reader: str


class Repay(NamedTuple):
    """A loan of ``generation`` is over; ``taken`` counts the reader."""

    to: str
    generation: int
    reader: str
    taken: bool


class Publish(NamedTuple):
    """The bytes are readable: make them known to the readers of stage ``to``.

    Exactly one of ``block`` and ``body`` carries them, or ``body`` has the first of those in
    ``block``, for readers that cannot look there; ``error`` publishes a failure instead.
    Answered by :class:`Published` or :class:`Failure`; on failure the block is freed.
    """

    ticket: int
    to: str
    key: str
    size: int
    block: Block | None
    body: bytes
    error: str
    readers: int | tuple[str, ...] | None
    ttl_s: float
    replace: bool


class Withdraw(NamedTuple):
    """Take a published key back; answered by True, or False where no such key lives."""

    ticket: int
    to: str
    key: str


class Get(NamedTuple):
    """Want ``key`` of stage ``source`` at ``address``; answered by Delivery or Failure.

    ``generation`` 0 takes the newest; another one, with the ``size`` and ``instance`` of a put's
    metadata, takes that very payload or fails. ``deadline_s`` is inclusive.
    """

    ticket: int
    address: str
    source: str
    key: str
    generation: int
    deadline_s: float
    size: int = 0
    instance: Instance = NO_INSTANCE


class Poll(NamedTuple):
    """Like Get, answered at once: Delivery, Failure or None. Starts a pull where one is needed."""

    ticket: int
    address: str
    source: str
    key: str
    deadline_s: float
    instance: Instance = NO_INSTANCE


class Await(NamedTuple):
    """Want to know the first of ``keys`` that a get would not wait for; takes nothing.

    Answered by that key (its payload is there, or it has expired, failed or been withdrawn) or by
    Failure. ``deadline_s`` is inclusive.
    """

    ticket: int
    address: str
    source: str
    keys: tuple[str, ...]
    deadline_s: float


class Untaken(NamedTuple):
    """A delivery of ``key`` reached no caller: the next get of it is given it."""

    address: str
    key: str
    delivery: Delivery


class StopGet(NamedTuple):
    """The caller of this ticket no longer waits (a get or wait cancelled from outside)."""

    ticket: int
    reason: str


class CancelKey(NamedTuple):
    """End every wait for ``key`` at ``address``; ``reject`` also counts us as its reader.

    A stream's name stands for all its chunks but the first; ``instance`` then says whose stream it
    is, for nothing of another instance is rejected. Answered by the number of waits ended.
    """

    ticket: int
    address: str
    source: str
    key: str
    reject: bool
    instance: Instance = NO_INSTANCE


class Release(NamedTuple):
    """The last view of a delivery has gone."""

    handle: int


class Close(NamedTuple):
    """Refuse what comes, end every wait, cancel what is under way."""


# --- news of the world ---------------------------------------------------------------------


class Connected(NamedTuple):
    """A dialled link is up (again)."""

    link: Link


class Disconnected(NamedTuple):
    """A link is down; what was in flight on it is lost. ``refused``: we are not let in there."""

    link: Link
    detail: str
    refused: bool = False


class Received(NamedTuple):
    """A decoded message arrived on a link."""

    link: Link
    message: Message


class Attached(NamedTuple):
    """The plane can reach the peer's regions; ``error`` is empty, or says why it cannot.

    ``session`` is that of the order: what an earlier conversation asked for says nothing of this.
    """

    peer: Instance
    link: Link
    session: int
    error: str


class WriteEnded(NamedTuple):
    """The write is over, applied at its destination (``error`` empty) or never to be."""

    peer: Instance
    transfer: int
    error: str


class Probed(NamedTuple):
    """Whether the peer is proved dead. Not dead proves nothing."""

    peer: Instance
    dead: bool


class Fenced(NamedTuple):
    """No write to or from this peer can land any more (``fenced``), or the plane cannot tell.

    ``planes`` are ours as they describe themselves from now on, if a fence has changed that: who
    still holds an older description, and lives, can no longer attach by it.
    """

    peer: Instance
    fenced: bool
    planes: tuple[PlaneCard, ...] = ()


class PlaneReset(NamedTuple):
    """The plane was closed and opened again: none of its earlier writes can land any more.

    ``planes`` as in :class:`Fenced`: where opening it again has changed the description.
    """

    planes: tuple[PlaneCard, ...] = ()


class TimePassed(NamedTuple):
    """Let time-outs at or before now happen. Early or twice does nothing."""


Event = Union[
    Reserve, Abandon, Strand, Ashore, Lend, Repay, Publish, Withdraw, Get, Poll, Await, Untaken,
    StopGet, CancelKey, Release, Close, Connected, Disconnected, Received, Attached, WriteEnded,
    Probed, Fenced, PlaneReset, TimePassed,
]  # fmt: skip

# --- answers -------------------------------------------------------------------------------


class Published(NamedTuple):
    """A put has become entry ``generation`` of the log."""

    generation: int


class Delivery(NamedTuple):
    """A payload of ``size`` bytes: in ``body``, in our pool (``block``), or at a peer (``where``).

    Of the latter two ``body`` may have the beginning. ``handle`` (0 for body alone) must be
    released once the last view has gone.
    """

    handle: int
    generation: int
    size: int
    peer: Instance
    body: bytes
    block: Block | None
    where: RegionRef | None

    @property
    def inline(self) -> bool:
        """Whether ``body`` is all of it."""
        return self.block is None and self.where is None


class Failure(NamedTuple):
    """A typed answer that is no payload; the face makes an exception of it."""

    reason: str
    detail: str
    peer: str = ""
    transfer: int = 0
    generation: int = 0


Result = Union[Block, Refusal, Published, Delivery, Failure, str, bool, int, None]

# --- orders --------------------------------------------------------------------------------


class Complete(NamedTuple):
    """Answer the call behind ``ticket``."""

    ticket: int
    result: Result


class Dial(NamedTuple):
    """Keep a connection to ``address``; its link's name is the address itself."""

    link: Link


class HangUp(NamedTuple):
    """Close a dialled link."""

    link: Link


class Send(NamedTuple):
    """Send a message on a link; drop it when the link is down."""

    link: Link
    message: Message


class Attach(NamedTuple):
    """Let the plane map what the peer described in that session.

    Answered by Attached with the same link and session.
    """

    peer: Instance
    link: Link
    session: int
    plane: PlaneCard


class StartWrite(NamedTuple):
    """Post one write from our pool to the peer's region; answered by WriteEnded.

    ``awaited``: the caller that is told of this has nothing else to do.
    """

    peer: Instance
    transfer: int
    source: RegionRef
    target: RegionRef
    awaited: bool = False


class Probe(NamedTuple):
    """Ask the kernel whether the owner of ``proof`` is dead; answered by Probed.

    ``left`` says that it has said goodbye, here and in Fence: its end is no news.
    """

    peer: Instance
    proof: str
    left: bool = False


class Fence(NamedTuple):
    """Cut the peer off from our memory and us from its; ``dead`` says death is proved.

    ``far``: it is on another host, out of reach of planes that do not cross hosts.
    """

    peer: Instance
    dead: bool
    left: bool = False
    far: bool = False


class ResetPlane(NamedTuple):
    """A write is stuck: break the plane; answered by PlaneReset."""


Action = Union[Complete, Dial, HangUp, Send, Attach, StartWrite, Probe, Fence, ResetPlane]
