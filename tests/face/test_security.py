"""``security="curve"`` from the user's side: who can talk, and what the others are told."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.adapters.zmq.keyfiles import make_keys
from stagelink.config import load_config
from stagelink.core.errors import ConfigError, DeadlineError, PeerError, Reason, StagelinkError
from stagelink.plugins.conformance.connector import eventually

if TYPE_CHECKING:
    import logging

    from stagelink.connector import Connector

PATIENCE_S = 10.0
SHORT_S = 0.7
LARGE = bytes(range(256)) * 4096
COMMON: dict[str, Any] = {"pool_bytes": "8MiB", "backend": "shm", "timeouts": {"close_s": 0.5}}


class Keys:
    """Key directories of stages that know each other, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str, *known: str) -> str:
        """The directory of *name*, who knows those; they are there already."""
        own = self._folder / name
        make_keys(own, name)
        for other in known:
            shutil.copy(self._folder / other / f"{other}.key", own)
        return str(own)

    def tell(self, name: str, other: str) -> None:
        """Give *other*, who is there already, the public key of *name*."""
        shutil.copy(self._folder / name / f"{name}.key", self._folder / other)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def friends(keys: Keys) -> tuple[str, str]:
    """The directories of a thinker and a talker that know each other."""
    thinker = keys.make("thinker")
    talker = keys.make("talker", "thinker")
    keys.tell("talker", "thinker")
    return thinker, talker


def thinker(keys: str | None, **settings: object) -> Connector:
    secure = {} if keys is None else {"security": "curve", "keys": keys}
    return stagelink.open(stage="thinker", role="sender", **COMMON, **secure, **settings)


def talker(sender: Connector, keys: str | None, **settings: object) -> Connector:
    secure = {} if keys is None else {"security": "curve", "keys": keys}
    where = {"senders": {"thinker": sender.endpoint}}
    return stagelink.open(stage="talker", role="receiver", **COMMON, **secure, **where, **settings)


def failure(receiver: Connector, timeout: float = PATIENCE_S) -> StagelinkError:
    with pytest.raises(StagelinkError) as caught:
        receiver.get("key", source="thinker", timeout=timeout)
    return caught.value


