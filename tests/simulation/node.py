"""One process of the simulated world: an endpoint, its memory, its callers and their views."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.endpoint import Endpoint
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from stagelink.core.events import Event

ALIGNMENT = 64
POLICY = TimeoutPolicy(transfer_base_s=0.3, ttl_s=10.0, stuck_base_s=3.0, settle_s=0.05)
FREED = 0xDD
"""What freed memory is filled with, so that nobody reads it unnoticed."""


class Violation(AssertionError):
    """The world saw something that must never happen."""


class Ticket(NamedTuple):
    """A call that waits for its answer; ``info`` is the caller's own."""

    kind: str
    deadline_s: float
    info: Any = None


class View(NamedTuple):
    """Bytes that a caller looks at until it lets go: of ``memory``, the pool of ``owner``."""

    owner: bytes
    memory: bytearray
    offset: int
    expected: bytes

    @property
    def whole(self) -> bool:
        """Whether the bytes are what was published."""
        return self.memory[self.offset : self.offset + len(self.expected)] == self.expected


class Node:
    """A process, dead or alive; a restart makes it another instance with other memory."""

    def __init__(self, name: str, identity: Identity, mode: str, *, can_fence: bool) -> None:
        self.name, self.identity = name, identity
        self.mode, self.can_fence = mode, can_fence
        self.credit_share = 0.0
        self.starts = 0
        self.alive = False

    def start(self, capacity: int) -> None:
        """Open a new instance."""
        self.starts += 1
        self.instance = f"{self.name}{self.starts}".encode().ljust(16, b".")
        self.memory = bytearray(capacity)
        card = PlaneCard("plane", self.mode, self.instance)
        self.settings = Settings(
            self.instance, self.identity, HostCard("host", self.instance.hex()),
            (OwnPlane(card, crosses_hosts=False),), POLICY, 256, 2, self.starts << 20,
            self.can_fence, 3.0, credit_share=self.credit_share,
        )  # fmt: skip
        self.endpoint = Endpoint(self.settings, Pool(capacity, ALIGNMENT, pool_id=self.starts))
        self.alive = True
        self.paused = False
        self.woke_s = -1.0
        self.closed = False
        self.due: float | None = None
        self.waiting: deque[Event] = deque()
        self.tickets: dict[int, Ticket] = {}
        self.views: dict[int, View] = {}
        self.live: dict[int, tuple[int, int]] = {}  # serial -> offset, size
        self.attached: dict[bytes, bool] = {}
        self.dialled: dict[str, bool] = {}
        self.delivered: dict[tuple[bytes, int], float] = {}
        self.plane_free_s = 0.0

    def block_at(self, offset: int) -> tuple[Any, ...] | None:
        """The live block that begins at *offset*: a row of the pool."""
        for row in self.endpoint.pool.freeze(0.0)[2]:
            if row[0] == offset:
                return tuple(row)
        return None

    def changed_blocks(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The ranges freed and handed out since the last call; freed ones are overwritten."""
        now = {row[2]: (row[0], row[1]) for row in self.endpoint.pool.freeze(0.0)[2]}
        freed = [span for serial, span in self.live.items() if serial not in now]
        handed = [span for serial, span in now.items() if serial not in self.live]
        self.live = now
        for offset, size in freed:
            self.memory[offset : offset + size] = bytes([FREED]) * size
        return freed, handed


def overlap(offset: int, size: int, other: int, other_size: int) -> bool:
    """Whether two ranges share a byte."""
    return offset < other + other_size and other < offset + size
