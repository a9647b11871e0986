"""A get of what one of their senders has put: its states, and who waits for it."""

# ASKING --not there--> RESTING (dropped, if nobody waits) --a moment later--> ASKING
# ASKING --info, room--> PULLING --done--> LANDED --taken, or kept too long--> gone
#                        PULLING --error--> RESTING, its block free
#                        PULLING --silence--> LATE (stranded) --answer, fence, proof--> gone

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple, Union

from stagelink.adapters.vllm_omni_mori import troubles
from stagelink.core.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.vllm_omni_mori.figures import Figures
    from stagelink.core.pool import Block
    from stagelink.ports.foreign import ForeignStore

ASKING, RESTING, PULLING, LATE = "asking", "resting", "pulling", "late"


class Ref(NamedTuple):
    """Which payload: the sender's address, and the request id."""

    address: str
    request: str


class Landed(NamedTuple):
    """A payload in ``block`` of our pool, which whoever has this gives back.

    ``plain`` says that its ``size`` bytes are the value, else they are packed.
    """

    block: Block
    size: int
    plain: bool


class Bounds(NamedTuple):
    """Seconds and bytes that the client keeps to.

    Attributes:
        query_s: silence after a question, then it is asked anew.
        pull_s: how long a pull of so many bytes may be silent, then its block is stranded.
        keep_s: how long a payload that came for nobody is kept for the next get.
        fence_s: how long a block is stranded before a fence is tried.
        share_bytes: what one sender may keep stranded and be asked for more.
    """

    query_s: float
    pull_s: Callable[[int], float]
    keep_s: float
    fence_s: float
    share_bytes: int


Outcome = Union[Landed, StagelinkError]


class Waiter(NamedTuple):
    """A call that waits until ``deadline_s``; ``settle`` is called once with its outcome.

    ``info`` is size and plainness, if the caller knows them: then nobody need ask.
    """

    deadline_s: float
    settle: Callable[[Outcome], object]
    info: tuple[int, bool] | None = None


class Pull:
    """One get under way. ``number`` is never used again; ``due_s`` is when silence means trouble.

    Attributes:
        overdue: it has been stranded for so long that a fence should free its block.
        unwanted: it was cancelled: what lands is dropped.
        trouble: what a deadline should tell of, if anything is known.
    """

    __slots__ = (
        "block", "due_s", "number", "overdue", "pause_s", "plain", "ref", "size",
        "state", "trouble", "unwanted", "waiters",
    )  # fmt: skip

    def __init__(self, ref: Ref, number: int) -> None:
        self.ref = ref
        self.number = number
        self.state = ASKING
        self.due_s = 0.0
        self.pause_s = 0.0
        self.waiters: list[Waiter] = []
        self.block: Block | None = None
        self.size = 0
        self.plain = False
        self.overdue = False
        self.unwanted = False
        self.trouble: StagelinkError | None = None

    def settle(self, outcome: Outcome) -> None:
        """Answer everybody who waits."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.settle(outcome)

    def dismiss(self, now_s: float) -> None:
        """Send those home whose deadline is at or before *now_s*."""
        over = [waiter for waiter in self.waiters if waiter.deadline_s <= now_s]
        if over:
            self.waiters = [waiter for waiter in self.waiters if waiter.deadline_s > now_s]
            told = self.trouble or troubles.too_late()
            for waiter in over:
                waiter.settle(told)


class Kept:
    """What came for nobody, until the next one asks or it has been kept too long.

    Attributes:
        landed: whoever pops it, on any thread, has it.
    """

    __slots__ = ("_figures", "_store", "_until", "landed")

    def __init__(self, store: ForeignStore, figures: Figures) -> None:
        self._store = store
        self._figures = figures
        self._until: dict[Ref, float] = {}
        self.landed: dict[Ref, Landed | StagelinkError] = {}

    def keep(self, ref: Ref, what: Landed | StagelinkError, until_s: float) -> None:
        """Keep *what* until then; what was kept before is dropped."""
        self.forget(ref)
        self._until[ref] = until_s
        self.landed[ref] = what

    def take(self, ref: Ref) -> Landed | StagelinkError | None:
        """Hand it over."""
        return self.landed.pop(ref, None)

    def forget(self, ref: Ref) -> None:
        """Drop what is kept for *ref*, if there is anything."""
        self._until.pop(ref, None)
        found = self.landed.pop(ref, None)
        if isinstance(found, Landed):
            self._figures.lost += 1
            self._store.free(found.block)

    def forget_until(self, now_s: float) -> None:
        """Drop what was to be kept until *now_s* at most."""
        for ref in [ref for ref, until_s in self._until.items() if until_s <= now_s]:
            self.forget(ref)

    def next_deadline(self) -> float:
        """When something is to be dropped."""
        return min(self._until.values(), default=inf)


# --- orders: what the sockets are to do --------------------------------------------------------


class Ask(NamedTuple):
    """Send ``body`` to ``address`` on the socket of ``number``, which is new or has answered."""

    number: int
    address: str
    body: bytes


class Rest(NamedTuple):
    """The socket of ``number`` has answered and may serve another."""

    number: int


class Leave(NamedTuple):
    """Close the socket of ``number``: an answer on it would mean nothing any more."""

    number: int


Order = Union[Ask, Rest, Leave]
