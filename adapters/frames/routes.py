"""The way to one peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink.adapters.frames.outgoing import Job, Outgoing
    from stagelink.adapters.frames.wire import Description


class Route:
    """A peer that we write to: what it said of itself, and the connection, if there is one."""

    __slots__ = ("connection", "dialled", "told", "waiting")

    def __init__(self, told: Description, connection: Outgoing | None) -> None:
        self.told = told
        self.connection = connection
        self.waiting: list[Job] = []
        self.dialled = False

    @property
    def good(self) -> Outgoing | None:
        """The connection, while it takes writes."""
        found = self.connection
        return found if found is not None and found.usable else None
