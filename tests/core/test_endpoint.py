"""The router, the timers, the feed and the inbox, each by itself."""

from __future__ import annotations

from typing import get_args

import pytest

from stagelink.core import events
from stagelink.core.endpoint import Endpoint
from stagelink.core.events import Await, Complete, Failure, Get, Poll, Publish, Published, Reserve
from stagelink.core.handshake.feed import WINDOW_BYTES, WINDOW_RECORDS, Feed
from stagelink.core.handshake.inbox import Inbox
from stagelink.core.handshake.session import OwnPlane, choose, why_no_route
from stagelink.core.messages import INLINE, Announce, Hello, Report
from stagelink.core.pool import Block, Pool, Refusal
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.timers import Timers
from stagelink.core.values import HostCard, Identity, PlaneCard


def endpoint() -> Endpoint:
    settings = Settings(
        instance=b"i" * 16,
        identity=Identity("talker"),
        host=HostCard("host", "proof"),
        planes=(plane("shm", "map"),),
        policy=TimeoutPolicy(),
        inline_bytes=100,
        max_writes=1,
        session_base=0,
        can_fence=False,
    )
    return Endpoint(settings, Pool(8 * 4096, pool_id=1))


def plane(name: str, mode: str, *, crosses_hosts: bool = False) -> OwnPlane:
    return OwnPlane(PlaneCard(name, mode, b""), crosses_hosts)


def publish(ticket: int, key: str, body: bytes = b"x", *, replace: bool = False) -> Publish:
    return Publish(ticket, "code2wav", key, len(body), None, body, "", 1, 300.0, replace)


def test_every_event_has_a_handler() -> None:
    assert set(endpoint()._handlers) == set(get_args(events.Event))


def test_a_second_put_of_a_live_key_is_refused_and_changes_nothing() -> None:
    machine = endpoint()
    machine.handle(publish(1, "k"), 0.0)
    before = machine.freeze()

    [answer] = machine.handle(publish(2, "k"), 1.0)

    assert isinstance(answer, Complete)
    assert isinstance(answer.result, Failure)
    assert answer.result.reason == "duplicate"
    assert machine.freeze() == before


def test_a_replacing_put_takes_the_next_generation() -> None:
    machine = endpoint()
    machine.handle(publish(1, "k"), 0.0)

    assert machine.handle(publish(2, "k", replace=True), 1.0) == [Complete(2, Published(2))]


def test_inline_bytes_are_bounded() -> None:
    machine = endpoint()
    machine.handle(publish(1, "a", b"x" * 60), 0.0)

    [answer] = machine.handle(publish(2, "b", b"x" * 60), 0.0)

    assert isinstance(answer, Complete)
    assert isinstance(answer.result, Failure)
    assert answer.result.reason == "no_room"


def greeting(number: int, *codecs: str, stage: str = "code2wav") -> events.Received:
    hello = Hello(
        number, bytes([number] * 16), Identity(stage, number), "talker", b"",
        Report(0, (), 0, ()), HostCard("host", "proof"), (plane("shm", "map").card,), codecs,
    )  # fmt: skip
    return events.Received(f"link-{number}", hello)


def test_a_codec_is_agreed_while_every_reader_of_the_stage_can_undo_it_and_one_is_there() -> None:
    machine = endpoint()
    settings = machine.settings

    def agreed() -> bool:
        thawed = Endpoint.thaw(settings, machine.freeze(0.0))
        again = thawed.outgoing.undone_by_all("code2wav", "zstd")
        assert again == machine.outgoing.undone_by_all("code2wav", "zstd")
        return again

    assert not agreed()  # nobody has said so yet
    machine.handle(greeting(1, "zstd", "zip"), 0.0)
    assert agreed()
    machine.handle(greeting(2, stage="other"), 0.0)
    assert agreed()
    machine.handle(greeting(3, "zip"), 0.0)
    assert not agreed()
    machine.handle(events.Disconnected("link-3", "cut"), 0.0)
    assert not agreed()  # it may come back for what was put meanwhile
    machine.handle(greeting(4, "zstd")._replace(link="link-3"), 0.0)
    assert not agreed()


def test_a_reader_that_is_gone_has_no_say_and_nobody_there_means_no() -> None:
    machine = endpoint()
    machine.handle(greeting(1, "zstd"), 0.0)
    machine.handle(greeting(2), 0.0)
    machine.outgoing.receivers.gone(bytes([2] * 16), 0.0, [])

    assert machine.outgoing.undone_by_all("code2wav", "zstd")
    machine.handle(events.Disconnected("link-1", "cut"), 0.0)
    assert not machine.outgoing.undone_by_all("code2wav", "zstd")


def test_a_payload_ends_at_its_time_to_live_and_not_before() -> None:
    machine = endpoint()
    machine.handle(publish(1, "k"), 0.0)

    machine.handle(events.TimePassed(), 299.9)
    assert machine.outgoing.ledgers["code2wav"].live("k")
    machine.handle(events.TimePassed(), 300.0)
    assert not machine.outgoing.ledgers["code2wav"].entries


def test_a_reservation_waits_for_room_and_is_answered_once() -> None:
    machine = endpoint()
    [first] = machine.handle(Reserve(1, 6 * 4096, 5.0), 0.0)
    assert isinstance(first, Complete)
    assert isinstance(first.result, Block)

    assert machine.handle(Reserve(2, 4096, 5.0), 0.0) == []
    [granted] = machine.handle(events.Abandon(first.result), 1.0)
    assert isinstance(granted, Complete)
    assert granted.ticket == 2
    assert machine.handle(events.TimePassed(), 10.0) == []


