"""What an adapter that speaks another connector's protocol needs of ours, and of a data plane.

Such a peer has no instance and no conversation with us. It shows *cards*, packed descriptors of
its engine and of its memory, and writes go to and fro by those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.events import Failure
    from stagelink.core.pool import Block, Refusal
    from stagelink.core.values import RegionRef


class ForeignCard(NamedTuple):
    """How an engine is reached, in its own packed form; opaque to all but the plane.

    Attributes:
        engine: the packed descriptor of the engine (Mori: ``EngineDesc.pack()``).
        memory: that of the memory it has registered (Mori: ``MemoryDesc.pack()``).
    """

    engine: bytes
    memory: bytes


class ForeignOrder(NamedTuple):
    """Copy ``source`` of our region to ``offset`` of the memory that ``card`` describes.

    ``number`` is never used again by the one who orders.
    """

    number: int
    source: RegionRef
    card: ForeignCard
    offset: int


class ForeignWriter(Protocol):
    """A data plane that also reaches peers that do not speak our protocol.

    It is the plane's own attribute ``foreign``, lives and closes with it, and any thread may call
    it. Every number of a peer is checked here once more before use.
    """

    def card(self, region: int) -> ForeignCard:
        """What a peer needs to write into our *region*."""
        ...

    def post(self, order: ForeignOrder, done: Callable[[ForeignOrder, str], None]) -> None:
        """Start a write and return.

        *done* is called exactly once, from any thread, possibly before post returns: with an empty
        string when every byte is applied at the destination, else with the error, after which no
        byte of it can land. So it is when the plane is reset or closed.

        Raises:
            TransportError: the card is no descriptor, its two parts are not of one engine, or the
                range is outside of our region or of its memory. Then nothing has begun, and
                *done* is not called.
        """
        ...

    def fence(self) -> bool:
        """After True no peer can write by any card of ours given before; :meth:`card` is new.

        Writes of peers into our regions may break by it; ours into theirs go on. It may take long.
        False: the plane cannot tell, nothing changed.
        """
        ...


class Loan(NamedTuple):
    """A payload of ours, lent to a foreign reader until it is repaid.

    Attributes:
        to, key, generation: which it is.
        value: the decoded value; tensors in it are views.
        where: where the value's bytes lie in the pool, if it is nothing but such bytes (one
            tensor, or bytes); None: they must be made.
    """

    to: str
    key: str
    generation: int
    value: Any
    where: RegionRef | None


class ForeignStore(Protocol):
    """A connector's pool and logs, for who answers foreign peers. No call waits.

    Any thread may call it. Blocks are given back exactly once: by :meth:`free`, or by
    :meth:`strand` and :meth:`ashore`.
    """

    def newest(self, to: str, key: str) -> int:
        """The generation that is live under *key*; 0: none."""
        ...

    def lend(self, to: str, key: str) -> Loan | Failure | None:
        """The live payload of *key*, to be repaid; its failure; or None: not (for us) there.

        Raises:
            StagelinkError: it cannot be decoded (and has been repaid).
        """
        ...

    def repay(self, loan: Loan, *, taken: bool) -> None:
        """End a loan; *taken* counts its reader."""
        ...

    def reserve(self, size: int, *, receive: bool) -> Block | Refusal:
        """A block of *size* bytes now, or why there is none."""
        ...

    def fill(self, block: Block, data: memoryview) -> None:
        """Copy host bytes to the beginning of a block; they are there afterwards.

        Raises:
            TransportError: the pool is closed.
        """
        ...

    def free(self, block: Block) -> None:
        """Take a reserved block back that nobody can write to."""
        ...

    def strand(self, block: Block, transfer: int) -> None:
        """Quarantine a reserved block, for foreign write *transfer* (below 0) may reach it."""
        ...

    def ashore(self, transfer: int) -> None:
        """No write of *transfer* can land any more."""
        ...
