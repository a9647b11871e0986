"""Keys: one live payload each, never guessed, and named when they do not come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.behaviours.kit import ALL_OF_IT, MIB, PATIENCE_S, POOL, Open, body, is_body, pair, whole

from stagelink import CapacityError, DeadlineError
from stagelink.core.errors import ConfigError, DuplicateKeyError
from stagelink.plugins.conformance.connector import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.connector import Connector


@pytest.mark.parametrize("size", [POOL // 2, 2 * POOL], ids=["too full", "too large"])
def test_a_live_key_is_named_as_such_even_where_the_pool_has_no_room(
    opened: Open, size: int
) -> None:
    """At once: nobody waits for room that would be of no use."""
    sender, receiver = pair(opened, **ALL_OF_IT)
    sender.put("key", body(1, POOL // 4 * 3), to="talker")

    with pytest.raises(DuplicateKeyError) as caught:
        sender.put("key", body(2, size), to="talker", timeout=PATIENCE_S)

    assert caught.value.context.elapsed_s is not None
    assert caught.value.context.elapsed_s < PATIENCE_S / 2
    with pytest.raises(CapacityError):
        sender.put("other", body(2, size), to="talker", timeout=0.0)
    payload = receiver.get("key", source="thinker", timeout=PATIENCE_S)
    assert is_body(payload.value, 1, POOL // 4 * 3)


@pytest.mark.parametrize("size", [100, MIB], ids=["small", "large"])
def test_a_refused_duplicate_leaks_nothing_and_harms_nobody(opened_any: Open, size: int) -> None:
    sender, receiver = pair(opened_any)
    sender.put("key", body(1, size), to="talker")
    for _ in range(20):
        with pytest.raises(DuplicateKeyError):
            sender.put("key", body(2, size), to="talker")
    with receiver.get("key", source="thinker", timeout=PATIENCE_S) as payload:
        assert is_body(payload.value, 1, size)
    assert sender.drain(PATIENCE_S)
    assert whole(sender, receiver)
    assert sender.health()["errors"] == {"duplicate": 20}


def test_both_sides_name_a_payload_alike_whatever_their_ranks(opened: Open) -> None:
    """The key is the caller's own; ranks only say who may read, so no side has to guess."""
    for senders in (1, 2, 4):
        for readers in (1, 2, 4):
            _exchange(opened, senders, readers)


def _exchange(opened: Open, senders: int, readers: int) -> None:
    sending = [opened(stage="thinker", role="sender", rank=rank) for rank in range(senders)]
    names = [f"talker/0/{rank}" for rank in range(readers)]
    for rank, sender in enumerate(sending):
        sender.put("req-1", body(rank, 1000), to="talker", readers=names)
    for rank in range(readers):
        receiver = opened(stage="talker", role="receiver", rank=rank)
        for number, sender in enumerate(sending):
            where = {"endpoint": sender.endpoint}  # all that a reader has to be told
            payload = receiver.get("req-1", source="thinker", metadata=where)
            assert is_body(payload.value, number, 1000)
        receiver.close()
    for sender in sending:
        assert sender.drain(PATIENCE_S)
        sender.close()


def test_a_get_in_vain_lists_the_keys_of_the_same_request(opened: Open) -> None:
    sender, receiver = pair(opened)
    for number in range(8):
        sender.put(f"req-7/chunk/{number}", body(number, 100), to="talker")
    sender.put("req-8/chunk/0", body(0, 100), to="talker")
    receiver.get("req-8/chunk/0", source="thinker", timeout=PATIENCE_S).close()
    assert eventually(lambda: receiver.health()["inbox"]["entries"] == 8)

    with pytest.raises(DeadlineError, match="pending with the same request") as caught:
        receiver.get("req-7/chunk/00", source="thinker", timeout=0.0)

    assert 1 <= str(caught.value).count("req-7/chunk/") - 1 <= 5
    assert "req-8" not in str(caught.value)


def _calls(sender: Connector, receiver: Connector, key: str) -> list[Callable[[], object]]:
    return [
        lambda: sender.put(key, b"x", to="talker"),
        lambda: sender.withdraw(key, to="talker"),
        lambda: sender.fail(key, "x", to="talker"),
        lambda: receiver.get(key, source="thinker", timeout=0.0),
        lambda: receiver.poll(key, source="thinker"),
        lambda: receiver.cancel(key, source="thinker"),
        lambda: receiver.reject(key, source="thinker"),
    ]


def test_an_empty_key_is_refused_by_every_call(opened: Open) -> None:
    sender, receiver = pair(opened)
    for call in _calls(sender, receiver, ""):
        with pytest.raises(ConfigError, match="key"):
            call()


def test_what_looks_like_nothing_is_a_key_like_any_other(opened: Open) -> None:
    sender, receiver = pair(opened)
    for number, key in enumerate(["0", "None", "False", " ", "-1"]):
        sender.put(key, body(number, 10), to="talker")
    for number, key in enumerate(["0", "None", "False", " ", "-1"]):
        payload = receiver.get(key, source="thinker", timeout=PATIENCE_S)
        assert is_body(payload.value, number, 10)


def test_an_empty_stage_never_selects_a_default(opened: Open) -> None:
    sender, receiver = pair(opened)
    sender.put("key", b"x", to="talker")
    with pytest.raises(ConfigError):
        receiver.get("key", source="")
    with pytest.raises(ConfigError):
        sender.put("key", b"x", to="")


@pytest.mark.parametrize("name", ["talker", "talker/0/0"])
def test_the_first_reader_of_a_stage_may_be_named_either_way(opened: Open, name: str) -> None:
    sender, receiver = pair(opened)
    sender.put("key", body(1, 1000), to="talker", readers={name})
    assert is_body(receiver.get("key", source="thinker", timeout=PATIENCE_S).value, 1, 1000)
