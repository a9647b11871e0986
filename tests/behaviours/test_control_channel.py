"""The channel of control: silence, back-pressure, crowds and ends harm no later call."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from tests.behaviours.kit import MIB, PATIENCE_S, Open, body, is_body, linked, opening, pair, whole
from tests.chaos.stages import MODES, Mode, Scene, content

from stagelink import CapacityError, DeadlineError, GoneError, PeerError
from stagelink.adapters.memory import Hub
from stagelink.plugins.conformance.connector import AT_ONCE_S, Waiter, eventually, waits

EAGER = MODES["eager"]


def test_one_silence_costs_one_get_and_the_next_on_the_same_connector_works(
    scene: Scene,
) -> None:
    sender = scene.sender_process(MODES["pull"])
    (receiver,) = scene.receivers(MODES["pull"], sender.endpoint)
    sender.put("key", MIB)
    sender.stop()
    for _ in range(2):
        with pytest.raises(DeadlineError):
            receiver.get("key", source="thinker", timeout=0.15)
    sender.go_on()

    value = receiver.get("key", source="thinker", timeout=PATIENCE_S).value
    assert bytes(value) == content("key", MIB)


def test_gets_that_are_given_up_lose_no_payload_and_double_none(opened_any: Open) -> None:
    sender, receiver = pair(opened_any)
    linked(sender, receiver)
    chance, count = random.Random(1925), 150

    def put_all() -> None:
        for number in range(count):
            size = 300 if number % 3 else 100_000
            sender.put(str(number), body(number, size), to="talker", timeout=PATIENCE_S)

    putting = Waiter(put_all)
    given_up = 0
    for number in range(count):
        if chance.random() < 0.34:
            try:
                receiver.get(str(number), source="thinker", timeout=0.0).close()
                continue
            except DeadlineError:
                given_up += 1
        with receiver.get(str(number), source="thinker", timeout=PATIENCE_S) as payload:
            assert is_body(payload.value, number, 300 if number % 3 else 100_000)
    assert putting.join().error is None

    assert sender.drain(PATIENCE_S)
    assert receiver.health()["gets"] == count + 1  # and the one that linked them
    assert whole(sender, receiver)


def resident_kib() -> int:
    """Memory of this process that is in RAM."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no resident size")


def test_large_messages_are_let_go_long_before_the_deadline_of_their_get() -> None:
    """Payloads of 8 MiB inside announcements: only the channel and the face hold them."""
    size = 8 * MIB
    with opening("shm") as open_:
        sender, receiver = pair(open_, eager_limit=16 * MIB, inline_bytes=64 * MIB)
        value, before = bytes(size), 0
        for number in range(25):
            if number == 5:
                before = resident_kib()
            sender.put(str(number), value, to="talker", ttl=60.0)
            receiver.get(str(number), source="thinker", timeout=60.0).close()
        grown = resident_kib() - before
    assert grown < 5 * size // 1024, f"{grown} KiB more after 20 messages of {size} bytes"


def test_a_reader_that_stopped_reading_costs_a_bounded_queue_and_loses_nothing(
    scene: Scene,
) -> None:
    sender = scene.connector(
        Mode("shm", 1), stage="thinker", role="sender", inline_bytes=MIB, eager_limit=4096
    )
    (receiver,) = scene.receiver_processes(EAGER, sender)
    receiver.stop()
    count = 0
    with pytest.raises(CapacityError) as caught:
        for count in range(20_000):
            value = memoryview(content(str(count), 3000))
            sender.put(str(count), value, to="talker", timeout=0.0)
    assert caught.value.numbers["capacity"] == 8 * MIB
    assert 200 < count < 5000
    receiver.go_on()

    for number in range(0, count, 50):
        assert receiver.ask(do="get", key=str(number), timeout=10.0)["right"]
    for number in (1, count - 1):
        assert receiver.ask(do="get", key=str(number), timeout=10.0)["right"]
    assert receiver.ask(do="drop") == {}


def test_many_threads_on_one_connector_get_each_their_own_answer(opened: Open) -> None:
    sender, receiver = pair(opened)
    linked(sender, receiver)

    def talk(name: int) -> bool:
        for turn in range(40):
            sender.put(f"{name}/{turn}", body(name * 40 + turn, 64), to="talker")
            with receiver.get(f"{name}/{turn}", source="thinker", timeout=PATIENCE_S) as payload:
                if not is_body(payload.value, name * 40 + turn, 64):
                    return False
        return True

    threads = [Waiter(partial(talk, name)) for name in range(16)]
    assert all(thread.join(30.0).result for thread in threads), [t.error for t in threads]


def test_a_close_is_short_though_messages_wait_for_a_reader_that_stopped(scene: Scene) -> None:
    sender = scene.connector(EAGER, stage="thinker", role="sender")
    (receiver,) = scene.receiver_processes(EAGER, sender)
    receiver.stop()
    for number in range(1500):  # more than a reader's window
        sender.put(str(number), memoryview(b"x" * 4000), to="talker")
    start_s = time.monotonic()
    sender.close()
    sender.close()
    assert time.monotonic() - start_s < 1.0 + AT_ONCE_S  # close_s, and the second that it may add


def test_closes_at_once_from_many_threads_all_return(opened: Open) -> None:
    sender, receiver = pair(opened)
    waiter = Waiter(lambda: receiver.get("never", source="thinker"))
    assert waits(receiver)
    closers = [threading.Thread(target=one.close) for one in (receiver, sender) * 2]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(PATIENCE_S)
        assert not closer.is_alive()
    assert waiter.join().error is not None


def test_a_cut_link_is_seen_told_and_mended_by_itself() -> None:
    with opening("memory") as open_:
        sender, receiver = pair(open_)
        linked(sender, receiver)
        waiter = Waiter(lambda: receiver.get("key", source="thinker", timeout=PATIENCE_S))
        assert waits(receiver)

        Hub.default().cut(sender.endpoint)
        error = waiter.join().error
        assert isinstance(error, PeerError)
        assert not isinstance(error, GoneError)
        assert receiver.health()["status"] == "degraded"
        Hub.default().heal(sender.endpoint)

        sender.put("key", body(1, MIB), to="talker")
        assert is_body(receiver.get("key", source="thinker").value, 1, MIB)
        assert eventually(lambda: receiver.health()["status"] == "ok")
