"""A process is stopped and never goes on: it costs its share of the pool, and all others go on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.stages import Call, Mode, Scene, content, eventually

from stagelink import PeerError, Reason, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.stages import Process

    from stagelink.connector import Connector

MIB = 1 << 20
SIZE = 8 * MIB - 4096
"""Of a payload: with what describes it, a block of 8 MiB."""

POOL = 64 * MIB
SHARE = 24 * MIB
"""Half of the three quarters of the pool that are for one direction."""

ERRORS = {"PeerError", "DeadlineError"}
QUICK = {"silence_s": 1.0, "close_s": 1.0, "credit_idle_s": 0.2}
WRITES, MAPS = Mode("shm-write", SIZE), Mode("shm", SIZE)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Where the drama takes place; cleared away afterwards."""
    made = Scene()
    yield made
    made.close()


def get(receiver: Connector, key: str, source: str, timeout_s: float = 10.0) -> bool:
    """Whether *key* brings the bytes that were put."""
    with receiver.get(key, source=source, timeout=timeout_s) as payload:
        return bytes(payload.value) == content(key, SIZE)


def share_of(connector: Connector, peer: str) -> int:
    """What of our pool only *peer* can set free."""
    rows = connector.health()["sessions"]
    return sum(row["share_bytes"] for row in rows if row["peer"] == peer)


def pool(connector: Connector) -> dict[str, Any]:
    """Bytes by state."""
    figures: dict[str, Any] = connector.health()["pool"]
    return figures


@pytest.mark.parametrize("end", ["kill", "go_on"])
def test_a_sender_stopped_for_ever_in_mid_transfer_costs_its_share(scene: Scene, end: str) -> None:
    more = {"timeouts": QUICK, "pool_bytes": POOL, "credits": False}  # it is about pulls
    stages = ("thinker", "listener")
    silent, other = (scene.process(WRITES, stage=s, role="sender", **more) for s in stages)
    senders = {"thinker": silent.endpoint, "listener": other.endpoint}
    receiver = scene.connector(WRITES, stage="talker", role="receiver", senders=senders, **more)
    silent.put("first", SIZE)
    other.put("first", SIZE)
    assert all(get(receiver, "first", stage) for stage in stages)
    for number in range(6):
        silent.put(f"k{number}", SIZE)
    assert eventually(lambda: receiver.health()["inbox"]["entries"] == 6)

    first = Call(receiver, "k0", 1.5)  # a copy is under way, or over, when the process stops
    silent.stop()
    calls = [Call(receiver, f"k{number}", 1.5) for number in range(1, 6)]

    assert first.join().outcome in {"right", *ERRORS}
    assert all(call.join().outcome in ERRORS for call in calls)
    assert pool(receiver)["quarantined"] == share_of(receiver, "thinker") == SHARE
    for number in range(10):
        other.put(f"more {number}", SIZE)
        assert get(receiver, f"more {number}", "listener")
    assert eventually(partial(is_refused, receiver))
    assert share_of(receiver, "thinker") == SHARE

    getattr(silent, end)()
    assert eventually(lambda: not pool(receiver)["quarantined"])
    assert eventually(lambda: pool(receiver)["free"] == POOL)


def is_refused(receiver: Connector) -> bool:
    """Whether the next get from the silent sender is refused as such, and at once."""
    try:
        receiver.get("k5", source="thinker", timeout=0.3).close()
    except PeerError as error:
        return error.reason is Reason.QUARANTINED and f"{SHARE} bytes" in str(error)
    except StagelinkError:  # its silence is not known yet
        pass
    return False


@pytest.mark.parametrize("end", ["kill", "go_on"])
def test_a_reader_stopped_for_ever_costs_its_share_of_what_it_maps(scene: Scene, end: str) -> None:
    more = {"timeouts": QUICK, "pool_bytes": POOL}
    sender = scene.connector(MAPS, stage="thinker", role="sender", **more)
    readers = {
        stage: scene.process(MAPS, stage=stage, role="receiver", sender=sender.endpoint, **more)
        for stage in ("talker", "other")
    }
    for stage, reader in readers.items():
        put(sender, "first", stage, ttl=None)
        taken(reader, "first")
    assert eventually(lambda: pool(sender)["free"] == POOL)
    readers["talker"].stop()

    for number in range(5):
        put(sender, f"k{number}", "talker", ttl=0.5)
    assert eventually(lambda: not live(sender))

    assert pool(sender)["held"] == share_of(sender, "talker") == SHARE
    for number in range(10):
        put(sender, f"more {number}", "other", ttl=None)
        taken(readers["other"], f"more {number}")
    assert share_of(sender, "talker") == SHARE
    getattr(readers["talker"], end)()
    assert eventually(lambda: pool(sender)["free"] == POOL)


def live(sender: Connector) -> int:
    """How many payloads have not come to their end."""
    ledger = sender.health()["ledger"]
    return int(ledger["entries"] - ledger["leaving"])


def put(sender: Connector, key: str, to: str, ttl: float | None) -> None:
    """Publish under *key*."""
    sender.put(key, memoryview(content(key, SIZE)), to=to, ttl=ttl, timeout=5.0)


def taken(reader: Process, key: str) -> None:
    """Let *reader* get *key* and let it go."""
    assert reader.ask(do="get", key=key, timeout=10.0)["right"]
    reader.ask(do="drop")
