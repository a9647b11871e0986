"""A sender found once: polled, waited for and let be without looking it up each time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

import stagelink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink import Connector, Payload, Upstream

BIG = 300_000
PATIENCE_S = 10.0


def opened(stage: str, role: str) -> Connector:
    return stagelink.open(stage=stage, role=role, backend="shm", pool_bytes=4 << 20)


@pytest.fixture
def tx() -> Iterator[Connector]:
    with opened("a", "sender") as connector:
        yield connector


@pytest.fixture
def rx() -> Iterator[Connector]:
    with opened("b", "receiver") as connector:
        yield connector


def found(rx: Connector, tx: Connector) -> Upstream:
    host, _, port = tx.endpoint.removeprefix("tcp://").rpartition(":")
    return rx.upstream(host, int(port), source="a")


def polled(upstream: Upstream, key: str) -> Payload:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        payload = upstream.poll(key)
        if payload is not None:
            return payload
    pytest.fail(f"{key!r} has not come")


def test_a_poll_takes_what_is_there_and_nothing_else(tx: Connector, rx: Connector) -> None:
    upstream = found(rx, tx)
    tx.put("k", 5, to="b")

    with polled(upstream, "k") as payload:
        assert payload.value == 5

    assert upstream.connected
    assert upstream.poll("k") is None
    assert upstream.poll("never") is None


def test_two_senders_of_one_stage_are_told_apart(tx: Connector, rx: Connector) -> None:
    with opened("a", "sender") as other:
        tx.put("k", "here", to="b")
        other.put("k", "there", to="b")

        values = [polled(found(rx, sender), "k").value for sender in (tx, other)]

    assert values == ["here", "there"]


def test_a_get_waits_until_its_deadline(tx: Connector, rx: Connector) -> None:
    upstream = found(rx, tx)

    with pytest.raises(stagelink.DeadlineError):
        upstream.get("k", deadline=time.monotonic() + 0.02)

    tx.put("k", 6, to="b")
    assert upstream.get("k", deadline=time.monotonic() + PATIENCE_S).value == 6


def test_a_get_can_be_cancelled(tx: Connector, rx: Connector) -> None:
    upstream, ended = found(rx, tx), []

    def wait() -> None:
        try:
            upstream.get("k", deadline=time.monotonic() + PATIENCE_S)
        except stagelink.GoneError as error:
            ended.append(error.reason)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        upstream.cancel("k")

    assert ended == [stagelink.Reason.CANCELLED]


def test_a_sender_that_is_gone_is_told(tx: Connector, rx: Connector) -> None:
    upstream = found(rx, tx)
    tx.put("k", 1, to="b")
    polled(upstream, "k").close()
    tx.close()

    with pytest.raises(stagelink.StagelinkError):
        upstream.get("k", deadline=time.monotonic() + PATIENCE_S)


def test_what_is_viewed_is_counted_until_its_last_view_has_gone(
    tx: Connector, rx: Connector
) -> None:
    tx.put("k", memoryview(bytearray(BIG)), to="b")
    payload = polled(found(rx, tx), "k")
    view = payload.value
    size = payload.size

    assert rx.viewed_bytes == size > BIG
    payload.close()
    assert rx.viewed_bytes == size
    del view, payload
    assert rx.viewed_bytes == 0


@pytest.mark.parametrize(("host", "port"), [("", 7), (7, 7), ("127.0.0.1", 0), ("127.0.0.1", "x")])
def test_an_address_that_is_none_is_refused(rx: Connector, host: str, port: int) -> None:
    with pytest.raises(stagelink.ConfigError):
        rx.upstream(host, port, source="a")


def test_who_only_sends_has_no_senders(tx: Connector) -> None:
    with pytest.raises(stagelink.ConfigError, match="only sends"):
        tx.upstream("127.0.0.1", 7, source="a")


def test_nothing_is_polled_once_it_is_closed(tx: Connector, rx: Connector) -> None:
    upstream = found(rx, tx)
    rx.close()

    for call in (upstream.poll, upstream.cancel):
        with pytest.raises(stagelink.ClosedError):
            call("k")
