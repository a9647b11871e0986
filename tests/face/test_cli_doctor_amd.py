"""What `stagelink doctor` says of Mori, told from trees that look like the kernel's."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from stagelink.commands import app
from stagelink.inspect import amd
from stagelink.inspect.checks import Check

if TYPE_CHECKING:
    from pathlib import Path


def gpu(folder: Path, node: int, *links: tuple[int, int], simds: int = 1216) -> None:
    """A node of the kernel's topology, with links of (type, other node)."""
    place = folder / str(node)
    place.mkdir(parents=True)
    (place / "properties").write_text(
        f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version 90402\nunique_id 17\n"
    )
    for number, (kind, other) in enumerate(links):
        link = place / "io_links" / str(number)
        link.mkdir(parents=True)
        (link / "properties").write_text(f"type {kind}\nnode_from {node}\nnode_to {other}\n")


def device(folder: Path, name: str, *states: str) -> None:
    """An RDMA device with ports in those states."""
    for port, state in enumerate(states, 1):
        place = folder / name / "ports" / str(port)
        place.mkdir(parents=True)
        (place / "state").write_text(f"{state}\n")


@pytest.fixture
def verbs(tmp_path: Path) -> Path:
    """A folder with a device node that may be used."""
    place = tmp_path / "dev"
    place.mkdir()
    (place / "uverbs0").touch()
    return place


def test_gpus_and_their_xgmi_links_are_read_from_the_kernels_topology(tmp_path: Path) -> None:
    gpu(tmp_path, 0, (2, 2), simds=0)  # a CPU
    gpu(tmp_path, 2, (2, 0), (11, 3), (11, 4))
    gpu(tmp_path, 10, (2, 0))
    gpu(tmp_path, 3, (11, 2))

    found = amd.read_gpus(tmp_path)

    assert found == [
        amd.Gpu(2, "gfx942", (3, 4)), amd.Gpu(3, "gfx942", (2,)), amd.Gpu(10, "gfx942", ()),
    ]  # fmt: skip
    check = amd.links(found)
    assert check.ok is None
    assert check.found == "3 GPUs: 2 (gfx942) to 3; 3 (gfx942) to 2; 10 (gfx942) to none"
    assert check.remedy.startswith("node 10 has no XGMI link")


def test_gpus_that_all_reach_each_other_are_fine() -> None:
    check = amd.links([amd.Gpu(2, "gfx942", (3,)), amd.Gpu(3, "gfx942", (2,))])
    assert check == Check("XGMI", True, "2 GPUs: 2 (gfx942) to 3; 3 (gfx942) to 2")


def test_one_gpu_or_none_has_its_remedy(tmp_path: Path) -> None:
    assert "needs two" in amd.links([amd.Gpu(2, "gfx942", (3,))]).remedy
    assert "/dev/kfd" in amd.links(amd.read_gpus(tmp_path / "absent")).remedy


@pytest.mark.parametrize(
    ("listed", "ok", "found"),
    [
        ("", True, "active: mlx5_1"),
        ("mlx5_1", True, "active: mlx5_1"),
        ("mlx5_1:1,mlx5_0", True, "active: mlx5_1"),
        ("^mlx5_0", True, "active: mlx5_1"),
        ("mlx5_0", None, "no port of mlx5_0 is active"),
        ("^mlx5_1", None, "no port of mlx5_0 is active"),
        ("mlx5_7", None, "MORI_RDMA_DEVICES names mlx5_7"),
    ],
)
def test_the_devices_that_mori_takes_must_be_there_and_active(
    tmp_path: Path, verbs: Path, listed: str, ok: bool | None, found: str
) -> None:
    device(tmp_path / "ib", "mlx5_0", "1: DOWN")
    device(tmp_path / "ib", "mlx5_1", "1: DOWN", "4: ACTIVE")

    check = amd.named_devices({"MORI_RDMA_DEVICES": listed}, tmp_path / "ib", verbs)

    assert (check.ok, check.found) == (ok, found)
    assert bool(check.remedy) is (ok is None)


