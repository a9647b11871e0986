"""Key files are made once, for their owner alone, and are looked at before they are trusted."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
import zmq.auth

from stagelink.adapters.zmq.keyfiles import (
    LONGEST_FILE,
    KeyPair,
    make_keys,
    read_public,
    read_secret,
)  # fmt: skip
from stagelink.adapters.zmq.keyring import Keyring, read_keyring
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.adapters.zmq.keyfiles import MadeKeys


@pytest.fixture
def made(tmp_path: Path) -> MadeKeys:
    return make_keys(tmp_path / "keys", "talker")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_secret_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = make_keys(tmp_path, "talker")
    finally:
        os.umask(before)

    assert (mode_of(made.secret), mode_of(made.public)) == (0o600, 0o644)


def test_what_was_made_can_be_read_by_us_and_by_pyzmq(made: MadeKeys) -> None:
    pair = read_secret(made.secret)

    assert pair.public == made.key.encode() == read_public(made.public)
    assert tuple(pair) == zmq.auth.load_certificate(made.secret)
    assert zmq.auth.load_certificate(made.public) == (pair.public, None)


def test_what_pyzmq_has_made_can_be_read(tmp_path: Path) -> None:
    public, secret = map(str, zmq.auth.create_certificates(tmp_path, "talker"))
    os.chmod(secret, 0o600)

    assert read_secret(tmp_path / secret).public == read_public(tmp_path / public)


def test_a_secret_is_in_no_message(made: MadeKeys) -> None:
    pair = read_secret(made.secret)

    assert pair.secret.decode() not in repr(pair) + repr(made) + repr((pair,))
    assert pair.secret.decode() not in made.public.read_text()


@pytest.mark.parametrize("suffix", [".key", ".key_secret"])
def test_nothing_is_overwritten(tmp_path: Path, suffix: str) -> None:
    there = tmp_path / f"talker{suffix}"
    there.write_text("precious")

    with pytest.raises(ConfigError, match="is there already") as caught:
        make_keys(tmp_path, "talker")

    assert caught.value.remedy
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (there.name, "precious")
    ]


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "talker.key").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError):
        make_keys(tmp_path, "talker")

    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_has_one_secret(made: MadeKeys) -> None:
    with pytest.raises(ConfigError, match="holds a secret key already"):
        make_keys(made.secret.parent, "thinker")
    assert not (made.secret.parent / "thinker.key").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../talker", "a/b", ".hidden", "a b", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        make_keys(tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_others_can_reach_is_refused_with_the_command(
    made: MadeKeys, mode: int
) -> None:
    made.secret.chmod(mode)

    with pytest.raises(ConfigError, match=f"mode {mode:04o}") as caught:
        read_keyring(made.secret.parent)

    assert caught.value.remedy == f"chmod 600 {made.secret}"


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_public_key_that_others_can_change_is_refused(made: MadeKeys, mode: int) -> None:
    made.public.chmod(mode)

    with pytest.raises(ConfigError, match="changed by others") as caught:
        read_keyring(made.secret.parent)

    assert caught.value.remedy == f"chmod go-w {made.public}"


def test_a_directory_that_others_can_write_to_is_refused(made: MadeKeys) -> None:
    made.secret.parent.chmod(0o777)

    with pytest.raises(ConfigError, match="changed by others") as caught:
        read_keyring(made.secret.parent)

    assert caught.value.remedy == f"chmod go-w {made.secret.parent}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no secret key"),
        ('public-key = "short"\nsecret-key = "short"\n', "no secret key"),
        ('secret-key = "' + "~" * 40 + '"\n', "no secret key"),
        ("x" * (LONGEST_FILE + 1), "more than"),
    ],
)
def test_a_malformed_secret_is_named_with_a_remedy(made: MadeKeys, text: str, said: str) -> None:
    made.secret.write_text(text)

    with pytest.raises(ConfigError, match=said) as caught:
        read_keyring(made.secret.parent)

    assert str(made.secret) in caught.value.message
    assert caught.value.remedy


def test_halves_of_two_pairs_are_no_pair(made: MadeKeys, tmp_path: Path) -> None:
    other = make_keys(tmp_path / "other", "talker")
    made.secret.write_text(made.secret.read_text().replace(made.key, other.key))

    with pytest.raises(ConfigError, match="no pair"):
        read_keyring(made.secret.parent)


def test_the_key_of_a_peer_does_not_take_the_place_of_ours(made: MadeKeys, tmp_path: Path) -> None:
    other = make_keys(tmp_path / "other", "talker")
    shutil.copy(other.public, made.public)

    with pytest.raises(ConfigError, match="not the public half"):
        read_keyring(made.secret.parent)


@pytest.mark.parametrize("text", ["", "public-key = 7\n", 'public-key = "' + "é" * 40 + '"'])
def test_a_malformed_public_key_is_named(made: MadeKeys, text: str) -> None:
    (made.secret.parent / "peer.key").write_text(text)

    with pytest.raises(ConfigError, match=r"peer\.key holds no public key"):
        read_keyring(made.secret.parent)


def test_a_secret_of_a_peer_among_the_public_keys_is_refused(
    made: MadeKeys, tmp_path: Path
) -> None:
    other = make_keys(tmp_path / "other", "thinker")
    shutil.copy(other.secret, made.secret.parent / "thinker.key")

    with pytest.raises(ConfigError, match="holds a secret key") as caught:
        read_keyring(made.secret.parent)

    assert "make that peer new keys" in caught.value.remedy


def test_a_directory_without_a_secret_says_how_to_make_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError) as caught:
            read_keyring(folder)
        assert f"stagelink keygen {folder}" in caught.value.remedy


def test_two_secrets_are_one_too_many(made: MadeKeys, tmp_path: Path) -> None:
    shutil.copy(make_keys(tmp_path / "other", "b").secret, made.secret.parent)

    with pytest.raises(ConfigError, match="one secret key"):
        read_keyring(made.secret.parent)


A, B, C = (KeyPair(*zmq.curve_keypair()) for _ in range(3))
AT = "tcp://10.0.0.7:1"


def test_the_only_peer_is_expected_everywhere() -> None:
    assert Keyring(A, {"me": A.public, "b": B.public}).key_for(AT) == B.public


def test_one_key_for_all_is_enough() -> None:
    assert Keyring(A, {"me": A.public}).key_for(AT) == A.public


def test_a_stage_has_the_key_of_its_name_and_server_key_wins() -> None:
    peers = {"b": B.public, "c": C.public}
    assert Keyring(A, peers, {AT: "c"}).key_for(AT) == C.public
    assert Keyring(A, peers, {AT: "c"}, "b").key_for(AT) == B.public


def test_of_several_peers_none_is_guessed() -> None:
    with pytest.raises(ConfigError, match="at hand: b, c") as caught:
        Keyring(A, {"b": B.public, "c": C.public}).key_for(AT)
    assert "server_key" in caught.value.remedy


def test_a_server_key_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'typo'"):
        Keyring(A, {"b": B.public}, server="typo")
