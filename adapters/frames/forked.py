"""What a forked child does about its parent's sockets: it closes its copies of them.

Else they would keep the connections up when the parent has died, and whoever waits for their end
would wait for the child's.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Held(Protocol):
    """What a forked child has copies of."""

    def let_go(self) -> None:
        """Close them; called in the child only."""


def let_go_in_children(held: Held) -> None:
    """Have every child that is forked from now on let go of *held*, for as long as it lives."""
    _HELD.add(held)


def _forked() -> None:
    for held in list(_HELD):
        held.let_go()


_HELD: WeakSet[Held] = WeakSet()
os.register_at_fork(after_in_child=_forked)
