"""Waiting for the first of many keys, and deliveries that reached no caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import (
    Attach,
    Attached,
    Await,
    CancelKey,
    Close,
    Complete,
    Connected,
    Delivery,
    Dial,
    Disconnected,
    Failure,
    Get,
    Poll,
    Publish,
    Received,
    Release,
    Reserve,
    Send,
    StopGet,
    TimePassed,
    Untaken,
    Withdraw,
)  # fmt: skip
from stagelink.core.handshake.fetch import ANEW, HELD, Fetches
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import Ended, Packet
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.shelf import SHELF_LIMIT
from stagelink.core.streams import first_key
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from stagelink.core.events import Event

ADDRESS = "tcp://sender"
FAR_S = 1000.0
TTL_S = TimeoutPolicy().ttl_s


def endpoint(stage: str) -> Endpoint:
    instance = stage.encode() * 16
    plane = OwnPlane(PlaneCard("shm", "map", b""), crosses_hosts=False)
    settings = Settings(
        instance, Identity(stage), HostCard("host", stage), (plane,), TimeoutPolicy(), 1 << 20, 1,
        0, can_fence=False,
    )  # fmt: skip
    return Endpoint(settings, Pool(8 * 4096, pool_id=1))


class Pair:
    """A sender of stage ``a`` and a receiver of stage ``b``; mail takes no time."""

    def __init__(self) -> None:
        self.tx, self.rx = endpoint("a"), endpoint("b")
        self.now_s = 0.0
        self.linked = True
        self.answers: dict[int, Any] = {}
        self._tickets = 0

    def ask(self, machine: Endpoint, command: type, *fields: Any) -> int:
        """Hand in a command; its ticket."""
        self._tickets += 1
        self.handle(machine, command(self._tickets, *fields))
        return self._tickets

    def handle(self, machine: Endpoint, event: Event) -> None:
        for action in machine.handle(event, self.now_s):
            if isinstance(action, Complete):
                assert action.ticket not in self.answers, "a second answer"
                self.answers[action.ticket] = action.result
            elif isinstance(action, Dial):
                if self.linked:
                    self.handle(machine, Connected(action.link))
            elif isinstance(action, Send):
                if self.linked:
                    other = self.tx if machine is self.rx else self.rx
                    self.handle(other, Received(ADDRESS, action.message))
            elif isinstance(action, Attach):
                self.handle(machine, Attached(*action[:3], ""))

    def put(self, key: str, body: bytes = b"x", error: str = "") -> None:
        ticket = self.ask(
            self.tx, Publish, "b", key, len(body), None, body, error, 1, TTL_S, False
        )
        assert not isinstance(self.answers[ticket], Failure)

    def put_block(self, key: str) -> None:
        block = self.answers[self.ask(self.tx, Reserve, 4096, 0.0)]
        assert isinstance(block, Block)
        self.ask(self.tx, Publish, "b", key, 4096, block, b"", "", 1, TTL_S, False)

    def get(self, key: str, generation: int = 0) -> int:
        return self.ask(self.rx, Get, ADDRESS, "a", key, generation, self.now_s + FAR_S)

    def poll(self, key: str) -> int:
        return self.ask(self.rx, Poll, ADDRESS, "a", key, self.now_s + FAR_S)

    def wait(self, *keys: str, within_s: float = FAR_S) -> int:
        return self.ask(self.rx, Await, ADDRESS, "a", keys, self.now_s + within_s)

    def untaken(self, key: str, ticket: int) -> Delivery:
        """Say that nobody took what *ticket* was answered with."""
        delivery = self.answers[ticket]
        assert isinstance(delivery, Delivery)
        self.handle(self.rx, Untaken(ADDRESS, key, delivery))
        return delivery

    def cut(self) -> None:
        self.linked = False
        self.handle(self.rx, Disconnected(ADDRESS, "cut"))
        self.handle(self.tx, Disconnected(ADDRESS, "cut"))

    def heal(self) -> None:
        self.linked = True
        self.handle(self.rx, Connected(ADDRESS))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for machine in (self.rx, self.tx):
            self.handle(machine, TimePassed())

    def is_open(self, ticket: int) -> bool:
        return ticket not in self.answers


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.get("hello")
    made.put("hello")
    return made


def test_what_one_report_says_is_consumed_is_told_to_be_gone_in_one_message(pair: Pair) -> None:
    for number in range(5):
        pair.put(f"k{number}")
        assert isinstance(pair.answers[pair.get(f"k{number}")], Delivery)
    told: list[Any] = []
    heard = pair.handle

    def handle(machine: Endpoint, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Packet):
            told.append(event.message.message)
        heard(machine, event)

    pair.handle = handle  # type: ignore[method-assign]
    pair.pass_time(1.0)

    ends = [message for message in told if isinstance(message, Ended)]
    assert [len(message.records) for message in ends] == [6]  # with that of the first key


# --- the first of many keys ------------------------------------------------------------------


def test_a_wait_is_answered_by_the_first_key_that_comes_and_takes_nothing(pair: Pair) -> None:
    waits = pair.wait("k1", "k2", "k3")
    pair.put("other")
    assert pair.is_open(waits)

    pair.put("k2")

    assert pair.answers[waits] == "k2"
    assert isinstance(pair.answers[pair.get("k2")], Delivery)
    assert not len(pair.rx.incoming.waits)


def test_a_wait_for_what_is_there_is_answered_at_once_in_the_order_asked(pair: Pair) -> None:
    pair.put("k2")
    pair.put("k3")

    assert pair.answers[pair.wait("k1", "k3", "k2")] == "k3"


def test_a_key_that_a_get_waits_for_goes_to_the_get(pair: Pair) -> None:
    gets, waits = pair.get("k"), pair.wait("k")

    pair.put("k")

    assert isinstance(pair.answers[gets], Delivery)
    assert pair.is_open(waits)


def test_what_somebody_views_is_not_there(pair: Pair) -> None:
    pair.put_block("k")
    delivery = pair.answers[pair.get("k")]
    assert delivery.where is not None

    waits = pair.wait("k")

    assert pair.is_open(waits)
    pair.handle(pair.rx, Release(delivery.handle))
    assert pair.is_open(waits)


@pytest.mark.parametrize("end", ["withdrawn", "expired"])
def test_a_key_that_has_ended_answers_the_wait_and_a_get_says_how(pair: Pair, end: str) -> None:
    waits = pair.wait("k1", "k2")
    pair.cut()
    pair.put("k2")

    if end == "withdrawn":
        pair.ask(pair.tx, Withdraw, "b", "k2")
    else:
        pair.now_s = TTL_S
        pair.handle(pair.tx, TimePassed())
    pair.heal()

    assert pair.answers[waits] == "k2"
    assert pair.answers[pair.wait("k1", "k2")] == "k2"
    assert pair.answers[pair.get("k2")].reason == end


def test_a_key_whose_producer_failed_answers_the_wait(pair: Pair) -> None:
    waits = pair.wait("k1", "k2")

    pair.put("k2", b"boom", error="boom")

    assert pair.answers[waits] == "k2"
    assert pair.answers[pair.get("k2")].reason == "failed"


def test_the_end_of_a_chunk_that_was_read_does_not_end_a_get_of_the_next_stream(
    pair: Pair,
) -> None:
    chunk = first_key("k")
    pair.put(chunk)
    assert isinstance(pair.answers[pair.get(chunk)], Delivery)
    gets, waits = pair.get(chunk), pair.wait(chunk)

    pair.ask(pair.tx, Withdraw, "b", chunk)

    assert pair.is_open(gets)
    assert pair.is_open(waits)
    pair.put(chunk)
    assert isinstance(pair.answers[gets], Delivery)


def test_a_wait_ends_at_its_deadline_and_not_before(pair: Pair) -> None:
    waits = pair.wait("k1", "k2", within_s=5.0)

    pair.pass_time(4.9)
    assert pair.is_open(waits)
    pair.pass_time(0.1)

    assert pair.answers[waits].reason == "deadline"
    assert "2 keys" in pair.answers[waits].detail


def test_a_wait_for_nobody_ends_as_unreachable() -> None:
    pair = Pair()
    pair.linked = False
    waits = pair.wait("k", within_s=2.0)

    pair.pass_time(2.0)

    assert pair.answers[waits].reason == "unreachable"


def test_a_wait_hears_that_its_sender_is_unreachable(pair: Pair) -> None:
    waits = pair.wait("k")

    pair.cut()
    pair.pass_time(TimeoutPolicy().suspect_grace_s)

    assert pair.answers[waits].reason == "unreachable"


def test_a_wait_that_two_time_outs_of_one_moment_end_is_answered_once(pair: Pair) -> None:
    waits = pair.wait("k", within_s=TimeoutPolicy().suspect_grace_s)

    pair.cut()
    pair.pass_time(TimeoutPolicy().suspect_grace_s)

    assert pair.answers[waits].reason in {"unreachable", "deadline"}


def test_a_wait_at_the_wrong_stage_is_declined_at_once(pair: Pair) -> None:
    ticket = pair.ask(pair.rx, Await, ADDRESS, "thinker", ("k",), FAR_S)

    assert pair.answers[ticket].reason == "declined"


def test_closing_and_stopping_end_a_wait_once(pair: Pair) -> None:
    stopped, closed = pair.wait("k"), pair.wait("k", "l")

    pair.handle(pair.rx, StopGet(stopped, "cancelled"))
    pair.handle(pair.rx, Close())
    late = pair.wait("k")

    reasons = [pair.answers[ticket].reason for ticket in (stopped, closed, late)]
    assert reasons == ["cancelled", "closed", "closed"]
    assert not [key for key in pair.rx.timers.armed() if key[0] == "wait"]


def reject(pair: Pair, key: str) -> int:
    """How many calls ended by rejecting *key*."""
    return int(pair.answers[pair.ask(pair.rx, CancelKey, ADDRESS, "a", key, True)])


def test_who_waits_for_a_rejected_key_wants_it_again(pair: Pair) -> None:
    reject(pair, "k")
    waits = pair.wait("k", "l")
    pair.put("k")

    assert pair.answers[waits] == "k"
    assert isinstance(pair.answers[pair.get("k")], Delivery)


def test_a_wait_whose_last_key_is_cancelled_ends(pair: Pair) -> None:
    both, one = pair.wait("k", "l"), pair.wait("k")

    assert reject(pair, "k") == 1
    assert pair.answers[one].reason == "rejected"
    assert pair.is_open(both)
    pair.put("k")
    assert pair.is_open(both), "it is rejected"
    assert reject(pair, "l") == 1
    assert pair.answers[both].reason == "rejected"
    assert not len(pair.rx.incoming.waits)
    assert not [key for key in pair.rx.timers.armed() if key[0] == "wait"]


def test_a_payload_that_a_get_gives_up_is_there_for_those_who_wait(pair: Pair) -> None:
    pair.put_block("k")
    gets = pair.get("k")
    assert isinstance(pair.answers[gets], Delivery)
    waits = pair.wait("k")

    pair.untaken("k", gets)

    assert pair.answers[waits] == "k"


# --- deliveries that reached no caller -------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("ask", ["get", "poll"])
def test_what_nobody_took_is_given_to_the_next_who_asks_once(
    pair: Pair, ask: str, large: bool
) -> None:
    (pair.put_block if large else pair.put)("k")
    delivery = pair.untaken("k", pair.get("k"))

    first = getattr(pair, ask)("k")
    second = pair.poll("k")

    assert pair.answers[first] == delivery
    assert pair.answers[second] is None
    assert not len(pair.rx.incoming.shelf)
    assert not [key for key in pair.rx.timers.armed() if key[0] == "kept"]


def test_what_nobody_took_goes_to_a_get_that_waits_already(pair: Pair) -> None:
    pair.put("k")
    first, second = pair.get("k"), pair.get("k")

    delivery = pair.untaken("k", first)

    assert pair.answers[second] == delivery
    assert not pair.rx.incoming.fetches.all()


def test_a_get_of_one_generation_leaves_others_on_the_shelf(pair: Pair) -> None:
    pair.put("k")
    gets = pair.get("k")
    other = pair.get("k", pair.answers[gets].generation + 1)

    delivery = pair.untaken("k", gets)

    assert pair.is_open(other)
    assert pair.answers[pair.get("k", delivery.generation)] == delivery


def test_what_nobody_takes_for_its_time_to_live_is_let_go_and_told(pair: Pair) -> None:
    pair.put("k")
    pair.untaken("k", pair.get("k"))

    pair.pass_time(TTL_S - 0.1)
    assert len(pair.rx.incoming.shelf) == 1
    pair.pass_time(0.1)

    assert not len(pair.rx.incoming.shelf)
    assert not pair.rx.incoming.fetches.all()
    assert pair.rx.incoming.deliveries.lost == 1
    failure = pair.answers[pair.get("k")]
    assert (failure.reason, "not taken" in failure.detail) == ("expired", True)


def test_the_shelf_is_bounded(pair: Pair) -> None:
    for number in range(SHELF_LIMIT + 3):
        pair.put(f"k{number}")
        pair.untaken(f"k{number}", pair.get(f"k{number}"))

    assert len(pair.rx.incoming.shelf) == SHELF_LIMIT
    assert pair.rx.incoming.deliveries.lost == 3
    assert pair.answers[pair.get("k0")].reason == "expired"


@pytest.mark.parametrize("end", ["reject", "close", "late"])
def test_the_shelf_gives_memory_back(pair: Pair, end: str) -> None:
    pair.put_block("k")
    gets = pair.get("k")
    if end == "late":
        pair.handle(pair.rx, Close())
    pair.untaken("k", gets)
    if end == "reject":
        pair.ask(pair.rx, CancelKey, ADDRESS, "a", "k", True)
    elif end == "close":
        pair.handle(pair.rx, Close())
    pair.pass_time(1.0)

    assert not pair.rx.incoming.fetches.all()
    assert not len(pair.rx.incoming.shelf)
    assert not pair.tx.outgoing.ledgers["b"].entries


def test_a_delivery_that_was_released_is_not_kept(pair: Pair) -> None:
    pair.put_block("k")
    gets = pair.get("k")
    pair.handle(pair.rx, Release(pair.answers[gets].handle))

    pair.untaken("k", gets)

    assert not len(pair.rx.incoming.shelf)


def test_waits_and_the_shelf_survive_a_freeze(pair: Pair) -> None:
    pair.put("k")
    delivery = pair.untaken("k", pair.get("k"))
    waits = pair.wait("l", "m")

    frozen = pair.rx.freeze(pair.now_s)
    pair.rx = Endpoint.thaw(pair.rx.settings, frozen, pair.now_s)
    assert pair.rx.freeze(pair.now_s) == frozen

    assert pair.answers[pair.get("k")] == delivery
    pair.put("m")
    assert pair.answers[waits] == "m"


# --- views of what has gone ------------------------------------------------------------------


def test_more_views_of_what_has_gone_than_a_report_names_are_all_safe(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagelink.core.source.HELD_LIMIT", 2)
    keys = ["a", "b", "c", "d", "e", "f"]
    views = {}
    for key in keys:
        pair.put_block(key)
        views[key] = pair.answers[pair.get(key)].handle
    for key in keys:
        pair.ask(pair.tx, Withdraw, "b", key)

    for viewed, key in enumerate("cfabed"):
        pair.pass_time(1.0)
        assert len(pair.rx.incoming.sources[ADDRESS].report(pair.rx.incoming.fetches).held) <= 2
        assert len(pair.tx.outgoing.ledgers["b"].entries) >= len(keys) - viewed
        if viewed == 2:
            pair.cut()
            pair.heal()
        pair.handle(pair.rx, Release(views[key]))
        left = set(pair.tx.outgoing.ledgers["b"].entries)
        assert left >= {2 + keys.index(one) for one in "cfabed"[viewed + 1 :]}
    pair.pass_time(1.0)

    assert not pair.tx.outgoing.ledgers["b"].entries
    assert pair.tx.pool.stats().free == 8 * 4096


def test_relics_of_a_log_that_began_anew_are_named_first_and_all() -> None:
    table = Fetches()
    for generation, gone in ((1, ANEW), (2, ANEW), (3, ANEW), (4, 7), (5, 9)):
        fetch = table.start(0, ADDRESS, "k", 0)
        table.set(fetch._replace(state=HELD, peer=b"p", generation=generation, relic=gone))

    assert table.first_relics(b"p", 2) == ((1, 2, 3), 7)
    assert table.first_relics(b"p", 4) == ((1, 2, 3, 4), 9)
