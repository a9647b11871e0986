"""What the explorer has found about cut-off peers and windows, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import (
    Attach,
    Attached,
    Connected,
    Disconnected,
    Fence,
    Fenced,
    Get,
    PlaneReset,
    Received,
    Send,
    TimePassed,
)
from stagelink.core.handshake.feed import WINDOW_RECORDS, Feed
from stagelink.core.handshake.lease import DRAINING, QUEUED, WRITING, Lease, Leases
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import Hello, Packet, Report, Welcome
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from stagelink.core.events import Action

ONE, TWO = b"1" * 16, b"2" * 16


def test_a_greeting_ends_the_queued_writes_that_it_has_not_open() -> None:
    """They were meant for blocks that the receiver has given to others since."""
    leases = Leases()
    leases.transfers = {
        1: Lease(QUEUED, 7),
        2: Lease(QUEUED, 8),
        3: Lease(WRITING, 9),
        4: Lease(DRAINING, 10),
        5: Lease(QUEUED, 11),
    }

    closed = leases.unbegun(Report(5, (2,), 0, ()))

    assert closed == [(1, Lease(QUEUED, 7))]
    assert list(leases.transfers) == [2, 3, 4, 5]


def test_being_in_sync_takes_no_room_in_the_window() -> None:
    feed = Feed()
    feed.subscribe(1)
    feed.sent(1, 0)
    feed.acknowledge(1)

    feed.synced()

    for number in range(2, WINDOW_RECORDS + 1):
        feed.sent(number, 0)
    assert feed.open
    feed.sent(WINDOW_RECORDS + 1, 0)
    assert not feed.open


class Reader:
    """A receiver of two senders, whose sides of the conversation are by hand."""

    def __init__(self, mode: str) -> None:
        self.card = PlaneCard("plane", mode, b"first")
        settings = Settings(
            instance=b"r" * 16, identity=Identity("reader"), host=HostCard("host", "proof"),
            planes=(OwnPlane(self.card, True),), policy=TimeoutPolicy(), inline_bytes=100,
            max_writes=1, session_base=0, can_fence=True,
        )  # fmt: skip
        self.machine = Endpoint(settings, Pool(8 * 4096, pool_id=1))
        for address, instance in (("tcp://one", ONE), ("tcp://two", TWO)):
            self.machine.handle(Get(1, address, "stage", "key", 0, 1e9), 0.0)
            self.machine.handle(Connected(address), 0.0)
            session = self.machine.incoming.sources[address].session.number
            host = HostCard("host", instance.hex())
            welcome = Welcome(instance, Identity("stage"), host, self.card, True)
            packet = Packet(session, 0, None, welcome)
            for action in self.machine.handle(Received(address, packet), 0.0):
                if isinstance(action, Attach):
                    attached = Attached(action.peer, action.link, action.session, "")
                    self.machine.handle(attached, 0.0)

    def greeted(self, cards: tuple[PlaneCard, ...]) -> list[tuple[str, bytes]]:
        """Whom it greets, and how it describes itself to them, when ONE has been cut off."""
        self.machine.handle(Disconnected("tcp://one", "cut"), 0.0)
        assert Fence(ONE, dead=False) in self.machine.handle(TimePassed(), 31.0)
        return self.greetings(self.machine.handle(Fenced(ONE, True, cards), 31.0))

    @staticmethod
    def greetings(actions: list[Action]) -> list[tuple[str, bytes]]:
        """To whom, and with which description."""
        return [
            (action.link, action.message.planes[0].descriptor)
            for action in actions
            if isinstance(action, Send) and isinstance(action.message, Hello)
        ]


def test_a_fence_that_cuts_off_everybody_has_the_others_attach_again() -> None:
    world = Reader("write")
    assert world.greeted((world.card._replace(descriptor=b"second"),)) == [
        ("tcp://two", b"second")
    ]


def test_a_reset_that_changes_the_description_tells_everybody() -> None:
    world = Reader("write")
    same = world.machine.handle(PlaneReset((world.card,)), 1.0)
    other = world.machine.handle(PlaneReset((world.card._replace(descriptor=b"second"),)), 1.0)
    assert world.greetings(same) == []
    assert world.greetings(other) == [("tcp://one", b"second"), ("tcp://two", b"second")]


@pytest.mark.parametrize("mode", ["write", "map"])
def test_a_fence_that_cuts_off_one_leaves_the_others_in_peace(mode: str) -> None:
    world = Reader(mode)
    assert world.greeted((world.card,)) == []
    assert Reader("map").greeted((PlaneCard("plane", "map", b"second"),)) == []
