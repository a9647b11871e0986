"""The benchmark for real, small: its figures are there, whatever they are here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import stagelink
from stagelink import commands
from stagelink.bench import edges, extras
from stagelink.bench.figures import Times, percentile, ratio
from stagelink.bench.options import Options, check_pools, parse_sizes, plan, size_name
from stagelink.bench.partner import Partner
from stagelink.bench.payloads import fill, payload, touch
from stagelink.bench.report import run_bench, steps
from stagelink.bench.show import show
from stagelink.bench.soak import run_soak
from stagelink.core.errors import ConfigError, PeerError, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

ROOT = Path(stagelink.__file__).parents[1]
ROW = {
    "size": int,
    "handoff_p50_us": float,
    "handoff_p99_us": float,
    "handoff_best_us": float,
    "gbps": float,
    "cpu_s_per_gb": float,
    "vs_memcpy": float,
}
FOUND = {
    "floors": {"zmq_oneway_us": 60.0, "zmq_rtt_us": 110.0, "memcpy_gbps": 9.5},
    "rows": [
        {
            "size": size,
            "handoff_p50_us": 1234.4,
            "handoff_p99_us": 2000.0,
            "handoff_best_us": 1000.0,
            "gbps": 0.0251,
            "cpu_s_per_gb": 25.0,
            "memcpy_us": 154.0,
            "vs_memcpy": 8.0,
            **floor,
        }
        for size, floor in ((4096, {"vs_oneway": 2.5}), (16 << 20, {}))
    ],
    "alloc_rows": [{"size": size, "handoff_p50_us": 900.0} for size in (4096, 16 << 20)],
    "poll_miss_us": 12.0,
    "allocator": {"100": 3.0},
    "host": {"cpus": 2, "python": "3.11.7", "platform": "Linux", "load": [0.5, 0.6]},
    "backend": "auto",
    "planes": ["shm", "shm-write"],
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "stagelink.cli", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stagelink.cli", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def wait_until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.02)  # nothing to wait on in a process that is not ours


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def wait_for_child(bench: subprocess.Popen[str]) -> int:
    wait_until(lambda: bool(children(bench.pid)))
    return children(bench.pid)[0]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def typed(found: dict[str, Any], fields: dict[str, type]) -> bool:
    return all(type(found[name]) is kind and found[name] > 0 for name, kind in fields.items())


def check(found: dict[str, Any], backend: str) -> None:
    """Every promised figure of the sizes 4K and 256K is there."""
    floors = ("zmq_oneway_us", "zmq_rtt_us", "memcpy_gbps")
    assert typed(found["floors"], dict.fromkeys(floors, float))
    assert [row["size"] for row in found["rows"]] == [4096, 256 << 10]
    assert all(typed(row, ROW) for row in found["rows"])
    assert ["vs_oneway" in row for row in found["rows"]] == [True, False]
    assert all(typed(row, {"size": int, "handoff_p50_us": float}) for row in found["alloc_rows"])
    assert typed(found, {"poll_miss_us": float})
    assert typed(found["allocator"], dict.fromkeys(("100", "1000", "10000"), float))
    assert found["host"].keys() == {"cpus", "python", "platform", "load"}
    assert found["backend"] == backend
    assert found["noise"]["put"].keys() == {"4096", "262144"}


def test_json_is_one_object_with_every_promised_figure() -> None:
    done = run("--quick", "--json", "--backend", "shm", "--sizes", "4K,256K", "--rounds", "10")

    assert done.returncode == 0, done.stderr
    assert not done.stderr
    check(json.loads(done.stdout), "shm")


def test_the_same_figures_are_measured_within_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "PEERS", 3)
    made = plan(Options("4K,256K", "memory", 10, quick=True, peers=True, busy=True))
    steps_heard: list[str] = []

    found = run_bench(made, steps_heard.append)

    check(found, "memory")
    assert typed(found["peers"], dict.fromkeys(("1", "3", "3_one_stage"), float))
    assert found["busy_put"].keys() == {"quiet_us", "busy_us", "ratio", "by_switchinterval_s"}
    assert len(steps_heard) == steps(made)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_consumer_outlives_an_interrupted_bench(number: signal.Signals) -> None:
    with start("--soak", "60", "--backend", "shm") as bench:
        consumer = wait_for_child(bench)

        bench.send_signal(number)
        bench.communicate(timeout=60)
    wait_until(lambda: not runs(consumer))

    assert bench.returncode == {signal.SIGINT: 130}.get(number, -number)


def test_nothing_stays_in_shared_memory(tmp_path: Path) -> None:
    made = plan(Options("1K", "shm-write", 1, quick=True))._replace(shm_dir=str(tmp_path))

    found = run_bench(made, lambda _: None)

    assert found["rows"][0]["size"] == 1024
    assert list(tmp_path.iterdir()) == []


def test_the_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show(FOUND)

    shown = capsys.readouterr().out
    for words in ("4 KiB", "16 MiB", "÷ ZMQ", "1,234", "0.0251", "floors:", "60.0", "CPU/GB"):
        assert words in shown


def test_help_shows_examples() -> None:
    result = CliRunner().invoke(commands.app, ["bench", "--help"])

    assert result.exit_code == 0
    assert "stagelink bench --quick --json" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "4K,lots"], "'lots' is no size; write sizes as 4K,64K"),
        (["--sizes", "0"], "allowed are 1 to"),
        (["--sizes", "8G"], "allowed are 1 to"),
        (["--sizes", ""], "is no size"),
        (["--rounds", "0"], "--rounds"),
        (["--soak", "0"], "--soak"),
        (["--soak", "nan"], "--soak"),
        (["--backend", "shn"], "did you mean 'shm'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: list[str], words: str
) -> None:
    result = CliRunner().invoke(commands.app, ["bench", *arguments])

    assert result.exit_code == 1
    assert words in result.stderr
    assert not result.stdout


def test_a_size_is_read_and_shown_in_binary_units() -> None:
    assert parse_sizes("1m, 4KiB,512,4K") == [512, 4096, 1 << 20]
    assert [size_name(size) for size in (512, 4096, 1 << 30, 5000)] == [
        "512 B",
        "4 KiB",
        "1 GiB",
        "5000 B",
    ]


def test_too_little_shared_memory_says_what_would_fit(tmp_path: Path) -> None:
    made = plan(Options("1K", "shm", 1))._replace(sizes=[1 << 60], shm_dir=str(tmp_path))

    with pytest.raises(ConfigError, match=r"MiB free; give --sizes up to \d+K, or mount a larger"):
        check_pools(made)


def test_large_payloads_get_fewer_rounds() -> None:
    made = plan(Options("4K,1G", "memory", 1000))

    assert [made.rounds_of(size) for size in (4096, 1 << 20, 16 << 20, 1 << 30)] == [
        200,
        200,
        12,
        2,
    ]
    assert made.pool_bytes >= 4 << 30


def test_figures_are_those_of_the_definition() -> None:
    times = Times([[3.0, 1.0, 2.0], [10.0, 30.0, 20.0]])

    assert (times.p50_us, times.p99_us, times.best_us, times.spread) == (3.0, 30.0, 2.0, 9.0)
    assert (percentile([], 0.5), Times([]).best_us, Times([]).spread) == (0.0, 0.0, 0.0)
    assert (ratio(3.0, 2.0), ratio(3.0, 0.0)) == (1.5, 0.0)


@pytest.mark.parametrize("size", [1, 4096, 4097, 1 << 20])
def test_a_touch_reads_one_byte_of_every_page(size: int) -> None:
    pages = -(-size // 4096)

    assert touch(payload(size)) == touch(payload(size).numpy()) == touch(bytes([7]) * size)
    assert touch(payload(size)) == bytes([7]) * pages


def test_a_draft_is_filled_in_every_byte() -> None:
    tensor, array = torch.zeros(4097, dtype=torch.uint8), torch.zeros(4097).numpy()
    fill(tensor)
    fill(array)
    assert bool((tensor == 7).all())
    assert bool((array == 7).all())


def test_a_short_soak_is_right_in_every_byte_and_leaves_nothing() -> None:
    done = run("--soak", "2", "--json", "--backend", "shm")

    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (0, True), done.stderr or found
    assert not done.stderr
    assert found["left"] == dict.fromkeys(
        ("pool_bytes", "published", "received", "views", "shm"), 0
    )
    assert (found["wrong"], found["lost"], found["stuck"]) == (0, 0, 0)
    assert found["memory"].keys() == {"start", "middle", "end"}
    assert 0 < found["fairness"]["min"] <= found["fairness"]["median"] <= found["fairness"]["max"]
    assert found["back_pressure"].keys() == {
        "waited",
        "wait_p50_ms",
        "wait_p99_ms",
        "capacity_errors",
    }


def test_the_same_soak_runs_within_one_process() -> None:
    made = plan(Options("1K", "memory-write"))

    found = run_soak(made, 0.5, lambda _: None)

    assert found["ok"], found


def test_wrong_bytes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = edges.expected

    def damaged(edge: int, number: int) -> Any:
        value = usual(edge, number)
        if threading.current_thread().name == "edge3" and number == 0:
            value = value.clone()
            value[-1] += 1
        return value

    monkeypatch.setattr(edges, "expected", damaged)

    found = run_soak(plan(Options("1K", "memory")), 0.2, lambda _: None)

    assert (found["ok"], found["wrong"]) == (False, 1)


def test_a_plot_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from stagelink.bench.plot import draw

    draw(FOUND, tmp_path / "bench.svg")
    draw(FOUND, tmp_path / "bench.png")

    assert "<svg" in (tmp_path / "bench.svg").read_text()
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stagelink.bench.options.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"pip install 'stagelink\[bench\]'"):
        plan(Options(plot=Path("bench.png")))


@pytest.mark.parametrize("name", ["bench.txt", "missing/bench.png"])
def test_a_plot_that_could_not_be_written_is_refused_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(for|of) the plot"):
        plan(Options(plot=tmp_path / name))


def test_an_error_of_the_consumer_is_told_with_its_words() -> None:
    with Partner(alone=False) as partner, pytest.raises(StagelinkError, match="unknown setting"):
        partner.ask("open", settings={"stage": "a", "role": "peer", "x": 1}, floor="")


def test_a_consumer_that_dies_is_quoted() -> None:
    with Partner(alone=True) as partner, pytest.raises(PeerError, match="KeyError: 'dance'"):
        partner.ask("dance")


def test_a_digest_is_part_of_what_is_measured() -> None:
    with pytest.raises(ConfigError, match="md5"):
        plan(Options("4K", "memory", 5, integrity="md5"))
    found = run_bench(
        plan(Options("4K", "memory", 5, quick=True, integrity="xxh3")), lambda _: None
    )
    assert found["integrity"] == "xxh3"
