"""``stagelink plan`` as its users see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.hosts.plans import THREE, spoilt
from typer.testing import CliRunner

from stagelink import commands
from stagelink.inspect import surroundings

if TYPE_CHECKING:
    from typer.testing import Result

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands.app, ["plan", *arguments])


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    path = tmp_path / "deploy.yaml"
    path.write_text(THREE)
    return path


def test_the_picture_has_every_stage_with_its_ports_and_edges(deploy: Path) -> None:
    result = run(str(deploy), "--assume", "nvidia")

    assert result.exit_code == 0
    assert result.stdout == (
        "deploy.yaml on NVIDIA GPUs\n"
        "├── stage 0, devices 0, chunks\n"
        "│   ├── binds 50051 (payload), 50151 (kv)\n"
        "│   └── ──> stage 1  StagelinkConnector: shm\n"
        "│       ├── auto: one machine, and the pool is on the host\n"
        "│       └── carries hidden states of up to 32768 tokens, about 256 MiB\n"
        "├── stage 1, devices 1, chunks\n"
        "│   ├── binds 50052 (payload), 50152 (kv)\n"
        "│   └── ──> stage 2  StagelinkConnector: shm\n"
        "│       ├── auto: one machine, and the pool is on the host\n"
        "│       └── carries chunks of 25 codec frames and 25 before, about 12.5 KiB\n"
        "├── stage 2, devices 2, chunks\n"
        "└── the pools take up to 1 GiB of /dev/shm\n"
        "\n"
        "this deployment can be started; errors: 0, warnings: 0\n"
    )


def test_a_mistake_is_shown_with_its_line_and_its_remedy_and_fails(deploy: Path) -> None:
    deploy.write_text(spoilt("to_stage_1: chain", "to_stage_1: chian"))

    result = run(str(deploy), "--assume", "cpu")

    assert result.exit_code == 1
    assert (
        "FAIL deploy.yaml:14: stages[0].output_connectors.to_stage_1: no connector"
        in result.stdout
    )
    assert "     -> did you mean 'chain'?" in result.stdout
    assert "the connectors cannot be parsed: every stage gets shared memory" in result.stdout
    assert "errors: 1" in result.stdout


def test_json_is_one_object_with_stages_edges_ports_and_findings(deploy: Path) -> None:
    deploy.write_text(spoilt("zmq_port: 50051", "zmq_port: 7999"))

    result = run(str(deploy), "--assume", "mi300x", "--json")

    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"], told["machine"]) == (0, True, "MI300X")
    assert [stage["number"] for stage in told["stages"]] == [0, 1, 2]
    assert [(e["from"], e["to"], e["backend"]) for e in told["edges"]] == [
        (0, 1, "shm"), (1, 2, "shm"),
    ]  # fmt: skip
    assert {bind["port"] for bind in told["ports"]} == {7999, 8000, 8099, 8100}
    (finding,) = told["findings"]
    assert (finding["code"], finding["severity"], finding["line"]) == (
        "port-collision",
        "warning",
        6,
    )
    assert finding["where"] == "connectors.chain.extra.zmq_port"


def test_a_file_that_cannot_be_read_is_status_2(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1]")

    missing = run(str(tmp_path / "no.yaml"), "--assume", "cpu")
    wrong = run(str(tmp_path / "list.yaml"), "--assume", "cpu", "--json")

    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "no.yaml cannot be read: No such file or directory" in missing.stderr
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["ok"] is False


def test_a_machine_that_nobody_knows_is_refused(deploy: Path) -> None:
    result = run(str(deploy), "--assume", "mi400")

    assert result.exit_code == 1
    assert "known are mi300x, nvidia, cpu, none" in result.stderr


def test_without_assume_it_is_this_machine_and_its_backends(deploy: Path) -> None:
    result = run(str(deploy), "--json")

    told = json.loads(result.stdout)
    assert told["machine"] == "this machine"
    assert {edge["backend"] for edge in told["edges"]} == {"shm"}


def test_what_steers_a_terminal_is_not_printed(deploy: Path) -> None:
    deploy.write_text(spoilt("name: StagelinkConnector", 'name: "\\e[31mAcme"'))

    assert "\x1b" not in run(str(deploy), "--assume", "cpu").stdout


def test_tokens_may_be_wider(deploy: Path) -> None:
    result = run(str(deploy), "--assume", "cpu", "--token-bytes", "32768")

    assert result.exit_code == 0
    assert "pool-too-small" in result.stdout


def test_the_room_in_shared_memory_is_that_of_the_mount(tmp_path: Path) -> None:
    assert (surroundings.shared_free(str(tmp_path)) or 0) > 0
    assert surroundings.shared_free(str(tmp_path / "none")) is None


def test_the_kind_of_gpu_is_read_from_what_its_driver_shows(tmp_path: Path) -> None:
    for node, kind in [("dev/nvidiactl", "cuda"), ("dev/kfd", "rocm")]:
        root = tmp_path / kind
        (root / node).parent.mkdir(parents=True)
        (root / node).touch()
        assert surroundings.platform(root) == kind
    assert surroundings.platform(tmp_path / "bare") == ""


def test_ports_that_are_listened_on_are_read_from_the_kernels_tables(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    table = tmp_path / "tcp"
    table.write_text(f"{head}   0: 0100007F:C383 00000000:0000 0A\n   1: 0100007F:C384 0:0 01\n")

    assert surroundings.listening((table, tmp_path / "none")) == frozenset({50051})


def test_a_plan_loads_neither_torch_nor_zmq_for_an_assumed_machine(deploy: Path) -> None:
    code = (
        "import sys\n"
        "from stagelink.commands import app\n"
        f"try: app(['plan', {str(deploy)!r}, '--assume', 'cpu'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'zmq', 'numpy', 'vllm'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert done.stdout.splitlines()[-1] == "[]"
