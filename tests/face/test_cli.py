"""The command line as its users see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import stagelink
from stagelink import cli, commands
from stagelink.core.errors import ConfigError
from stagelink.demo.report import LEAKS, Edge, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

CLEAN = dict.fromkeys(LEAKS, 0)
EDGES = [
    Edge("thinker", "talker", 32, 3_276_800, 81.25, 240.5, 1.207),
    Edge("talker", "code2wav", 32, 2_073_600, 64.0, 99.0, 0.9),
]
FINE = Outcome(
    ok=True,
    bit_exact=True,
    backend="auto",
    planes=["shm", "shm-write"],
    input="speech.wav",
    requests=8,
    chunks=32,
    seconds=1.5,
    edges=EDGES,
    leaks=CLEAN,
)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Outcome | Exception], None]:
    """Say how the demo ends instead of running it."""

    def set_ending(end: Outcome | Exception) -> None:
        def run(*_: object) -> Outcome:
            if isinstance(end, Outcome):
                return end
            raise end

        monkeypatch.setattr("stagelink.demo.report.run_demo", run)

    return set_ending


def test_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(commands.app, ["--version"])

    assert result.output.split() == ["stagelink", stagelink.__version__]


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_shows_examples(arguments: list[str]) -> None:
    result = CliRunner().invoke(commands.app, arguments)

    assert result.exit_code == 0
    assert "stagelink demo --backend memory --json" in result.stdout


def test_json_is_one_object_with_every_promised_field(
    ending: Callable[[Outcome | Exception], None],
) -> None:
    ending(FINE)

    result = CliRunner().invoke(commands.app, ["demo", "--json"])

    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["ok"], found["bit_exact"], found["backend"]) == (True, True, "auto")
    assert found["leaks"] == CLEAN
    assert found["edges"][0] == {
        "from": "thinker",
        "to": "talker",
        "transfers": 32,
        "bytes": 3_276_800,
        "p50_us": 81.25,
        "p99_us": 240.5,
        "gbps": 1.207,
    }


def test_the_tables_show_edges_and_leaks(ending: Callable[[Outcome | Exception], None]) -> None:
    ending(FINE)

    result = CliRunner().invoke(commands.app, ["demo"])

    for word in ("code2wav", "3,276,800", "p99", "descriptors", "ok: every bit right"):
        assert word in result.stdout


def test_a_leak_or_a_wrong_bit_is_failure(ending: Callable[[Outcome | Exception], None]) -> None:
    ending(FINE._replace(ok=False, bit_exact=False))

    result = CliRunner().invoke(commands.app, ["demo"])

    assert result.exit_code == 1
    assert "FAILED: BITS DIFFER" in result.stdout


def test_an_error_is_one_line_and_status_one(
    ending: Callable[[Outcome | Exception], None],
) -> None:
    ending(ConfigError("no such thing", remedy="try another"))

    result = CliRunner().invoke(commands.app, ["demo"])

    assert result.exit_code == 1
    assert result.stderr == "stagelink: no such thing; try another\n"
    assert not result.stdout


def test_an_error_with_json_is_an_object_too(
    ending: Callable[[Outcome | Exception], None],
) -> None:
    ending(ConfigError("no such thing"))

    result = CliRunner().invoke(commands.app, ["demo", "--json"])

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"ok": False, "error": "no such thing"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "shn"], "did you mean 'shm'"),
        (["--input", "missing.wav"], "missing.wav"),
        (["--repeat", "0"], "--repeat"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: list[str], words: str
) -> None:
    result = CliRunner().invoke(commands.app, ["demo", *arguments])

    assert result.exit_code == 1
    assert words in result.stderr


def test_without_its_extra_the_command_line_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)

    with pytest.raises(SystemExit) as caught:
        cli.main()

    assert caught.value.code == 2
    assert "pip install 'stagelink[cli]'" in capsys.readouterr().err


def test_importing_the_command_line_loads_no_heavy_package() -> None:
    code = (
        "import sys, stagelink.cli, stagelink.commands;"
        "print(sorted({'torch', 'numpy', 'zmq', 'msgspec'} & sys.modules.keys()))"
    )
    root = Path(stagelink.__file__).parents[1]

    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=root, text=True
    )

    assert shown.stdout.strip() == "[]"
