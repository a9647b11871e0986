"""One conversation between a receiver and a sender, and what both agree on first."""

# Receiver: IDLE --dial--> DIALING --Connected--> GREETING --Welcome--> ATTACHING --> OPEN
#           GREETING, ATTACHING, OPEN --Disconnected--> DIALING
#           any --Declined, Disconnected(refused)--> DECLINED --Connected--> GREETING
# Sender:   (none) --Hello--> ATTACHING --> OPEN --Disconnected, gap--> CLOSED --Hello--> ...
# A message out of sequence ends the conversation; what follows is greeted for anew.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stagelink.core.values import PlaneCard

IDLE = "idle"
DIALING = "dialing"
GREETING = "greeting"
ATTACHING = "attaching"
OPEN = "open"
CLOSED = "closed"
DECLINED = "declined"


class Session(NamedTuple):
    """A conversation's state and number, and how many messages went each way."""

    state: str = IDLE
    number: int = 0
    sent: int = 0
    taken: int = 0


class OwnPlane(NamedTuple):
    """A plane of ours as the negotiation sees it."""

    card: PlaneCard
    crosses_hosts: bool


def choose(
    ours: tuple[OwnPlane, ...], theirs: tuple[PlaneCard, ...], same_host: bool
) -> OwnPlane | None:
    """The first of *ours* that the peer has too (name and mode) and that can reach it."""
    known = {(card.name, card.mode) for card in theirs}
    for plane in ours:
        if (plane.card.name, plane.card.mode) in known and (same_host or plane.crosses_hosts):
            return plane
    return None


def why_no_route(
    ours: tuple[OwnPlane, ...], theirs: tuple[PlaneCard, ...], same_host: bool
) -> str:
    """The sentence for a refusal: both lists, and whether the host was the obstacle."""
    mine = ", ".join(plane.card.name for plane in ours) or "none"
    yours = ", ".join(card.name for card in theirs) or "none"
    where = "the same host" if same_host else "another host (boot id or shared memory differ)"
    return f"no shared data plane: sender has {mine}; receiver, on {where}, has {yours}"
