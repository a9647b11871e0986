"""Channels with one mistake each, and the test of the kit that must see it.

Not collected by itself: ``tests/plugins/test_kit_catches.py`` runs it.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from stagelink.adapters.memory import MemoryChannel
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.core.errors import ConfigError
from stagelink.plugins.conformance import channel, channel_deaths, listening
from stagelink.plugins.conformance.channel import ControlChannelContract, Maker
from stagelink.ports.channel import LinkDown, LinkUp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival


class Counting(MemoryChannel):
    """Does no harm yet; counts what it sends."""

    sent = 0

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        self.sent += 1
        return super().send(link, frames)


class DropsOneInFifty(Counting):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        self.sent += 1
        return self.sent % 50 == 0 or MemoryChannel.send(self, link, frames)


class RepeatsOneInFifty(Counting):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        return super().send(link, frames) and (
            self.sent % 50 > 0 or MemoryChannel.send(self, link, frames)
        )


class SwapsNeighbours(Counting):
    held: Sequence[bytes] | None = None

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        if self.held is None and self.sent == 50:
            self.held = frames
            return True
        went = super().send(link, frames)
        if self.held is not None:
            held, self.held = self.held, None
            went = super().send(link, held)
        return went


class JoinsFrames(MemoryChannel):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        return super().send(link, [frames[0], b"".join(frames[1:])])


class KeepsTheCallersMemory(MemoryChannel):
    waiting: ClassVar[list[tuple[MemoryChannel, Link, Sequence[bytes]]]] = []

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        self.waiting.append((self, link, frames))
        return True

    def receive(self, look: bool = True) -> Arrival | None:
        while self.waiting:
            origin, link, frames = self.waiting.pop(0)
            MemoryChannel.send(origin, link, frames)
        return super().receive(look)


class LosesWhenFull(MemoryChannel):
    lost = 0

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        if super().send(link, frames):
            return True
        self.lost += 1
        return self.lost < 10


class TellsNoEnd(MemoryChannel):
    def receive(self, look: bool = True) -> Arrival | None:
        arrival = super().receive(look)
        return self.receive(look) if isinstance(arrival, LinkDown) else arrival


class TellsTheEndTwice(MemoryChannel):
    again: Arrival | None = None

    def receive(self, look: bool = True) -> Arrival | None:
        if self.again is not None:
            again, self.again = self.again, None
            return again
        arrival = super().receive(look)
        self.again = arrival if isinstance(arrival, LinkDown) else None
        return arrival


class RemembersOldMail(MemoryChannel):
    def __init__(self, address: str = "") -> None:
        super().__init__(address)
        self.down: set[Link] = set()
        self.old: list[Sequence[bytes]] = []

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        if link in self.down:
            self.old.append(frames)
            return True
        return super().send(link, frames)

    def receive(self, look: bool = True) -> Arrival | None:
        arrival = super().receive(look)
        if isinstance(arrival, LinkDown):
            self.down.add(arrival.link)
        if isinstance(arrival, LinkUp):
            self.down.discard(arrival.link)
            for frames in self.old:
                super().send(arrival.link, frames)
        return arrival


class ServesTheLoudest(MemoryChannel):
    def receive(self, look: bool = True) -> Arrival | None:
        first = self._ready[0] if self._ready else None
        arrival = super().receive(look)
        if first is not None and first in self._ready:
            self._ready.remove(first)
            self._ready.appendleft(first)
        return arrival


class SwallowsTheWakeUp(MemoryChannel):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        with contextlib.suppress(BlockingIOError, ValueError, OSError):
            os.eventfd_read(self.fileno())
        return super().send(link, frames)

    def receive(self, look: bool = True) -> Arrival | None:
        return super().receive(look) if look else None


class NeverRests(MemoryChannel):
    def _quieten(self) -> None:
        """Stay readable."""


class WakesOnce(MemoryChannel):
    def _quieten(self) -> None:
        was = self._signalled
        super()._quieten()
        self._signalled = was


class LeavesADescriptor(MemoryChannel):
    def close(self) -> None:
        if self.fileno() >= 0:
            os.dup(self.fileno())
        super().close()


class DialsAnything(MemoryChannel):
    def dial(self, address: str) -> None:
        with contextlib.suppress(ConfigError):
            super().dial(address)


class ChecksNothing(MemoryChannel):
    def check(self, address: str) -> None:
        """Be content."""


class ChangesItsDescriptor(MemoryChannel):
    def hang_up(self, link: Link) -> None:
        super().hang_up(link)
        self._event = os.dup(self._event)


class AnswersTheFirst(MemoryChannel):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        return super().send(next(iter(self._links), link), frames)


class NeverHangsUp(MemoryChannel):
    def hang_up(self, link: Link) -> None:
        """Keep it."""


class SpeaksAfterItsClose(MemoryChannel):
    def receive(self, look: bool = True) -> Arrival | None:
        return super().receive(look) or (LinkDown("", "closed") if self._closed else None)


class WaitsForTheReader(ZmqChannel):
    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        until_s = time.monotonic() + 1.2
        while not (went := super().send(link, frames)) and time.monotonic() < until_s:
            time.sleep(0.01)
        return went


class LearnsOfDeathsLate(ZmqChannel):
    def receive(self, look: bool = True) -> Arrival | None:
        arrival = super().receive(look)
        if isinstance(arrival, LinkDown):
            time.sleep(1.1)
        return arrival


ORDER = "test_messages_arrive_whole_and_in_order_both_ways"
FROZEN = "test_a_frozen_process_makes_nobody_wait_and_loses_nothing"
CAUGHT: dict[type[Any], list[str]] = {
    DropsOneInFifty: [ORDER],
    RepeatsOneInFifty: [ORDER],
    SwapsNeighbours: [ORDER],
    JoinsFrames: [ORDER],
    KeepsTheCallersMemory: ["test_what_was_sent_may_be_changed_afterwards"],
    LosesWhenFull: ["test_a_full_link_says_so_and_loses_nothing"],
    TellsNoEnd: ["test_the_end_of_a_peer_is_told_at_once"],
    TellsTheEndTwice: ["test_the_end_of_a_peer_is_told_at_once"],
    RemembersOldMail: ["test_a_link_comes_up_again_by_itself"],
    ServesTheLoudest: ["test_a_loud_link_does_not_drown_a_quiet_one"],
    SwallowsTheWakeUp: ["test_who_sends_finds_what_the_send_may_have_hidden"],
    NeverRests: ["test_a_drained_channel_is_quiet_and_the_next_arrival_wakes_it"],
    WakesOnce: ["test_a_drained_channel_is_quiet_and_the_next_arrival_wakes_it"],
    LeavesADescriptor: ["test_close_twice_is_fast_and_leaves_nothing"],
    DialsAnything: ["test_what_is_no_address_is_refused"],
    ChecksNothing: ["test_what_is_no_address_is_refused"],
    ChangesItsDescriptor: ["test_the_descriptor_stays_the_same"],
    AnswersTheFirst: ["test_many_links_are_told_apart"],
    NeverHangsUp: ["test_after_hanging_up_nothing_comes_from_there"],
    SpeaksAfterItsClose: ["test_a_closed_channel_gives_nothing_and_takes_nothing"],
    WaitsForTheReader: [FROZEN],
    LearnsOfDeathsLate: ["test_the_death_of_a_process_is_told_at_once"],
}


def over_tcp(kind: type[Any]) -> Any:
    """One that listens on loopback."""
    return kind("127.0.0.1", high_water_mark=200)


class Opener:
    """Opens channels of one kind; another process can import it."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def __call__(self, address: str = "") -> Any:
        """In the hub of this process, or on loopback."""
        return over_tcp(self._kind) if issubclass(self._kind, ZmqChannel) else self._kind(address)


class Kit(ControlChannelContract):
    """The contract of one channel."""

    kind: ClassVar[type[Any]]

    @pytest.fixture
    def make_channel(self) -> Maker:
        """Of that kind."""
        return Opener(self.kind)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is not waited for long."""
    monkeypatch.setattr(listening, "PATIENCE_S", 1.5)
    monkeypatch.setattr(channel, "PATIENCE_S", 1.5)
    monkeypatch.setattr(channel_deaths, "AT_ONCE_S", 1.0)


for made in CAUGHT:
    globals()[f"Test{made.__name__}"] = type(f"Test{made.__name__}", (Kit,), {"kind": made})
