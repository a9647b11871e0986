"""The nouns of the protocol: who, which bytes, where.

An *instance* is 16 random bytes per ``open()``; a *generation* is one counter per sender instance,
taken at every publish and never reused, so that (instance, generation) names a payload and the key
is its label; a *transfer id* is a counter per receiver instance, never reused either.
"""

from __future__ import annotations

from typing import NamedTuple

new = tuple.__new__
"""``new(Kind, values)``: a named tuple from all its values in order, for paths that count in
microseconds. Its own constructor is one more Python function, there only for names and defaults.
"""

Instance = bytes
"""16 random bytes that name one ``open()`` of one connector."""

Link = str
"""A connection of the control channel, named by its adapter; opaque to the core."""

NO_INSTANCE: Instance = b""
"""Any instance: in a Hello to a peer never met."""


class Identity(NamedTuple):
    """Who a connector is across restarts: readers are counted by it."""

    stage: str
    replica: int = 0
    rank: int = 0

    def __str__(self) -> str:
        """``stage``, or ``stage/replica/rank`` where those are not zero."""
        return self.stage if not (self.replica or self.rank) else "/".join(map(str, self))


class RegionRef(NamedTuple):
    """A byte range of a registered region: ``[offset, offset + size)``, sizes in bytes."""

    region: int
    offset: int
    size: int


class PlaneCard(NamedTuple):
    """One data plane as its owner offers it to a peer."""

    name: str
    mode: str
    descriptor: bytes


class HostCard(NamedTuple):
    """What tells two processes whether they share a host, and how to prove death there.

    ``host`` is equal on both sides only when they share kernel and shared memory; ``proof`` names
    what :class:`stagelink.ports.Liveness` asks about, empty when there is nothing to ask.
    """

    host: str
    proof: str