def test_a_reservation_that_finds_no_room_is_refused_at_its_deadline() -> None:
    machine = endpoint()
    machine.handle(Reserve(1, 6 * 4096, 5.0), 0.0)
    machine.handle(Reserve(2, 4096, 5.0), 0.0)

    answers = [a for a in machine.handle(events.TimePassed(), 5.0) if isinstance(a, Complete)]

    assert [answer.ticket for answer in answers] == [2]
    assert isinstance(answers[0].result, Refusal)


def test_a_get_from_nobody_ends_at_its_deadline_as_unreachable() -> None:
    machine = endpoint()
    machine.handle(Get(1, "tcp://x", "thinker", "k", 0, 2.0), 0.0)

    assert machine.handle(events.TimePassed(), 1.9) == []
    [answer] = machine.handle(events.TimePassed(), 2.0)

    assert isinstance(answer, Complete)
    assert isinstance(answer.result, Failure)
    assert answer.result.reason == "unreachable"


@pytest.mark.parametrize(("after_s", "reason"), [(0.0, "deadline"), (0.5, "unreachable")])
def test_a_deadline_right_after_the_first_dialling_says_nothing_against_the_sender(
    after_s: float, reason: str
) -> None:
    machine = endpoint()
    machine.handle(Poll(1, "tcp://x", "thinker", "k", 2.0), 0.0)
    machine.handle(events.TimePassed(), after_s)
    machine.handle(Get(2, "tcp://x", "thinker", "k", 0, after_s + 0.002), after_s)
    machine.handle(Await(3, "tcp://x", "thinker", ("k",), after_s + 0.002), after_s)

    answers = machine.handle(events.TimePassed(), after_s + 0.002)

    results = [one.result for one in answers if isinstance(one, Complete)]
    assert [one.reason for one in results if isinstance(one, Failure)] == [reason] * 2
    if reason == "deadline":
        assert {one.detail for one in results} == {"the sender is not connected yet"}  # type: ignore[union-attr]


def test_a_poll_is_answered_at_once() -> None:
    answers = endpoint().handle(Poll(1, "tcp://x", "thinker", "k", 2.0), 0.0)

    assert answers[-1] == Complete(1, None)


def test_a_closed_endpoint_refuses_what_comes() -> None:
    machine = endpoint()
    machine.handle(events.Close(), 0.0)
    thawed = Endpoint.thaw(machine.settings, machine.freeze(0.0))

    for closed in (machine, thawed):
        for call in (publish(1, "k"), Poll(1, "tcp://x", "thinker", "k", 2.0)):
            [answer] = closed.handle(call, 0.0)

            assert isinstance(answer, Complete)
            assert isinstance(answer.result, Failure)
            assert answer.result.reason == "closed"


def test_timers_fire_at_or_before_now_earliest_first() -> None:
    timers = Timers()
    timers.arm(("b",), 2.0)
    timers.arm(("a",), 1.0)
    timers.arm(("c",), 3.0)
    timers.arm(("a",), 2.5)

    assert timers.next_s == 2.0
    assert timers.due(2.5) == [("b",), ("a",)]
    assert timers.due(2.5) == []
    assert timers.armed() == [("c",)]


def test_a_feed_stops_at_its_window_and_goes_on_when_told() -> None:
    feed = Feed()
    feed.subscribe(0)
    for number in range(1, WINDOW_RECORDS + 1):
        assert feed.open
        feed.sent(number, 0)

    assert not feed.open
    feed.acknowledge(WINDOW_RECORDS + 5)  # never sent: a lie does not count
    assert not feed.open
    feed.acknowledge(1)
    assert feed.open


def test_a_feed_misses_an_end_that_its_log_forgot_meanwhile() -> None:
    feed = Feed()
    feed.rewind(5)
    assert [feed.misses(trimmed) for trimmed in (4, 5, 6)] == [False, False, True]
    feed.rewind(0, 5)  # it begins from nothing: what was forgotten before is no loss
    assert [feed.misses(trimmed) for trimmed in (4, 5, 6)] == [False, False, True]
    assert Feed.thaw(feed.freeze()).freeze() == feed.freeze()


def test_a_feed_bounds_inline_bytes_too() -> None:
    feed = Feed()
    feed.subscribe(0)
    feed.sent(1, WINDOW_BYTES)

    assert not feed.open
    assert Feed.thaw(feed.freeze()).freeze() == feed.freeze()


def test_a_full_inbox_forgets_the_oldest_that_nobody_works_on() -> None:
    inbox = Inbox(limit=2)
    for number, key in enumerate("abc", start=1):
        inbox.add(Announce(number, key, number, 1, INLINE, None, b"x"), 7 if key == "a" else 0)

    assert (inbox.known(), inbox.forgot, inbox.inline_bytes) == (["a", "c"], True, 2)


@pytest.mark.parametrize("same_host", [True, False])
def test_a_route_is_the_first_of_ours_that_both_have_and_that_reaches(same_host: bool) -> None:
    ours = (plane("shm", "map"), plane("rdma", "write", crosses_hosts=True))
    theirs = (PlaneCard("rdma", "write", b""), PlaneCard("shm", "map", b""))

    chosen = choose(ours, theirs, same_host)

    assert chosen == ours[0 if same_host else 1]


def test_a_refused_route_names_both_lists() -> None:
    said = why_no_route((plane("shm", "map"),), (PlaneCard("nixl", "write", b""),), same_host=True)

    assert "sender has shm" in said
    assert "has nixl" in said
