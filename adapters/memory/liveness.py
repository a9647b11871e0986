"""Proof of death within one process: the hub remembers who has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.memory.hub import Hub

if TYPE_CHECKING:
    from stagelink.core.values import Instance


class HubLiveness:
    """A :class:`stagelink.ports.Liveness`: dead are those who closed, or were killed."""

    def __init__(self, instance: Instance, *, hub: Hub | None = None) -> None:
        self._hub = hub or Hub.default()
        self._instance = instance
        self.host = self._hub.id
        self.proof = instance.hex()

    def is_dead(self, proof: str) -> bool:
        """Whether the owner of *proof* has closed or was killed; who is unknown is not dead."""
        with self._hub.lock:
            return proof in self._hub.dead

    def close(self) -> None:
        """From now on we count as dead. Twice is fine."""
        self._hub.bury(self._instance)
