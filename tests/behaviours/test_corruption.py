"""Bytes: never too early, never somebody else's, never after their end; errors keep their cause."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from tests.behaviours.kit import (
    ALL_OF_IT,
    MIB,
    PATIENCE_S,
    Open,
    body,
    is_body,
    linked,
    opening,
    pair,
    whole,
    write_plane,
)
from tests.chaos.stages import Mode, Scene

from stagelink import PeerError, StagelinkError
from stagelink.core.errors import Reason, TransportError
from stagelink.plugins.conformance.connector import eventually

LARGE = Mode("shm-write", 32 * MIB)


def test_nothing_counts_as_delivered_while_its_reader_is_stopped(scene: Scene) -> None:
    sender = scene.connector(LARGE, stage="thinker", role="sender")
    (receiver,) = scene.receiver_processes(LARGE, sender)
    receiver.stop()
    sender.put("key", memoryview(bytes(LARGE.size)), to="talker")
    receiver.tell(do="get", key="key", timeout=PATIENCE_S)

    assert not sender.drain(0.3)
    assert sender.health()["pool"]["held"] >= LARGE.size, "the source may not be used again yet"
    receiver.go_on()

    assert receiver.answer()["got"] == "key"
    assert receiver.ask(do="drop") == {}
    assert sender.drain(PATIENCE_S)
    assert whole(sender)


@pytest.mark.parametrize("size", [1000, MIB], ids=["small", "large"])
def test_an_old_reference_never_shows_the_new_owner_of_its_memory(
    opened_any: Open, size: int
) -> None:
    sender, receiver = pair(opened_any)
    linked(sender, receiver)
    old = sender.put("key", body(1, size), to="talker").metadata
    assert sender.withdraw("key", to="talker")
    assert whole(sender)
    new = sender.put("key", body(2, size), to="talker")
    assert eventually(lambda: receiver.health()["inbox"]["entries"] == 1)

    with pytest.raises(StagelinkError) as caught:
        receiver.get("key", source="thinker", metadata=old, timeout=0.3)

    assert caught.value.reason in {
        Reason.WITHDRAWN, Reason.UNKNOWN, Reason.MISMATCH, Reason.DEADLINE, Reason.REPLACED
    }  # fmt: skip
    payload = receiver.get("key", metadata=new.metadata, timeout=PATIENCE_S)
    assert is_body(payload.value, 2, size)


@pytest.mark.parametrize("field", ["generation", "size", "instance"])
def test_a_reference_that_was_tampered_with_gets_no_bytes(opened: Open, field: str) -> None:
    sender, receiver = pair(opened)
    metadata = dict(sender.put("key", body(1, MIB), to="talker").metadata)
    metadata[field] = "ab" * 16 if field == "instance" else metadata[field] + 1

    with pytest.raises(StagelinkError):
        receiver.get("key", metadata=metadata, timeout=0.3)

    payload = receiver.get("key", source="thinker", timeout=PATIENCE_S)
    assert is_body(payload.value, 1, MIB)


def test_memory_that_is_viewed_is_no_target_of_later_payloads(opened_writing: Open) -> None:
    sender, receiver = pair(opened_writing, eager_limit=0, **ALL_OF_IT)
    views: list[Any] = []
    for number in range(40):
        sender.put(str(number), body(number, 100_000), to="talker", timeout=PATIENCE_S)
        views.append(receiver.get(str(number), source="thinker", timeout=PATIENCE_S).value)
        if number % 3 == 2:  # some go, others stay
            views.pop(0)
            gc.collect()
        if len(views) > 20:
            views.clear()
            gc.collect()
        kept = range(number + 1 - len(views), number + 1)
        assert all(is_body(v, n, 100_000) for v, n in zip(views, kept, strict=True))


def test_what_a_reader_writes_never_reaches_the_callers_value(opened_any: Open) -> None:
    sender, receiver = pair(opened_any)
    mine = bytearray(MIB)
    sender.put("key", mine, to="talker")
    view = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    if not getattr(view, "readonly", False) and not isinstance(view, bytes):
        view[:10] = b"x" * 10
    assert mine == bytes(MIB)


class DeviceError(OSError):
    """What a driver of a device raises."""


def test_an_error_of_the_device_is_told_as_such_and_is_no_timeout(
    opened_writing: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair(opened_writing)
    linked(sender, receiver)
    sender.put("key", body(1, MIB), to="talker")

    def post(order: object, done: object) -> None:
        raise DeviceError(5, "copy engine halted")

    with monkeypatch.context() as patch:
        patch.setattr(write_plane(sender), "post", post)
        start_s = time.monotonic()
        with pytest.raises(TransportError, match="copy engine halted") as caught:
            receiver.get("key", source="thinker", timeout=PATIENCE_S)

    assert time.monotonic() - start_s < PATIENCE_S / 2
    assert not isinstance(caught.value, TimeoutError)
    assert receiver.health()["timeouts"] == 0
    assert receiver.health()["errors"] == {"transfer_failed": 1}
    assert is_body(receiver.get("key", source="thinker").value, 1, MIB)


def test_an_error_of_the_readers_device_keeps_class_and_cause(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair(opened)
    linked(sender, receiver)
    sender.put("key", body(1, MIB), to="talker")
    (plane,) = receiver._driver.parts.planes.values()

    def view(peer: object, where: object) -> memoryview:
        raise DeviceError(5, "mapping lost")

    with monkeypatch.context() as patch:
        patch.setattr(plane, "view", view)
        with pytest.raises(DeviceError, match="mapping lost"):
            receiver.get("key", source="thinker", timeout=PATIENCE_S)
    assert receiver.health()["timeouts"] == 0
    assert whole(sender, receiver)


def test_views_outlive_their_producer_and_are_let_go_once(scene: Scene) -> None:
    mode = Mode("shm", MIB)
    sender = scene.sender_process(mode)
    (receiver,) = scene.receivers(mode, sender.endpoint)
    sender.put("key", mode.size)
    payload = receiver.get("key", source="thinker", timeout=PATIENCE_S)
    view = payload.value
    before = bytes(view)
    sender.kill()
    with pytest.raises(PeerError):
        receiver.get("never", source="thinker", timeout=PATIENCE_S)

    assert bytes(view) == before
    payload.close()
    payload.close()
    del view, payload
    gc.collect()
    assert whole(receiver)


def test_a_close_waits_a_bounded_while_for_views_and_says_how_many_are_open() -> None:
    with opening("shm-write") as open_:
        sender, receiver = pair(open_, timeouts={"close_s": 0.3})
        sender.put("key", body(1, MIB), to="talker")
        view = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
        assert receiver.health()["views"] == 1
        start_s = time.monotonic()
        receiver.close()
        assert 0.3 <= time.monotonic() - start_s < PATIENCE_S / 2
        assert receiver.health()["views"] == 1
        assert is_body(view, 1, MIB)
