"""Connectors on two hosts, as far as they can tell: no plane but frames goes between them.

Each has a mount of its own for shared memory, by which hosts are told apart.
"""

from __future__ import annotations

import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviours.kit import Open, opening

import stagelink
from stagelink.config import load_config
from stagelink.core.endpoint import Endpoint
from stagelink.core.errors import ConfigError, PeerError, Reason, TransportError
from stagelink.core.events import Disconnected, Fence, Probe, Received, TimePassed
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import Hello, Report
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import NO_INSTANCE, HostCard, Identity, PlaneCard
from stagelink.inspect.backends import list_backends
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import PATIENCE_S, Waiter, eventually, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stagelink.connector import Connector

MIB = 1 << 20
SIZE = 64 * MIB
POOL = 96 * MIB


@pytest.fixture
def mount(tmp_path: Path) -> Callable[[str], str]:
    """A mount for each host."""

    def make(host: str) -> str:
        where = tmp_path / host
        where.mkdir(exist_ok=True)
        return str(where)

    return make


@pytest.fixture(params=["auto", "frames"])
def open_(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens connectors of this run's backend."""
    with opening(str(request.param)) as made:
        yield made


def backends_of(connector: Connector) -> list[str]:
    """Of each of its sessions."""
    return [row["backend"] for row in connector.health()["sessions"]]


def test_64_mib_move_bit_exact_between_two_hosts(open_: Open, mount: Callable[[str], str]) -> None:
    settings: dict[str, Any] = {
        "pool_bytes": POOL, "shortcut": False, "send_share": 0.0, "receive_share": 0.0,
    }  # fmt: skip
    sender = open_(stage="thinker", role="sender", shm_dir=mount("a"), **settings)
    receiver = open_(
        stage="talker", role="receiver", sender=sender.endpoint, shm_dir=mount("b"), **settings
    )
    content = random.Random(1).randbytes(SIZE)
    for number in range(2):
        sender.put(f"key/{number}", memoryview(content), to="talker", timeout=PATIENCE_S)
        with receiver.get(f"key/{number}", source="thinker", timeout=PATIENCE_S) as payload:
            assert payload.value == content
        del payload
    assert backends_of(sender) == backends_of(receiver) == ["frames"]
    assert sender.drain(PATIENCE_S)
    assert eventually(lambda: is_whole(sender) and is_whole(receiver))


def test_on_one_host_auto_takes_shared_memory_all_the_same() -> None:
    with opening("auto") as open_:
        sender = open_(stage="thinker", role="sender")
        receiver = open_(stage="talker", role="receiver", sender=sender.endpoint)
        sender.put("key", bytes(MIB), to="talker")
        receiver.get("key", source="thinker", timeout=PATIENCE_S).close()
        assert backends_of(sender) == ["shm"]


class Other:
    """A connector in another process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._connector = stagelink.open(**settings)

    def endpoint(self) -> str:
        """Where it listens."""
        return self._connector.endpoint

    def put(self, key: str, size: int) -> None:
        """For the stage talker."""
        self._connector.put(key, memoryview(bytes(size)), to="talker")


def test_a_sender_that_is_killed_as_it_writes_is_an_error_of_the_get(
    open_: Open, mount: Callable[[str], str]
) -> None:
    settings = {"pool_bytes": POOL, "send_share": 0.0, "receive_share": 0.0, "shortcut": False}
    theirs = {"stage": "thinker", "role": "sender", "shm_dir": mount("a"), **settings}
    other = Elsewhere(Other, {"backend": "frames", **theirs})
    try:
        receiver = open_(
            stage="talker", role="receiver", sender=other.ask("endpoint"), shm_dir=mount("b"),
            timeouts={"suspect_grace_s": 0.2}, **settings,
        )  # fmt: skip
        other.ask("put", "first", MIB)
        receiver.get("first", source="thinker", timeout=PATIENCE_S).close()
        plane: Any = receiver._driver.parts.planes["frames"]
        (connection,) = plane._door._connections
        with plane._turns:  # so that nothing is read, and the write is under way until it dies
            other.ask("put", "key", SIZE)
            waiter = Waiter(partial(receiver.get, "key", source="thinker", timeout=PATIENCE_S))
            assert eventually(lambda: has_something(connection.sock))
            other.kill()
        assert isinstance(waiter.join().error, PeerError)
    finally:
        other.end()


def has_something(sock: socket.socket) -> bool:
    """Whether there is something to read."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_security_that_it_could_not_keep_rules_it_out() -> None:
    config = load_config({"stage": "x", "role": "peer", "security": "curve", "keys": "/nowhere"})
    rows = {row.name: row for row in list_backends(config=config)}
    assert not rows["frames"].available
    assert "in clear" in rows["frames"].reason
    assert rows["shm"].available
    settings = {"stage": "x", "role": "peer", "security": "curve", "keys": "/nowhere"}
    assert "frames" not in stagelink.check(**settings)
    with pytest.raises(ConfigError, match="in clear"):
        stagelink.check(backend="frames", **settings)


def test_a_host_that_cannot_be_bound_harms_auto_only_when_it_is_needed(
    mount: Callable[[str], str],
) -> None:
    strange = {"stage": "talker", "role": "receiver", "host": "192.0.2.1"}
    with opening("auto") as open_:
        sender = open_(stage="thinker", role="sender", shm_dir=mount("a"))
        near = open_(sender=sender.endpoint, shm_dir=mount("a"), **strange)
        far = open_(sender=sender.endpoint, shm_dir=mount("b"), rank=1, **strange)
        sender.put("key", bytes(MIB), to="talker", readers=0)
        near.get("key", source="thinker", timeout=PATIENCE_S).close()
        with pytest.raises(PeerError, match=r"cannot listen on '192.0.2.1'") as caught:
            far.get("other", source="thinker", timeout=PATIENCE_S)
        assert caught.value.reason is Reason.DECLINED
    with pytest.raises(TransportError, match=r"cannot listen on '192.0.2.1'"):
        stagelink.open(backend="frames", **strange)


@pytest.mark.parametrize(("host", "far"), [("here", False), ("there", True)])
def test_a_silent_peer_elsewhere_is_not_asked_after_here_but_cut_off(host: str, far: bool) -> None:
    """Its proof of life is missing on this host, which would read as its death."""
    card = PlaneCard("frames", "write", b"described")
    settings = Settings(
        instance=b"s" * 16, identity=Identity("us"), host=HostCard("here", "our.lock"),
        planes=(OwnPlane(card, True),), policy=TimeoutPolicy(), inline_bytes=0, max_writes=1,
        session_base=0, can_fence=False, can_fence_far=True,
    )  # fmt: skip
    machine = Endpoint(settings, Pool(8 * 4096, pool_id=1))
    hello = Hello(
        1, b"r" * 16, Identity("them"), "us", NO_INSTANCE, Report(0, (), 0, ()),
        HostCard(host, "their.lock"), (card,),
    )  # fmt: skip
    machine.handle(Received("link", hello), 0.0)
    done = [*machine.handle(Disconnected("link", "cut"), 1.0)]
    done += machine.handle(TimePassed(), 32.0)
    asked = [action for action in done if isinstance(action, Probe)]
    fences = [action for action in done if isinstance(action, Fence)]
    assert bool(asked) is not far
    assert fences == ([Fence(b"r" * 16, dead=False, far=True)] if far else [])
