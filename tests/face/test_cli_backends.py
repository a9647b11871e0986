"""``stagelink backends`` as its users see it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from stagelink import commands
from stagelink.config import load_config
from stagelink.inspect.backends import list_backends
from stagelink.plugins import Backend, Manager, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

BUILT_IN = [
    "shm", "shm-write", "frames", "device_ipc", "memory", "memory-write", "mori-rdma", "mori-xgmi",
]  # fmt: skip


def probe_without_hardware(_: object) -> str:
    return "no adapter of that kind is here; plug one in"


def probe_that_fails(_: object) -> str:
    msg = "driver too old"
    raise RuntimeError(msg)


def toy(name: str, probe: str) -> Backend:
    nowhere = f"{__name__}:nowhere"
    return Backend(name, "a toy", "zmq", nowhere, nowhere, nowhere, f"{__name__}:{probe}", rank=99)


class Toys:
    __name__ = "toys"

    @hookimpl
    def stagelink_backends(self) -> list[Backend]:
        return [toy("absent", "probe_without_hardware"), toy("failing", "probe_that_fails")]


def install(folder: Path, name: str, code: str) -> None:
    """A distribution that holds one plugin module."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[stagelink]\n{name}-plugin = {name}\n")


def test_every_backend_of_ours_is_listed_best_first_with_what_it_can_do() -> None:
    result = CliRunner().invoke(commands.app, ["backends", "--json"])

    rows = json.loads(result.stdout)["backends"]
    assert result.exit_code == 0
    assert [row["name"] for row in rows if row["provided_by"].startswith("stagelink ")] == BUILT_IN
    shm = rows[0]
    assert (shm["available"], shm["reason"], shm["automatic"]) == (True, "", True)
    assert shm["capabilities"] == {
        "mode": "map",
        "memory_kind": "host-shared",
        "crosses_hosts": False,
        "survives_owner": True,
        "can_fence": False,
    }


def test_a_backend_that_cannot_work_says_why_and_what_to_do() -> None:
    absent, failing, *_ = list_backends(Manager([Toys()]))

    assert not absent.available
    assert absent.reason == "no adapter of that kind is here"
    assert absent.remedy == "plug one in"
    assert absent.capabilities is None
    assert absent.provided_by == "toys"
    assert failing.reason == "its probe failed: RuntimeError: driver too old"


def test_a_missing_directory_is_the_reason_of_both_shared_memory_backends(tmp_path: Path) -> None:
    config = load_config({"stage": "x", "role": "peer", "shm_dir": str(tmp_path / "no")})

    rows = list_backends(config=config)

    works = {row.name: row.available for row in rows}
    assert not works["shm"] and not works["shm-write"]  # noqa: PT018 - the same of both
    assert works["memory"] and works["memory-write"]  # noqa: PT018 - the same of both
    assert "is not writable" in rows[0].reason
    assert "set shm_dir" in rows[0].remedy


def test_a_plugin_that_fails_to_import_is_shown_with_its_error_and_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "stagelink_cli_broken", "raise ImportError('libxyz.so.2 is missing')")
    monkeypatch.syspath_prepend(tmp_path)

    shown = CliRunner().invoke(commands.app, ["backends"])
    result = CliRunner().invoke(commands.app, ["backends", "--json"])

    broken = json.loads(result.stdout)["backends"][-1]
    assert result.exit_code == 0
    assert broken["name"] == "stagelink_cli_broken-plugin"
    assert not broken["available"]
    assert "ImportError: libxyz.so.2 is missing" in broken["reason"]
    assert broken["provided_by"] == "stagelink_cli_broken 1.5"
    assert "cannot work here: the plugin failed to load" in shown.stdout


def test_the_table_names_every_backend() -> None:
    result = CliRunner().invoke(commands.app, ["backends"])

    assert result.exit_code == 0
    for name in BUILT_IN:
        assert name in result.stdout


@pytest.mark.parametrize("command", ["backends", "doctor", "plan", "top"])
def test_help_shows_examples(command: str) -> None:
    result = CliRunner().invoke(commands.app, [command, "--help"])

    assert result.exit_code == 0
    assert f"stagelink {command} " in result.stdout
    assert "--json" in result.stdout.split("Examples:")[1]
