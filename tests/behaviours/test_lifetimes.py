"""Leases, deadlines and aborts: whose memory it is while something is under way."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviours.kit import (
    MIB,
    PATIENCE_S,
    Open,
    body,
    doom,
    finish_all,
    is_body,
    linked,
    opening,
    pair,
    whole,
    write_plane,
)

from stagelink import DeadlineError, GoneError, PeerError, StagelinkError
from stagelink.adapters.memory import Hub, WriteFault
from stagelink.core.errors import ConfigError, Reason, TransportError
from stagelink.plugins.conformance.connector import AT_ONCE_S, Waiter, eventually, is_whole, waits

if TYPE_CHECKING:
    from stagelink.connector import Connector

DELAYED, NONE = WriteFault.DELAYED, WriteFault.NONE


def under_way(sender: Connector) -> int:
    """How many transfers have been asked for and are not over."""
    return len(write_plane(sender).pending()) + int(sender.health()["ledger"]["queued"])


def begin(sender: Connector, receiver: Connector, *keys: str) -> list[Waiter]:
    """Gets of *keys*, begun in that order."""
    waiters = []
    for key in keys:
        before = under_way(sender)
        waiters.append(Waiter(partial(receiver.get, key, source="thinker", timeout=PATIENCE_S)))
        assert eventually(partial(more_under_way, sender, before))
    return waiters


def more_under_way(sender: Connector, before: int) -> bool:
    """Whether another transfer has been asked for."""
    return under_way(sender) > before


# --- time to live ----------------------------------------------------------------------------


def test_nobody_may_wait_longer_than_a_payload_is_kept(opened: Open) -> None:
    with pytest.raises(ConfigError, match="ttl_s"):
        opened(stage="a", role="receiver", timeouts={"transfer_base_s": 30.0, "ttl_s": 20.0})


def test_a_get_after_the_end_of_life_says_how_long_that_was(opened: Open) -> None:
    sender, receiver = pair(opened)
    linked(sender, receiver)
    sender.put("key", body(1, MIB), to="talker", ttl=0.05)
    assert whole(sender)

    with pytest.raises(GoneError, match=r"0\.05 s") as caught:
        receiver.get("key", source="thinker", timeout=PATIENCE_S)

    assert caught.value.reason is Reason.EXPIRED
    assert not isinstance(caught.value, TimeoutError)


def test_a_queue_that_takes_one_payload_at_a_time_loses_none(opened: Open) -> None:
    sender, receiver = pair(opened, eager_limit=0)
    for number in range(64):
        sender.put(str(number), body(number, 50_000), to="talker")
    for number in range(64):
        with receiver.get(str(number), source="thinker", timeout=PATIENCE_S) as payload:
            assert is_body(payload.value, number, 50_000)
    assert sender.drain(PATIENCE_S)
    assert sender.health()["timeouts"] == receiver.health()["timeouts"] == 0


def test_the_oldest_payload_outlives_younger_ones_with_shorter_lives(opened: Open) -> None:
    sender, receiver = pair(opened)
    sender.put("oldest", body(1, MIB), to="talker", ttl=PATIENCE_S)
    for number in range(5):
        sender.put(f"young {number}", body(2, MIB), to="talker", ttl=0.1)

    assert eventually(lambda: sender.health()["ledger"]["entries"] == 1)
    assert eventually(lambda: sender.health()["pool"]["blocks"] == 1)
    assert is_body(receiver.get("oldest", source="thinker").value, 1, MIB)


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0], ids=["forwards", "backwards"])
def test_a_wall_clock_that_jumps_changes_no_expiry(
    opened: Open, monkeypatch: pytest.MonkeyPatch, shift_s: float
) -> None:
    sender, receiver = pair(opened)
    sender.put("long", body(1, MIB), to="talker", ttl=60.0)
    sender.put("short", body(2, MIB), to="talker", ttl=0.2)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)

    assert eventually(lambda: sender.health()["ledger"]["entries"] == 1)
    assert is_body(receiver.get("long", source="thinker").value, 1, MIB)


def test_what_a_living_reader_views_outlasts_the_life_of_its_payload(opened: Open) -> None:
    sender, receiver = pair(opened)
    linked(sender, receiver)
    sender.put("key", body(7, MIB), to="talker", ttl=1.0)
    view = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    assert eventually(lambda: sender.health()["ledger"]["leaving"] == 1), "its life is over"
    for number in range(3):
        sender.put(f"other {number}", body(number, MIB), to="talker", ttl=60.0)
    assert is_body(view, 7, MIB)
    del view
    gc.collect()
    for number in range(3):
        sender.withdraw(f"other {number}", to="talker")
    assert whole(sender, receiver)


# --- liveness --------------------------------------------------------------------------------


def hold_the_interpreter(seconds: float) -> None:
    """No other thread runs Python meanwhile: a call that does not let go of the lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def test_a_busy_interpreter_loses_neither_connection_nor_memory() -> None:
    """Heartbeats are the channel's own threads' work, and death needs a proof."""
    with opening("shm") as open_:
        quick = {"silence_s": 0.6, "suspect_grace_s": 0.2}
        sender, receiver = pair(open_, timeouts=quick)
        sender.put("key", body(3, MIB), to="talker")
        view = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
        session = receiver._driver.look(
            lambda e: [s.session.number for s in e.incoming.sources.values()]
        )

        hold_the_interpreter(1.2)

        assert is_body(view, 3, MIB)
        sender.put("next", body(4, MIB), to="talker")
        assert is_body(receiver.get("next", source="thinker").value, 4, MIB)
        after = receiver._driver.look(
            lambda e: [s.session.number for s in e.incoming.sources.values()]
        )
        assert after == session
        assert receiver.health()["errors"] == {}


