"""The end that puts, and holds the clock."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import stagelink
from stagelink.bench.consumer import FROM, TO
from stagelink.bench.figures import Times
from stagelink.bench.floors import COPY_BYTES, Copier, PlainZmq
from stagelink.bench.options import DEPTH, HEADROOM, Plan
from stagelink.bench.partner import Partner
from stagelink.bench.payloads import fill, library, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stagelink.connector import Connector

PAUSE_S = 0.0005
"""Between hand-offs, so that the consumer waits again in its get; the same for every kind."""

SMALL = 64 << 10
"""Up to this size one message of ZeroMQ is the floor."""

WARM_UP = 20
TRIED = 2
"""Rounds by which it is judged how many can be afforded."""

_now_ns = time.monotonic_ns


class Stream(NamedTuple):
    """What a stream of payloads took; *gbps* in 10**9 bytes a second."""

    gbps: float
    cpu_s_per_gb: float


class Producer:
    """A sender connector, its consumer, and the floors beside them; see :func:`producing`."""

    def __init__(self, plan: Plan, tx: Connector, partner: Partner, plain: PlainZmq) -> None:
        self.plan = plan
        self.partner = partner
        self._tx = tx
        self._plain = plain
        self._serial = 0
        self._copies: list[list[float]] = []
        self._big = Copier(COPY_BYTES)

    @property
    def endpoint(self) -> str:
        """Where receivers dial."""
        return self._tx.endpoint

    def connected(self) -> int:
        """How many receivers are connected and have heard of all that was put."""
        sessions = self._tx.health()["sessions"]
        return sum(1 for row in sessions if row["direction"] == "out" and row["state"] == "open")

    # --- hand-offs -----------------------------------------------------------------------

    def hand_offs(self, size: int) -> dict[str, Times]:
        """Times of every kind for payloads of *size* bytes, taken in turns.

        Kinds: ``put``, ``alloc``, ``copy``, and up to 64 KiB ``floor``.
        """
        value, copier = payload(size), Copier(size)
        kinds: dict[str, Callable[[int], list[float]]] = {
            "put": lambda count: self.taken(count, lambda name: self.puts(name, value, count)),
            "alloc": lambda count: self.taken(count, lambda name: self._drafts(name, size, count)),
            "copy": lambda count: [copier.copy_us() for _ in range(count)],
        }
        if size <= SMALL:
            kinds["floor"] = lambda count: self._floor(size, count)
        return self._in_turns(kinds, self.plan.rounds_of(size))

    def floors(self, size: int) -> dict[str, Times]:
        """``floor`` for *size* bytes and ``rtt`` for a few."""
        kinds: dict[str, Callable[[int], list[float]]] = {
            "floor": lambda count: self._floor(size, count),
            "rtt": self._round_trips,
        }
        return self._in_turns(kinds, self.plan.rounds_of(size))

    def copy_gbps(self) -> float:
        """10**9 bytes a second of the copies made between all the other measurements."""
        return COPY_BYTES / Times(self._copies).p50_us / 1e3

    def _in_turns(
        self, kinds: dict[str, Callable[[int], list[float]]], rounds: int
    ) -> dict[str, Times]:
        """Blocks of each kind by turns: whatever disturbs the machine disturbs them all."""
        rounds = self._affordable(kinds, rounds)
        times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for _ in range(self.plan.repeats):
            for kind, run in kinds.items():
                times[kind].append(run(rounds))
            self._copies.append([self._big.copy_us() for _ in range(3)])
        return {kind: Times(repeats) for kind, repeats in times.items()}

    def _affordable(self, kinds: dict[str, Callable[[int], list[float]]], rounds: int) -> int:
        """Warm everything up; *rounds*, or fewer where they would take too long."""
        warm = min(WARM_UP, rounds)
        for run in kinds.values():
            run(warm)
        tried = min(TRIED, rounds)
        start_s = time.monotonic()
        for run in kinds.values():
            run(tried)
        round_s = (time.monotonic() - start_s) / tried
        return max(tried, int(min(rounds, self.plan.budget_s / self.plan.repeats / round_s)))

    def taken(
        self,
        count: int,
        sends: Callable[[str], Iterable[Callable[[], object]]],
        pause_s: float = PAUSE_S,
    ) -> list[float]:
        """Microseconds of *count* hand-offs by what *sends* makes of the prefix of their keys."""
        prefix = self._prefix()
        self.partner.tell("take", prefix=prefix, count=count)
        return self._paced(sends(prefix), pause_s)

    def _floor(self, size: int, count: int) -> list[float]:
        self.partner.tell("floor", count=count)
        return self._paced(self._plain.sends(size, count), PAUSE_S)

    def _round_trips(self, count: int) -> list[float]:
        self.partner.tell("echo", count=count)
        times = []
        for _ in range(count):
            time.sleep(PAUSE_S)
            times.append(self._plain.round_trip_us())
        self.partner.answer()
        return times

    def _paced(self, sends: Iterable[Callable[[], object]], pause_s: float) -> list[float]:
        """Microseconds from each call to the consumer's having touched what it sent."""
        times = []
        for send in sends:
            time.sleep(pause_s)
            start_ns = _now_ns()
            send()
            times.append((self.partner.acknowledged_ns() - start_ns) / 1e3)
        self.partner.answer()
        return times

    def puts(self, prefix: str, value: Any, count: int) -> Iterator[Callable[[], object]]:  # noqa: ANN401
        """*count* times the call that puts *value*."""
        for number in range(count):
            yield partial(self._tx.put, f"{prefix}{number}", value, to=TO)

    def _drafts(self, prefix: str, size: int, count: int) -> Iterator[Callable[[], object]]:
        for number in range(count):
            with self._tx.alloc((size,), "uint8") as draft:
                fill(draft.tensor)
                yield partial(self._tx.put, f"{prefix}{number}", draft, to=TO)

    # --- throughput ----------------------------------------------------------------------

    def stream(self, size: int) -> Stream:
        """Throughput of payloads of *size* bytes with :data:`DEPTH` of them outstanding."""
        value = payload(size)
        tried = 2 * DEPTH
        seconds = self._stream(value, tried)
        count = max(2 * tried, round(self.plan.stream_s * tried / seconds))
        before_s = self._cpu_s()
        seconds = self._stream(value, count)
        gigabytes = count * size / 1e9
        return Stream(gigabytes / seconds, (self._cpu_s() - before_s) / gigabytes)

    def _stream(self, value: Any, count: int) -> float:  # noqa: ANN401
        prefix = self._prefix()
        self.partner.tell("take", prefix=prefix, count=count)
        start_ns = end_ns = _now_ns()
        for number in range(count + DEPTH):
            if number >= DEPTH:
                end_ns = self.partner.acknowledged_ns()
            if number < count:
                self._tx.put(f"{prefix}{number}", value, to=TO)
        self.partner.answer()
        return (end_ns - start_ns) / 1e9

    def _cpu_s(self) -> float:
        """Processor time of both ends, which are one process on some backends."""
        theirs = self.partner.ask("cpu")["cpu_s"] if self.plan.alone else 0.0
        return time.process_time() + float(theirs)

    def _prefix(self) -> str:
        self._serial += 1
        return f"{self._serial}/"


@contextmanager
def producing(plan: Plan) -> Iterator[Producer]:
    """Both ends, open and connected; nothing is left of them afterwards."""
    with ExitStack() as undo:
        plain = PlainZmq()
        undo.callback(plain.close)
        partner = undo.enter_context(Partner(alone=plan.alone))
        library()  # while the consumer starts
        tx = undo.enter_context(stagelink.open(**settings(plan, FROM, "sender")))
        theirs = {**settings(plan, TO, "receiver"), "sender": tx.endpoint}
        if plan.maps:
            theirs["pool_bytes"] = HEADROOM  # nothing is ever laid there
        partner.ask("open", settings=theirs, floor=plain.address)
        plain.wait()
        yield Producer(plan, tx, partner, plain)


def settings(plan: Plan, stage: str, role: str) -> dict[str, Any]:
    """Settings of one end; its pool serves one direction, so none is kept for the other."""
    return {
        "stage": stage,
        "role": role,
        "backend": plan.backend,
        "pool_bytes": plan.pool_bytes,
        "shm_dir": plan.shm_dir,
        "integrity": plan.integrity,
        "send_share": 0.0,
        "receive_share": 0.0,
    }
