"""Bulk bytes from one process's pool to another's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory


class Capabilities(NamedTuple):
    """What differs between planes, as data that the core and the composition read.

    Attributes:
        mode: ``map`` (a reader uses the owner's pages) or ``write`` (the owner of the data writes
            into the reader's pool).
        memory_kind: the kind of memory the pool must be made of.
        crosses_hosts: peers on other hosts can be reached.
        survives_owner: mapped pages stay readable after their owner's death.
        can_fence: :meth:`DataPlane.fence` can cut off a peer that is alive.
    """

    mode: str
    memory_kind: str
    crosses_hosts: bool
    survives_owner: bool
    can_fence: bool


class WriteOrder(NamedTuple):
    """Copy ``source`` of our region into ``target`` of the peer's; the sizes are equal.

    ``awaited``: whoever posts it has nothing else to do, and may be kept for a millisecond.
    """

    peer: Instance
    transfer: int
    source: RegionRef
    target: RegionRef
    awaited: bool = False


class DataPlane(Protocol):
    """Moves bytes between registered regions. May be slow, never silent.

    Any thread may call it, several at once; only :meth:`attach`, :meth:`fence`, :meth:`reset` and
    :meth:`close` may take long. Remote numbers are checked here once more before use.
    """

    capabilities: Capabilities

    def register(self, region: int, memory: Memory) -> None:
        """Make our *memory* reachable as *region*.

        Raises:
            TransportError: the plane cannot use this memory; says why and what to do.
        """
        ...

    def describe(self) -> bytes:
        """What a peer's :meth:`attach` needs to reach our regions; at most 4 KiB."""
        ...

    def attach(self, peer: Instance, descriptor: bytes) -> None:
        """Map (and populate) what *peer* described. Again for the same peer replaces it.

        Raises:
            TransportError: it cannot be reached or is malformed; says why and what to do.
        """
        ...

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """The bytes of a peer's region, in place (``map`` planes).

        The mapping lives as long as the view or anything made from it.

        Raises:
            TransportError: not attached, or out of bounds.
        """
        ...

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Start a write and return (``write`` planes).

        *done* is called exactly once, from any thread, possibly before post returns: with an
        empty string when every byte is applied at the destination, else with the error, after
        which no byte of it can land.
        """
        ...

    def fence(self, peer: Instance, dead: bool) -> bool:
        """After True no write between us and *peer* can land, and its mappings are dropped.

        *dead* says that the kernel has proved its death. False: cannot tell, nothing changed.

        A living peer may be about to attach, told to before it was cut off: after True it must not
        succeed by any description of ours but a later one (:meth:`describe` is asked again).
        """
        ...

    def reset(self) -> None:
        """Break every write under way (each ends with an error) and start afresh."""
        ...

    def close(self) -> None:
        """End all writes, drop all mappings that nobody views. Twice is fine."""
        ...