def test_a_container_without_the_device_nodes_is_told(tmp_path: Path) -> None:
    device(tmp_path / "ib", "mlx5_0", "4: ACTIVE")
    check = amd.named_devices({}, tmp_path / "ib", tmp_path / "absent")
    assert check.ok is None
    assert "--device=/dev/infiniband" in check.remedy
    assert amd.named_devices({}, tmp_path / "none", tmp_path).found == "no device"


@pytest.mark.parametrize(
    ("env", "ok", "found", "remedy"),
    [
        ({}, None, "nothing is set", ""),
        ({"PATH": "x"}, None, "nothing is set", ""),
        ({"MORI_IO_CHUNK_BYTES": "1"}, True, "MORI_IO_CHUNK_BYTES=1", ""),
        ({"MORI_IO_ENABLE_NOTIFICATION": "1"}, None, "MORI_IO_ENABLE_NOTIFICATION=1", "both"),
        ({"MORI_DISABLE_AUTO_XGMI": "1"}, None, "MORI_DISABLE_AUTO_XGMI=1", "unset"),
    ],
)
def test_what_is_set_for_mori_is_shown(
    env: dict[str, str], ok: bool | None, found: str, remedy: str
) -> None:
    check = amd.environment(env)
    assert (check.ok, check.found) == (ok, found)
    assert remedy in check.remedy
    assert bool(check.remedy) is bool(remedy)


@pytest.mark.parametrize(
    ("env", "ok", "words"),
    [
        ({}, None, "its own level"),
        ({"MORI_IO_LOG_LEVEL": "error"}, True, "level error"),
        ({"MORI_GLOBAL_LOG_LEVEL": "OFF"}, True, "level OFF"),
        ({"MORI_IO_LOG_LEVEL": "debug"}, None, "level debug"),
        ({"MORI_IO_LOG_LEVEL": "loud"}, None, "unknown level 'loud'"),
    ],
)
def test_a_log_on_standard_output_is_told(
    env: dict[str, str], ok: bool | None, words: str
) -> None:
    check = amd.log_level(env)
    assert check.ok is ok
    assert words in check.found
    assert bool(check.remedy) is (ok is None)


# --- the package ---------------------------------------------------------------------------


def test_without_mori_there_is_one_line_unless_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amd, "find_spec", lambda _: None)
    assert list(amd.checks({})) == [Check("Mori", None, "not installed")]
    wanted = list(amd.checks({}, wanted=True))
    assert (wanted[0].ok, wanted[0].found) == (False, "not installed")
    assert "pip install amd-mori" in wanted[0].remedy
    names = [check.name for check in wanted[1:]]
    assert names == ["XGMI", "RDMA for Mori", "MORI_* environment", "Mori's log"]


@pytest.mark.parametrize(
    ("probe", "ok", "found", "remedy"),
    [
        ("print('noise\\nversion 9.9')", True, "9.8, its engine 9.9 can be loaded", ""),
        (
            "raise ImportError('libgrpc.so.29: cannot open shared object file: No such file')",
            False, "cannot be loaded", "the system package that holds libgrpc.so.29",
        ),
        ("raise SystemExit(7)", False, "status 7", "shows all of it"),
    ],
)  # fmt: skip
def test_the_engine_is_loaded_in_a_process_of_its_own_if_asked(
    monkeypatch: pytest.MonkeyPatch, probe: str, ok: bool, found: str, remedy: str
) -> None:
    monkeypatch.setattr(amd, "find_spec", lambda _: True)
    monkeypatch.setattr(amd, "version", lambda _: "9.8")
    monkeypatch.setattr(amd, "_PROBE", probe)

    assert amd.package() == Check("Mori", True, "9.8")
    check = amd.package(ask=True)

    assert check.ok is ok
    assert found in check.found
    assert remedy in check.remedy
    assert "mori" not in sys.modules


def test_doctor_fails_where_the_configuration_wants_mori_and_it_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amd, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["doctor", "--backend", "mori-xgmi", "--json"])
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1
    assert checks["Mori"]["ok"] is False
