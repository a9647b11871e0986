"""Count the system calls of one transfer, by process and thread: needs strace.

    python benchmarks/syscalls.py [SIZE] [BACKEND]

Two processes of one host, connected and warm; the reader waits in get before each put. Counts are
means over 100 transfers. strace slows everything down, so no time is measured.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import stagelink

ROUNDS, WARM = 100, 20
BEGIN, END = "/marks/begin", "/marks/end"
CALL = re.compile(r"(\d+)<([^>]*)> (?:<\.\.\. )?(\w+)")
QUIET = frozenset({"clock_nanosleep", "newfstatat", "stat"})  # the pace and the marks


def producer(size: int, backend: str) -> None:
    """Put, slowly enough that the reader waits each time."""
    body = memoryview(bytes(size))
    with stagelink.open(stage="from", role="sender", backend=backend) as tx:
        print(tx.endpoint, flush=True)
        input()
        for number in range(WARM + ROUNDS):
            mark(number)
            time.sleep(0.03)
            tx.put(str(number), body, to="to")
        Path(END).exists()
        tx.drain(60.0)


def consumer(size: int, backend: str, endpoint: str) -> None:
    """Get, and read one byte of each page."""
    with stagelink.open(stage="to", role="receiver", backend=backend, sender=endpoint) as rx:
        print("ready", flush=True)
        for number in range(WARM + ROUNDS):
            mark(number)
            with rx.get(str(number), source="from", timeout=60.0) as payload:
                assert len(payload.value) == size
                sum(payload.value[::4096])
        Path(END).exists()


def mark(number: int) -> None:
    """A call that can be found in the trace."""
    if number == WARM:
        Path(BEGIN).exists()


def counted(trace: Path) -> Counter[tuple[str, str]]:
    """How often each thread made each call between the marks."""
    counts: Counter[tuple[str, str]] = Counter()
    lines = trace.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if BEGIN in line)
    last = next(i for i, line in enumerate(lines) if END in line)
    caller = CALL.match(lines[first])
    assert caller is not None
    for line in lines[first:last]:
        found = CALL.match(line)
        if found is None or "resumed" in line or found[3] in QUIET:
            continue
        own = "caller" if found[1] == caller[1] else "standby"
        counts["ZeroMQ's thread" if "ZMQ" in found[2] else own, found[3]] += 1
    return counts


def main(size: int, backend: str) -> None:
    """Trace both ends, and print what they did for one transfer."""
    with tempfile.TemporaryDirectory() as place:
        traces = [Path(place, name) for name in ("from", "to")]
        strace = [["strace", "-f", "-Y", "-q", "-o", str(trace)] for trace in traces]
        me = [sys.executable, __file__, str(size), backend]
        with subprocess.Popen(  # noqa: S603 - ourselves
            [*strace[0], *me, "from"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as one:
            assert one.stdin is not None
            assert one.stdout is not None
            endpoint = one.stdout.readline().strip()
            with subprocess.Popen(  # noqa: S603 - ourselves
                [*strace[1], *me, "to", endpoint], stdout=subprocess.PIPE, text=True
            ) as two:
                assert two.stdout is not None
                two.stdout.readline()
                one.stdin.write("\n")
                one.stdin.flush()
        for trace, end in zip(traces, ("sender", "receiver"), strict=True):
            show(end, counted(trace))


def show(end: str, counts: Counter[tuple[str, str]]) -> None:
    """One line a thread."""
    for thread in ("caller", "ZeroMQ's thread", "standby"):
        calls = {name: n / ROUNDS for (who, name), n in counts.most_common() if who == thread}
        named = ", ".join(f"{name} {n:.1f}" for name, n in calls.items() if n >= 0.05)  # noqa: PLR2004
        print(f"{end:9} {thread:16} {sum(calls.values()):5.1f}  {named}")


if __name__ == "__main__":
    sized = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    named = sys.argv[2] if len(sys.argv) > 2 else "auto"  # noqa: PLR2004
    if len(sys.argv) <= 3:  # noqa: PLR2004
        main(sized, named)
    elif sys.argv[3] == "from":
        producer(sized, named)
    else:
        consumer(sized, named, sys.argv[4])
