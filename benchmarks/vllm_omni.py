"""StagelinkConnector against SharedMemoryConnector, both as they ship, in the released vLLM-Omni.

    make test-vllm-omni    # makes the environment
    .venv-vllm-omni/bin/python benchmarks/vllm_omni.py [--json] [--quick]

Two processes, a sender and a receiver, each with both connectors; they take turns. A hand-off is
from the call of ``put`` (through the adapter: of ``save_async``) to the other process's having the
value, by the monotonic clock that both share. Nothing waits for a connector but as vLLM-Omni does:

- ``1 ms``: get is called, and a millisecond slept if there is nothing. So does its adapter.
- ``at once``: get is called again at once, which takes a processor.
- ``waits``: ``get_with_deadline``, which SharedMemoryConnector has, but does not wait in.
- ``adapter``: through the real OmniChunkTransferAdapter of two stages; it polls every millisecond.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Not this folder: this script has the name of the package that it is about.
NOT_HERE = ROOT / "benchmarks"
sys.path[:] = [one for one in sys.path if Path(one).resolve() != NOT_HERE]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

from tests.vllm_omni.stages import OURS, SHM, Stage  # noqa: E402 - once it can be found

NAMES = (SHM, OURS)
EDGE = ("0", "1")
SIZES = {"4 KiB": 4096, "6.4 kB: 50 codec frames": 6400, "0.1 MiB": 104_856, "1 MiB": 1 << 20,
         "4 MiB": 4 << 20, "16 MiB": 16 << 20, "64 MiB": 64 << 20}  # fmt: skip
WAYS = ("1 ms", "at once", "waits", "adapter")
TURNS, START_S, PATIENCE_S, POOL = 3, 300.0, 60.0, 512 << 20
_now_ns = time.monotonic_ns
_cpu_s = time.process_time


def main() -> int:
    """Measure, and print a table in Markdown, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="the figures, and nothing else")
    parser.add_argument("--quick", action="store_true", help="few of each; for a look")
    asked = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM writes there, too
    with tempfile.TemporaryDirectory(prefix="omni-") as folder:
        found = measured(f"{folder}/pace", quick=asked.quick)
    print(json.dumps(found, indent=1) if asked.json else table(found), file=out, flush=True)
    return 0


def measured(path: str, *, quick: bool) -> dict[str, Any]:
    """All figures."""
    sender, receiver = Stage("spawn"), Stage("spawn")
    try:
        receiver.tell(meet, path, True)
        sender.tell(meet, path, False)
        receiver.answer(START_S), sender.answer(START_S)
        port = free_port()
        for one, stage in ((sender, 0), (receiver, 1)):
            one.do(make, port, stage)
        idle = {name: receiver.do(idle_us, name) for name in NAMES}
        for way in WAYS:  # the first of each opens what it needs
            turns(sender, receiver, way, 4096, quick=True)
        rows = {
            label: {way: turns(sender, receiver, way, size, quick=quick) for way in WAYS}
            for label, size in SIZES.items()
        }
        connected = {name: receiver.do(idle_us, name) for name in NAMES}
    finally:
        receiver.end()
        sender.end()
    host = {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }
    return {
        "idle_poll_us": {"before a sender is there": idle, "with one": connected},
        "hand_off": rows,
        "host": host,
    }


