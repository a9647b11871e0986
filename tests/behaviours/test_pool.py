"""A pool under pressure: it says so in numbers, holds nothing back, and is whole again."""

from __future__ import annotations

import gc
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.behaviours.kit import (
    ALL_OF_IT,
    MIB,
    PATIENCE_S,
    POOL,
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

import stagelink
from stagelink import CapacityError, PayloadError, StagelinkError
from stagelink.adapters.memory import MemoryMapPlane, PrivateMemory, WriteFault
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.core.errors import LeaseError, TransportError
from stagelink.plugins import builtin
from stagelink.plugins.conformance.connector import Waiter, eventually, is_whole
from stagelink.puts import Puts

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.connector import Connector


def fill(sender: Connector, size: int = MIB - 4096) -> int:
    """Put until the pool is full; how many payloads fitted."""
    for number in range(100):
        try:
            sender.put(f"fill {number}", body(number, size), to="talker", timeout=0.0)
        except CapacityError:
            return number
    raise AssertionError("the pool never filled")


# --- exhaustion ------------------------------------------------------------------------------


def test_a_full_pool_fails_one_request_with_numbers_and_lets_others_go_on(opened: Open) -> None:
    sender, receiver = pair(opened, **ALL_OF_IT)
    count = fill(sender)
    start_s = time.monotonic()
    refused = Waiter(lambda: sender.put("more", body(0, MIB), to="talker", timeout=0.3))
    held = []
    for number in range(count):  # others go on meanwhile
        held.append(receiver.get(f"fill {number}", source="thinker", timeout=PATIENCE_S))
        assert is_body(held[-1].value, number, MIB - 4096)
    others_s = time.monotonic() - start_s
    error = refused.join().error

    assert isinstance(error, CapacityError)
    assert 0.3 <= refused.took_s < PATIENCE_S / 2
    assert others_s < PATIENCE_S / 2
    assert not error.never_fits
    assert {"requested", "free", "largest_free", "capacity"} <= set(error.numbers)

    held.pop(0).close()
    sender.put("more", body(0, MIB - 4096), to="talker", timeout=PATIENCE_S)
    assert is_body(receiver.get("more", source="thinker").value, 0, MIB - 4096)


def test_a_refusal_for_want_of_room_carries_every_number_of_the_pool(opened: Open) -> None:
    sender = opened(stage="thinker", role="sender", **ALL_OF_IT)
    count = fill(sender)
    time.sleep(0.02)

    with pytest.raises(CapacityError) as caught:
        sender.put("more", body(0, 2 * MIB), to="talker", timeout=0.0)

    numbers = caught.value.numbers
    pool = sender.health()["pool"]
    assert numbers["requested"] > 2 * MIB
    assert numbers["alignment"] == 4096
    assert (numbers["free"], numbers["largest_free"]) == (pool["free"], pool["largest_free"])
    assert (numbers["capacity"], numbers["leases"]) == (POOL, count)
    assert 0.02 <= numbers["oldest_lease_s"] < PATIENCE_S
    text = str(caught.value)
    assert all(f"{numbers[name]:.0f}" in text for name in ("requested", "free", "capacity"))
    assert "raise pool_bytes" in text


def test_two_gets_that_do_not_fit_together_come_one_after_the_other(
    opened_writing: Open,
) -> None:
    size = POOL // 4 * 3 - 8192
    sender = opened_writing(stage="thinker", role="sender", **ALL_OF_IT)
    other = opened_writing(stage="second", role="sender", **ALL_OF_IT)
    senders = {"thinker": sender.endpoint, "second": other.endpoint}
    receiver = opened_writing(stage="talker", role="receiver", senders=senders, **ALL_OF_IT)
    sender.put("a", body(1, size), to="talker")
    other.put("b", body(2, size), to="talker")
    doom(sender, WriteFault.DELAYED)
    first = Waiter(lambda: receiver.get("a", source="thinker", timeout=PATIENCE_S))
    assert eventually(lambda: write_plane(sender).pending())

    second = Waiter(lambda: receiver.get("b", source="second", timeout=PATIENCE_S))
    assert eventually(lambda: receiver.health()["pool"]["waiting"] == 1)
    pool = receiver.health()["pool"]
    assert pool["blocks"] == 1, "who waits holds nothing"
    finish_all(sender)
    assert is_body(first.join().result.value, 1, size)
    first.result.close()
    first.result = None
    gc.collect()

    assert is_body(second.join().result.value, 2, size)


def test_a_value_of_many_parts_is_placed_whole_or_not_at_all(opened: Open) -> None:
    sender = opened(stage="thinker", role="sender", **ALL_OF_IT)
    before = sender.health()["pool"]
    parts = {str(number): body(number, 3 * MIB) for number in range(5)}

    with pytest.raises(CapacityError) as caught:
        sender.put("batch", parts, to="talker")

    assert caught.value.never_fits
    assert sender.health()["pool"] == before


def test_hours_of_random_load_leave_one_free_extent(opened: Open) -> None:
    sender, receiver = pair(opened, **ALL_OF_IT)
    chance = random.Random(1285)
    live: list[str] = []
    for number in range(400):
        if live and chance.random() < 0.5:
            sender.withdraw(live.pop(chance.randrange(len(live))), to="talker")
        try:
            size = chance.randrange(1, MIB)
            sender.put(str(number), body(number, size + (64 << 10)), to="talker", timeout=0.0)
            live.append(str(number))
        except CapacityError:
            pass
    assert sender.health()["pool"]["largest_free"] < POOL
    for key in live:
        sender.withdraw(key, to="talker")

    assert whole(sender, receiver)
    pool = sender.health()["pool"]
    assert pool["free"] == pool["largest_free"] == pool["capacity"] == POOL
    assert (pool["held"], pool["reserved"], pool["quarantined"]) == (0, 0, 0)
    sender.put("all of it", body(1, POOL - 4096), to="talker", timeout=0.0)


# --- ownership -------------------------------------------------------------------------------


def test_a_buffer_is_given_back_to_the_pool_it_came_from_only(opened: Open) -> None:
    owner = opened(stage="thinker", role="sender")
    other = opened(stage="talker", role="sender")
    with owner.alloc((MIB,), "uint8") as draft:
        before = owner.health()["pool"], other.health()["pool"]
        with pytest.raises(LeaseError, match="another connector"):
            other.put("key", draft, to="talker")
        assert (owner.health()["pool"], other.health()["pool"]) == before
    assert whole(owner, other)


class Broken(RuntimeError):
    """Raised where a test says."""


def broken(*args: object, **kwargs: object) -> Any:
    """Whatever it was to do, it fails."""
    raise Broken


@pytest.mark.parametrize("step", ["stage", "write", "memory"])
def test_a_put_that_fails_at_any_step_holds_nothing(
    opened_any: Open, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sender, receiver = pair(opened_any)
    linked(sender, receiver)
    assert whole(sender, receiver)
    with monkeypatch.context() as patch:
        kind, name = {
            "stage": (sender._puts, "stage"),
            "write": (type(PayloadSerializer().stage(b"")), "write"),
            "memory": (Puts, "memory"),
        }[step]
        patch.setattr(kind, name, broken)
        with pytest.raises(Broken):
            sender.put("key", body(1, MIB), to="talker")

    assert whole(sender, receiver)
    sender.put("key", body(2, MIB), to="talker")
    assert is_body(receiver.get("key", source="thinker").value, 2, MIB)
    gc.collect()
    assert whole(sender, receiver)


@pytest.mark.parametrize("step", ["view", "open", "load"])
def test_a_get_that_fails_at_any_step_holds_nothing(
    opened_any: Open, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sender, receiver = pair(opened_any)
    sender.put("key", body(1, MIB), to="talker")
    with monkeypatch.context() as patch:
        if step == "view":
            patch.setattr(receiver._driver, "view", broken)
        elif step == "open":
            patch.setattr(receiver._driver.views, "open", broken)
        else:
            patch.setattr(PayloadSerializer, "load", broken)
        with pytest.raises(Broken):
            _ = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    gc.collect()

    assert whole(sender, receiver)
    sender.put("next", body(2, MIB), to="talker")
    assert is_body(receiver.get("next", source="thinker").value, 2, MIB)


def test_a_slice_keeps_its_bytes_while_hundreds_of_payloads_pass(opened_any: Open) -> None:
    sender, receiver = pair(opened_any, eager_limit=0)
    sender.put("first", {"t": np.arange(40_000).reshape(4, -1)}, to="talker")
    whole_tensor = receiver.get("first", source="thinker", timeout=PATIENCE_S).value["t"]
    expected = np.array(whole_tensor[1:3])
    kept = whole_tensor[1:3]
    del whole_tensor
    gc.collect()

    for number in range(100):
        sender.put(str(number), body(number, 320_000), to="talker", timeout=PATIENCE_S)
        with receiver.get(str(number), source="thinker", timeout=PATIENCE_S) as payload:
            assert is_body(payload.value, number, 320_000)
    np.testing.assert_array_equal(kept, expected)
    assert not (is_whole(sender) and is_whole(receiver))

    del kept
    gc.collect()
    assert whole(sender, receiver)


# --- registration ----------------------------------------------------------------------------


class DeviceMemory(PrivateMemory):
    """A pool that is said to be on a device: nobody may look at its bytes from the host."""

    kind = "device"

    def __init__(self) -> None:
        self.size = 4096

    @property
    def buffer(self) -> memoryview:
        raise AssertionError("device memory was looked at as if it were the host's")


@pytest.mark.parametrize("backend", ["memory", "memory-write", "shm", "shm-write"])
def test_memory_of_a_device_is_never_taken_for_the_hosts(backend: str) -> None:
    with opening(backend) as open_:
        connector = open_(stage="thinker", role="sender")
        (plane,) = connector._driver.parts.planes.values()
        with pytest.raises(TransportError, match="device"):
            plane.register(9, DeviceMemory())


class SmallPlane(MemoryMapPlane):
    """A plane that can register no more than a megabyte."""

    def register(self, region: int, memory: Any) -> None:
        if memory.size > MIB:
            msg = f"cannot register {memory.size} bytes, the device takes {MIB}"
            raise TransportError(msg)
        super().register(region, memory)


def test_a_pool_that_cannot_be_registered_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "memory_map", lambda context: SmallPlane(context.instance))
    with pytest.raises(StagelinkError, match=f"{4 * MIB} bytes, the device takes {MIB}"):
        stagelink.open(stage="thinker", role="sender", backend="memory", pool_bytes=4 * MIB)
    with stagelink.open(stage="thinker", role="sender", backend="memory", pool_bytes=MIB) as fits:
        assert fits.health()["status"] == "ok"


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """A list that grows with every call of the method *name*."""
    calls: list[str] = []
    real: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize("backend", ["memory", "memory-write", "shm", "shm-write"])
def test_a_pool_is_registered_once_and_never_for_a_transfer(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    with opening(backend) as open_:
        probe = open_(stage="probe", role="sender")
        (plane,) = probe._driver.parts.planes.values()
        registered = counting(monkeypatch, type(plane), "register")
        attached = counting(monkeypatch, type(plane), "attach")
        sender, receiver = pair(open_, eager_limit=0)

        for number in range(100):
            sender.put(str(number), body(number, 5000), to="talker", timeout=PATIENCE_S)
            receiver.get(str(number), source="thinker", timeout=PATIENCE_S).close()

        assert (len(registered), len(attached)) == (2, 1)


def test_tensors_that_share_memory_may_be_sent_as_often_as_one_likes(opened: Open) -> None:
    sender, receiver = pair(opened, eager_limit=0)
    base = np.arange(50_000)
    a, b, c, d, e = (base[start : start + 20_000] for start in range(0, 30_000, 6000))
    sent = {"abc": [a, b, c], "cde": [c, d, e], "a": a, "a again": a}
    for key, value in sent.items():
        sender.put(key, value, to="talker")

    for key, value in sent.items():
        payload = receiver.get(key, source="thinker", timeout=PATIENCE_S)
        got = payload.value if isinstance(value, list) else [payload.value]
        for left, right in zip(got, value if isinstance(value, list) else [value], strict=True):
            np.testing.assert_array_equal(left, right)
        del payload, got, left
    gc.collect()
    assert sender.drain(PATIENCE_S)
    assert whole(sender, receiver)


def test_what_cannot_be_laid_out_takes_no_room(opened: Open) -> None:
    sender = opened(stage="thinker", role="sender")
    with pytest.raises(PayloadError, match="bad"):
        sender.put("key", {"good": body(1, MIB), "bad": object()}, to="talker")
    assert is_whole(sender)
