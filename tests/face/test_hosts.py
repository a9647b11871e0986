"""``host="auto"`` on this very machine."""

from __future__ import annotations

import socket

import pytest

import stagelink
from stagelink import hosts
from stagelink.adapters.net import peer_of, read_interfaces
from stagelink.config import Config, load_config
from stagelink.core.addresses import Interface, Peer, is_local
from stagelink.core.errors import ConfigError

REMOTE = Peer("10.0.0.9", "10.0.0.9", "10.0.0.5")


def config(**settings: object) -> Config:
    return load_config({"stage": "talker", "role": "peer", "host": "auto", **settings})


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with one wire, and every sender at the other end of it."""
    table = [Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.5")]
    monkeypatch.setattr(hosts, "read_interfaces", lambda: table)
    monkeypatch.setattr(hosts, "peer_of", lambda host, socket_file: REMOTE)


def test_the_table_has_loopback_and_only_addresses_of_this_host() -> None:
    table = read_interfaces()

    assert Interface("lo", "127.0.0.1") in table
    for row in table:
        if row.up and ":" not in row.address:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind((row.address, 0))  # fails unless it is ours


def test_the_route_to_loopback_leaves_from_loopback() -> None:
    assert peer_of("127.0.0.1") == Peer("127.0.0.1", "127.0.0.1", "127.0.0.1")


def test_a_name_without_address_is_a_peer_of_which_nothing_is_known() -> None:
    assert peer_of("no-such-host.invalid") == Peer("no-such-host.invalid", "", "")


def test_auto_binds_loopback_when_nobody_is_known() -> None:
    with stagelink.open(stage="thinker", role="sender", host="auto", backend="shm") as sender:
        assert sender.endpoint.startswith("tcp://127.0.0.1:")
        assert sender.config.host == "127.0.0.1"


def test_senders_on_this_host_leave_it_at_loopback() -> None:
    local = {"a": "tcp://127.0.0.1:5000", "b": "tcp://[::1]:5000", "c": "ipc:///tmp/c.sock"}

    assert hosts.with_host(config(senders=local)).host == "127.0.0.1"


def test_a_sender_elsewhere_makes_it_the_address_towards_it(far_away: None) -> None:
    settled = hosts.with_host(config(sender="tcp://10.0.0.9:5000"))

    assert settled.host == "10.0.0.5"
    assert not is_local(settled.host)


@pytest.mark.parametrize("backend", ["auto", "frames"])
def test_a_receiver_is_written_to_at_the_address_towards_its_sender(
    far_away: None, backend: str
) -> None:
    told = {"role": "receiver", "backend": backend, "sender": "tcp://10.0.0.9:5000"}

    assert hosts.with_host(config(**told)).host == "10.0.0.5"


@pytest.mark.parametrize(
    "unbound",
    [
        {"role": "receiver", "backend": "shm"},
        {"role": "receiver", "security": "curve", "keys": "/keys"},
        {"role": "sender", "ipc": "/tmp/x.sock"},
    ],
)
def test_where_nothing_is_bound_there_is_nothing_to_choose(
    far_away: None, unbound: dict[str, str]
) -> None:
    assert hosts.with_host(config(sender="tcp://10.0.0.9:5000", **unbound)).host == "127.0.0.1"


def test_loopback_is_not_told_to_a_peer_elsewhere(far_away: None) -> None:
    with pytest.raises(ConfigError, match="would dial themselves") as caught:
        hosts.with_host(config(sender="tcp://10.0.0.9:5000", advertise_host="127.0.0.1"))

    assert "10.0.0.5" in caught.value.remedy


def test_a_setting_is_left_alone_and_nothing_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "read_interfaces", None)
    plain = config(host="127.0.0.1", sender="tcp://10.0.0.9:5000")

    assert hosts.with_host(plain) is plain
