"""From the core's answers to exceptions: one class per thing to do next, each with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import (
    CapacityError,
    ClosedError,
    Context,
    DeadlineError,
    DuplicateKeyError,
    GoneError,
    PeerError,
    ProtocolViolationError,
    Reason,
    StagelinkError,
    TransportError,
)  # fmt: skip
from stagelink.core.refusals import describe

if TYPE_CHECKING:
    from stagelink.core.events import Failure
    from stagelink.core.pool import Refusal

_GONE = "the payload will not come; ask for a new one"

_MEANING: dict[Reason, tuple[type[StagelinkError], str, str]] = {
    Reason.EXPIRED: (
        GoneError, "the payload expired before it was taken",
        "get it sooner, or put it with a longer ttl",
    ),
    Reason.WITHDRAWN: (GoneError, "the sender withdrew the payload", _GONE),
    Reason.REPLACED: (GoneError, "the payload was replaced by a newer one", "get the key again"),
    Reason.TAKEN: (
        GoneError, "another reader has taken the payload",
        "put it with readers=n, or name the readers",
    ),
    Reason.FAILED: (GoneError, "the producer failed", "see the producer's error"),
    Reason.CANCELLED: (GoneError, "the get was cancelled on this side", ""),
    Reason.REJECTED: (GoneError, "the key was rejected on this side", ""),
    Reason.CLOSED: (ClosedError, "the connector is closed", "open a new one"),
    Reason.DEADLINE: (
        DeadlineError, "nothing came before the deadline",
        "check the key and the producer, or wait longer (timeout=)",
    ),
    Reason.BUDGET: (
        DeadlineError, "the sender could not start the write in time",
        "wait longer, or raise max_writes at the sender",
    ),
    Reason.UNREACHABLE: (
        PeerError, "the sender cannot be reached",
        "check that it runs and that the endpoint is right",
    ),
    Reason.PEER_GONE: (
        PeerError, "the sender is gone",
        "start it again; a get waits for it as long as timeouts' successor_s says",
    ),
    Reason.PEER_RESTARTED: (PeerError, "the sender was restarted", "get the key again"),
    Reason.DECLINED: (
        PeerError, "the sender refuses this connector",
        "compare stage names, backends, keys and versions of both sides",
    ),
    Reason.QUARANTINED: (
        PeerError, "the sender is silent and keeps its share of this pool",
        "end or restart that process; until then use another sender, or raise pool_bytes",
    ),
    Reason.DUPLICATE: (
        DuplicateKeyError, "this key is live on this edge already",
        "use a fresh key, withdraw the old one, or set on_duplicate='replace'",
    ),
    Reason.TRANSFER_FAILED: (TransportError, "the data plane failed", "get the key again"),
    Reason.FENCED: (TransportError, "the peer was cut off", "get the key again"),
    Reason.CORRUPT: (
        TransportError, "the payload's bytes are not those that were put",
        "put it again; if it recurs, check the memory of both hosts and what is between them",
    ),
    Reason.OUT_OF_BOUNDS: (TransportError, "an address is outside its region", "report this"),
    Reason.UNKNOWN: (GoneError, "the sender does not know this payload", _GONE),
    Reason.MISMATCH: (
        ProtocolViolationError, "the payload is not what was asked for",
        "use the metadata of the very put, unchanged",
    ),
    Reason.PROTOCOL: (ProtocolViolationError, "the peer broke the protocol", "report this"),
}  # fmt: skip


def error_of(failure: Failure, context: Context) -> StagelinkError:
    """The exception for a failed call, with everything that is known in one line."""
    reason = _known(failure.reason)
    context = context._replace(
        peer=failure.peer or context.peer, transfer_id=failure.transfer or None
    )
    if reason in {Reason.NEVER_FITS, Reason.NO_ROOM}:
        return _capacity(failure.detail, reason is Reason.NEVER_FITS, None, context)
    kind, meaning, remedy = _MEANING[reason]
    message = f"{meaning}: {failure.detail}" if failure.detail else meaning
    return kind(message, reason=reason, context=context, remedy=remedy)


def capacity_error(refusal: Refusal, context: Context) -> CapacityError:
    """The exception for a put that found no room, with every number of the pool."""
    numbers = {
        "requested": refusal.requested,
        "alignment": refusal.alignment,
        "free": refusal.free,
        "largest_free": refusal.largest_free,
        "capacity": refusal.capacity,
        "leases": refusal.leases,
        "oldest_lease_s": refusal.oldest_lease_s,
    }
    return _capacity(describe(refusal), refusal.never_fits, numbers, context)


def _capacity(
    detail: str, never_fits: bool, numbers: dict[str, float] | None, context: Context
) -> CapacityError:
    wait = "let readers take or release payloads, wait longer (timeout=), or raise pool_bytes"
    remedy = "raise pool_bytes, or send it in parts" if never_fits else wait
    return CapacityError(
        f"no room in the pool: {detail}",
        never_fits=never_fits, numbers=numbers, context=context, remedy=remedy,
    )  # fmt: skip


def _known(reason: str) -> Reason:
    """The reason by its word; a newer peer may use words of its own."""
    try:
        return Reason(reason)
    except ValueError:
        return Reason.UNKNOWN
