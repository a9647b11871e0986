"""Threads that put, get and cancel whatever they like, at once."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.behaviours.kit import MIB, PATIENCE_S, Open, body, is_body, linked, pair, whole

from stagelink import CapacityError, DeadlineError, GoneError
from stagelink.core.errors import DuplicateKeyError
from stagelink.plugins.conformance.connector import Waiter, eventually

if TYPE_CHECKING:
    from stagelink.connector import Connector

THREADS, KEYS, SECONDS = 8, 12, 1.0
EXPECTED = (CapacityError, DeadlineError, DuplicateKeyError, GoneError)
"""What may be heard by somebody whose keys are everybody's."""


def size_of(key: int) -> int:
    """Small and large ones by turns; the bytes of a key never change."""
    return 500 if key % 2 else 150_000


def disturb(sender: Connector, receiver: Connector, seed: int, until_s: float) -> str:
    """Do at random what a caller may do; what was wrong with it."""
    chance = random.Random(seed)
    while time.monotonic() < until_s:
        key = chance.randrange(KEYS)
        name = f"key {key}"
        try:
            act = chance.choice(["put", "put", "get", "get", "poll", "cancel", "withdraw"])
            if act == "put":
                ttl = chance.choice([None, 0.05])
                value = body(key, size_of(key))
                sender.put(name, value, to="talker", timeout=0.05, ttl=ttl)
            elif act == "get":
                with receiver.get(name, source="thinker", timeout=0.05) as payload:
                    if not is_body(payload.value, key, size_of(key)):
                        return f"{name} brought other bytes"
            elif act == "poll":
                found = receiver.poll(name, source="thinker")
                if found is not None and not is_body(found.value, key, size_of(key)):
                    return f"{name} brought other bytes to a poll"
                del found
            elif act == "cancel":
                receiver.cancel(name, source="thinker")
            else:
                sender.withdraw(name, to="talker")
        except EXPECTED:
            continue
    return ""


def test_threads_that_put_get_and_cancel_the_same_keys_meet_typed_errors_only(
    opened_any: Open,
) -> None:
    # What a poll has begun and nobody takes is let go after the time of an ordinary transfer.
    sender, receiver = pair(opened_any, timeouts={"transfer_base_s": 1.0})
    linked(sender, receiver)
    until_s = time.monotonic() + SECONDS

    threads = [
        Waiter(partial(disturb, sender, receiver, seed, until_s)) for seed in range(THREADS)
    ]
    ended = [thread.join(30.0) for thread in threads]

    assert [(thread.result, thread.error) for thread in ended] == [("", None)] * THREADS
    for key in range(KEYS):
        sender.withdraw(f"key {key}", to="talker")
    assert eventually(lambda: not sender.health()["ledger"]["entries"])
    assert whole(sender, receiver)
    assert not sender._driver.tickets.all()
    assert not receiver._driver.tickets.all()
    sender.put("after", body(1, MIB), to="talker")
    assert is_body(receiver.get("after", source="thinker", timeout=PATIENCE_S).value, 1, MIB)
