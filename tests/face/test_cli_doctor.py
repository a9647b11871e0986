"""``stagelink doctor``: each thing that can be wrong is found, named, and has a remedy."""

from __future__ import annotations

import json
import resource
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import stagelink
from stagelink import commands, hosts
from stagelink.adapters.shm.names import lock_name, segment_name
from stagelink.config import load_config
from stagelink.core.addresses import Interface, Peer
from stagelink.core.errors import ConfigError
from stagelink.inspect import doctor, host, memory, transfer
from stagelink.inspect.checks import Check, size

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.config import Config

DEAD = bytes(range(16))
ALWAYS = {
    "python", "stagelink", "libzmq", "pyzmq", "msgspec", "pluggy", "structlog", "numpy", "torch",
    "open files", "clock source", "GPU", "RDMA", "Mori", "configuration",
}  # fmt: skip
WITH_SHM = {
    "keys", "backend", "room for the pool", "locks that prove life", "left by dead owners",
    "locked memory", "address", "port", "transfer to ourselves",
}  # fmt: skip


def config(**settings: object) -> Config:
    return load_config({"stage": "doctor", "role": "peer", "pool_bytes": "4MiB", **settings})


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the checks by name."""
    result = CliRunner().invoke(commands.app, ["doctor", "--json", *arguments])
    found = json.loads(result.stdout)
    assert found["ok"] == (result.exit_code == 0)
    return result.exit_code, {check["name"]: check for check in found["checks"]}


def settings_file(folder: Path, **settings: object) -> str:
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    return str(path)


# --- the whole ---------------------------------------------------------------------------------


def test_a_configuration_that_works_passes_every_check(tmp_path: Path) -> None:
    status, checks = run("--backend", "shm", "--pool", "4MiB")

    assert status == 0
    assert set(checks) == ALWAYS | WITH_SHM | {"shared memory /dev/shm"}
    assert checks["backend"] == Check("backend", True, "shm")._asdict()
    assert checks["room for the pool"]["found"].startswith("4 MiB wanted, ")
    assert checks["transfer to ourselves"]["ok"] is True


def test_people_see_the_same_with_a_verdict_at_the_end() -> None:
    result = CliRunner().invoke(commands.app, ["doctor", "--backend", "memory"])

    assert result.exit_code == 0
    assert "ok   backend: memory" in result.stdout
    assert "this configuration works here" in result.stdout


def test_a_pool_that_does_not_fit_fails_with_both_numbers_and_a_remedy() -> None:
    status, checks = run("--backend", "shm", "--pool", "900TiB")

    assert status == 1
    assert checks["room for the pool"]["ok"] is False
    assert "900 TiB wanted, " in checks["room for the pool"]["found"]
    assert "lower pool_bytes" in checks["room for the pool"]["remedy"]


def test_a_wrong_configuration_fails_and_the_host_is_examined_all_the_same(
    tmp_path: Path,
) -> None:
    status, checks = run("--config", settings_file(tmp_path, poolbytes=1))

    assert status == 1
    assert set(checks) == ALWAYS
    assert checks["configuration"] == {
        "name": "configuration",
        "ok": False,
        "found": "unknown setting 'poolbytes'",
        "remedy": "did you mean 'pool_bytes'?",
    }


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = settings_file(tmp_path, backend="nonsense", role="sender", pool_bytes="4MiB")

    status, checks = run("--config", path, "--backend", "memory")

    assert status == 0
    assert checks["configuration"]["found"] == "sender, backend memory"


def test_an_unknown_backend_fails_and_suggests_one() -> None:
    status, checks = run("--backend", "shn")

    assert status == 1
    assert checks["backend"]["ok"] is False
    assert "did you mean 'shm'" in checks["backend"]["remedy"]


def test_what_dead_owners_left_is_a_warning_and_fails_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "shm"
    directory.mkdir()
    (directory / lock_name(DEAD)).touch()
    (directory / segment_name(DEAD, 1)).write_bytes(bytes(2048))
    path = settings_file(
        tmp_path, backend="shm", pool_bytes="1MiB", shm_dir=str(directory), zmq_port=0
    )

    status, checks = run("--config", path)

    assert status == 0
    assert checks["left by dead owners"]["ok"] is None
    assert checks["left by dead owners"]["found"] == "2 files, 2 KiB"
    assert checks["transfer to ourselves"]["ok"] is True
    assert list(directory.iterdir()) == []  # swept by its own transfer, which left nothing


def test_a_running_peer_is_reached_and_a_missing_one_fails() -> None:
    with stagelink.open(stage="thinker", role="sender", backend="shm", pool_bytes="1MiB") as peer:
        status, checks = run("--backend", "shm", "--pool", "4MiB", "--peer", peer.endpoint)
    assert status == 0
    assert checks[f"peer {peer.endpoint}"]["found"] == "thinker (sender), ok, shm"

    gone = doctor.check_peer(peer.endpoint, ["shm"], timeout_s=0.1)
    assert gone.ok is False
    assert "nothing answers" in gone.found


def test_a_peer_without_a_common_backend_fails() -> None:
    with stagelink.open(stage="thinker", role="sender", backend="shm", pool_bytes="1MiB") as peer:
        check = doctor.check_peer(peer.endpoint, ["mori"])

    assert check.ok is False
    assert "it has shm, we mori" in check.found


# --- the configuration -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"pool_bytes": "1MiB", "senders": {"a": "tcp://127.0.0.1:1"}}'),
        pytest.param(
            ".toml",
            'pool_bytes = "1MiB"\n[senders]\na = "tcp://127.0.0.1:1"\n',
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib"),
        ),
    ],
)
def test_settings_are_read_from_either_format(suffix: str, text: str) -> None:
    assert doctor.read_settings(text.encode(), suffix) == {
        "pool_bytes": "1MiB",
        "senders": {"a": "tcp://127.0.0.1:1"},
    }


@pytest.mark.parametrize(
    ("data", "suffix", "words"),
    [
        (b"{", ".json", "malformed"),
        (b"[1]", ".json", "holds a list"),
        (b"", ".ini", "ends in .json"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(data: bytes, suffix: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        doctor.read_settings(data, suffix)


def test_a_missing_file_is_an_error_and_with_json_an_object(tmp_path: Path) -> None:
    path = str(tmp_path / "no.json")

    result = CliRunner().invoke(commands.app, ["doctor", "--config", path, "--json"])

    assert result.exit_code == 1
    assert "cannot be read" in json.loads(result.stdout)["error"]


# --- address and port --------------------------------------------------------------------------


def test_a_port_in_use_fails() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)

        check = doctor.check_port(config(zmq_port=taken.getsockname()[1]))

    assert check.ok is False
    assert "Address already in use" in check.found


@pytest.mark.parametrize(
    ("settings", "ok", "words"),
    [
        ({}, True, "any free one"),
        ({"host": "192.0.2.77"}, False, "Cannot assign requested address"),
        ({"host": "no-such-host.invalid"}, False, "has no address"),
        ({"host": "0.0.0.0"}, False, "every interface"),
        ({"role": "receiver"}, None, "binds none"),
        ({"ipc": "/tmp/stagelink-doctor-test.sock"}, True, "is free"),
        ({"ipc": "/dev/null"}, False, "is no socket"),
    ],
)
def test_what_cannot_be_bound_fails(settings: dict[str, str], ok: bool | None, words: str) -> None:
    check = doctor.check_port(config(**settings))

    assert check.ok is ok
    assert words in check.found


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with one wire, and every sender at the other end of it."""
    table = [Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.5")]
    peer = Peer("10.0.0.9", "10.0.0.9", "10.0.0.5")
    monkeypatch.setattr(hosts, "read_interfaces", lambda: table)
    monkeypatch.setattr(hosts, "peer_of", lambda host, socket_file: peer)


def test_the_address_is_shown_with_its_reason_and_the_others(far_away: None) -> None:
    check = doctor.check_address(config(host="auto", sender="tcp://10.0.0.9:1"))

    assert check.ok is True
    assert check.found == (
        "10.0.0.5: the route to 10.0.0.9 leaves from eth0; "
        "could be told to others: 10.0.0.5 (eth0)"
    )


def test_loopback_beside_a_peer_elsewhere_is_a_warning(far_away: None) -> None:
    check = doctor.check_address(config(sender="tcp://10.0.0.9:1"))

    assert check.ok is None
    assert "set host='auto'" in check.remedy


def test_an_address_that_must_not_be_told_fails(far_away: None) -> None:
    bad = config(host="auto", sender="tcp://10.0.0.9:1", advertise_host="127.0.0.1")

    assert doctor.check_address(bad).ok is False


# --- memory and transfer -----------------------------------------------------------------------


def test_a_missing_mount_is_the_only_thing_said_of_it(tmp_path: Path) -> None:
    [check] = memory.shared_memory(str(tmp_path / "no"), 1)

    assert (check.ok, check.found) == (False, "there is no such directory")
    assert "set shm_dir" in check.remedy


def test_a_mount_whose_files_anybody_may_delete_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_file_system", lambda _: "tmpfs")
    tmp_path.chmod(0o777)

    assert memory.shared_memory(str(tmp_path), 1)[0].ok is None
    tmp_path.chmod(0o1777)
    assert memory.shared_memory(str(tmp_path), 1)[0].ok is True


def test_locks_that_others_do_not_see_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_IS_LOCKED", "print(False)")

    found = {check.name: check for check in memory.shared_memory(str(tmp_path), 1)}

    assert found["locks that prove life"].ok is False
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_a_mount_is_that_of_the_nearest_one_above() -> None:
    assert memory._file_system("/dev/shm") == "tmpfs"
    assert memory._file_system("/proc/self/fd") == "proc"


@pytest.mark.parametrize("error", [ConfigError("no", remedy="yes"), RuntimeError("driver gone")])
def test_a_transfer_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(transfer, "compose", fail)

    check = transfer.transfer_to_ourselves(config())

    assert check.ok is False
    assert str(error.args[0]) in check.found


@pytest.mark.parametrize(
    "settings",
    [
        {"pool_bytes": 4096},
        {"alignment": 1 << 21, "pool_bytes": "64MiB"},
        {"send_share": 0.0, "receive_share": 1.0},
        {"backend": "shm-write", "replica": 3, "readers": 2},
    ],
)
def test_the_transfer_works_with_whatever_the_pool_is_like(settings: dict[str, object]) -> None:
    check = transfer.transfer_to_ourselves(config(**settings))

    assert check.ok is True, check


# --- the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "needed", "ok"),
    [
        (8 << 20, 0, None),
        (8 << 20, 16 << 20, False),
        (16 << 20, 16 << 20, True),
        (resource.RLIM_INFINITY, 16 << 20, True),
    ],
)
def test_locked_memory_matters_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, limit: int, needed: int, ok: bool | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    assert host.locked_memory(needed=needed).ok is ok


