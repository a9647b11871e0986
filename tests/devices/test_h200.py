"""The script for two GPUs, as far as it goes without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.h200_parts.pairs import CannotError, Pair
from benchmarks.h200_parts.patterns import objection, pattern
from benchmarks.h200_parts.report import draw, summary, table

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "h200.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_a_dry_run_measures_what_a_cpu_can_and_says_what_it_cannot(tmp_path: Path) -> None:
    told, shown = tmp_path / "h200.json", tmp_path / "h200.md"

    done = run("--dry-run", "--sizes", "4K,1M", "--json", str(told), "--table", str(shown))

    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())
    ours = found["contenders"]["shm"]
    assert ours["checked"] == found["sizes"] == [4096, 1 << 20]
    for kind in ("handoff", "alloc"):
        assert ours[kind].keys() == {"4096", "1048576"}
        assert all(row["best_us"] > 0 for row in ours[kind].values())
    assert ours["miss"]["p50_us"] > 0
    assert ours["streams"]["p99_us"] >= ours["streams"]["p50_us"] > 0
    assert found["contenders"]["raw-torch"]["handoff"].keys() == {"4096", "1048576"}
    others = {"raw-mori", "vllm-omni", "mori-xgmi", "device_ipc"}
    for name in others:
        assert found["contenders"][name]["could_not"] == "a dry run has no GPU"
    assert done.stdout.strip() == shown.read_text().strip()
    assert "- vllm-omni: a dry run has no GPU" in done.stdout


def test_help_has_examples_and_a_misspelt_contender_is_refused() -> None:
    assert "python benchmarks/h200.py --wheels" in run("--help").stdout
    refused = run("--dry-run", "--only", "shn")
    assert refused.returncode == 1
    assert "unknown contenders shn; known: raw-torch, shm" in refused.stderr


def test_a_contender_that_cannot_stand_tells_its_last_words() -> None:
    terms = {"device": "cpu", "other": "cpu", "index": 0, "most": 4096, "dry": True, "omni": ""}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path}
    with pytest.raises(CannotError, match="unknown backend 'no-such'"):
        Pair("no-such", [terms, terms], env).ready()
    with pytest.raises(CannotError, match=r"has died: .*No module named"):
        Pair("shm", [terms], {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}).ready()


@pytest.mark.parametrize("nbytes", [1, 4095, 4097, (1 << 20) + 5])
def test_a_pattern_shows_what_is_not_it(nbytes: int) -> None:
    good = pattern(nbytes, "cpu", seed=3)
    assert objection(good, nbytes, 3) == ""
    assert objection(good[1:], nbytes, 3) == f"{nbytes - 1} bytes came, {nbytes} were put"
    assert objection(pattern(nbytes, "cpu", seed=4), nbytes, 3)
    bad = good.clone()
    bad[nbytes // 2] ^= 1
    assert objection(bad, nbytes, 3) == (
        f"1 of {nbytes} bytes are wrong, the first at {nbytes // 2}"
    )
    shifted = torch.roll(pattern(1 << 20, "cpu"), 4096)
    assert objection(shifted, 1 << 20, 1)


def test_times_and_a_picture_of_them(tmp_path: Path) -> None:
    assert summary([3.0, 1.0, 2.0]) == {"p50_us": 2.0, "best_us": 1.0, "p99_us": 3.0}
    row = {"4096": summary([10.0]), str(1 << 30): summary([2000.0])}
    found = {
        "date": "2026-01-02", "sizes": [4096, 1 << 30], "not_run": ["the moon: too far"],
        "host": {"gpus": ["A", "B"], "versions": {"torch": "2", "hip": None}},
        "contenders": {
            "ours": {"handoff": row, "alloc": row},
            "theirs": {"could_not": "it is\nnot here", "handoff": {"4096": summary([7.0])}},
        },
    }  # fmt: skip
    text = table(found)
    assert text.startswith("2026-01-02; A, B; torch 2\n")
    assert "| 1 GiB | 2,000.0 (537 GB/s) | - |" in text
    assert "- theirs: it is not here\n- the moon: too far\n" in text
    pytest.importorskip("matplotlib")
    draw(found, tmp_path / "h.svg")
    assert (tmp_path / "h.svg").stat().st_size > 1000
