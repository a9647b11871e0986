"""What the explorer has found about cut-off peers and windows, in small."""

from __future__ import annotations

from stagelink.core.handshake.feed import WINDOW_RECORDS, Feed
from stagelink.core.handshake.lease import DRAINING, QUEUED, WRITING, Lease, Leases
from stagelink.core.messages import Report


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
