"""The demo for real: processes, threads, deaths and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.core.errors import ConfigError, PeerError, StagelinkError
from stagelink.demo.left import figures
from stagelink.demo.processes import Board, Told
from stagelink.demo.report import _leaks, hand_off, percentile, shm_names
from stagelink.demo.stages import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch")

ROOT = Path(stagelink.__file__).parents[1]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stagelink.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("backend", ["shm-write", "memory"])
def test_every_backend_is_exact_to_the_bit_and_leaves_nothing(
    backend: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.wav"

    with start("--backend", backend, "--json", "--repeat", "2", "--output", str(out)) as demo:
        stdout, stderr = demo.communicate(timeout=120)

    found = json.loads(stdout)
    assert (demo.returncode, found["ok"], found["bit_exact"]) == (0, True, True), stderr
    assert found["leaks"] == dict.fromkeys(
        ("pool", "ledger", "inbox", "shm", "sockets", "threads", "descriptors"), 0
    )
    assert [(e["from"], e["to"], e["transfers"]) for e in found["edges"]] == [
        ("thinker", "talker", 8),
        ("talker", "code2wav", 8),
    ]
    assert all(e["bytes"] > 0 and 0 < e["p50_us"] <= e["p99_us"] for e in found["edges"])
    assert out.read_bytes()[44:] == (ROOT / "stagelink/data/speech.wav").read_bytes()[44:]


def workers(parent: int) -> dict[int, str]:
    """Process id and command line of the children of *parent*."""
    found = {}
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def wait_for_stream(demo: subprocess.Popen[str]) -> dict[int, str]:
    """Wait until the three stages hold their shared memory, and are therefore open."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and demo.poll() is None:
        children = workers(demo.pid)
        if len(children) == 3 and all(_maps_ours(child) for child in children):
            return children
        time.sleep(0.02)  # nothing to wait on in a process that is not ours
    demo.kill()
    pytest.fail(f"the stages did not open: {demo.communicate()}")


def _maps_ours(process: int) -> bool:
    try:
        return "stagelink-" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_stage_outlives_an_interrupted_demo(number: signal.Signals) -> None:
    with start("--realtime", "--repeat", "20") as demo:
        children = wait_for_stream(demo)

        demo.send_signal(number)
        demo.communicate(timeout=30)
    until_s = time.monotonic() + 15
    while any(_runs(child) for child in children) and time.monotonic() < until_s:
        time.sleep(0.02)

    assert demo.returncode == {signal.SIGINT: 130}.get(number, -number)
    assert not any(_runs(child) for child in children)


def test_a_stage_that_is_killed_is_named() -> None:
    with start("--realtime", "--repeat", "20", "--json") as demo:
        children = wait_for_stream(demo)

        os.kill(sorted(children)[1], signal.SIGKILL)
        stdout, _ = demo.communicate(timeout=30)

    found = json.loads(stdout)
    assert (demo.returncode, found["ok"]) == (1, False)
    assert "stage talker died of SIGKILL" in found["error"]


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Scripted:
    """A stage that tells what it is made to tell."""

    def __init__(self, name: str, *told: dict[str, Any]) -> None:
        self.name = name
        self.events, self._theirs = os.pipe()
        for event in told:
            os.write(self._theirs, encode(event))

    def send(self, **command: object) -> None:
        raise AssertionError(command)

    hang_up = send

    def bury(self, until_s: float) -> None:
        del until_s
        for descriptor in (self.events, self._theirs):
            if descriptor >= 0:
                os.close(descriptor)

    def die(self) -> None:
        os.close(self._theirs)
        self._theirs = -1

    def last_words(self) -> str:
        return "died of SIGSEGV"


@pytest.fixture
def pair() -> Iterator[tuple[Scripted, Scripted]]:
    gone = {"event": "error", "kind": "PeerError", "message": "talker is gone"}
    full = {"event": "error", "kind": "CapacityError", "message": "no room"}
    stages = Scripted("code2wav", gone), Scripted("talker", full)
    yield stages
    for stage in stages:
        stage.bury(0.0)


def test_the_cause_is_reported_rather_than_its_echo(pair: tuple[Scripted, Scripted]) -> None:
    board = Board(pair, lambda: None)

    with pytest.raises(StagelinkError, match="stage talker: no room"):
        board.wait(pair, "streamed")
    board.close()


def test_a_death_is_the_cause_of_every_other_error(pair: tuple[Scripted, Scripted]) -> None:
    thinker = Scripted("thinker", {"event": "ready"})
    thinker.die()
    board = Board([*pair, thinker], lambda: None)

    with pytest.raises(PeerError, match="stage thinker died of SIGSEGV"):
        board.wait(pair, "streamed")
    board.close()
    thinker.bury(0.0)


def test_a_hand_off_is_the_time_from_put_to_the_last_page() -> None:
    assert hand_off(put_s=1.0, published_s=1.5, asked_s=0.5, touched_s=2.0) == 1.0


def test_a_hand_off_leaves_out_the_time_for_which_the_payload_lay_ready() -> None:
    assert hand_off(put_s=1.0, published_s=1.5, asked_s=9.0, touched_s=9.25) == 0.75


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.0, 1.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_a_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 0.5) == 0.0


def test_a_loss_in_one_stage_does_not_hide_a_gain_in_another() -> None:
    few = {"sockets": 1, "threads": 2, "descriptors": 5}
    many = {"sockets": 2, "threads": 3, "descriptors": 7}
    told = Told(
        streamed={"a": {"left": {"pool": -4096, "ledger": 0, "inbox": 0}},
                  "b": {"left": {"pool": 4096, "ledger": 1, "inbox": 0}}},
        closed={"a": {"before": few, "after": many, "instance": "x" * 32},
                "b": {"before": many, "after": few, "instance": "y" * 32}},
        seconds=1.0,
    )  # fmt: skip

    assert _leaks(told, few, few) == {
        "pool": 8192, "ledger": 1, "inbox": 0, "shm": 0, "sockets": 1, "threads": 1,
        "descriptors": 2,
    }  # fmt: skip


def test_other_programs_shared_memory_is_not_counted() -> None:
    assert shm_names([]) == []
    assert shm_names(["f" * 32]) == []


def test_health_without_figures_proves_nothing() -> None:
    with pytest.raises(ConfigError, match="pool"):
        figures({})