@pytest.mark.parametrize(("limit", "ok"), [(256, None), (1024, True), (-1, True)])
def test_few_open_files_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, limit: int, ok: bool | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    assert host.open_files().ok is ok


@pytest.mark.parametrize(("name", "ok"), [("tsc", True), ("kvm-clock", True), ("hpet", None)])
def test_a_slow_clock_source_is_a_warning(tmp_path: Path, name: str, ok: bool | None) -> None:
    (tmp_path / "current_clocksource").write_text(f"{name}\n")

    check = host.clock(tmp_path)

    assert (check.ok, check.found) == (ok, name)
    assert bool(check.remedy) is (ok is None)


def test_an_unknown_clock_source_is_no_warning(tmp_path: Path) -> None:
    assert host.clock(tmp_path) == Check("clock source", None, "unknown")


def test_rdma_devices_are_listed_with_the_state_of_their_ports(tmp_path: Path) -> None:
    assert host.rdma(tmp_path).found == "no device"
    for device, state in (("mlx5_0", "1: DOWN"), ("mlx5_1", "4: ACTIVE")):
        (tmp_path / device / "ports" / "1").mkdir(parents=True)
        (tmp_path / device / "ports" / "1" / "state").write_text(f"{state}\n")

    check = host.rdma(tmp_path)

    assert (check.ok, check.found) == (True, "mlx5_0 (1: DOWN); mlx5_1 (4: ACTIVE)")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"names": ["MI300X"], "hip": "6.2", "cuda": None}, "MI300X (HIP 6.2)"),
        (
            {"names": ["A", "B"], "apart": ["1 and 0"], "hip": "6.2", "cuda": None},
            "A, B (HIP 6.2); 1 and 0 do not reach each other's memory",
        ),
        ({"names": [], "hip": None, "cuda": "12.8"}, "torch sees none (CUDA 12.8)"),
        ({"names": [], "hip": None, "cuda": None}, "torch sees none (built for the CPU)"),
    ],
)
def test_torch_is_asked_for_gpus_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], found: str
) -> None:
    monkeypatch.setattr(host, "find_spec", lambda _: True)
    monkeypatch.setattr(host, "_GPU_PROBE", f"print({json.dumps(told)!r})")

    assert host.gpus(ask_torch=True).found == found


def test_a_torch_that_cannot_be_loaded_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_spec", lambda _: True)
    monkeypatch.setattr(host, "_GPU_PROBE", "raise SystemExit(3)")

    check = host.gpus(ask_torch=True)

    assert check.ok is None
    assert "torch cannot tell" in check.found


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1 << 52, "4,096 TiB"),
    ],
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert size(count) == text
