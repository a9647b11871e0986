"""Small messages between connectors, in order while a connection lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.core.values import Link


class Mail(NamedTuple):
    """Frames that arrived on a link."""

    link: Link
    frames: list[bytes]


class LinkUp(NamedTuple):
    """A dialled link is connected (again). Links that others dialled say nothing: they greet."""

    link: Link


class LinkDown(NamedTuple):
    """A link, dialled or accepted, is no more; a dialled one is tried again by itself.

    ``refused``: who is there will not talk to us until somebody changes a configuration.
    """

    link: Link
    detail: str
    refused: bool = False


class PeerRefused(NamedTuple):
    """Somebody dialled us and was not let in.

    Attributes:
        link: no link, but the address that it came from, as far as known; may be empty.
        cause: one of :data:`REFUSALS`.
        detail: what else is known.
    """

    link: str
    cause: str
    detail: str = ""


REFUSALS = ("unknown_key", "wrong_server_key", "wrong_mechanism", "malformed", "broken_off")
"""Why a handshake failed: a key that is not on our list; one that was meant for another key than
ours; with CURVE on one side only; not as the protocol wants it; ended by the other side."""

Arrival = Union[Mail, LinkUp, LinkDown, PeerRefused]


class ControlChannel(Protocol):
    """One listening address and any number of dialled links, all non-blocking.

    One thread at a time may call it (the driver's io lock); it never waits. Per link the order of
    messages is kept while the connection lasts, and nothing is dropped without a ``LinkDown``
    except what arrives malformed in transport, which is dropped and counted in ``dropped``.
    """

    @property
    def dropped(self) -> int:
        """How many messages were malformed in transport."""
        ...

    @property
    def address(self) -> str:
        """Where others dial us, for example ``tcp://127.0.0.1:50051``; empty when not bound."""
        ...

    def check(self, address: str) -> None:
        """Look at an address without dialling it.

        Raises:
            ConfigError: *address* is not one this channel understands.
        """
        ...

    def dial(self, address: str) -> None:
        """Keep a connection to *address*; the link is named by the address. Twice is once.

        Raises:
            ConfigError: *address* is not one this channel understands.
        """
        ...

    def hang_up(self, link: Link) -> None:
        """Close a dialled link, dropping what is queued on it. Unknown links are ignored."""
        ...

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        """Queue *frames* as one message; False if it is full now.

        Try again when the channel is readable or a few milliseconds later. A link that is down
        takes the message and forgets it.
        """
        ...

    def receive(self, look: bool = True) -> Arrival | None:
        """The next arrival, or None when there is none now.

        Without *look* only what a send may have hidden is taken: whoever sends reads that, and
        the thread that watches the descriptor the rest.
        """
        ...

    def fileno(self) -> int:
        """A descriptor that polls readable when :meth:`receive` may have something.

        After receive() returned None it is quiet until something new comes; a call of send() by
        any thread may consume the wake-up, so whoever sends also receives until None.
        """
        ...

    def close(self) -> None:
        """Close every socket; what was sent may take a moment to leave, bounded (< 1 s).

        Twice is fine.
        """
        ...
