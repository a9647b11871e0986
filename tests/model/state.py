"""What a world is made of: what may happen in it, and what is true at one moment."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.machines import Kit


class Bounds(NamedTuple):
    """What a world has and how often each adversity may happen in it."""

    mode: str = "pull"  # eager, offer, claim, pull
    puts: int = 1
    gets: int = 1
    polls: int = 0
    cuts: int = 0
    dups: int = 0
    losses: int = 0
    sender_crashes: int = 0
    receiver_crashes: int = 0
    fences: int = 0  # of the living
    write_failures: int = 0
    attach_failures: int = 0
    resets: int = 0
    cancels: int = 0
    rejects: int = 0
    stops: int = 0
    withdraws: int = 0
    greets: int = 0  # greeting again although an answer is under way
    keys: str = "k"
    readers: int | None = 1
    replace: bool = True
    wait_for_room: bool = False
    sender_pages: int = 2
    receiver_pages: int = 1
    max_writes: int = 2
    peer_share: float = 1.0  # no bound

    @property
    def kit(self) -> Kit:
        """What the endpoints are made of."""
        mode = "write" if self.mode == "pull" else "map"
        pages = (self.sender_pages, self.receiver_pages)
        return Kit(mode, *pages, self.max_writes, self.fences > 0, self.peer_share)


class Left(NamedTuple):
    """Budgets not spent yet."""

    puts: int
    gets: int
    polls: int
    cuts: int
    dups: int
    losses: int
    sender_crashes: int
    receiver_crashes: int
    fences: int
    write_failures: int
    attach_failures: int
    resets: int
    cancels: int
    rejects: int
    stops: int
    withdraws: int
    greets: int


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
    """A delivery that a caller of the receiver looks at: in its own block or at the sender's."""

    handle: int
    peer: bytes
    generation: int
    content: int
    block: int  # offsets; -1: not there
    where: int


class Put(NamedTuple):
    """What was published: the truth about a payload."""

    peer: bytes
    generation: int
    key: str
    content: int


class State(NamedTuple):
    """Everything; endpoints and messages by their number in :class:`Machines`."""

    sender: int
    receiver: int
    lives: tuple[int, int]  # the number of the present (or last) life of each
    link: int  # the connection that is up, 0 for none
    links: int  # connections so far
    late: tuple[int, ...]  # connections of whose end the sender has not heard
    dialled: bool
    to_sender: tuple[int, ...]
    to_receiver: tuple[int, ...]
    ghost: tuple[str, int] | None  # a copy that may arrive once more: to whom, which message
    writes: tuple[Write, ...]
    tasks: tuple[tuple[Any, ...], ...]  # what a driver was told to do and has not done
    attached: bool  # the sender's plane reaches the receiver's pool
    source: tuple[int, ...]  # content of each page of the sender's pool
    target: tuple[int, ...]
    views: tuple[View, ...]
    waiting: tuple[tuple[int, str, str], ...]  # unanswered tickets: ticket, what, key
    tickets: int
    contents: int
    published: tuple[Put, ...]
    delivered: tuple[tuple[bytes, bytes, int], ...]  # receiver, sender, generation
    started: tuple[tuple[bytes, bytes, int], ...]  # sender, receiver, transfer
    left: Left


class Violation(Exception):
    """An invariant does not hold."""
