"""What an act needs of its world: the simulated one, or that of real threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import Counter, deque
    from collections.abc import Callable, Mapping

    from tests.simulation.whole.books import Books, Put

    from stagelink.connector import Connector

SENDS: Mapping[str, tuple[str, ...]] = {"a": ("b",), "b": ("c",), "c": ("b",)}
RECEIVES: Mapping[str, tuple[str, ...]] = {"a": (), "b": ("a", "c"), "c": ("b",)}
"""Who sends to whom, by stage: b and c to one another."""


class Clock(Protocol):
    """Time, and what is noted."""

    seen: Counter[str]

    @property
    def now_s(self) -> float:
        """Seconds."""
        ...

    def note(self, who: str, what: object) -> None:
        """One line of the trace."""
        ...

    def block(self, timeout_s: float) -> None:
        """Sleep."""
        ...


class Node(Protocol):
    """Whoever holds a connector."""

    name: str
    instance: bytes
    process: Any
    connector: Connector
    held: deque[Callable[[], None]]

    @property
    def stage(self) -> str:
        """The stage's name."""
        ...


class Opened(Node, Protocol):
    """A node whose connector is open; ``published`` counts what its core has published."""

    driver: Any
    published: int


class Surroundings(Protocol):
    """A world; ``slack_s`` is how late a call may end, ``flips`` how often bytes are changed."""

    books: Books
    operations: int
    keeps: float
    linger_s: float
    flips: float
    slack_s: float
    sends: Mapping[str, tuple[str, ...]]
    receives: Mapping[str, tuple[str, ...]]
    receipts: deque[tuple[Put, dict[str, Any]]]

    @property
    def works(self) -> Clock:
        """Its clock."""
        ...