def test_those_that_know_each_other_hand_over_small_and_large(keys: Keys) -> None:
    ours, theirs = friends(keys)
    with thinker(ours) as tx, talker(tx, theirs) as rx:
        for key, value in (("small", b"x"), ("large", LARGE)):
            tx.put(key, value, to="talker")
            with rx.get(key, source="thinker", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == value
        assert not any(tx.health()["peers_refused"].values())


def test_two_peers_hand_over_both_ways(keys: Keys) -> None:
    ours, theirs = friends(keys)
    secure = [{"security": "curve", "keys": folder, **COMMON} for folder in (ours, theirs)]
    with stagelink.open(stage="thinker", role="peer", **secure[0]) as one:
        settings: dict[str, Any] = {"senders": {"thinker": one.endpoint}, **secure[1]}
        with stagelink.open(stage="talker", role="peer", **settings) as two:
            one.update_sender_info(
                "127.0.0.1", int(two.endpoint.rpartition(":")[2]), source="talker"
            )
            one.put("there", LARGE, to="talker")
            two.put("back", LARGE, to="thinker")
            with two.get("there", source="thinker", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == LARGE
            with one.get("back", source="talker", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == LARGE


def test_a_stranger_is_told_at_once_and_the_sender_counts_and_names_it(
    keys: Keys, lines: list[logging.LogRecord]
) -> None:
    ours, _ = friends(keys)
    stranger = keys.make("stranger", "thinker")
    with thinker(ours) as tx, talker(tx, stranger) as rx:
        tx.put("key", b"not for you", to="talker")
        began_s = time.monotonic()
        error = failure(rx)
        assert time.monotonic() - began_s < PATIENCE_S / 2
        assert isinstance(error, PeerError)
        assert error.reason is Reason.DECLINED
        assert "does not know our key: copy our public key file to it" in str(error)
        assert eventually(lambda: tx.health()["peers_refused"]["unknown_key"] > 0)
        assert failure(rx).reason is Reason.DECLINED
    told = [vars(line) for line in lines if line.message.startswith("peer_refused")]
    assert (told[0]["peer"], told[0]["cause"]) == ("127.0.0.1", "unknown_key")
    key = Path(stranger, "stranger.key").read_text().rpartition('= "')[2].strip().strip('"')
    assert key in told[0]["detail"]


def test_a_sender_with_another_key_is_not_believed(keys: Keys) -> None:
    ours, theirs = friends(keys)
    other = keys.make("impostor", "talker")
    del ours
    with thinker(other) as tx, talker(tx, theirs) as rx:
        rx.poll("key", source="thinker")  # it dials
        assert eventually(lambda: tx.health()["peers_refused"]["wrong_server_key"] > 0)
        error = failure(rx, SHORT_S)
        assert isinstance(error, PeerError | DeadlineError)
        assert "compare the key files" in str(error)


def test_a_plain_receiver_hears_that_the_sender_wants_curve(keys: Keys) -> None:
    ours, _ = friends(keys)
    with thinker(ours) as tx, talker(tx, None) as rx:
        error = failure(rx)
        assert error.reason is Reason.DECLINED
        assert "wants CURVE" in str(error)
        causes = "wrong_mechanism", "broken_off"
        assert eventually(lambda: any(tx.health()["peers_refused"][cause] for cause in causes))


def test_a_receiver_with_keys_does_not_listen_to_a_plain_sender(keys: Keys) -> None:
    _, theirs = friends(keys)
    with thinker(None) as tx, talker(tx, theirs) as rx:
        error = failure(rx)
        assert error.reason is Reason.DECLINED
        assert "does not use CURVE" in str(error)


def test_a_stranger_gets_in_once_the_sender_is_opened_with_its_key(keys: Keys) -> None:
    ours, theirs = keys.make("thinker"), keys.make("talker", "thinker")
    tx = thinker(ours)
    port = int(tx.endpoint.rpartition(":")[2])
    with talker(tx, theirs) as rx:
        assert failure(rx).reason is Reason.DECLINED
        tx.close()
        keys.tell("talker", "thinker")
        with thinker(ours, zmq_port=port) as again:
            again.put("key", b"welcome", to="talker")
            assert eventually(lambda: again.health()["sessions"] != [])
            with rx.get("key", source="thinker", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == b"welcome"


def test_a_receiver_comes_back_to_a_restarted_sender(keys: Keys) -> None:
    ours, theirs = friends(keys)
    tx = thinker(ours)
    port = int(tx.endpoint.rpartition(":")[2])
    with talker(tx, theirs) as rx:
        tx.put("key", b"1", to="talker")
        rx.get("key", source="thinker", timeout=PATIENCE_S).close()
        tx.close()
        with thinker(ours, zmq_port=port) as again:
            again.put("key", b"2", to="talker")
            assert eventually(lambda: again.health()["sessions"] != [])
            with rx.get("key", source="thinker", timeout=PATIENCE_S) as payload:
                assert bytes(payload.value) == b"2"


def test_many_receivers_are_let_in(keys: Keys) -> None:
    ours, theirs = friends(keys)
    with thinker(ours, readers=8) as tx:
        receivers = [talker(tx, theirs, replica=number) for number in range(8)]
        try:
            tx.put("key", LARGE, to="talker")
            for rx in receivers:
                with rx.get("key", source="thinker", timeout=PATIENCE_S) as payload:
                    assert bytes(payload.value) == LARGE
        finally:
            for rx in receivers:
                rx.close()


@pytest.mark.parametrize(("secure", "names"), [(False, 1), (True, 0)])
def test_with_keys_there_is_no_shortcut_around_them(keys: Keys, secure: bool, names: int) -> None:
    ours, _ = friends(keys)
    with thinker(ours if secure else None, shortcut=True) as tx:
        name = f"@stagelink/1/{tx.endpoint[len('tcp://') :]}"
        assert Path("/proc/net/unix").read_text().count(name) == names


@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        ({"security": "curve"}, "needs keys", "stagelink keygen"),
        ({"keys": "/keys"}, "'keys' is '/keys'", "security='curve'"),
        ({"server_key": "a"}, "'server_key' is 'a'", "security='curve'"),
        ({"security": "tls", "keys": "/keys"}, "tls", ""),
    ],
)
def test_settings_that_protect_nothing_are_refused(
    settings: dict[str, Any], said: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_config({"stage": "a", "role": "peer", **settings})
    assert remedy in caught.value.remedy


def test_a_channel_that_cannot_do_it_is_not_used_without(keys: Keys) -> None:
    ours, _ = friends(keys)
    with pytest.raises(ConfigError, match="knows no security='curve'"):
        stagelink.open(stage="a", role="peer", backend="memory", security="curve", keys=ours)


def test_a_key_that_is_missing_is_found_out_at_open(keys: Keys) -> None:
    for name in ("a", "b", "c"):
        keys.make(name)
    mine = keys.make("me", "a", "b")
    with pytest.raises(ConfigError, match=r"stage 'c' at tcp://127.0.0.1:9; at hand: a, b, me"):
        stagelink.open(
            stage="me", role="receiver", senders={"c": "tcp://127.0.0.1:9"}, security="curve",
            keys=mine, **COMMON,
        )  # fmt: skip


def test_a_secret_that_others_can_read_is_not_used(keys: Keys) -> None:
    ours, _ = friends(keys)
    Path(ours, "thinker.key_secret").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others") as caught:
        thinker(ours)
    assert caught.value.remedy.startswith("chmod 600")


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0", "allow_wildcard": True, "advertise_host": "127.0.0.1"}, True),
        ({"host": "0.0.0.0", "allow_wildcard": True, "advertise_host": "a-name"}, True),
        ({"host": "127.0.0.1", "advertise_host": "10.0.0.7"}, False),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
def test_a_port_that_others_can_reach_is_worth_a_warning_unless_keys_guard_it(
    keys: Keys,
    lines: list[logging.LogRecord],
    settings: dict[str, Any],
    warns: bool,
    secure: bool,
) -> None:
    ours, _ = friends(keys)
    thinker(ours if secure else None, **settings).close()
    told = [line for line in lines if line.message.startswith("unprotected_bind")]
    assert len(told) == int(warns and not secure)
    assert all("security='curve'" in line.message for line in told)


def test_a_local_socket_needs_no_warning(tmp_path: Path, lines: list[logging.LogRecord]) -> None:
    thinker(None, ipc=str(tmp_path / "s")).close()
    assert not [line for line in lines if line.message.startswith("unprotected_bind")]
