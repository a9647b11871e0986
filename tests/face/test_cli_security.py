"""``stagelink keygen``, and the other commands with keys."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import stagelink
from stagelink import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(commands.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def keygen(folder: Path, name: str) -> Path:
    status, *_ = run("keygen", str(folder / name), "--name", name)
    assert status == 0
    return folder / name


def introduce(one: Path, other: Path) -> None:
    """Give each the other's public key."""
    for source, target in ((one, other), (other, one)):
        shutil.copy(source / f"{source.name}.key", target)


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    return keygen(tmp_path, "admin")


@pytest.fixture
def guarded(tmp_path: Path, admin: Path) -> Iterator[Connector]:
    """A sender that lets in the admin."""
    folder = keygen(tmp_path, "thinker")
    introduce(folder, admin)
    with stagelink.open(
        stage="thinker", role="sender", pool_bytes="4MiB", security="curve", keys=str(folder)
    ) as opened:
        yield opened


def test_keygen_makes_two_files_and_says_what_to_do_with_them(tmp_path: Path) -> None:
    status, said, _ = run("keygen", str(tmp_path / "keys"), "--name", "talker")

    assert status == 0
    assert "talker.key" in said
    assert "copy it" in said
    assert "security='curve'" in said
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "keys").iterdir()}
    assert modes == {"talker.key": 0o644, "talker.key_secret": 0o600}
    secret = (tmp_path / "keys/talker.key_secret").read_text().rpartition('= "')[2].strip()[:-1]
    assert secret not in said


def test_keygen_tells_one_json_object_without_the_secret(tmp_path: Path) -> None:
    status, said, _ = run("keygen", str(tmp_path), "--name", "talker", "--json")

    told = json.loads(said)
    assert status == 0
    assert set(told) == {"name", "secret", "public", "key"}
    assert told["secret"] == str(tmp_path / "talker.key_secret")
    assert told["key"] in Path(told["public"]).read_text()


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_keygen_does_not_overwrite(tmp_path: Path, extra: tuple[str, ...]) -> None:
    folder = keygen(tmp_path, "talker")
    before = {path: path.read_bytes() for path in folder.iterdir()}

    status, said, wrong = run("keygen", str(folder), "--name", "talker", *extra)

    assert status == 1
    assert "is there already" in wrong
    assert not extra or json.loads(said)["ok"] is False
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_top_sees_a_guarded_connector_with_keys(guarded: Connector, admin: Path) -> None:
    status, said, _ = run("top", guarded.endpoint, "--json", "--keys", str(admin))

    assert status == 0
    assert json.loads(said)["stage"] == "thinker"


def test_top_shows_who_was_refused(guarded: Connector, admin: Path, tmp_path: Path) -> None:
    stranger = keygen(tmp_path, "stranger")
    shutil.copy(admin / "thinker.key", stranger)
    status, _, wrong = run(
        "top", guarded.endpoint, "--once", "--timeout", "0.5", "--keys", str(stranger)
    )
    assert status == 1
    assert "does not know our key" in wrong

    status, said, _ = run("top", guarded.endpoint, "--once", "--keys", str(admin))

    assert status == 0
    assert "unknown_key 1" in said


def test_top_without_keys_says_that_they_are_wanted(guarded: Connector) -> None:
    status, _, wrong = run("top", guarded.endpoint, "--once", "--timeout", "0.5")

    assert status == 1
    assert "wants CURVE" in wrong


def test_top_with_unusable_keys_says_why(guarded: Connector, tmp_path: Path) -> None:
    status, _, wrong = run("top", guarded.endpoint, "--once", "--keys", str(tmp_path / "missing"))

    assert status == 1
    assert "stagelink keygen" in wrong


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    status, said, _ = run("doctor", "--pool", "4MiB", "--json", *arguments)
    return status, {check["name"]: check for check in json.loads(said)["checks"]}


def test_doctor_looks_at_the_keys_and_asks_a_peer_with_them(
    guarded: Connector, admin: Path
) -> None:
    status, checks = doctor("--keys", str(admin), "--peer", guarded.endpoint)

    assert status == 0, checks
    assert checks["keys"]["found"] == "we are admin; 2 keys are let in"
    assert checks["transfer to ourselves"]["ok"] is True
    assert checks[f"peer {guarded.endpoint}"]["ok"] is True


def test_doctor_names_a_key_file_that_is_open_to_others(admin: Path) -> None:
    (admin / "admin.key_secret").chmod(0o640)

    status, checks = doctor("--keys", str(admin))

    assert status == 1
    assert checks["keys"]["ok"] is False
    assert checks["keys"]["remedy"] == f"chmod 600 {admin / 'admin.key_secret'}"


def test_doctor_passes_a_transfer_with_keys_of_many_peers(tmp_path: Path, admin: Path) -> None:
    for name in ("a", "b", "c"):
        introduce(keygen(tmp_path, name), admin)

    status, checks = doctor("--keys", str(admin))

    assert status == 0, checks


def test_doctor_warns_of_a_port_that_others_can_reach(tmp_path: Path) -> None:
    file = tmp_path / "open.json"
    file.write_text('{"host": "0.0.0.0", "allow_wildcard": true, "advertise_host": "127.0.0.1"}')

    _, checks = doctor("--config", str(file))

    assert checks["keys"]["ok"] is None
    assert "security='curve'" in checks["keys"]["remedy"]
