"""Three stages around the real chunk adapter: thinker, talker, code2wav.

What the real scheduler does around the adapter is done here, in its order, with real requests and
queues; what the models would compute is computed from the request's number instead, so that the
next stage knows what must arrive. The chunks are made by the functions that the shipped deployment
names: 25 codec frames with 25 frames of left context.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PROMPT, STEPS, WIDTH, BOOKS, CHUNK = 12, 6, 1024, 16, 25
PATIENCE_S = 100.0


def frames_of(number: int) -> int:
    """How many codec frames the talker makes of a request: also none over, and less than a chunk."""
    return 10 if number % 16 == 5 else 50 + 5 * (number % 4)


def hidden(number: int, first: int, count: int) -> torch.Tensor:
    """The thinker's output for *count* tokens from *first*."""
    import torch

    row = torch.arange(WIDTH, dtype=torch.int64)
    rows = [(row * 7 + number * 131 + token * 17) % 509 for token in range(first, first + count)]
    return torch.stack(rows).to(torch.bfloat16)


def frames(number: int, first: int, count: int) -> torch.Tensor:
    """The talker's codec frames; never all zero, which would mean none."""
    import torch

    book = torch.arange(BOOKS, dtype=torch.int64)
    rows = [
        (book * 31 + number * 7 + frame * 3) % 2047 + 1 for frame in range(first, first + count)
    ]
    return torch.stack(rows)


class Engine:
    """A stage's scheduler, as far as the adapter sees it."""

    def __init__(self, transfer: Any, stage: int, count: int, told: dict[str, Any] | None) -> None:
        from tests.vllm_omni import host

        self.adapter = host.adapter(transfer, stage)
        self.requests = {
            f"r{number}": host.request(f"r{number}", [number, *range(1, PROMPT)], told)
            for number in range(count)
        }
        self.waiting = host.create_request_queue(host.SchedulingPolicy.FCFS)
        self.running: list[Any] = []
        self.wrong: list[str] = []
        self._finished = host.RequestStatus.FINISHED_STOPPED
        for one in self.requests.values():
            self.waiting.add_request(one)

    def ready(self) -> list[Any]:
        """One step: the requests for which a chunk has come."""
        adapter = self.adapter
        adapter.process_pending_chunks(
            self.waiting, self.running, scheduler_requests=self.requests
        )
        queued = [*self.waiting, *self.running]
        found = [one for one in queued if one.request_id in adapter.requests_with_ready_chunks]
        for one in [one for one in found if one not in self.running]:
            self.waiting.remove_request(one)
            self.running.append(one)
        adapter.restore_queues(self.waiting, self.running, self.requests)
        scheduled = [SimpleNamespace(req_id=one.request_id) for one in found]
        output = SimpleNamespace(scheduled_new_reqs=scheduled, scheduled_cached_reqs=None)
        adapter.postprocess_scheduler_output(output, self.requests)
        if not found:
            time.sleep(0.0005)  # the model would run
        return found

    def send(self, one: Any, output: dict[str, Any] | None, *, last: bool = False) -> None:
        """Hand one step's output to the adapter."""
        one.num_computed_tokens += 1
        if last:
            one.status = self._finished
        self.adapter.save_async(output, one)

    def drop(self, one: Any) -> None:
        """The request is over here."""
        self.adapter.cleanup_receiver(one.request_id)
        del self.requests[one.request_id]
        if one in self.running:
            self.running.remove(one)

    def drain(self) -> None:
        """Wait until all has been handed to the connector."""
        deadline = time.monotonic() + PATIENCE_S
        while self.adapter._sender_tokens and time.monotonic() < deadline:
            time.sleep(0.002)

    def left(self) -> dict[str, int]:
        """The adapter's tables that are not empty."""
        names = ("put_req_chunk", "get_req_chunk", "_sender_tokens", "_registered_load_entries",
                 "request_ids_mapping", "code_prompt_token_ids", "request_payload",
                 "_pending_load_reqs", "_finished_load_reqs", "_send_failures",
                 "_receive_failures")  # fmt: skip
        sizes = {name: len(getattr(self.adapter, name)) for name in names}
        return {name: size for name, size in sizes.items() if size}

    def told(self) -> dict[str, Any]:
        """What the test wants to know of the stage."""
        return {"wrong": self.wrong[:5], "left": self.left(), "unfinished": len(self.requests)}

    def same(self, found: Any, wanted: torch.Tensor, what: str) -> None:
        """Note it unless the tensor that came is the one that was sent, bit for bit."""
        import torch

        good = isinstance(found, torch.Tensor) and found.dtype == wanted.dtype
        if not good or not torch.equal(found, wanted):
            shape = getattr(found, "shape", found)
            self.wrong.append(f"{what}: {type(found).__name__} {shape}, not {wanted.shape}")


class Abort:
    """Requests that are aborted while the connector is at their next chunk.

    The adapter's thread finds the chunk and then waits until the scheduler has aborted; so what
    comes back from ``get`` is a chunk of a request that is no more.
    """

    def __init__(self, engine: Engine, names: list[str]) -> None:
        self.engine, self.names = engine, set(names)
        self.caught: list[str] = []
        self._wanted: deque[str] = deque()
        self._done = threading.Event()
        self._get = engine.adapter.connector.get
        engine.adapter.connector.get = self.get

    def get(self, source: str, target: str, key: str, metadata: Any = None) -> Any:
        """As the connector's, but an abort comes in between."""
        found = self._get(source, target, key, metadata)
        name = key.partition("_")[0].removeprefix("ext-")
        if found is not None and name in self.names and not key.endswith("_0"):
            self.names.discard(name)
            self._done.clear()
            self._wanted.append(name)
            self._done.wait(20)
        return found

    def step(self) -> None:
        """The scheduler's turn: abort who is to be."""
        from tests.vllm_omni import host

        while self._wanted:
            name = self._wanted.popleft()
            engine = self.engine
            engine.adapter.finish_requests(
                name, host.RequestStatus.FINISHED_ABORTED, engine.requests
            )
            one = engine.requests.pop(name)
            if one in engine.running:
                engine.running.remove(one)
            self.caught.append(name)
            self._done.set()


