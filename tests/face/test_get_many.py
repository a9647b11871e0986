"""Many keys under one deadline, and the first of many."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import stagelink
from stagelink import ConfigError, DeadlineError, GoneError, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

POOL = 8 << 20
LARGE = bytes(range(250)) * 1200
PATIENCE_S = 20.0


class Pair(NamedTuple):
    """A sender of stage ``a`` and a receiver of stage ``b``."""

    tx: Connector
    rx: Connector


@pytest.fixture(params=["shm", "shm-write", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two connectors that know each other, and lose nothing whatever a test did to them."""
    settings: dict[str, Any] = {"backend": request.param, "pool_bytes": POOL}
    with (
        stagelink.open(stage="a", role="sender", **settings) as tx,
        stagelink.open(stage="b", role="receiver", sender=tx.endpoint, **settings) as rx,
    ):
        tx.put("hello", b"", to="b")
        rx.get("hello", source="a", timeout=PATIENCE_S).close()
        yield Pair(tx, rx)
        assert not rx._driver.tickets.all()
        for connector in (rx, tx):
            assert eventually(lambda c=connector: c.health()["pool"]["free"] == POOL)  # type: ignore[misc]


def eventually(holds: Callable[[], object]) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


def later(*calls: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: [call() for call in calls], daemon=True)
    thread.start()
    return thread


def test_many_payloads_come_in_the_order_asked(pair: Pair) -> None:
    def put() -> None:
        eventually(lambda: pair.rx.health()["inbox"]["gets"] == 3)
        for key in ("c", "a", "b"):
            pair.tx.put(key, LARGE + key.encode(), to="b")

    putting = later(put)
    payloads = pair.rx.get_many(iter(["a", "b", "c"]), source="a", timeout=PATIENCE_S)

    assert [payload.key for payload in payloads] == ["a", "b", "c"]
    for payload in payloads:
        assert bytes(payload.value) == LARGE + payload.key.encode()
        payload.close()
    putting.join(PATIENCE_S)
    assert pair.rx.get_many([], source="a") == []


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_one_key_that_does_not_come_in_time_costs_none_of_the_others(
    pair: Pair, body: bytes
) -> None:
    driver = pair.rx._driver

    def cancel() -> None:  # once only that one and the call itself have no answer
        eventually(lambda: driver.has_driver and len(driver.tickets.all()) == 2)
        pair.rx.cancel("never", source="a")

    for key in ("a", "c"):
        pair.tx.put(key, body, to="b")
    cancelling = later(cancel)
    with pytest.raises(GoneError) as cancelled:
        pair.rx.get_many(["a", "never", "c"], source="a", timeout=PATIENCE_S)
    cancelling.join(PATIENCE_S)
    with pytest.raises(DeadlineError) as failed:
        pair.rx.get_many(["a", "never", "c"], source="a", timeout=0.1)

    assert cancelled.value.context.key == failed.value.context.key == "never"
    assert eventually(lambda: pair.rx.health()["inbox"]["gets"] <= 2)
    with pair.rx.get("c", source="a", timeout=PATIENCE_S) as payload:
        assert payload.value == body
    found = pair.rx.poll("a", source="a")
    assert found is not None
    assert found.value == body
    found.close()
    assert pair.rx.health()["inbox"]["untaken"] == 0


def test_a_failure_ends_the_wait_for_the_others_at_once(pair: Pair) -> None:
    def fail() -> None:
        eventually(lambda: pair.rx.health()["inbox"]["gets"] == 2)
        pair.tx.fail("b", "boom", to="b")

    failing, start_s = later(fail), time.monotonic()
    with pytest.raises(GoneError, match="boom") as failed:
        pair.rx.get_many(["a", "b"], source="a", timeout=PATIENCE_S)

    assert failed.value.context.key == "b"
    assert time.monotonic() - start_s < PATIENCE_S / 2
    failing.join(PATIENCE_S)
    pair.tx.put("a", b"x", to="b")
    pair.rx.get("a", source="a", timeout=PATIENCE_S).close()


