"""Every exception stagelink raises on purpose, in one small tree.

Classes are told apart by what the caller does next; ``reason`` names the cause for programs,
the message and ``remedy`` for people.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reason(str, Enum):
    """Why a transfer, a wait or a peer ended: the same words on the wire and in metrics."""

    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    REPLACED = "replaced"
    TAKEN = "taken"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    CLOSED = "closed"
    DEADLINE = "deadline"
    UNREACHABLE = "unreachable"
    PEER_GONE = "peer_gone"
    PEER_RESTARTED = "peer_restarted"
    DECLINED = "declined"
    QUARANTINED = "quarantined"
    NEVER_FITS = "never_fits"
    NO_ROOM = "no_room"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    OUT_OF_BOUNDS = "out_of_bounds"
    MISMATCH = "mismatch"
    BUDGET = "budget"
    TRANSFER_FAILED = "transfer_failed"
    FENCED = "fenced"
    CORRUPT = "corrupt"
    PROTOCOL = "protocol"


class Context(NamedTuple):
    """Where an error happened; empty fields are left out of the message."""

    key: str | None = None
    edge: str | None = None
    peer: str | None = None
    transfer_id: int | None = None
    elapsed_s: float | None = None

    def __str__(self) -> str:
        """Render the known fields as ``name=value`` pairs on one line."""
        known = []
        for name, value in zip(self._fields, self, strict=True):
            if value is not None:
                known.append(f"{name}={value:.3f}" if name == "elapsed_s" else f"{name}={value}")
        return " ".join(known)


class StagelinkError(Exception):
    """Base of all stagelink errors: catch this at the edge.

    Attributes:
        reason: the cause, one word of :class:`Reason`, or None.
        context: key, edge, peer, transfer id and seconds elapsed, as far as known.
        remedy: what the reader of the message can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason | None = None,
        context: Context | None = None,
        remedy: str = "",
    ) -> None:
        self.message = message
        self.reason = reason
        self.context = context or Context()
        self.remedy = remedy
        super().__init__(message)

    @property
    def cause(self) -> str:
        """One word for logs, metrics and traces: the reason, or the class where there is none."""
        return self.reason.value if self.reason else type(self).__name__

    def __str__(self) -> str:
        """One line: what happened, where, and what to do."""
        where = str(self.context)
        parts = [
            self.message,
            f" [{where}]" if where else "",
            f"; {self.remedy}" if self.remedy else "",
        ]
        return "".join(parts)


class ConfigError(StagelinkError):
    """The configuration or an argument is wrong; nothing has been started or changed."""


class PayloadError(StagelinkError):
    """A value cannot be laid out as bytes (the path to it is named), or bytes are no payload."""


class CapacityError(StagelinkError):
    """The pool has no room: try later, with less, or with a larger pool.

    ``numbers`` holds requested, alignment, free, largest_free and capacity in bytes, leases as a
    count and oldest_lease_s in seconds; ``never_fits`` says that waiting cannot help.
    """

    def __init__(
        self,
        message: str,
        *,
        never_fits: bool = False,
        numbers: dict[str, float] | None = None,
        context: Context | None = None,
        remedy: str = "",
    ) -> None:
        reason = Reason.NEVER_FITS if never_fits else Reason.NO_ROOM
        super().__init__(message, reason=reason, context=context, remedy=remedy)
        self.never_fits = never_fits
        self.numbers = numbers or {}


class DuplicateKeyError(StagelinkError):
    """A payload of this key is live on this edge already; the first one is untouched."""


class DeadlineError(StagelinkError, TimeoutError):
    """A wait reached its deadline; nothing is known against the peer."""


class GoneError(StagelinkError):
    """The payload will not come: expired, withdrawn, taken, failed, cancelled (``reason``)."""


class IncompleteStreamError(StagelinkError):
    """A stream broke off before its end; ``reason`` and the ``__cause__`` say why.

    Attributes:
        chunks_expected: how many chunks the producer counted, None if it never came to its end.
        chunks: how many were delivered, in order and without a gap.
        bytes: their encoded sizes in sum.
    """

    def __init__(
        self,
        message: str,
        *,
        chunks_expected: int | None,
        chunks: int,
        size: int,
        reason: Reason | None = None,
        context: Context | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, reason=reason, context=context, remedy=remedy)
        self.chunks_expected = chunks_expected
        self.chunks = chunks
        self.bytes = size


class PeerError(StagelinkError):
    """The other side is unreachable, gone, restarted or refuses us (``reason``)."""


class TransportError(StagelinkError):
    """A backend failed to move bytes; its own error is the ``__cause__``."""


class ProtocolViolationError(StagelinkError):
    """Somebody's bug, the peer's or ours: an event that the present state does not allow."""


class LeaseError(StagelinkError):
    """A block or view is unknown, foreign, stale or already released."""


class ClosedError(StagelinkError):
    """The connector, or the stream, is closed."""


class ForkedError(StagelinkError):
    """The connector belongs to the parent process; open one in the child."""


@contextmanager
def translating(foreign: type[Exception], what: str, remedy: str = "") -> Iterator[None]:
    """Turn a backend's *foreign* error into :exc:`TransportError`, keeping it as the cause."""
    try:
        yield
    except foreign as error:
        msg = f"{what}: {error}"
        raise TransportError(msg, reason=Reason.TRANSFER_FAILED, remedy=remedy) from error
