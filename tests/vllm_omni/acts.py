"""What a stage's process does when a test tells it to.

The test's own process imports this too, to name an act; so vLLM is imported within.
"""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.vllm_omni.stages import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Callable

MADE: dict[str, Any] = {}
_KEPT: dict[str, Any] = {}


def connect(
    label: str, name: str, port: int, stage: int, by: str = "scheduler", **extra: Any
) -> str:
    """Make the connector of *stage* as its scheduler or its model runner would."""
    from tests.vllm_omni import host

    if name == SHIPPED:
        from tests.vllm_omni import fake_mori

        fake_mori.install()
    transfer = host.deployment(name, port, **extra)
    make = host.runner_connector if by == "runner" else host.payload_connector
    MADE[label] = make(transfer, stage)
    return type(MADE[label]).__name__


def close(label: str) -> float:
    """Close it; the seconds that it took."""
    begin = time.monotonic()
    MADE.pop(label).close()
    return time.monotonic() - begin


def told(name: str, port: int, stage: int, replica: int = 0) -> Any:
    """The metadata that the adapter passes with every get of what *stage* sent."""
    from tests.vllm_omni import host

    found = host.sender_info(host.deployment(name, port), stage, replica)["payload"]
    return host.source_metadata(found)


def put(label: str, edge: tuple[str, str], key: str, number: int = 0, size: int = 4096) -> Any:
    """Put the value with this number; what put returns."""
    return MADE[label].put(*edge, key, value(number, size))


def get(
    label: str, edge: tuple[str, str], key: str, metadata: Any = None, patience_s: float = 10.0
) -> dict[str, Any]:
    """Poll as the adapter does; the number of what came, if it came unharmed, and how long it took."""
    polls, longest, begin = 0, 0.0, time.monotonic()
    found = None
    while found is None and time.monotonic() - begin < patience_s:
        before = time.perf_counter()
        found = MADE[label].get(*edge, key, metadata)
        longest = max(longest, time.perf_counter() - before)
        polls += 1
        if found is None:
            time.sleep(0.001)
    number = None if found is None else checked(found[0])
    return {"number": number, "polls": polls, "longest_s": longest}


def get_until(
    label: str, edge: tuple[str, str], key: str, metadata: Any, patience_s: float
) -> Any:
    """What the diffusion stages call: get with a deadline, again and again, and then abandon."""
    connector, deadline = MADE[label], time.monotonic() + patience_s
    found = None
    while found is None and time.monotonic() < deadline:
        found = connector.get_with_deadline(*edge, key, metadata, deadline=deadline)
        if found is None:
            time.sleep(0.05)
    connector.abandon_get(key)
    late = time.monotonic() - deadline
    return {"number": None if found is None else checked(found[0]), "late_s": late}


def value(number: int, size: int) -> dict[str, Any]:
    """A value that says which it is, and has a digest of its bytes."""
    import torch

    data = ((torch.arange(size, dtype=torch.int64) * 31 + number) % 251).to(torch.uint8)
    return {
        "number": number,
        "data": data,
        "digest": hashlib.sha256(data.numpy().tobytes()).hexdigest(),
    }


def checked(found: dict[str, Any]) -> int:
    """Its number, if the bytes are those that were put."""
    digest = hashlib.sha256(found["data"].contiguous().numpy().tobytes()).hexdigest()
    assert digest == found["digest"], "the bytes are others than were put"
    return int(found["number"])


def misses(label: str, edge: tuple[str, str], metadata: Any, count: int = 2000) -> float:
    """The median of a poll that finds nothing, in microseconds."""
    connector, taken = MADE[label], []
    for number in range(count):
        before = time.perf_counter()
        assert connector.get(*edge, f"nobody_0_{number % 8}", metadata) is None
        taken.append(time.perf_counter() - before)
    return sorted(taken)[count // 2] * 1e6


def within(act: Callable[..., Any], seconds: float, *arguments: Any) -> Any:
    """What the act returns, or ``stuck`` if it takes longer."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act(*arguments))
        except Exception as error:  # it is what the test asks for
            found.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else "stuck"


def close_beside_a_poll(label: str, edge: tuple[str, str], metadata: Any) -> Any:
    """Close a connector in one thread that another has used and goes on living."""
    polled, over = threading.Event(), threading.Event()
    connector = MADE.pop(label)

    def poll() -> None:
        connector.get(*edge, "nobody_0_0", metadata)
        polled.set()
        over.wait()

    threading.Thread(target=poll, daemon=True).start()
    assert polled.wait(20)
    return within(connector.close, 4.0)


def fail_to_bind(label: str, name: str, port: int, stage: int) -> Any:
    """Make a connector, and put with it, where somebody else has the port; then drop it."""
    try:
        connect(label, name, port, stage)
        return put(label, ("0", "1"), "nowhere_0_0")
    except Exception as error:  # of any kind: the host catches all
        return f"{type(error).__name__}: {error}"
    finally:
        MADE.pop(label, None)


def collect_and_put(label: str, edge: tuple[str, str], key: str) -> Any:
    """A put during which Python happens to collect garbage."""
    gc.collect()
    return put(label, edge, key)


def put_many(label: str, edge: tuple[str, str], first: int, count: int, size: int = 6400) -> int:
    """Put so many values, one key each; how many were not."""
    failed = 0
    for number in range(first, first + count):
        failed += not put(label, edge, f"m{number}_{edge[0]}_0", number, size)[0]
    return failed


def get_many(
    label: str, edge: tuple[str, str], first: int, count: int, metadata: Any = None
) -> list[int]:
    """Get so many; the numbers that did not come unharmed."""
    wrong = []
    for number in range(first, first + count):
        found = get(label, edge, f"m{number}_{edge[0]}_0", metadata)
        if found["number"] != number:
            wrong.append(number)
    return wrong


def there(
    label: str, edge: tuple[str, str], keys: list[str], metadata: Any, patience_s: float = 20.0
) -> list[str]:
    """Take what comes of these keys; which they were."""
    found: dict[str, Any] = {}
    until_s = time.monotonic() + patience_s
    while len(found) < len(keys) and time.monotonic() < until_s:
        for key in keys:
            if key not in found and (got := MADE[label].get(*edge, key, metadata)) is not None:
                found[key] = got
        time.sleep(0.001)
    return [key for key in keys if key in found]


def entries(label: str) -> dict[str, int]:
    """How much a connector says that it has: published, come, held."""
    found: dict[str, int] = {}
    health = MADE[label].health()
    for half in (*health["sending"], *health["receiving"]):
        for table in ("ledger", "inbox"):
            for name, number in half[table].items():
                if name in {"entries", "leases", "inline_bytes", "untaken", "gets"}:
                    found[f"{table}.{name}"] = found.get(f"{table}.{name}", 0) + number
    return {name: number for name, number in found.items() if number}


def size_of_process() -> dict[str, int]:
    """What grows if something is left behind: resident KiB, descriptors, threads, segments."""
    gc.collect()
    with open("/proc/self/status", encoding="utf-8") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "rss_kib": int(fields["VmRSS"].split()[0]),
        "threads": int(fields["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": len(segments()),
    }


def segments() -> set[str]:
    """The files of /dev/shm that this process maps."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {line.split(maxsplit=5)[5] for line in maps if "/dev/shm/" in line}
