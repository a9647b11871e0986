"""One end of one contender, in a process of its own: does what it is told, in step with the other.

Run by ``benchmarks/h200.py``: ``python -m benchmarks.h200_parts.end ROLE NAME BOSS TALK TERMS``.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from benchmarks.h200_parts.contenders import RawMori, Terms, make, settle
from benchmarks.h200_parts.patterns import objection, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 1 << 20
PAUSE_S = 200e-6
"""Between the consumer's word that it is ready and the put: by then it waits."""

GONE_S = 120.0


class Line:
    """Messages of plain values between two processes."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(GONE_S)
        self._end = end

    def send(self, value: Any = None) -> None:  # noqa: ANN401 - whatever JSON can say
        """One message."""
        self._end.send(json.dumps(value).encode())

    def hear(self) -> Any:  # noqa: ANN401 - what was sent
        """The next one.

        Raises:
            EOFError: the other side has gone.
        """
        data = self._end.recv(LONGEST)
        if not data:
            raise EOFError
        return json.loads(data)


class Producer:
    """The end that puts."""

    def __init__(self, name: str, terms: Terms, talk: Line) -> None:
        self.it = make(name, terms)
        self.terms = terms
        self.talk = talk
        self._count = 0
        talk.send(self.it.open())
        told = talk.hear()
        if isinstance(self.it, RawMori):
            self.it.know(told)

    def check(self, size: int) -> dict[str, Any]:
        """Put a pattern; the other end compares."""
        source = pattern(size, self.terms.device, seed=size % 97)
        if isinstance(self.it, RawMori):
            self.it.fill(source)
            self.it.write(size)
            self.talk.send()
        else:
            key = self._key()
            self.talk.send(self.it.put(key, source))
        self.talk.hear()
        return {}

    def handoff(self, size: int, rounds: int, alloc: bool) -> dict[str, Any]:
        """Many hand-offs, one after the other."""
        source = pattern(size, self.terms.device)
        if isinstance(self.it, RawMori):
            return {"put_us": [paced(lambda: self.it.write(size)) for _ in range(rounds)]}
        if alloc and not hasattr(self.it, "put_filled"):
            return {"could_not": "it has no public way to fill a block of its pool"}
        began = cpu_s()
        rows = [self._one(source, alloc=alloc) for _ in range(rounds)]
        return {
            "put_us": [row[0] for row in rows], "total_us": [row[1] for row in rows],
            "cpu_us": (cpu_s() - began) / rounds * 1e6,
        }  # fmt: skip

    def _one(self, source: Any, *, alloc: bool) -> tuple[float, float]:  # noqa: ANN401
        key = self._key()
        draft = self.it.alloc(source.numel()) if alloc else None
        if draft is not None:
            draft.tensor.copy_(source)
            settle(self.terms)
        self.talk.hear()
        time.sleep(PAUSE_S)
        start_ns = time.perf_counter_ns()
        hint = self.it.put_filled(key, draft) if draft else self.it.put(key, source)
        put_ns = time.perf_counter_ns() - start_ns
        if self.it.needs_hint:
            self.talk.send(hint)
        held_ns = self.talk.hear()
        self.it.forget(key)
        return put_ns / 1e3, (held_ns - start_ns) / 1e3

    def streams(self, streams: int, chunks: int, interval_s: float) -> dict[str, Any]:
        """Every interval one chunk of each stream; when each put was called."""
        import torch  # noqa: PLC0415

        chunk = torch.zeros(16, 50, dtype=torch.int64, device=self.terms.device)
        first, began = self._count, cpu_s()
        self._count += 1
        self.talk.hear()
        put_ns, start_s = [], time.perf_counter()
        for number in range(chunks):
            while time.perf_counter() < start_s + number * interval_s:
                time.sleep(50e-6)
            for stream in range(streams):
                put_ns.append(time.perf_counter_ns())
                self.it.put(f"s{first}-{stream}-{number}", chunk)
        took_s, used = time.perf_counter() - start_s, cpu_s() - began
        self.talk.hear()
        for number in range(chunks):
            for stream in range(streams):
                self.it.forget(f"s{first}-{stream}-{number}")
        return {"put_ns": put_ns, "took_s": took_s, "cpu_s": used}

    def miss(self, rounds: int) -> dict[str, Any]:
        """Nothing is put."""
        del rounds
        self.talk.hear()
        return {}

    def idle(self, seconds: float) -> dict[str, Any]:
        """What an end costs that has nothing to do."""
        return idle(seconds)

    def _key(self) -> str:
        """The same at both ends."""
        self._count += 1
        return f"k{self._count}"


class Consumer:
    """The end that gets."""

    def __init__(self, name: str, terms: Terms, talk: Line) -> None:
        self.it = make(name, terms)
        self.terms = terms
        self.talk = talk
        self._count = 0
        talk.send(self.it.join(talk.hear()))

    def check(self, size: int) -> dict[str, Any]:
        """Compare what comes, bit for bit."""
        hint = self.talk.hear()
        if isinstance(self.it, RawMori):
            wrong = objection(self.it.held(size), size, size % 97)
        else:
            got, release = self.it.take(self._key(), hint)
            wrong = objection(got, size, size % 97)
            settle(self.terms)
            del got
            release()
        self.talk.send()
        return {"wrong": wrong}

    def handoff(self, size: int, rounds: int, alloc: bool) -> dict[str, Any]:
        """Wait for each, and tell when it was held."""
        del size
        if isinstance(self.it, RawMori):
            return {}
        if alloc and not hasattr(self.it, "put_filled"):
            return {}
        got_us, began = [], cpu_s()
        for _ in range(rounds):
            key = self._key()
            self.talk.send()
            hint = self.talk.hear() if self.it.needs_hint else None
            start_ns = time.perf_counter_ns()
            got, release = self.it.take(key, hint)
            held_ns = time.perf_counter_ns()
            self.talk.send(held_ns)
            got_us.append((held_ns - start_ns) / 1e3)
            del got
            release()
        return {"get_us": got_us, "cpu_us": (cpu_s() - began) / rounds * 1e6}

    def streams(self, streams: int, chunks: int, interval_s: float) -> dict[str, Any]:
        """Poll what is next of each stream in turn, as a chunk adapter does."""
        del interval_s
        first, began = self._count, cpu_s()
        self._count += 1
        following, held_ns = [0] * streams, [0] * (streams * chunks)
        self.talk.send()
        until_s = time.perf_counter() + GONE_S / 2
        while min(following) < chunks:
            for stream in range(streams):
                number = following[stream]
                found = number < chunks and self.it.poll(f"s{first}-{stream}-{number}")
                if found:
                    held_ns[number * streams + stream] = time.perf_counter_ns()
                    following[stream] += 1
                    release = found[1]
                    del found
                    release()
            if time.perf_counter() > until_s:
                msg = f"only {sum(following)} of {streams * chunks} chunks have come"
                raise TimeoutError(msg)
        self.talk.send()
        return {"held_ns": held_ns, "cpu_s": cpu_s() - began}

    def miss(self, rounds: int) -> dict[str, Any]:
        """Poll for what nobody puts."""
        times = []
        for _ in range(rounds):
            start_ns = time.perf_counter_ns()
            self.it.poll("nobody puts this")
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
        self.talk.send()
        return {"miss_us": times}

    def idle(self, seconds: float) -> dict[str, Any]:
        """What an end costs that has nothing to do."""
        return idle(seconds)

    def _key(self) -> str:
        self._count += 1
        return f"k{self._count}"


class Copier:
    """A copy between the two devices by torch, in one process: the floor of all."""

    def __init__(self, terms: Terms, other: str) -> None:
        import torch  # noqa: PLC0415

        self.terms = terms
        self._source = torch.empty(terms.most, dtype=torch.uint8, device=terms.device)
        self._target = torch.empty(terms.most, dtype=torch.uint8, device=other)

    def check(self, size: int) -> dict[str, Any]:
        """One copy, compared."""
        self._source[:size].copy_(pattern(size, self.terms.device, seed=size % 97))
        self._copy(size)
        return {"wrong": objection(self._target[:size], size, size % 97)}

    def handoff(self, size: int, rounds: int, alloc: bool) -> dict[str, Any]:
        """Copies one after the other, each waited for, with pauses as between hand-offs."""
        del alloc
        return {"put_us": [paced(lambda: self._copy(size)) for _ in range(rounds)]}

    def _copy(self, size: int) -> None:
        self._target[:size].copy_(self._source[:size], non_blocking=True)
        settle(self.terms)


def paced(call: Callable[[], object]) -> float:
    """Microseconds of *call*, after the pause that is before every hand-off, too."""
    time.sleep(PAUSE_S)
    start_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start_ns) / 1e3


def idle(seconds: float) -> dict[str, Any]:
    """Share of a core that this process takes while it does nothing."""
    began, start_s = cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return {"idle_cores": (cpu_s() - began) / (time.perf_counter() - start_s)}


def cpu_s() -> float:
    """Processor time of this process so far, its threads and the kernel's part included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(role: str, name: str, boss_fd: str, talk_fd: str, told: str) -> None:
    """Serve until told to stop; what fails is told and ends it."""
    boss = Line(socket.socket(fileno=int(boss_fd)))
    fields = json.loads(told)
    other = fields.pop("other")
    terms = Terms(**fields)
    try:
        if not terms.dry:
            import torch  # noqa: PLC0415

            torch.cuda.set_device(terms.device)
        if role == "copier":
            end: Any = Copier(terms, other)
        else:
            talk = Line(socket.socket(fileno=int(talk_fd)))
            end = (Producer if role == "producer" else Consumer)(name, terms, talk)
        boss.send({"ready": True})
        serve(end, boss)
    except EOFError:
        return
    except BaseException:  # noqa: BLE001 - whatever it was, it is in the report
        boss.send({"failed": traceback.format_exc()[-1500:]})


def serve(end: Any, boss: Line) -> None:  # noqa: ANN401 - one of the above
    """Do what the boss says."""
    while True:
        command = boss.hear()
        do = command.pop("do")
        if do == "stop":
            if hasattr(end, "it"):
                end.it.close()
            boss.send({})
            return
        boss.send(getattr(end, do)(**command))


if __name__ == "__main__":
    main(*sys.argv[1:])
