"""A sender that is stopped in the middle of a write, and goes on long after.

It lives, so nothing is proved about it. Where the plane can cut off a living peer the block that it
was to write is used anew meanwhile; where it cannot, the block is kept until the sender goes on.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.sims import hipsim, verbsim

import stagelink
from stagelink import compose
from stagelink.core.errors import PeerError
from stagelink.core.settings import Settings
from stagelink.plugins.conformance.deaths import Stage, body
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import Waiter, eventually, is_whole, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

POOL = 8 << 20
SIZE = 5 << 20
"""More than half of the pool: as long as one is kept there is no room for another."""

WRITE_S = 1.5
SILENCE_S = 1.0
CUT_S = 0.3
SETTINGS: dict[str, Any] = {
    "pool_bytes": POOL,
    "peer_share": 1.0,
    "credits": False,
    "shortcut": False,  # a stopped process keeps its sockets: only ZeroMQ misses a heartbeat
    "timeouts": {"silence_s": SILENCE_S, "suspect_grace_s": 0.1, "close_s": 0.2},
}


class Slow(Stage):
    """A sender whose writes can be seen, and take :data:`WRITE_S` each from a moment on."""

    def slow_down(self) -> None:
        """This is the moment."""
        self._slow = ExitStack()
        for sim in (verbsim, hipsim):
            self._slow.enter_context(sim.delay(WRITE_S))

    def speed_up(self) -> None:
        """And this the end of it, for what is begun from now on."""
        self._slow.close()

    def writes(self) -> int:
        """How many are under way."""
        return int(self._connector.health()["ledger"]["writes"])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Connector]]:
    """Opens connectors that soon cut off who is silent, and closes them."""
    monkeypatch.setattr(compose, "Settings", partial(Settings, fence_after_s=CUT_S))
    made: list[Connector] = []

    def open_(**settings: Any) -> Connector:
        made.append(stagelink.open(**{**SETTINGS, **settings}))
        return made[-1]

    yield open_
    for connector in reversed(made):
        connector.close()


@pytest.fixture
def slow() -> Iterator[Callable[[str], Elsewhere]]:
    """Starts a sender that may be slowed down."""
    made: list[Elsewhere] = []

    def start(backend: str) -> Elsewhere:
        settings = {**SETTINGS, "backend": backend, "stage": "thinker", "role": "sender"}
        made.append(Elsewhere(Slow, settings))
        return made[-1]

    yield start
    for one in made:
        one.end()


def stopped_in_a_write(process: Elsewhere, receiver: Connector) -> Waiter:
    """Freeze *process* while it writes to *receiver*; the get that waits for it."""
    process.ask("put", "first", SIZE)
    receiver.get("first", source="thinker", timeout=20.0).close()
    process.ask("put", "key", SIZE)
    process.ask("slow_down")
    waiter = Waiter(lambda: receiver.get("key", source="thinker", timeout=60.0))
    assert eventually(lambda: process.ask("writes"), 30.0)
    process.freeze()
    return waiter


def gets_again(receiver: Connector) -> bool:
    """Whether *receiver* gets the payload, right, once its sender has been found again."""
    try:
        with receiver.get("key", source="thinker", timeout=20.0) as again:
            return same(again.value, body("key", SIZE))
    except PeerError:
        return False


def test_a_block_that_a_stopped_sender_was_writing_is_used_anew_and_stays_right(
    opened: Callable[..., Connector], slow: Callable[[str], Elsewhere]
) -> None:
    process = slow("mori-rdma")
    other = opened(backend="mori-rdma", stage="other", role="sender")
    receiver = opened(
        backend="mori-rdma", stage="talker", role="receiver",
        senders={"thinker": process.ask("about")[0], "other": other.endpoint},
    )  # fmt: skip
    waiter = stopped_in_a_write(process, receiver)

    assert isinstance(waiter.join(30.0).error, PeerError)
    assert eventually(lambda: is_whole(receiver))  # it has been cut off
    other.put("next", memoryview(body("next", SIZE)), to="talker")
    view = receiver.get("next", source="other", timeout=20.0)
    process.thaw()
    process.ask("speed_up")

    assert eventually(lambda: not process.ask("writes"), 2 * WRITE_S + 10.0)
    is_right = same(view.value, body("next", SIZE))
    assert is_right, "a sender that was cut off wrote into a block that is another's"
    view.close()
    del view
    assert eventually(lambda: gets_again(receiver), 30.0)
    assert eventually(lambda: is_whole(receiver))


def test_a_block_that_a_stopped_sender_may_write_is_kept_where_nothing_cuts_it_off(
    opened: Callable[..., Connector], slow: Callable[[str], Elsewhere]
) -> None:
    process = slow("mori-xgmi")
    receiver = opened(
        backend="mori-xgmi", stage="talker", role="receiver",
        senders={"thinker": process.ask("about")[0]},
    )  # fmt: skip
    waiter = stopped_in_a_write(process, receiver)

    assert isinstance(waiter.join(30.0).error, PeerError)
    time.sleep(2 * CUT_S)
    assert not is_whole(receiver)
    process.thaw()
    process.ask("speed_up")

    assert eventually(lambda: gets_again(receiver), 30.0)
    assert eventually(lambda: is_whole(receiver))
