"""Two questions that are asked less often: many peers, and a busy interpreter."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from stagelink.bench.consumer import FROM, TO
from stagelink.bench.figures import Times
from stagelink.bench.partner import Partner
from stagelink.bench.payloads import payload
from stagelink.bench.producer import settings
from stagelink.core.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.bench.producer import Producer

SIZE = 4096
PEERS = 64
CALM_S = 0.02
"""A pause that lets all peers finish with one payload before the next."""

CONNECT_S = 60.0
INTERVALS_S = (0.005, 0.0005, 0.00005)
"""Of :func:`sys.setswitchinterval`; the first is Python's own."""


def peers_us(producer: Producer) -> dict[str, float]:
    """Median hand-off of 4 KiB with one receiver connected, and with 64.

    ``64`` are of 64 stages, so that each payload is of interest to one of them; ``64_one_stage``
    are replicas of one stage, and every payload is announced to all of them.
    """
    found = {"1": _hand_off_us(producer)}
    for name, shared in ((f"{PEERS}", False), (f"{PEERS}_one_stage", True)):
        with _crowd(producer, shared=shared):
            found[name] = _hand_off_us(producer)
    return found


def busy_put(producer: Producer) -> dict[str, Any]:
    """Median of the put itself, in a quiet process and beside a thread that computes in Python."""
    quiet_us = _puts_us(producer)
    usual_s = sys.getswitchinterval()
    busy = {}
    try:
        with _computing():
            for interval_s in INTERVALS_S:
                sys.setswitchinterval(interval_s)
                busy[str(interval_s)] = _puts_us(producer)
    finally:
        sys.setswitchinterval(usual_s)
    first_us = busy[str(INTERVALS_S[0])]
    return {
        "quiet_us": quiet_us,
        "busy_us": first_us,
        "ratio": first_us / quiet_us,
        "by_switchinterval_s": busy,
    }


def _hand_off_us(producer: Producer) -> float:
    value, count = payload(SIZE), _count(producer)
    times = producer.taken(count, lambda name: producer.puts(name, value, count), CALM_S)
    return Times([times]).p50_us


def _puts_us(producer: Producer) -> float:
    """Microseconds from calling put to its return."""
    value, count = payload(SIZE), _count(producer)
    times = []

    def calls(prefix: str) -> Iterator[Any]:
        for send in producer.puts(prefix, value, count):

            def timed(send: Any = send) -> None:  # noqa: ANN401
                start_ns = time.monotonic_ns()
                send()
                times.append((time.monotonic_ns() - start_ns) / 1e3)

            yield timed

    producer.taken(count, calls)
    return Times([times]).p50_us


def _count(producer: Producer) -> int:
    return min(100, producer.plan.rounds)


@contextmanager
def _crowd(producer: Producer, *, shared: bool) -> Iterator[None]:
    """All other peers, connected, in one process of their own."""
    plan = producer.plan
    with ExitStack() as undo:
        crowd = undo.enter_context(Partner(alone=plan.alone))
        usual = {**settings(plan, TO, "receiver"), "sender": producer.endpoint}
        small = {**usual, "pool_bytes": 1 << 20}
        crowd.ask(
            "crowd",
            members=[
                {**small, "replica": number} if shared else {**small, "stage": f"peer{number}"}
                for number in range(1, PEERS)
            ],
            source=FROM,
        )
        _wait_for(producer, PEERS)
        yield
        crowd.ask("leave")
    _wait_for(producer, 1)


def _wait_for(producer: Producer, wanted: int) -> None:
    until_s = time.monotonic() + CONNECT_S
    while producer.connected() != wanted:
        if time.monotonic() > until_s:
            msg = f"{producer.connected()} receivers are connected, not {wanted}"
            raise DeadlineError(msg, remedy="is the machine overloaded?")
        time.sleep(CALM_S)


@contextmanager
def _computing() -> Iterator[None]:
    """A thread that never lets go of the interpreter of its own accord."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(number for number in range(1000))

    thread = threading.Thread(target=compute, name="busy")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