def test_a_key_asked_for_twice_is_got_twice(pair: Pair) -> None:
    def put() -> None:
        for body in (b"1", b"2"):
            assert eventually(lambda: not pair.tx.health()["ledger"]["entries"])
            pair.tx.put("k", body, to="b")

    putting = later(put)
    payloads = pair.rx.get_many(["k", "k"], source="a", timeout=PATIENCE_S)
    assert sorted(payload.value for payload in payloads) == [b"1", b"2"]
    putting.join(PATIENCE_S)


@pytest.mark.parametrize("keys", ["abc", b"def", 7, ["a", 7], ["a", ""]])
def test_what_is_no_collection_of_keys_is_refused(pair: Pair, keys: Any) -> None:
    with pytest.raises(ConfigError):
        pair.rx.get_many(keys, source="a")
    with pytest.raises(ConfigError):
        pair.rx.wait(keys, source="a")


def test_the_first_of_many_keys_is_told_and_not_taken(pair: Pair) -> None:
    def put() -> None:
        eventually(lambda: pair.rx.health()["inbox"]["waits"])
        pair.tx.put("b", LARGE, to="b")

    putting = later(put)
    assert pair.rx.wait(["a", "b", "c"], source="a", timeout=PATIENCE_S) == "b"
    assert pair.rx.wait(["c", "b"], source="a", timeout=0.0) == "b"
    putting.join(PATIENCE_S)
    pair.rx.get("b", source="a", timeout=PATIENCE_S).close()


def test_a_wait_for_keys_ends_at_its_deadline_of_either_kind(pair: Pair) -> None:
    with pytest.raises(DeadlineError, match="none of 2 keys"):
        pair.rx.wait(["a", "b"], source="a", timeout=0.02)
    with pytest.raises(DeadlineError):
        pair.rx.wait(["a"], source="a", deadline=time.monotonic() - 5)
    with pytest.raises(ConfigError, match="both"):
        pair.rx.wait(["a"], source="a", timeout=1.0, deadline=time.monotonic())
    with pytest.raises(ConfigError, match="no keys"):
        pair.rx.wait([], source="a")
    with pytest.raises(ConfigError, match="only sends"):
        pair.tx.wait(["a"], source="a")


def test_a_wait_hears_of_a_failure_and_the_get_raises_it(pair: Pair) -> None:
    pair.tx.fail("b", "boom", to="b")
    assert pair.rx.wait(["a", "b"], source="a", timeout=PATIENCE_S) == "b"
    with pytest.raises(GoneError, match="boom"):
        pair.rx.get("b", source="a")


def test_a_wait_hears_that_the_sender_is_gone(pair: Pair) -> None:
    closing = later(pair.tx.close)
    with pytest.raises(PeerError):
        pair.rx.wait(["a"], source="a", timeout=PATIENCE_S)
    closing.join(PATIENCE_S)


@pytest.mark.parametrize("deadline", ["soon", True, float("nan"), float("inf"), 1 << 2000])
def test_a_deadline_that_is_no_moment_is_refused(pair: Pair, deadline: Any) -> None:
    with pytest.raises(ConfigError, match="monotonic"):
        pair.rx.get("k", source="a", deadline=deadline)
    with pytest.raises(ConfigError, match="monotonic"):
        pair.tx.put("k", b"", to="b", deadline=deadline)


def test_puts_and_gets_take_a_deadline(pair: Pair) -> None:
    deadline = time.monotonic() + PATIENCE_S
    pair.tx.put("k", LARGE, to="b", deadline=deadline)
    pair.rx.get("k", source="a", deadline=deadline).close()
    start_s = time.monotonic()
    with pytest.raises(DeadlineError):
        pair.rx.get("k", source="a", deadline=start_s + 0.05)
    assert time.monotonic() - start_s >= 0.05
