"""The loops of the three stages over a connector, the same in a process and in a thread.

A stage and its parent talk over a :class:`Wire`, one JSON object a line:

```
parent                             stage
                                <- {"event": "ready"}            computation warmed up
{"do": "open", "sender": ...}   -> {"event": "open", "endpoint": ...}
{"do": "go"}                    -> {"event": "progress"} ...     code2wav, once a chunk
                                <- {"event": "streamed", ...}    all consumed; records, figures
{"do": "close"}                 -> {"event": "closed", ...}      census before and after
                                   {"event": "error", ...}       at any moment, and the end
```
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stagelink.core.errors import StagelinkError
from stagelink.demo import pipeline
from stagelink.demo.left import census, census_after, figures, now, settle
from stagelink.demo.wav import read_wav

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from stagelink.connector import Connector
    from stagelink.payload import Payload

STAGES = ("thinker", "talker", "code2wav")
ROLES = {"thinker": "sender", "talker": "peer", "code2wav": "receiver"}
MEETING = "meeting"
POOL_BYTES = 32 << 20
PATIENCE_S = 60.0


class Job(NamedTuple):
    """What one stage is to do; crosses to its process as JSON.

    Attributes:
        stage: one of :data:`STAGES`.
        backend: as for :func:`stagelink.open`.
        input: the recording; only the Thinker reads it.
        output: where Code2Wav writes its raw samples.
        repeat: how many requests stream the recording, one after another.
        realtime: start each chunk when its sound would have been spoken.
        host: the address to bind; a port is chosen when binding.
        alone: the stage has its process to itself, so that its threads and descriptors count.
    """

    stage: str
    backend: str
    input: str
    output: str
    repeat: int
    realtime: bool
    host: str
    alone: bool


class Wire(Protocol):
    """The stage's end of the conversation with its parent."""

    def tell(self, **event: object) -> None:
        """Send one event."""
        ...

    def ask(self) -> dict[str, Any]:
        """Wait for the next command; ``{}`` once the parent has gone."""
        ...


class StoppedError(Exception):
    """The parent has gone or wants no more; nobody is left to tell."""


class Passage(NamedTuple):
    """One transfer as one side saw it, in seconds of the monotonic clock."""

    key: str
    start_s: float
    end_s: float
    bytes: int


class Line:
    """A connector, and what passed through it."""

    def __init__(self, job: Job, connector: Connector, wire: Wire) -> None:
        self.job = job
        self.wire = wire
        self.sent: list[Passage] = []
        self.received: list[Passage] = []
        self.seen: list[str] = []
        self._connector = connector
        self._key = key_of(0, 0)

    def meet(self) -> None:
        """Hand a word down the line: dialling and mapping are no part of a hand-off."""
        at = STAGES.index(self.job.stage)
        if at > 0:
            source = STAGES[at - 1]
            self._connector.get(MEETING, source=source, timeout=PATIENCE_S).close()
        if at + 1 < len(STAGES):
            self._connector.put(MEETING, self.job.stage, to=STAGES[at + 1])

    def put(self, key: str, value: Mapping[str, object], to: str) -> None:
        """Publish *value*, waiting for room, and note when."""
        self._key = key
        start_s = now()
        receipt = self._connector.put(key, value, to=to, timeout=PATIENCE_S)
        self.sent.append(Passage(key, start_s, now(), receipt.size))

    def take(self, key: str, source: str, part: str) -> tuple[Payload, Any]:
        """Wait for *key*; return (payload, value) once every page of ``value[part]`` was read."""
        start_s = now()
        payload = self._connector.get(key, source=source, timeout=PATIENCE_S)
        value = payload.value
        pipeline.touch_pages(value[part])
        self.received.append(Passage(key, start_s, now(), 0))
        self.seen.append(pipeline.digest(value[part]))
        return payload, value

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits for our next payload that it will not come."""
        at = STAGES.index(self.job.stage)
        if at + 1 < len(STAGES):
            reason = f"{self.job.stage}: {type(error).__name__}: {error}"
            with contextlib.suppress(StagelinkError):
                self._connector.fail(self._key, reason, to=STAGES[at + 1])


def key_of(request: int, chunk: int) -> str:
    """The key of a chunk; both ends of both edges build it here."""
    return f"req-{request}/{chunk}"


def think(line: Line) -> None:
    """Stage 0: read the recording, send hidden states."""
    recording = read_wav(Path(line.job.input))
    thinker = pipeline.Thinker()
    pace_s = pipeline.CHUNK * pipeline.HOP / recording.rate if line.job.realtime else 0.0
    due_s = now()
    for request in range(line.job.repeat):
        parts = list(pipeline.chunks(recording.samples))
        for at, part in enumerate(parts):
            time.sleep(max(0.0, due_s - now()))
            due_s += pace_s
            value = {
                "hidden": thinker.think(part),
                "samples": len(part) // 2,
                "last": at + 1 == len(parts),
            }
            line.put(key_of(request, at), value, to="talker")


def talk(line: Line) -> None:
    """Stage 1: hidden states in, codec frames with their left context out."""
    for request in range(line.job.repeat):
        talker = pipeline.Talker()
        for key in _keys(request):
            spoken = _talk_one(line, talker, key)
            line.put(key, spoken, to="code2wav")
            if spoken["last"]:
                break


def _talk_one(line: Line, talker: pipeline.Talker, key: str) -> dict[str, object]:
    """One chunk, in a function of its own: its views must be gone when it returns."""
    payload, value = line.take(key, "thinker", "hidden")
    with payload:
        hidden: Tensor = value["hidden"]
        codes = talker.talk(hidden)
        context = codes.shape[0] - hidden.shape[0]
        spoken = {"codes": codes, "context": context}
        spoken.update(samples=value["samples"], last=value["last"])
        del hidden, value
    return spoken


def speak(line: Line) -> None:
    """Stage 2: codec frames in, sound out, to the job's output file."""
    with Path(line.job.output).open("wb") as out:
        for request in range(line.job.repeat):
            for key in _keys(request):
                sound, last = _speak_one(line, key)
                out.write(sound)
                line.wire.tell(event="progress")
                if last:
                    break


