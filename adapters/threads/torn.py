"""What stands in for a core that was interrupted in the middle of a step.

A signal's handler may raise between any two steps of the interpreter, also within the core,
whose state then is half the old one and half the new. Nothing can be built on that: every call is
refused from then on, so that nobody waits for what will not come, and close() gives back the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Complete, Failure

if TYPE_CHECKING:
    from stagelink.core.endpoint import Endpoint
    from stagelink.core.events import Action, Event

TORN = "the connector was interrupted in the middle of a step; close it"
FAILURE = Failure(Reason.CLOSED.value, TORN)


class Torn:
    """The parts of an endpoint that may be looked at, and a refusal for every call."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.settings = endpoint.settings
        self.pool = endpoint.pool
        self.peers = endpoint.peers
        self.outgoing = endpoint.outgoing
        self.incoming = endpoint.incoming

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Refuse what is a call, and hear nothing else."""
        del now_s
        ticket = getattr(event, "ticket", None)
        return [] if ticket is None else [Complete(ticket, FAILURE)]

    def next_deadline(self) -> float | None:
        """Nothing is waited for."""
        return None