# --- aborts ----------------------------------------------------------------------------------


def test_an_aborted_get_holds_its_memory_only_until_the_write_has_ended(
    opened_writing: Open,
) -> None:
    sender, receiver = pair(opened_writing)
    sender.put("key", body(1, MIB), to="talker")
    linked(sender, receiver)
    doom(sender, DELAYED)
    (waiter,) = begin(sender, receiver, "key")

    assert receiver.cancel("key", source="thinker") == 1
    assert waiter.join().error is not None
    assert receiver.health()["pool"]["quarantined"] > MIB
    finish_all(sender)

    assert eventually(lambda: not receiver.health()["pool"]["quarantined"])
    assert receiver.health()["late_messages"] >= 1
    assert is_body(receiver.get("key", source="thinker").value, 1, MIB)


def test_after_an_abort_the_senders_death_frees_the_memory(opened_writing: Open) -> None:
    sender, receiver = pair(opened_writing)
    sender.put("key", body(1, MIB), to="talker")
    linked(sender, receiver)
    doom(sender, WriteFault.STUCK)
    (waiter,) = begin(sender, receiver, "key")
    receiver.cancel("key", source="thinker")
    assert waiter.join().error is not None
    assert not is_whole(receiver)

    Hub.default().kill(sender._driver.parts.endpoint.settings.instance)

    assert whole(receiver)


@pytest.mark.parametrize("when", ["before the put", "after it"])
def test_what_is_rejected_unread_is_free_within_a_second(opened_any: Open, when: str) -> None:
    sender, receiver = pair(opened_any)
    linked(sender, receiver)
    if when == "before the put":
        receiver.reject("key", source="thinker")
    sender.put("key", body(1, MIB), to="talker")
    if when != "before the put":
        assert eventually(lambda: receiver.health()["inbox"]["entries"] == 1)
        receiver.reject("key", source="thinker")
    assert whole(sender, within_s=AT_ONCE_S)