def _speak_one(line: Line, key: str) -> tuple[bytes, bool]:
    payload, value = line.take(key, "talker", "codes")
    with payload:
        speaker = pipeline.Code2Wav()
        sound = speaker.speak(value["codes"], value["context"], value["samples"])
        last = bool(value["last"])
        del value
    return sound, last


def _keys(request: int) -> Iterator[str]:
    chunk = 0
    while True:
        yield key_of(request, chunk)
        chunk += 1


LOOPS: dict[str, Callable[[Line], None]] = {"thinker": think, "talker": talk, "code2wav": speak}


def run_stage(
    job: Job,
    wire: Wire,
    opener: Callable[..., Connector],
    hold: Callable[[Connector], None] = lambda _: None,
) -> None:
    """Play one stage from its first line to its last, and tell errors instead of raising them.

    *hold* is given the connector, so that somebody else can close it to end a wait.
    """
    try:
        _play(job, wire, opener, hold)
    except StoppedError:
        return
    except StagelinkError as error:
        wire.tell(event="error", kind=type(error).__name__, message=str(error))


def _play(
    job: Job, wire: Wire, opener: Callable[..., Connector], hold: Callable[[Connector], None]
) -> None:
    pipeline.in_one_process(bytes(2 * pipeline.HOP), 1)  # loads and warms what it needs
    before = census()
    wire.tell(event="ready")
    sender = _expect(wire, "open")["sender"]
    address = {"sender": sender} if sender else {}
    if ROLES[job.stage] != "receiver":
        address.update(host=job.host, zmq_port=0)
    connector = opener(
        stage=job.stage,
        role=ROLES[job.stage],
        backend=job.backend,
        pool_bytes=POOL_BYTES,
        **address,
    )
    with connector:
        hold(connector)
        at_start = figures(connector.health())
        wire.tell(event="open", endpoint=connector.endpoint)
        _expect(wire, "go")
        _stream(Line(job, connector, wire), connector, at_start)
        _expect(wire, "close")
        instance = connector.health()["engine_key"]
    del connector
    gc.collect()
    after = census_after(before) if job.alone else before
    wire.tell(event="closed", before=before, after=after, instance=instance)


def _stream(line: Line, connector: Connector, at_start: dict[str, int]) -> None:
    try:
        line.meet()
        LOOPS[line.job.stage](line)
    except BaseException as error:
        line.fail(error)
        raise
    left = settle(connector, at_start, sends=line.job.stage != STAGES[-1])
    line.wire.tell(
        event="streamed",
        sent=line.sent,
        received=line.received,
        seen=line.seen,
        left=left,
    )


def _expect(wire: Wire, wanted: str) -> dict[str, Any]:
    command = wire.ask()
    if command.get("do") != wanted:
        raise StoppedError
    return command


def encode(message: Mapping[str, object]) -> bytes:
    """One line of the conversation."""
    return json.dumps(message).encode() + b"\n"