def turns(sender: Stage, receiver: Stage, way: str, size: int, *, quick: bool) -> dict[str, Any]:
    """Both connectors' hand-offs of one size, in turns."""
    count = max(3, min(60, (96 << 20) // size) // (10 if quick else 1))
    names = [name for name in NAMES if way != "waits" or name == OURS]
    taken: dict[str, list[float]] = {name: [] for name in names}
    cpu = dict.fromkeys(names, 0.0)
    for turn in range(1 if quick else TURNS):
        for name in names if turn % 2 else reversed(names):
            receiver.tell(take, name, way, size, count)
            sender.tell(give, name, way, size, count)
            begun, spent = sender.answer(PATIENCE_S)
            ended, also = receiver.answer(PATIENCE_S)
            taken[name] += [(end - begin) / 1e3 for begin, end in zip(begun, ended, strict=True)]
            cpu[name] += spent + also
    return {
        name: {
            "p50_us": statistics.median(times),
            "best_us": min(times),
            "p90_us": sorted(times)[int(0.9 * len(times))],
            "cpu_s_per_gb": cpu[name] / (len(times) * size / 1e9),
            "count": len(times),
        }
        for name, times in taken.items()
    }


def free_port() -> int:
    """A base port whose next ones are free."""
    while True:
        base = random.randrange(12000, 30000)  # noqa: S311 - not for secrets
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", base))
                two.bind(("127.0.0.1", base + 1))
            except OSError:
                continue
        return base


# --- in the processes --------------------------------------------------------------------------

HERE: dict[str, Any] = {}


def meet(path: str, first: bool) -> None:
    """Connect the two processes, so that one gives only when the other takes."""
    if first:
        with Listener(path) as listener:
            HERE["pace"] = listener.accept()
        return
    deadline = time.monotonic() + START_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    HERE["pace"] = Client(path)


def make(port: int, stage: int) -> None:
    """Both bare connectors and both adapters of this stage, as the host makes them."""
    from tests.vllm_omni import acts, host  # noqa: PLC0415

    for number, name in enumerate(NAMES):
        own = port if name == OURS else 1
        transfer = host.deployment(name, own, memory_pool_size=POOL)
        HERE[name] = acts.MADE[name] = host.payload_connector(transfer, stage)
        HERE[name, "told"] = host.source_metadata(host.sender_info(transfer, 0)["payload"])
        adapter = host.adapter(transfer, stage, "benchmarks.vllm_omni.next_stage")
        HERE[name, "adapter"] = acts.MADE[name, "adapter"] = adapter
        told = host.sender_info(transfer, 0)["payload"] if stage else None
        HERE[name, "request"] = host.request(f"b{number}", [1, 2, 3], told)
        if stage:
            adapter._finished_load_reqs = Arrivals()  # noqa: SLF001 - to be told when, at no cost


class Arrivals(set):  # type: ignore[type-arg]
    """The adapter's set of requests for which a chunk has come; says when the last one did."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns = 0
        self.came = threading.Event()

    def add(self, name: str) -> None:
        """A chunk has come."""
        self.at_ns = _now_ns()
        super().add(name)
        self.came.set()


def next_stage(*, multimodal_output: Any, **_: Any) -> Any:  # noqa: ANN401 - the host's types
    """What the deployment's function would be: the payload of a step's output."""
    return multimodal_output and payload(multimodal_output["tensor"])


def payload(tensor: Any) -> Any:  # noqa: ANN401 - a tensor
    """What the talker hands to code2wav, or the thinker to the talker."""
    from vllm_omni.data_entry_keys import (  # noqa: PLC0415
        CodesStruct,
        HiddenStatesStruct,
        MetaStruct,
        OmniPayloadStruct,
    )

    if tensor.ndim == 1:
        return OmniPayloadStruct(
            codes=CodesStruct(audio=tensor), meta=MetaStruct(left_context_size=25)
        )
    return OmniPayloadStruct(hidden_states=HiddenStatesStruct(output=tensor), meta=MetaStruct())


def made(size: int) -> Any:  # noqa: ANN401 - a tensor
    """Codes for the small sizes, hidden states for the others."""
    import torch  # noqa: PLC0415

    if size < 64 << 10:
        return torch.arange(size // 8, dtype=torch.int64)
    return (torch.arange(size // 2, dtype=torch.int32) % 251).to(torch.bfloat16).reshape(-1, 4)


def found_in(value: dict[str, Any]) -> Any:  # noqa: ANN401 - a tensor
    """The tensor in what arrived."""
    codes = value.get("codes")
    return codes["audio"] if codes else value["hidden_states"]["output"]


def key_of(size: int, number: int) -> str:
    """As the adapter names a chunk."""
    return f"ext-{size}-{HERE['round']}_0_{number}"


def give(name: str, way: str, size: int, count: int) -> tuple[list[int], float]:
    """Hand values off when the other is about to take; when each began, and CPU seconds."""
    HERE["round"] = HERE.get("round", 0) + 1
    tensor = made(size)
    pace, begun = HERE["pace"], []
    value = payload(tensor)
    adapter, request = HERE[name, "adapter"], HERE[name, "request"]
    spent = _cpu_s()
    for number in range(count):
        pace.recv()
        time.sleep(0.001 + random.random() * 0.002)  # noqa: S311 - no step with a poll
        begun.append(_now_ns())
        if way == "adapter":
            request.num_computed_tokens += 1
            adapter.save_async({"tensor": tensor}, request)
        else:
            assert HERE[name].put(*EDGE, key_of(size, number), value)[0]
    pace.recv()
    return begun, _cpu_s() - spent


def take(name: str, way: str, size: int, count: int) -> tuple[list[int], float]:
    """Take them; when each was there, and CPU seconds. The last is compared."""
    import torch  # noqa: PLC0415

    HERE["round"] = HERE.get("round", 0) + 1
    wanted = made(size)
    pace, ended, found = HERE["pace"], [], None
    one = through_adapter if way == "adapter" else waited if way == "waits" else polled
    spent = _cpu_s()
    for number in range(count):
        found = None  # the one before
        pace.send(0)
        found, at_ns = one(name, key_of(size, number), 0.001 if way == "1 ms" else 0.0)
        ended.append(at_ns)
    pace.send(0)
    spent = _cpu_s() - spent
    assert torch.equal(found_in(found), wanted), (name, way, size)
    return ended, spent


def polled(name: str, key: str, pause_s: float) -> tuple[Any, int]:
    """By get, again and again."""
    connector, told = HERE[name], HERE[name, "told"]
    while (found := connector.get(*EDGE, key, told)) is None:
        if pause_s:
            time.sleep(pause_s)
    return found[0], _now_ns()


def waited(name: str, key: str, pause_s: float) -> tuple[Any, int]:
    """By one get that waits."""
    del pause_s
    until_s = time.monotonic() + PATIENCE_S
    found = HERE[name].get_with_deadline(*EDGE, key, HERE[name, "told"], deadline=until_s)
    return found[0], _now_ns()


def through_adapter(name: str, key: str, pause_s: float) -> tuple[Any, int]:
    """By the adapter's thread, as its scheduler would."""
    del key, pause_s
    adapter, request = HERE[name, "adapter"], HERE[name, "request"]
    arrivals = adapter._finished_load_reqs  # noqa: SLF001 - its scheduler looks there too
    arrivals.came.clear()
    adapter.load_async(request)
    assert arrivals.came.wait(PATIENCE_S)
    arrivals.discard(request.request_id)
    pending = adapter._pending_ar_prompt_updates.pop(request.request_id)  # noqa: SLF001
    return pending[1], arrivals.at_ns


def idle_us(name: str) -> float:
    """The median of a poll that finds nothing; of eight keys, as of eight requests that wait."""
    connector, told = HERE[name], HERE[name, "told"]
    times = []
    for number in range(20000):
        key = f"ext-nobody{number % 8}_0_0"
        begin = time.perf_counter_ns()
        connector.get(*EDGE, key, told)
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e3


# --- the table ---------------------------------------------------------------------------------


COLUMNS = [(SHM, "1 ms"), (OURS, "1 ms"), (OURS, "waits"), (SHM, "at once"), (OURS, "at once"),
           (SHM, "adapter"), (OURS, "adapter")]  # fmt: skip
RATIOS = {"1 ms ÷ waits": (0, 2), "at once, ÷": (3, 4), "adapter, ÷": (5, 6)}
SHORT = {SHM: "SHM", OURS: "ours"}


def table(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    rows, host = found["hand_off"], found["host"]
    lines = [line("µs, median", *(f"{SHORT[name]}, {way}" for name, way in COLUMNS), *RATIOS)]
    lines.append("|---" * (1 + len(COLUMNS) + len(RATIOS)) + "|")
    for label, row in rows.items():
        us = [row[way][name]["p50_us"] for name, way in COLUMNS]
        ratios = [us[theirs] / us[ours] for theirs, ours in RATIOS.values()]
        lines.append(
            line(label, *(f"{one:,.0f}" for one in us), *(f"{one:.1f}" for one in ratios))
        )
    lines += ["", line("CPU s/GB", *rows), "|---" * (1 + len(rows)) + "|"]
    for name, way in COLUMNS[:3]:
        spent = [f"{row[way][name]['cpu_s_per_gb']:.2f}" for row in rows.values()]
        lines.append(line(f"{SHORT[name]}, {way}", *spent))
    lines += ["", line("a poll that finds nothing, µs", "SHM", "ours"), "|---|---|---|"]
    for when, each in found["idle_poll_us"].items():
        lines.append(line(when, *(f"{each[name]:.2f}" for name in NAMES)))
    lines += ["", f"{host['cpus']} CPUs, load {host['load']:.1f}, Python {host['python']}"]
    return "\n".join(lines)


def line(*cells: str) -> str:
    """One row."""
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
