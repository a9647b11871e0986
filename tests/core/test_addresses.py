from __future__ import annotations

import pytest

from stagelink.core.addresses import (
    Candidate,
    Choice,
    Interface,
    Peer,
    choose_host,
    is_local,
    objection_to,
)
from stagelink.core.errors import ConfigError

LO = Interface("lo", "127.0.0.1")
ETH = Interface("eth0", "10.0.0.5")
IB = Interface("ib0", "192.168.7.5")
WG = Interface("wg0", "10.8.0.2")
TABLE = [LO, ETH, IB, WG, Interface("docker0", "172.17.0.1"), Interface("eth1", "10.9.0.1", False)]


def via(address: str, host: str = "10.0.0.9") -> Peer:
    return Peer(host, host, address)


@pytest.mark.parametrize(
    ("setting", "peers", "host", "reason"),
    [
        ("auto", [], "127.0.0.1", "no peer is known yet"),
        ("auto", [via("127.0.0.1", "127.0.0.1")], "127.0.0.1", "every known peer is on this host"),
        ("auto", [via("::1", "::1")], "127.0.0.1", "every known peer is on this host"),
        ("auto", [via("10.0.0.5", "10.0.0.5")], "127.0.0.1", "every known peer is on this host"),
        ("auto", [via("10.0.0.5")], "10.0.0.5", "the route to 10.0.0.9 leaves from eth0"),
        (
            "auto",
            [via("127.0.0.1", "127.0.0.1"), via("192.168.7.5", "192.168.7.9")],
            "192.168.7.5",
            "the route to 192.168.7.9 leaves from ib0",
        ),
        (
            "auto",
            [via("10.0.0.5"), via("10.0.0.5", "10.0.0.10")],
            "10.0.0.5",
            "the route to 10.0.0.10 leaves from eth0",
        ),
        ("10.8.0.2", [via("10.0.0.5")], "10.8.0.2", "as configured"),
        ("127.0.0.1", [via("10.0.0.5")], "127.0.0.1", "as configured"),
        ("0.0.0.0", [], "0.0.0.0", "as configured"),
    ],
)
def test_the_address_follows_the_setting_then_the_route_then_loopback(
    setting: str, peers: list[Peer], host: str, reason: str
) -> None:
    choice = choose_host(setting, TABLE, peers)

    assert (choice.host, choice.reason) == (host, reason)


def test_the_choice_carries_every_candidate_with_what_speaks_against_it() -> None:
    assert choose_host("auto", TABLE) == Choice(
        "127.0.0.1",
        "no peer is known yet",
        (
            Candidate("lo", "127.0.0.1", "loopback: this host only"),
            Candidate("eth0", "10.0.0.5", ""),
            Candidate("ib0", "192.168.7.5", ""),
            Candidate("wg0", "10.8.0.2", "wg0 is a tunnel or a bridge of containers"),
            Candidate("docker0", "172.17.0.1", "docker0 is a tunnel or a bridge of containers"),
            Candidate("eth1", "10.9.0.1", "down"),
        ),
    )


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ([via("")], "no address of ours can be told to 10.0.0.9: there is no route"),
        ([Peer("node-7", "", "")], "told to node-7: there is no route"),
        ([via("127.0.0.1")], "leaves from 127.0.0.1, loopback: this host only"),
        ([via("10.8.0.2", "10.8.0.9")], "wg0 is a tunnel or a bridge"),
        ([via("10.9.0.1")], "leaves from 10.9.0.1, down"),
        (
            [via("10.0.0.5"), via("192.168.7.5", "192.168.7.9")],
            "10.0.0.9 from 10.0.0.5, 192.168.7.9 from 192.168.7.5",
        ),
    ],
)
def test_an_address_that_a_peer_cannot_dial_is_refused_with_those_that_it_could(
    peers: list[Peer], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_host("auto", TABLE, peers)

    assert words in caught.value.message
    assert "10.0.0.5 (eth0), 192.168.7.5 (ib0)" in caught.value.remedy


@pytest.mark.parametrize(
    ("interface", "address", "words"),
    [
        ("eth0", "0.0.0.0", "wildcard"),
        ("eth0", "::", "wildcard"),
        ("eth0", "::ffff:0.0.0.0", "wildcard"),
        ("lo", "127.3.2.1", "loopback"),
        ("lo", "::1", "loopback"),
        ("eth0", "169.254.3.4", "link-local"),
        ("eth0", "fe80::1", "link-local"),
        ("eth0", "224.0.0.1", "multicast"),
        ("eth0", "node-7", "no address"),
        *[(f"{name}0", "10.1.1.1", "tunnel") for name in ("tun", "tap", "wg", "docker", "veth")],
        ("virbr0", "10.1.1.1", "tunnel"),
        ("br-1f2e", "10.1.1.1", "tunnel"),
    ],
)
def test_what_leads_to_no_neighbour_has_its_objection(
    interface: str, address: str, words: str
) -> None:
    assert words in objection_to(interface, address)


@pytest.mark.parametrize(
    "address", ["10.0.0.5", "192.168.1.1", "8.8.8.8", "2001:db8::5", "fd00::1"]
)
def test_an_ordinary_address_has_none(address: str) -> None:
    assert objection_to("enp3s0", address) == ""


def test_a_name_is_not_taken_for_local() -> None:
    assert not is_local("localhost")
    assert is_local("127.9.9.9")
    assert is_local("10.0.0.5", {"10.0.0.5"})
