"""Count the code on the way of one hand-off: what is deterministic, where time is not.

    python benchmarks/path.py [SIZE] [--functions]

Two processes of one host, connected and warm, an array of SIZE (``4K`` unless told) that the
reader waits for in get. Counted are executed instructions of the interpreter, calls of Python
functions and of built-in ones, the code objects that are touched and their bytes: of a put until
its message has been sent and afterwards, of a get from its wake-up on, and of ``payload.value``.
Code that is found in no cache costs several times what it does in a loop, so fewer is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import stagelink
from stagelink.bench.options import parse_sizes
from stagelink.bench.payloads import payload

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

WARM, ROUNDS = 30, 25
PAUSE_S = 0.016
"""Shorter than the standby thread naps between two calls, as in a stream of hand-offs."""
SENT = ("local/packets.py", "send")
WOKEN = ("threads/wakeup.py", "wait")

Where = tuple[str, str]
"""A file and a function there."""


class Line(NamedTuple):
    """What one function did: instructions, calls of it, built-ins it called, bytes of its code."""

    instructions: int
    calls: int
    builtins: int
    bytes: int


Counts = dict[Where, Line]


class Tracer:
    """Counts what the calling thread executes; *split* is a function whose return parts it."""

    def __init__(self, split: Where = ("", "")) -> None:
        self._split = split
        self._own = where.__code__.co_filename
        self.reset()

    def reset(self) -> None:
        """Count from nothing."""
        self._instructions: Counter[CodeType] = Counter()
        self._calls: Counter[CodeType] = Counter()
        self._builtins: Counter[CodeType] = Counter()
        self._before: Counts = {}

    def run(self, work: Callable[[], Any]) -> tuple[Any, Counts, Counts]:
        """What *work* returns, and its counts before the last return of *split* and after it."""
        self.reset()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            result = work()
        finally:
            sys.settrace(None)
            sys.setprofile(None)
        before, everything = self._before, self._counts()
        after = {}
        for where, line in everything.items():
            part = before.get(where, Line(0, 0, 0, 0))
            rest = Line(*(a - b for a, b in zip(line[:3], part[:3], strict=True)), line.bytes)
            if rest.instructions:
                after[where] = rest
        return result, before, after

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ANN401
        del event, arg
        code = frame.f_code
        if code.co_filename == self._own:
            return None
        self._calls[code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._inside

    def _inside(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ANN401
        del arg
        code = frame.f_code
        if event == "opcode":
            self._instructions[code] += 1
        elif event == "return" and where(code) == self._split:
            self._before = self._counts()
        return self._inside

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        del arg
        if event == "c_call" and frame.f_code.co_filename != self._own:
            self._builtins[frame.f_code] += 1

    def _counts(self) -> Counts:
        counts: Counts = {}
        for code, instructions in self._instructions.items():
            seen = counts.get(where(code), Line(0, 0, 0, 0))
            more = (instructions, self._calls[code], self._builtins[code], len(code.co_code))
            counts[where(code)] = Line(*(a + b for a, b in zip(seen, more, strict=True)))
        return counts


def where(code: CodeType) -> Where:
    """A file, as far as it tells anything, and the function."""
    path = code.co_filename.rpartition("/stagelink/")[2]
    return "/".join(path.split("/")[-2:]), getattr(code, "co_qualname", code.co_name).split(".")[
        -1
    ]


def barest(rounds: list[Counts]) -> Counts:
    """The round of the fewest instructions: others meet a time-out, or one more message."""
    return min(rounds, key=lambda counts: sum(line.instructions for line in counts.values()))


def producer(size: int) -> dict[str, Counts]:
    """Put, slowly enough that the reader waits each time."""
    value, tracer = payload(size), Tracer(SENT)
    rounds: dict[str, list[Counts]] = {"put, until it is sent": [], "put, afterwards": []}
    with stagelink.open(stage="from", role="sender") as tx:
        print(tx.endpoint, flush=True)
        input()
        for number in range(WARM + ROUNDS):
            time.sleep(PAUSE_S)
            if number < WARM:
                tx.put(f"a{number}", value, to="to")
                continue
            key = f"a{number}"
            _, before, after = tracer.run(lambda key=key: tx.put(key, value, to="to"))  # type: ignore[misc]
            for counts, part in zip(rounds.values(), (before, after), strict=True):
                counts.append(part)
        tx.drain(60.0)
    return {name: barest(counts) for name, counts in rounds.items()}


def consumer(size: int, endpoint: str) -> dict[str, Counts]:
    """Get, and look at the value."""
    payload(size)  # imports what it is made of
    tracer, loader = Tracer(WOKEN), Tracer()
    gets: list[Counts] = []
    values: list[Counts] = []
    with stagelink.open(stage="to", role="receiver", sender=endpoint) as rx:
        print("ready", flush=True)
        for number in range(WARM + ROUNDS):
            key = f"a{number}"
            if number < WARM:
                with rx.get(key, source="from", timeout=60.0) as taken:
                    assert taken.value is not None
                continue
            taken, slept, after = tracer.run(
                lambda key=key: rx.get(key, source="from", timeout=60.0)  # type: ignore[misc]
            )
            _, _, read = loader.run(lambda taken=taken: taken.value)  # type: ignore[misc]
            if slept:  # else it was there already: counting takes its time
                gets.append(after)
            values.append(read)
            taken.close()
    return {"get, from its wake-up": barest(gets), "payload.value": barest(values)}


def told(parts: dict[str, Counts]) -> str:
    """As JSON, for the other process."""
    return json.dumps({n: [[*w, *line] for w, line in c.items()] for n, c in parts.items()})


def heard(text: str) -> dict[str, Counts]:
    """What was told."""
    parts = json.loads(text)
    return {n: {(f, g): Line(*line) for f, g, *line in rows} for n, rows in parts.items()}


def show(name: str, counts: Counts, functions: bool) -> None:
    """One part: its sum, and a line a file, or a function."""
    groups: dict[str, list[Line]] = {}
    for (file, function), line in counts.items():
        groups.setdefault(f"{file} {function}" if functions else file, []).append(line)
    print(f"{name}\n{'':40} instructions  calls  built-ins  objects  bytes")
    rows = [("all", list(counts.values())), *groups.items()]
    for what, lines in rows:
        sums = [sum(column) for column in zip(*lines, strict=True)] or [0, 0, 0, 0]
        print(f"{what:40} {sums[0]:12} {sums[1]:6} {sums[2]:10} {len(lines):8} {sums[3]:6}")
    print()


def main(size: int, functions: bool) -> None:
    """Run both ends and print what they counted."""
    me = [sys.executable, str(Path(__file__)), f"{size}"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*me, "from"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        endpoint = one.stdout.readline().strip()
        with subprocess.Popen(  # noqa: S603 - ourselves
            [*me, "to", endpoint], stdout=subprocess.PIPE, text=True
        ) as two:
            assert two.stdout is not None
            two.stdout.readline()
            one.stdin.write("\n")
            one.stdin.flush()
            parts = {**heard(one.stdout.readline()), **heard(two.stdout.readline())}
    for name, counts in parts.items():
        show(name, counts, functions)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--functions"]
    wanted = parse_sizes(words[0])[0] if words else 4096
    if len(words) <= 1:
        main(wanted, "--functions" in sys.argv)
    elif words[1] == "from":
        print(told(producer(wanted)))
    else:
        print(told(consumer(wanted, words[2])))
