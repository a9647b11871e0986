"""The figures of every hunt are told, and no bad end is taken for a good one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.prove import __main__ as prove

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND: dict[str, dict[str, Any]] = {
    "tests.model": {
        "states": 1_000_001, "depth": 30, "worlds": 100, "mutations": 36, "mutations_caught": 36,
        "violations": [],
    },
    "tests.simulation": {"seeds": 2000, "operations": 9, "steps": 99, "failures": 0},
    "tests.chaos": {"rounds": 500, "failures": []},
    "tests.fuzz": {"frames": 1_000_000, "failures": 0},
}  # fmt: skip


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets every hunt end as in ``FOUND``, one of them otherwise."""

    def let(module: str = "", code: int = 0, output: bytes | None = None, **figures: Any) -> None:
        def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
            del how
            asked = command[command.index("-m") + 1]
            text = json.dumps(FOUND[asked] | (figures if asked == module else {})).encode()
            if asked != module:
                return subprocess.CompletedProcess(command, 0, b"on the way\n" + text)
            return subprocess.CompletedProcess(command, code, text if output is None else output)

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(sys, "argv", ["prove"])

    return let


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What was printed last."""
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_one_object_tells_what_was_searched(
    ended: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    ended()
    assert prove.main() == 0
    told = figures(capsys)
    assert (told["states"], told["seeds"], told["chaos_rounds"]) == (1_000_001, 2000, 500)
    assert (told["frames"], told["mutations_caught"], told["failures"]) == (1_000_000, 36, 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"module": "tests.chaos", "failures": ["a get was late"]},
        {"module": "tests.model", "violations": ["two leases of one block"]},
        {"module": "tests.simulation", "failures": 3},
        {"module": "tests.fuzz", "code": 1},
        {"module": "tests.fuzz", "output": b""},
        {"module": "tests.model", "output": b"Segmentation fault"},
        {"module": "tests.model", "mutations_caught": 35},
    ],
    ids=str,
)
def test_whatever_went_wrong_is_a_failure(
    bad: dict[str, Any], ended: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    ended(**bad)
    assert prove.main() == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])["failures"]
    assert found > 0 or "mutations_caught" in bad
    assert (f"prove: {bad['module'][6:]} ended with" in captured.err) == (found > 0)


def test_a_budget_scales_every_amount(
    ended: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended()
    monkeypatch.setattr(sys, "argv", ["prove", "--budget", "108", "--only", "chaos"])
    assert prove.main() == 0
    captured = capsys.readouterr()
    assert "tests.chaos --rounds 50 --json" in captured.err
    assert set(json.loads(captured.out)) == {"failures", "chaos_rounds"}