def test_two_receivers_that_abort_a_slow_write_each_hear_of_its_end(opened_writing: Open) -> None:
    sender = opened_writing(stage="thinker", role="sender")
    receivers = [
        opened_writing(stage="talker", role="receiver", sender=sender.endpoint, rank=rank)
        for rank in (0, 1)
    ]
    sender.put("key", body(1, MIB), to="talker", readers=2)
    doom(sender, DELAYED, DELAYED)
    waiters = [begin(sender, one, "key")[0] for one in receivers]
    for one, waiter in zip(receivers, waiters, strict=True):
        assert one.cancel("key", source="thinker") == 1
        assert waiter.join().error is not None
    assert not any(map(is_whole, receivers)), "nobody is told before the write has ended"
    finish_all(sender)

    assert whole(*receivers)
    assert all(one.health()["timeouts"] == 0 for one in receivers)
    sender.withdraw("key", to="talker")
    assert whole(sender)


ABORTS = [
    ("memory-write", "in transfer"),  # elsewhere no transfer can be held up: it is over at once
    *[(name, "before the put") for name in ("memory", "shm", "memory-write", "shm-write")],
    *[(name, "after delivery") for name in ("memory", "shm", "memory-write", "shm-write")],
]


@pytest.mark.parametrize(("backend", "moment"), ABORTS)
def test_an_abort_looks_the_same_on_every_backend(backend: str, moment: str) -> None:
    with opening(backend) as open_:
        sender, receiver = pair(open_)
        linked(sender, receiver)
        if moment == "after delivery":
            sender.put("key", body(1, MIB), to="talker")
            view = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
            assert receiver.cancel("key", source="thinker") == 0
            assert is_body(view, 1, MIB)
            del view
            gc.collect()
        else:
            if moment == "in transfer":
                sender.put("key", body(1, MIB), to="talker")
                doom(sender, DELAYED)
                (waiter,) = begin(sender, receiver, "key")
            else:
                waiter = Waiter(lambda: receiver.get("key", source="thinker"))
                assert waits(receiver)
            assert receiver.cancel("key", source="thinker") == 1
            error = waiter.join().error
            assert isinstance(error, GoneError)
            assert error.reason is Reason.CANCELLED
            if moment == "in transfer":
                finish_all(sender)
                sender.withdraw("key", to="talker")
        assert whole(sender, receiver)
        sender.put("next", body(2, MIB), to="talker")
        assert is_body(receiver.get("next", source="thinker").value, 2, MIB)


def test_a_write_that_has_not_begun_never_begins_after_its_abort(opened_writing: Open) -> None:
    """Of five queued behind one another, the third is cancelled."""
    sender, receiver = pair(opened_writing, max_writes=1)
    linked(sender, receiver)
    keys = [f"key {number}" for number in range(5)]
    sizes = [
        sender.put(key, body(number, 100_000 + 10_000 * number), to="talker").size
        for number, key in enumerate(keys)
    ]
    fates = doom(sender, DELAYED)
    waiters = begin(sender, receiver, *keys)

    assert receiver.cancel(keys[2], source="thinker") == 1
    assert waiters[2].join().error is not None
    assert eventually(lambda: under_way(sender) == len(keys) - 1)  # the sender has heard of it
    finish_all(sender)

    for number in (0, 1, 3, 4):
        assert is_body(waiters[number].join().result.value, number, 100_000 + 10_000 * number)
    assert fates.sizes == [sizes[number] for number in (0, 1, 3, 4)]


def test_a_queued_write_ends_with_its_sender_and_writes_nothing(opened_writing: Open) -> None:
    sender, receiver = pair(opened_writing, max_writes=1)
    linked(sender, receiver)
    for key in ("first", "second"):
        sender.put(key, body(1, MIB), to="talker")
    fates = doom(sender, DELAYED)
    waiters = begin(sender, receiver, "first", "second")

    closer = Waiter(sender.close)
    error = waiters[1].join().error
    finish_all(sender)
    closer.join()

    assert isinstance(error, StagelinkError)
    assert len(fates.sizes) == 1
    waiters[0].join()
    waiters[0].result = None
    gc.collect()
    assert whole(receiver)


# --- transfers that go wrong -----------------------------------------------------------------


