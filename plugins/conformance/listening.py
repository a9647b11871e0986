"""What arrives on a control channel, waited for on its descriptor."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Protocol

from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival, ControlChannel

HEADER = (
    b"contract"  # a message begins with a frame of 8 bytes: shorter ones may be a channel's own
)
PATIENCE_S = 10.0
MOST_QUEUED = 200_000


class Maker(Protocol):
    """Opens a channel that listens: at *address*, or anywhere when that is empty."""

    def __call__(self, address: str = "") -> ControlChannel:
        """A new channel; the suite closes it."""
        ...


def is_readable(channel: ControlChannel, timeout_s: float = 0.0) -> bool:
    """Whether the channel's descriptor polls readable within *timeout_s* seconds."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def drain(channel: ControlChannel) -> list[Arrival]:
    """All that has arrived: receive() until None."""
    arrivals = []
    while (arrival := channel.receive()) is not None:
        arrivals.append(arrival)
    return arrivals


def drain_until(
    channel: ControlChannel,
    predicate: Callable[[list[Arrival]], bool],
    timeout_s: float | None = None,
) -> list[Arrival]:
    """Collect arrivals until *predicate* holds of them, asleep on the descriptor in between.

    Raises:
        AssertionError: it did not hold within *timeout_s* seconds (None: :data:`PATIENCE_S`); a
            lost wake-up ends so.
    """
    timeout_s = PATIENCE_S if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + timeout_s
    arrivals = drain(channel)
    while not predicate(arrivals):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not is_readable(channel, left_s):
            msg = (
                f"not within {timeout_s} s; {len(arrivals)} arrivals end in {arrivals[-3:]!r:.400}"
            )
            raise AssertionError(msg)
        arrivals += drain(channel)
    return arrivals


def mails(arrivals: Sequence[Arrival]) -> list[Mail]:
    """The mail among *arrivals*."""
    return [arrival for arrival in arrivals if isinstance(arrival, Mail)]


def take_mail(channel: ControlChannel, count: int = 1) -> list[Mail]:
    """The next *count* messages."""
    return mails(drain_until(channel, lambda seen: len(mails(seen)) >= count))


def until_up(channel: ControlChannel, link: Link) -> list[Arrival]:
    """Wait for the LinkUp of *link*; return what arrived."""
    return drain_until(channel, lambda seen: LinkUp(link) in seen)


def until_down(channel: ControlChannel, link: Link) -> list[Arrival]:
    """Wait for a LinkDown of *link*; return what arrived."""
    return drain_until(channel, lambda seen: any(_is_down(arrival, link) for arrival in seen))


def connect(dialler: ControlChannel, listener: ControlChannel) -> Link:
    """Dial, wait until it is up, say hello; return the link as *listener* names it."""
    dialler.dial(listener.address)
    until_up(dialler, listener.address)
    assert dialler.send(listener.address, [HEADER, b"hello"])
    return take_mail(listener)[-1].link


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def native_threads() -> int:
    """How many threads the kernel sees in this process, Python's or not."""
    return len(os.listdir("/proc/self/task"))


def _is_down(arrival: Arrival, link: Link) -> bool:
    return isinstance(arrival, LinkDown) and arrival.link == link
