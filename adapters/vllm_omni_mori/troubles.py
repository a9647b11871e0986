"""What callers are told when a get of the dialect comes to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import (
    CapacityError,
    DeadlineError,
    PeerError,
    ProtocolViolationError,
    Reason,
)
from stagelink.core.refusals import describe

if TYPE_CHECKING:
    from stagelink.adapters.vllm_omni_mori.frames import Answer
    from stagelink.core.pool import Refusal


def too_late() -> DeadlineError:
    """It was not there in time."""
    msg, remedy = (
        "nothing came before the deadline",
        "check the key and the producer, or wait longer",
    )
    return DeadlineError(msg, reason=Reason.DEADLINE, remedy=remedy + " (timeout=)")


def unanswered(seconds: float) -> PeerError:
    """A question had no answer; none can have begun to write."""
    msg = f"nobody answered a question in {seconds:g} s"
    remedy = "check that the sender runs, and its address"
    return PeerError(msg, reason=Reason.UNREACHABLE, remedy=remedy)


def unsendable(address: str) -> PeerError:
    """A question could not even be sent."""
    msg, remedy = f"nothing can be sent to {address}", "check the address in dialect_senders"
    return PeerError(msg, reason=Reason.UNREACHABLE, remedy=remedy)


def silent_pull(size: int) -> PeerError:
    """A pull had no answer."""
    msg = f"the sender was silent about a pull of {size} bytes, whose block is kept from reuse"
    remedy = "see whether it runs; once it has ended, say so by sender_ended()"
    return PeerError(msg, reason=Reason.UNREACHABLE, remedy=remedy)


def refused_pull(size: int) -> PeerError:
    """A pull was answered with an error."""
    msg = f"the sender refused a pull of {size} bytes"
    remedy = "see its log: the key was replaced or taken meanwhile, or its engine failed"
    return PeerError(msg, reason=Reason.TRANSFER_FAILED, remedy=remedy)


def keeps_its_share(size: int) -> PeerError:
    """The sender may still write to so much of our pool that it is asked for no more."""
    msg = f"the sender is silent, and {size} bytes of this pool are kept because of it"
    remedy = "end or restart that process, and say so by sender_ended()"
    return PeerError(msg, reason=Reason.QUARANTINED, remedy=remedy)


def has_ended() -> PeerError:
    """Somebody has proved that the sender is no more."""
    return PeerError("the sender has ended", reason=Reason.PEER_GONE, remedy="start it again")


def unasked(answer: Answer) -> ProtocolViolationError:
    """An answer to another question."""
    msg = f"the sender answered what was not asked: {answer!r:.200}"
    return ProtocolViolationError(msg, reason=Reason.PROTOCOL, remedy="see who is at its address")


def no_room(refusal: Refusal) -> CapacityError:
    """Our pool has no block for it."""
    wait = "let payloads go, wait longer (timeout=), or raise pool_bytes"
    remedy = "raise pool_bytes" if refusal.never_fits else wait
    msg = f"no room in the pool: {describe(refusal)}"
    return CapacityError(msg, never_fits=refusal.never_fits, remedy=remedy)
