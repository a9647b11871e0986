"""What a peer may say wrongly although each of its messages is well-formed."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from stagelink.core.errors import Reason


class Violation(str, Enum):
    """Why something that a peer said was refused: the words of ``health()["violations"]``.

    Nothing that an honest peer does is counted, whatever is lost, repeated or late.
    """

    IDENTITY = "identity"
    """A greeting as somebody who is already known, elsewhere or by another proof of life."""
    ROUTE = "route"
    """A data plane that we do not have, or a pull that the agreed one does not serve."""
    REGION = "region"
    """A range of bytes that is not the payload's size."""
    GENERATION = "generation"
    """A payload's number that no payload has, or that another key's has."""
    ANSWER = "answer"
    """An offer or a done for another payload or size than was asked for."""
    REASON = "reason"
    """An end for a reason that only the other side can have."""
    UNKNOWN = "unknown"
    """A pull of what was never put for that stage."""
    CONSUMED = "consumed"
    """A payload counted as read by somebody who may not read it."""
    CURSOR = "cursor"
    """A report of news that it was never sent."""
    TRANSFERS = "transfers"
    """More transfers than one receiver may have open."""
    READERS = "readers"
    """More receivers than can be remembered."""


Violations = Counter[Violation]
"""How often each was refused."""

ENDS = frozenset(
    reason.value for reason in (Reason.EXPIRED, Reason.WITHDRAWN, Reason.REPLACED, Reason.TAKEN)
)
"""Why a payload may leave its sender's log."""

REFUSALS = ENDS | frozenset(
    reason.value
    for reason in (
        Reason.UNKNOWN, Reason.MISMATCH, Reason.BUDGET, Reason.TRANSFER_FAILED, Reason.CLOSED,
    )
)  # fmt: skip
"""Why a sender may end a transfer."""
