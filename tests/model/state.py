"""What a world is made of: what may happen in it, and what is true at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from stagelink.core.streams import Progress

PLACES = {"pair": "sr", "two": "srq", "glare": "sr"}
"""Who is there: "s" sends; "r" and "q" receive from it. In a glare "r" sends to "s" as well."""

DIALS = {"pair": (("r", "s"),), "two": (("r", "s"), ("q", "s")), "glare": (("r", "s"), ("s", "r"))}
"""Who dials whom."""


class Bounds(NamedTuple):
    """What a world has and how often each adversity may happen in it."""

    mode: str = "pull"  # eager, offer, claim, pull
    puts: int = 1
    gets: int = 1
    polls: int = 0
    waits: int = 0  # for the first of all keys
    cuts: int = 0
    dups: int = 0
    losses: int = 0
    sender_crashes: int = 0
    receiver_crashes: int = 0
    fences: int = 0  # of the living
    unfenced: int = 0  # fences of which the plane cannot tell
    write_failures: int = 0
    attach_failures: int = 0
    resets: int = 0
    cancels: int = 0
    rejects: int = 0
    stops: int = 0
    withdraws: int = 0
    greets: int = 0  # greeting again although an answer is under way
    errors: int = 0  # publishes that say that nothing comes
    chunks: int = 0  # of a stream, beside its end
    aborts: int = 0  # of a stream
    untaken: int = 0  # deliveries that reach no caller
    closes: int = 0
    places: str = "pair"
    keys: str = "k"
    readers: int | None = 1
    replace: bool = True
    wait_for_room: bool = False
    sender_pages: int = 2
    receiver_pages: int = 1
    max_writes: int = 2
    peer_share: float = 1.0  # no bound
    credits: bool = False  # half of the receiver's pool may be lent
    inbox: int = 65_536
    met: bool = False  # the conversations are open when the world begins
    start: tuple[
        str, ...
    ] = ()  # calls made before that, as "put s k"; "mail": all that is sent; "writes": and written
    silent: bool = False  # coming to rest is tried with each place silent for ever, too
    limits: tuple[tuple[str, int], ...] = ()  # "module.NAME" of the core, and its value


class Left(NamedTuple):
    """Budgets not spent yet."""

    puts: int
    gets: int
    polls: int
    waits: int
    cuts: int
    dups: int
    losses: int
    sender_crashes: int
    receiver_crashes: int
    fences: int
    unfenced: int
    write_failures: int
    attach_failures: int
    resets: int
    cancels: int
    rejects: int
    stops: int
    withdraws: int
    greets: int
    errors: int
    chunks: int
    aborts: int
    untaken: int
    closes: int


class Wire(NamedTuple):
    """A dialled connection: ``link`` is its present number, 0 while it is down."""

    dialer: str
    listener: str
    link: int = 0
    links: int = 0  # so far
    late: tuple[int, ...] = ()  # those of whose end the listener has not heard
    dialled: bool = False
    to_listener: tuple[int, ...] = ()  # messages, by their number in Machines
    to_dialer: tuple[int, ...] = ()


class Write(NamedTuple):
    """A posted write: it may land until it is over; a ``doomed`` one can only end with an error."""

    sender: bytes
    receiver: bytes
    transfer: int
    source: int  # offsets
    target: int
    content: int
    doomed: bool = False


class View(NamedTuple):
    """A delivery that a caller at ``place`` looks at: in its own block or at the sender's."""

    place: str
    handle: int
    peer: bytes
    generation: int
    content: int
    block: int  # offsets; -1: not there
    where: int
    key: str
    delivery: Any  # kept while it may still turn out that it reached no caller


class Put(NamedTuple):
    """What was published: the truth about a payload; content 0 is an error's."""

    peer: bytes
    generation: int
    key: str
    content: int


class Call(NamedTuple):
    """An unanswered call; ``content`` is what a put publishes."""

    ticket: int
    place: str
    what: str
    key: str
    content: int = 0


class Reading(NamedTuple):
    """How far the stream of ``giver`` has got at ``place``: its writer there, or its reader."""

    place: str
    giver: str
    progress: Progress
    state: str = ""  # "", "over" or "broken"
    instance: bytes = b""


class State(NamedTuple):
    """Everything; endpoints and messages by their number in :class:`Machines`."""

    nodes: tuple[int, ...]  # the endpoint at each place, 0 for none
    lives: tuple[int, ...]  # the number of the present (or last) life of each
    wires: tuple[Wire, ...]
    ghost: tuple[int, str, int] | None  # a copy that may arrive again: wire, to whom, message
    writes: tuple[Write, ...]
    tasks: tuple[tuple[Any, ...], ...]  # what a driver was told to do and has not done
    attached: tuple[tuple[bytes, bytes], ...]  # whose plane reaches whose pool
    editions: tuple[int, ...]  # of each place's description of its plane
    barred: tuple[tuple[bytes, bytes, int], ...]  # who may attach whom from which edition on only
    memory: tuple[tuple[int, ...], ...]  # content of each page, place by place
    views: tuple[View, ...]
    waiting: tuple[Call, ...]
    tickets: int
    contents: int
    published: tuple[Put, ...]
    delivered: tuple[tuple[bytes, bytes, int], ...]  # receiver, sender, generation
    started: tuple[tuple[bytes, bytes, int], ...]  # sender, receiver, transfer
    readings: tuple[Reading, ...]
    left: Left


class Violation(Exception):
    """An invariant does not hold."""
