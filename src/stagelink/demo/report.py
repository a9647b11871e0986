"""Run the demo and say how it went: edges, leaks, and whether every bit is right."""

from __future__ import annotations

import math
import os
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.config import load_config
from stagelink.core.errors import ConfigError
from stagelink.demo import pipeline
from stagelink.demo.left import census, census_after
from stagelink.demo.processes import Told, converse
from stagelink.demo.stages import STAGES, Job
from stagelink.demo.wav import Recording, read_wav, write_wav
from stagelink.plugins import BackendContext, Manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

RECORDING = Path(__file__).parents[1] / "data" / "speech.wav"
SHM = Path("/dev/shm")  # noqa: S108  the mount itself, only listed
LEAKS = ("pool", "ledger", "inbox", "shm", "sockets", "threads", "descriptors")


class Edge(NamedTuple):
    """What passed between two stages.

    Attributes:
        bytes: of all payloads as laid out, headers included.
        p50_us: of the hand-off of one payload, in microseconds.
        gbps: 10**9 bytes a second of hand-off.
    """

    source: str
    target: str
    transfers: int
    bytes: int
    p50_us: float
    p99_us: float
    gbps: float


class Outcome(NamedTuple):
    """The result of one demo; *planes* are what *backend* stood for, best first."""

    ok: bool
    bit_exact: bool
    backend: str
    input: str
    planes: list[str]
    requests: int
    chunks: int
    seconds: float
    edges: list[Edge]
    leaks: dict[str, int]

    def plain(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        edges = []
        for edge in self.edges:
            figures = edge._asdict()
            edges.append({"from": figures.pop("source"), "to": figures.pop("target"), **figures})
        return {**self._asdict(), "edges": edges}


class Options(NamedTuple):
    """What the user asked for; *repeat* None means: often enough for steady figures."""

    input: Path | None = None
    backend: str = "auto"
    output: Path | None = None
    realtime: bool = False
    repeat: int | None = None
    host: str = "127.0.0.1"


def run_demo(
    options: Options, on_start: Callable[[int], None], on_progress: Callable[[], None]
) -> Outcome:
    """Stream the recording through three stages and compare with one process doing it all.

    *on_start* hears how many chunks will come, *on_progress* is called after each.

    Raises:
        StagelinkError: bad input, no torch, or a stage that failed or died.
    """
    path = options.input or RECORDING
    recording = read_wav(path)
    repeat = _repeat(options)
    planes, alone = _planes(options.backend)
    pipeline.torch()  # missing? say so before anything starts
    chunks = len(list(pipeline.chunks(recording.samples))) * repeat
    on_start(chunks)
    with tempfile.TemporaryDirectory(prefix="stagelink-demo-") as folder:
        sound = Path(folder) / "sound"
        jobs = [
            _job(stage, options, path, sound, repeat)._replace(alone=alone) for stage in STAGES
        ]
        told, reference, leaks = _run(jobs, recording, on_progress)
        heard = sound.read_bytes()
    if options.output:
        write_wav(options.output, Recording(heard[: len(recording.samples)], recording.rate))
    edges = [_edge(told, source, target) for source, target in pairwise(STAGES)]
    exact = _exact(told, reference, repeat) and heard == reference.sound * repeat
    return Outcome(
        ok=exact and not any(leaks.values()) and all(e.transfers == chunks for e in edges),
        bit_exact=exact,
        backend=options.backend,
        planes=planes,
        input=path.name if options.input is None else str(path),
        requests=repeat,
        chunks=chunks,
        seconds=round(told.seconds, 3),
        edges=edges,
        leaks=leaks,
    )


def _repeat(options: Options) -> int:
    if options.repeat is None:
        return 8 if options.input is None and not options.realtime else 1
    if options.repeat < 1:
        msg = f"the recording cannot be streamed {options.repeat} times"
        raise ConfigError(msg, remedy="give --repeat a number of at least 1")
    return options.repeat


def _planes(name: str) -> tuple[list[str], bool]:
    """The backends that *name* stands for, and whether they join processes.

    Raises:
        ConfigError: it is unknown, or cannot work here.
    """
    config = load_config({"stage": "demo", "role": "peer", "backend": name})
    chosen = Manager().choose(name, BackendContext(bytes(16), config))
    return [backend.name for backend in chosen], chosen[0].channel != "memory"


def _job(stage: str, options: Options, path: Path, sound: Path, repeat: int) -> Job:
    return Job(
        stage=stage,
        backend=options.backend,
        input=str(path.resolve()),
        output=str(sound),
        repeat=repeat,
        realtime=options.realtime,
        host=options.host,
        alone=True,
    )


def _run(
    jobs: Sequence[Job], recording: Recording, on_progress: Callable[[], None]
) -> tuple[Told, pipeline.Streamed, dict[str, int]]:
    references: list[pipeline.Streamed] = []

    def compute() -> None:
        references.append(pipeline.in_one_process(recording.samples))

    if jobs[0].alone:  # while they load there is time
        here = census()
        told = converse(jobs, on_progress, compute)
        return told, references[0], _leaks(told, here, census_after(here))
    compute()
    here = census()
    told = converse(jobs, on_progress, lambda: None)
    return told, references[0], _leaks(told, here, census_after(here))


def shm_names(instances: Iterable[str]) -> list[str]:
    """What lies in /dev/shm in the name of *instances*; other programs' files are not ours."""
    names = os.listdir(SHM) if SHM.is_dir() else []
    return [name for name in names if any(instance in name for instance in instances)]


def _leaks(told: Told, before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Sum over all stages and the parent; a loss here never makes up for a gain there."""
    pairs = [(before, after)]
    pairs += [(closed["before"], closed["after"]) for closed in told.closed.values()]
    leaks = dict.fromkeys(LEAKS, 0)
    for early, late in pairs:
        for name in ("sockets", "threads", "descriptors"):
            leaks[name] += max(0, late[name] - early[name])
    for streamed in told.streamed.values():
        for name, left in streamed["left"].items():
            leaks[name] += abs(left)
    leaks["shm"] = len(shm_names([closed["instance"] for closed in told.closed.values()]))
    return leaks


def _edge(told: Told, source: str, target: str) -> Edge:
    sent = {key: (start, end, size) for key, start, end, size in told.streamed[source]["sent"]}
    times, moved = [], 0
    for key, asked_s, touched_s, _ in told.streamed[target]["received"]:
        put_s, published_s, size = sent[key]
        times.append(hand_off(put_s, published_s, asked_s, touched_s))
        moved += size
    rate = moved / sum(times) / 1e9 if sum(times) > 0 else 0.0
    p50_us, p99_us = (round(percentile(times, share) * 1e6, 1) for share in (0.5, 0.99))
    return Edge(source, target, len(times), moved, p50_us, p99_us, round(rate, 3))


def hand_off(put_s: float, published_s: float, asked_s: float, touched_s: float) -> float:
    """Seconds from calling ``put`` until the reader has touched every page.

    The time for which the payload lay published before the reader came for it is left out: the
    reader was computing, and nobody waited.
    """
    return touched_s - put_s - max(0.0, asked_s - published_s)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of *values* that *share* of them do not exceed; 0.0 of none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _exact(told: Told, reference: pipeline.Streamed, repeat: int) -> bool:
    hidden: list[str] = told.streamed["talker"]["seen"]
    codes: list[str] = told.streamed["code2wav"]["seen"]
    return hidden == reference.hidden * repeat and codes == reference.codes * repeat
