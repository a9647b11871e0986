"""Proof of death on one host."""

from __future__ import annotations

from typing import Protocol


class Liveness(Protocol):
    """Something the kernel takes from a process when it dies, and a fork cannot keep."""

    @property
    def host(self) -> str:
        """Equal for two processes only when each can judge the other's :attr:`proof`."""
        ...

    @property
    def proof(self) -> str:
        """What a peer passes to :meth:`is_dead` to ask about us; empty when there is none."""
        ...

    def is_dead(self, proof: str) -> bool:
        """Whether the owner of *proof* is dead for certain. False proves nothing.

        May open files; never blocks. *proof* comes from a peer: a malformed one is not dead.
        """
        ...

    def close(self) -> None:
        """Give the proof up: from now on we count as dead. Twice is fine."""
        ...
