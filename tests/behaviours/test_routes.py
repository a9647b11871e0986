"""One stage with several peers: each by the route that suits it, all from one pool."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviours.kit import MIB, PATIENCE_S, Open, body, is_body, opening, pair, whole

from stagelink import GoneError, PeerError
from stagelink.core.errors import ConfigError, Reason

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.connector import Connector


def test_one_stage_maps_what_comes_in_and_writes_what_goes_out_of_one_pool(
    tmp_path: Path,
) -> None:
    where = {"shm_dir": str(tmp_path)}
    with opening("auto") as open_:
        first = open_(stage="first", role="sender", backend="shm", **where)
        middle = open_(stage="middle", role="peer", sender=first.endpoint, **where)
        last = open_(
            stage="last", role="receiver", backend="shm-write", sender=middle.endpoint, **where
        )
        first.put("key", body(1, MIB), to="middle")
        with middle.get("key", source="first", timeout=PATIENCE_S) as payload:
            middle.put("key", payload.value, to="last")
        assert is_body(last.get("key", source="middle", timeout=PATIENCE_S).value, 1, MIB)

        assert middle.health()["backends"] == ["frames", "shm", "shm-write"]
        mine = middle.health()["engine_key"]
        assert (
            sum(
                mine in name and not name.endswith(".lock")
                for name in os.listdir(where["shm_dir"])
            )
            == 1
        )
        assert planes_to(middle) == ["shm-write"]
        assert planes_to(first) == ["shm"]


def planes_to(sender: Connector) -> list[str]:
    """The planes by which each reader of *sender* gets its bytes."""
    return sender._driver.look(
        lambda endpoint: sorted(
            reader.plane.card.name
            for reader in endpoint.outgoing.readers.values()
            if reader.plane is not None
        )
    )


@pytest.mark.parametrize("backend", ["memory-write", "shm-write"])
def test_two_edges_of_one_kind_share_an_engine(backend: str) -> None:
    with opening(backend) as open_:
        sender = open_(stage="thinker", role="sender")
        readers = [
            open_(stage=stage, role="receiver", sender=sender.endpoint)
            for stage in ("talker", "listener")
        ]
        for number, reader in enumerate(readers):
            sender.put("key", body(number, MIB), to=reader.stage)
        for number, reader in enumerate(readers):
            assert is_body(reader.get("key", source="thinker").value, number, MIB)
        assert len(sender._driver.parts.planes) == 1
        assert len(sender.health()["sessions"]) == 2


def test_a_named_backend_is_never_exchanged_for_another(tmp_path: Path) -> None:
    where = {"shm_dir": str(tmp_path)}
    with opening("shm") as open_:
        sender = open_(stage="thinker", role="sender", **where)
        receiver = open_(
            stage="talker", role="receiver", backend="shm-write", sender=sender.endpoint, **where
        )
        with pytest.raises(PeerError, match="shm-write") as caught:
            receiver.get("key", source="thinker", timeout=PATIENCE_S)
        assert caught.value.reason is Reason.DECLINED


def test_a_role_is_checked_at_every_call(opened: Open) -> None:
    sender, receiver = pair(opened)
    with pytest.raises(ConfigError, match="only sends"):
        sender.get("key", source="thinker")
    with pytest.raises(ConfigError, match="only receives"):
        receiver.put("key", b"x", to="thinker")


def test_each_rank_gets_the_shard_that_was_put_for_it_and_no_other(opened_any: Open) -> None:
    sender = opened_any(stage="thinker", role="sender")
    ranks = range(4)
    receivers = [
        opened_any(stage="talker", role="receiver", rank=rank, sender=sender.endpoint)
        for rank in ranks
    ]
    for rank in ranks:
        sender.put(f"req/{rank}", body(rank, 100_000), to="talker", readers={f"talker/0/{rank}"})

    for rank, receiver in enumerate(receivers):
        with pytest.raises(GoneError) as caught:
            receiver.get(f"req/{(rank + 1) % 4}", source="thinker", timeout=PATIENCE_S)
        assert caught.value.reason is Reason.TAKEN
    for rank, receiver in enumerate(receivers):
        with receiver.get(f"req/{rank}", source="thinker", timeout=PATIENCE_S) as payload:
            assert is_body(payload.value, rank, 100_000)

    assert sender.drain(PATIENCE_S)
    assert whole(sender, *receivers)


@pytest.mark.parametrize("drafted", [False, True])
def test_two_that_take_what_the_first_may_have_at_once_have_bytes_of_their_own(
    opened: Open, drafted: bool
) -> None:
    torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")
    sender = opened(stage="thinker", role="sender", readers=0)
    talkers = [
        opened(stage="talker", role="receiver", replica=number, sender=sender.endpoint)
        for number in range(2)
    ]
    sender.put("hello", 1, to="talker", readers=2)
    for talker in talkers:
        with talker.get("hello", source="thinker", timeout=PATIENCE_S):
            pass

    for number in range(20):
        value: Any = torch.full((300_000,), number, dtype=torch.uint8)
        if drafted:
            value = sender.alloc((300_000,), "uint8")
            value.tensor.fill_(number)
        sender.put(f"req/{number}", value, to="talker")
        first = talkers[0].get(f"req/{number}", source="thinker", timeout=PATIENCE_S)
        first.value.fill_(77)
        with suppress(GoneError):  # the other one comes too late
            second = talkers[1].poll(f"req/{number}", source="thinker")
            if second is not None:
                assert second.value.eq(number).all()
                second.close()
        first.close()

    assert sender.drain(PATIENCE_S)
    assert whole(sender, *talkers)


@pytest.mark.parametrize("size", [1000, 300_000])
def test_what_is_for_whoever_asks_waits_for_him_with_nobody_who_came_before(
    opened_any: Open, size: int
) -> None:
    sender = opened_any(stage="thinker", role="sender", readers=0)
    for number in range(4):
        sender.put(f"early/{number}", body(number, size), to="talker")
    receivers = []
    for number in range(4):  # the first is told of everything before there is another
        receivers.append(
            opened_any(stage="talker", role="receiver", replica=number, sender=sender.endpoint)
        )
        sender.put(f"hello/{number}", number, to="talker")
        with receivers[number].get(f"hello/{number}", source="thinker", timeout=PATIENCE_S):
            pass
        sender.put(f"late/{number}", body(number, size), to="talker")

    for number in (3, 0, 2, 1):
        for name in ("early", "late"):
            with receivers[number].get(
                f"{name}/{number}", source="thinker", timeout=PATIENCE_S
            ) as payload:
                assert is_body(payload.value, number, size)

    assert sender.drain(PATIENCE_S)
    assert whole(sender, *receivers)