ENGINE: dict[str, Engine] = {}
ABORT: dict[str, Abort] = {}


def abort(names: list[str]) -> None:
    """Let these be aborted during their second chunk."""
    ABORT["here"] = Abort(ENGINE["here"], names)


def never(names: list[str]) -> None:
    """These are aborted before anything came, as the orchestrator does with the next stages."""
    from tests.vllm_omni import host

    engine = ENGINE["here"]
    engine.adapter.finish_requests(names, host.RequestStatus.FINISHED_ABORTED, engine.requests)
    for name in names:
        engine.waiting.remove_request(engine.requests.pop(name))


def begin(name: str, port: int, stage: int, count: int) -> None:
    """Make the stage and its requests, as the orchestrator has all stages do at once."""
    from tests.vllm_omni import acts, host

    transfer = host.deployment(name, port)
    told = host.sender_info(transfer, stage - 1)["payload"] if stage else None
    ENGINE["here"] = Engine(transfer, stage, count, told)
    acts.MADE["engine"] = ENGINE["here"].adapter


def think() -> dict[str, Any]:
    """Stage 0: hidden states, first of the prompt, then token by token."""
    engine = ENGINE["here"]
    for step in range(STEPS + 1):
        for number, one in enumerate(engine.requests.values()):
            first, count = (0, PROMPT) if step == 0 else (PROMPT + step - 1, 1)
            rows = hidden(number, first, count)
            engine.send(
                one,
                {"hidden_states": {"layers": {0: rows, "24": rows + 1}}},
                last=step == STEPS,
            )
    engine.drain()
    engine.requests.clear()
    return engine.told()


def talk() -> dict[str, Any]:
    """Stage 1: takes hidden states, sends codec frames; nine for every chunk, the rest at the end."""
    engine, made = ENGINE["here"], dict.fromkeys(ENGINE["here"].requests, 0)
    chunks = dict.fromkeys(made, 0)
    deadline = time.monotonic() + PATIENCE_S
    while engine.requests and time.monotonic() < deadline:
        if "here" in ABORT:
            ABORT["here"].step()
        for one in engine.ready():
            name = one.request_id
            number, chunk = int(name[1:]), chunks[name]
            _check_hidden(engine, one.additional_information, number, chunk)
            chunks[name] += 1
            over = engine.adapter.is_done_receiving_chunks(name)
            wanted = frames_of(number)
            until = wanted if over else min(wanted, made[name] + 9)
            for frame in range(made[name], until):
                engine.send(one, {"codes": {"audio": frames(number, frame, 1)}})
            made[name] = until
            if over:
                if chunks[name] != STEPS:
                    engine.wrong.append(f"{name}: over after {chunks[name]} chunks, not {STEPS}")
                engine.send(one, None, last=True)
                engine.drop(one)
    engine.drain()
    return engine.told()


def _check_hidden(engine: Engine, info: dict[str, Any], number: int, chunk: int) -> None:
    if chunk == 0:  # what the prompt and the first token came to
        rows = hidden(number, 0, PROMPT + 1)
        engine.same(info["embed"].get("prefill"), rows, f"r{number} prefill")
        engine.same(info["hidden_states"].get("output"), rows + 1, f"r{number} output")
        if info["ids"]["prompt"] != [number, *range(1, PROMPT)]:
            engine.wrong.append(f"r{number}: {info['ids']}")
    else:
        rows = hidden(number, PROMPT + chunk, 1)
        engine.same(info["embed"].get("decode"), rows, f"r{number} token {chunk}")


def speak() -> dict[str, Any]:
    """Stage 2: takes chunks of codec frames, until the sentinel."""
    engine = ENGINE["here"]
    chunks = dict.fromkeys(engine.requests, 0)
    deadline = time.monotonic() + PATIENCE_S
    while engine.requests and time.monotonic() < deadline:
        for one in engine.ready():
            number, chunk = int(one.request_id[1:]), chunks[one.request_id]
            chunks[one.request_id] += 1
            _check_frames(engine, one, number, chunk)
            if engine.adapter.is_done_receiving_chunks(one.request_id):
                wanted = -(-frames_of(number) // CHUNK) + (frames_of(number) % CHUNK == 0)
                if chunk + 1 != wanted:
                    engine.wrong.append(f"r{number}: over after {chunk + 1} chunks, not {wanted}")
                engine.drop(one)
    return {**engine.told(), "chunks": sum(chunks.values())}


def _check_frames(engine: Engine, one: Any, number: int, chunk: int) -> None:
    """All that came is this chunk's frames after its left context, or nothing with the sentinel."""
    begin, end = chunk * CHUNK, min((chunk + 1) * CHUNK, frames_of(number))
    context = min(begin, CHUNK)
    wanted: list[int] = []
    if end > begin:
        wanted = frames(number, begin - context, end - begin + context).T.reshape(-1).tolist()
        found = one.additional_information["meta"].get("left_context_size")
        if found != context:
            engine.wrong.append(f"r{number} chunk {chunk}: left context {found}, not {context}")
    if list(one.prompt_token_ids) != wanted:
        engine.wrong.append(
            f"r{number} chunk {chunk}: {len(one.prompt_token_ids)} codes, not those {len(wanted)}"
        )