def test_one_part_of_four_that_cannot_start_is_told_at_once_by_name(opened_writing: Open) -> None:
    sender, receiver = pair(opened_writing)
    linked(sender, receiver)
    for number in range(4):
        sender.put(f"part {number}", body(number, MIB), to="talker")
    doom(sender, NONE, NONE, WriteFault.FAILING)
    got: dict[int, Any] = {}
    start_s = time.monotonic()
    for number in range(4):
        try:
            got[number] = receiver.get(f"part {number}", source="thinker").value
        except TransportError as error:
            got[number] = error
    assert time.monotonic() - start_s < PATIENCE_S

    assert isinstance(got[2], TransportError)
    assert got[2].reason is Reason.TRANSFER_FAILED
    assert "part 2" in str(got[2])
    assert all(is_body(got[number], number, MIB) for number in (0, 1, 3))


def test_a_write_that_never_ends_costs_a_typed_error_and_no_thread(opened_writing: Open) -> None:
    timeouts = {"transfer_base_s": 0.05, "transfer_per_100mib_s": 0.01, "stuck_base_s": 0.4}
    sender, receiver = pair(opened_writing, timeouts=timeouts)
    linked(sender, receiver)
    sender.put("key", body(1, MIB), to="talker")
    threads = threading.active_count()
    doom(sender, WriteFault.STUCK)
    assert receiver.wait(["key"], source="thinker", timeout=PATIENCE_S) == "key"

    with pytest.raises(DeadlineError, match="pulling"):
        receiver.get("key", source="thinker", timeout=0.2)

    assert eventually(lambda: not sender.health()["ledger"]["writes"])
    assert whole(receiver)
    assert is_body(receiver.get("key", source="thinker", timeout=PATIENCE_S).value, 1, MIB)
    assert eventually(lambda: threading.active_count() <= threads + 1)


@pytest.mark.parametrize("relief", ["the write ends", "the sender dies"])
def test_one_late_answer_of_eight_spoils_no_other_transfer(
    opened_writing: Open, relief: str
) -> None:
    sender, receiver = pair(opened_writing, max_writes=4)
    linked(sender, receiver)
    for number in range(8):
        sender.put(f"key {number}", body(number, 200_000), to="talker")
    doom(sender, DELAYED)
    assert receiver.wait(["key 0"], source="thinker", timeout=PATIENCE_S) == "key 0"
    with pytest.raises(DeadlineError):
        receiver.get("key 0", source="thinker", timeout=0.1)
    for number in range(1, 8):
        with receiver.get(f"key {number}", source="thinker", timeout=PATIENCE_S) as payload:
            assert is_body(payload.value, number, 200_000)
    pool, lent = receiver.health()["pool"], receiver.health()["credits"]["lent_bytes"]
    assert pool["quarantined"] >= 200_000
    assert pool["free"] + pool["quarantined"] + lent == pool["capacity"]

    if relief == "the write ends":
        finish_all(sender)
    else:
        Hub.default().kill(sender._driver.parts.endpoint.settings.instance)
    assert whole(receiver)


def test_a_sender_that_dies_before_it_answers_is_told_within_a_second(
    opened_writing: Open,
) -> None:
    sender, receiver = pair(opened_writing)
    linked(sender, receiver)
    sender.put("key", body(1, MIB), to="talker")
    doom(sender, WriteFault.STUCK)
    (waiter,) = begin(sender, receiver, "key")
    Hub.default().kill(sender._driver.parts.endpoint.settings.instance)
    error = waiter.join().error
    assert isinstance(error, PeerError)
    assert whole(receiver)


def test_what_was_consumed_is_known_however_soon_its_reader_closes(opened: Open) -> None:
    """The last words of a connector arrive before the news of its end."""
    sender = opened(stage="thinker", role="sender")
    for number in range(12):
        receiver = opened(stage="talker", role="receiver", sender=sender.endpoint)
        sender.put(str(number), body(number, 1000), to="talker", ttl=60.0)
        receiver.get(str(number), source="thinker", timeout=PATIENCE_S).close()
        receiver.close()
        assert sender.drain(PATIENCE_S)
