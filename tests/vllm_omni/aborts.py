"""What the scheduler of a stage does that sends chunks and is told to abort."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any

from tests.vllm_omni.pipeline import ENGINE, PROMPT, hidden

PATIENCE_S = 20.0


def send(names: list[str], steps: int) -> dict[str, int]:
    """Hand so many steps' hidden states of each to the adapter; the chunks that were put of each."""
    engine = ENGINE["here"]
    for step in range(steps):
        for name in names:
            one = engine.requests[name]
            first, count = (0, PROMPT) if step == 0 else (PROMPT + step - 1, 1)
            rows = hidden(int(name[1:]), first, count)
            engine.send(one, {"hidden_states": {"layers": {0: rows, "24": rows + 1}}})
    _drain()
    return {name: engine.adapter.put_req_chunk[f"ext-{name}"] for name in names}


def abort(names: list[str]) -> None:
    """As the engine does when its client is gone."""
    from tests.vllm_omni import host

    engine = ENGINE["here"]
    aborted = host.RequestStatus.FINISHED_ABORTED
    engine.adapter.finish_requests(names, aborted, engine.requests)
    for name in names:
        engine.waiting.remove_request(engine.requests.pop(name))
    _drain()


def again(name: str, number: int) -> None:
    """Another request of the same name, with the values of *number*."""
    from tests.vllm_omni import host

    engine = ENGINE["here"]
    engine.requests[name] = one = host.request(name, [number, *range(1, PROMPT)])
    engine.waiting.add_request(one)


def published() -> int:
    """Payloads in the sender's pool that nobody has taken."""
    health = ENGINE["here"].adapter.connector.health()
    return sum(half["ledger"]["entries"] for half in health["sending"])


def questions() -> dict[str, int]:
    """Which functions of the host ask for its shared memory's class, and how often."""
    import vllm_omni

    asks = re.compile(r"(isinstance|issubclass|type)\([^)]*\bSharedMemoryConnector\b")
    found: dict[str, int] = {}
    for path in Path(inspect.getfile(vllm_omni)).parent.rglob("*.py"):
        many = len(asks.findall(path.read_text(encoding="utf-8")))
        if many:
            found[path.stem] = many
    return found


def _drain() -> None:
    adapter: Any = ENGINE["here"].adapter
    until_s = time.monotonic() + PATIENCE_S
    while adapter._pending_save_reqs or any(t.in_flight for t in adapter._sender_tokens.values()):
        assert time.monotonic() < until_s
        time.sleep(0.002)
    # what was taken off the queue last is done once the thread looks for more
    done: list[bool] = []
    adapter.connector.__dict__["reap_consumed"] = lambda: done.append(True)
    with adapter._save_cond:
        adapter._save_cond.notify()
    while len(done) < 2 and time.monotonic() < until_s:
        time.sleep(0.002)
    del adapter.connector.__dict__["reap_consumed"]
