"""Shared memory: nothing is left, nothing is taken for something else, real errors are told."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.behaviours.kit import MIB, PATIENCE_S, Open, body, is_body, linked, opening, pair, whole

from stagelink import DeadlineError, GoneError, PayloadError, PeerError
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.core.errors import Reason
from stagelink.plugins.conformance.connector import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector


@pytest.fixture(params=["shm", "shm-write"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens connectors over shared memory."""
    with opening(request.param) as open_:
        yield open_


def test_a_thousand_payloads_that_nobody_gets_leave_the_directory_as_it_was(
    opened: Open, tmp_path: Path
) -> None:
    sender, receiver = pair(opened, shm_dir=str(tmp_path), eager_limit=0)
    linked(sender, receiver)
    before = sorted(os.listdir(tmp_path))
    for number in range(1000):
        sender.put(str(number), body(number, 5000), to="talker")
        if number % 2:
            sender.withdraw(str(number), to="talker")
        else:
            receiver.reject(str(number), source="thinker")
    assert sorted(os.listdir(tmp_path)) == before
    assert whole(sender, receiver)
    receiver.close()
    sender.close()
    assert os.listdir(tmp_path) == []


class Broken(RuntimeError):
    """Raised where a test says."""


def broken(*args: object, **kwargs: object) -> Any:
    """Whatever it was to do, it fails."""
    raise Broken


@pytest.mark.parametrize("step", ["put", "get", "decode"])
def test_a_failure_inside_a_call_leaves_no_file(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sender, receiver = pair(opened, shm_dir=str(tmp_path))
    linked(sender, receiver)
    with monkeypatch.context() as patch:
        if step == "put":
            staged = type(PayloadSerializer().stage(b""))
            patch.setattr(staged, "write", broken)
            with pytest.raises(Broken):
                sender.put("key", body(1, MIB), to="talker")
        else:
            sender.put("key", body(1, MIB), to="talker")
            if step == "get":
                patch.setattr(receiver._driver.views, "open", broken)
            else:
                patch.setattr(PayloadSerializer, "load", broken)
            with pytest.raises(Broken):
                _ = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    gc.collect()
    receiver.close()
    sender.close()
    assert os.listdir(tmp_path) == []


def test_connectors_with_equal_settings_share_no_name(opened: Open, tmp_path: Path) -> None:
    first = opened(stage="thinker", role="sender", shm_dir=str(tmp_path))
    second = opened(stage="thinker", role="sender", shm_dir=str(tmp_path))
    names = set(os.listdir(tmp_path))
    first.close()
    rest = set(os.listdir(tmp_path))
    assert rest < names
    assert all(second.health()["engine_key"] in name for name in rest)
    second.put("key", body(1, MIB), to="talker")
    receiver = opened(
        stage="talker", role="receiver", sender=second.endpoint, shm_dir=str(tmp_path)
    )
    assert is_body(receiver.get("key", source="thinker").value, 1, MIB)


@pytest.mark.parametrize("size", [1, 4095, 4097, 70_001])
def test_a_block_larger_than_its_payload_shows_the_declared_bytes_only(
    opened: Open, size: int
) -> None:
    sender, receiver = pair(opened, eager_limit=0)
    for connector in (sender, receiver):
        memory = connector._driver.parts.memory.buffer
        np.frombuffer(memory, dtype=np.uint8)[:] = 0xEE  # garbage to the end of every page
    sender.put("key", body(7, size), to="talker")
    assert is_body(receiver.get("key", source="thinker", timeout=PATIENCE_S).value, 7, size)


def test_what_is_not_there_yet_is_none_and_what_is_broken_is_an_error(opened: Open) -> None:
    sender, receiver = pair(opened)
    linked(sender, receiver)
    assert receiver.poll("key", source="thinker") is None
    with pytest.raises(DeadlineError):
        receiver.get("key", source="thinker", timeout=0.0)

    sender.put("key", body(1, MIB), to="talker")
    np.frombuffer(sender._driver.parts.memory.buffer, dtype=np.uint8)[:] = 0xEE
    start_s = time.monotonic()
    with pytest.raises(PayloadError):
        _ = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    assert time.monotonic() - start_s < PATIENCE_S / 2
    gc.collect()
    assert whole(sender, receiver)


def test_a_segment_that_is_not_there_is_told_at_once(opened: Open, tmp_path: Path) -> None:
    sender = opened(stage="thinker", role="sender", shm_dir=str(tmp_path))
    receiver = opened(
        stage="talker", role="receiver", shm_dir=str(tmp_path), sender=sender.endpoint
    )
    sender.put("key", body(1, MIB), to="talker")
    for name in os.listdir(tmp_path):
        if not name.endswith(".lock"):
            (tmp_path / name).unlink()

    error = refusal(receiver)
    assert "stagelink-" in str(error), "the segment is named"


def test_shared_memory_is_refused_between_hosts_that_do_not_share_it(
    opened: Open, tmp_path: Path
) -> None:
    """Here: by the directory, which is part of what makes a host."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sender = opened(stage="thinker", role="sender", shm_dir=str(tmp_path / "a"))
    receiver = opened(
        stage="talker", role="receiver", shm_dir=str(tmp_path / "b"), sender=sender.endpoint
    )
    sender.put("key", b"even small ones", to="talker")

    assert "host" in str(refusal(receiver))
    assert receiver.health()["status"] == "degraded"


def refusal(receiver: Connector) -> PeerError:
    """The error of a get that is refused, at once and not at its deadline."""
    start_s = time.monotonic()
    with pytest.raises(PeerError) as caught:
        receiver.get("key", source="thinker", timeout=PATIENCE_S)
    assert time.monotonic() - start_s < PATIENCE_S / 2
    assert caught.value.reason is Reason.DECLINED
    assert not isinstance(caught.value, GoneError)
    return caught.value


def test_a_reader_that_leaves_takes_nothing_from_the_writer(opened: Open, tmp_path: Path) -> None:
    sender = opened(stage="thinker", role="sender", shm_dir=str(tmp_path))
    for number in range(3):
        receiver = opened(
            stage="talker", role="receiver", shm_dir=str(tmp_path), sender=sender.endpoint
        )
        sender.put(str(number), body(number, MIB), to="talker")
        assert is_body(
            receiver.get(str(number), source="thinker", timeout=PATIENCE_S).value, number, MIB
        )
        gc.collect()
        receiver.close()
        mine = sender.health()["engine_key"]
        assert eventually(lambda: all(mine in name for name in os.listdir(tmp_path)))  # noqa: B023
