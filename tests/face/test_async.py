"""Gets and puts that do not block an event loop, and what cancelling them costs: nothing."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import stagelink
from stagelink import (
    ClosedError,
    ConfigError,
    DeadlineError,
    DuplicateKeyError,
    PayloadError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from stagelink.connector import Connector

POOL = 8 << 20
LARGE = bytes(range(250)) * 1200
PATIENCE_S = 20.0
BACKENDS = ["shm", "shm-write", "memory"]


class Pair(NamedTuple):
    """A sender of stage ``a`` and a receiver of stage ``b``."""

    tx: Connector
    rx: Connector


def open_pair(backend: str, **more: Any) -> Pair:
    settings = {"backend": backend, "pool_bytes": POOL, **more}
    tx = stagelink.open(stage="a", role="sender", **settings)
    rx = stagelink.open(stage="b", role="receiver", sender=tx.endpoint, **settings)
    return Pair(tx, rx)


@pytest.fixture(params=BACKENDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two connectors that lose nothing, whatever a test did to them."""
    tx, rx = open_pair(request.param)
    with tx, rx:
        yield Pair(tx, rx)
        gc.collect()
        assert not rx._driver.tickets.all()
        assert not rx._driver._begun.open
        for connector in (rx, tx):
            assert eventually(lambda c=connector: c.health()["pool"]["free"] == POOL)  # type: ignore[misc]


def eventually(holds: Callable[[], object]) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, 3 * PATIENCE_S)

    return asyncio.run(bounded())


async def is_waiting(rx: Connector, gets: int = 1) -> None:
    while rx.health()["inbox"]["gets"] != gets:
        await asyncio.sleep(0.001)


def test_a_get_awaits_what_another_task_puts(pair: Pair) -> None:
    async def main() -> None:
        getting = asyncio.create_task(pair.rx.aget("k", source="a", timeout=PATIENCE_S))
        await is_waiting(pair.rx)
        receipt = await pair.tx.aput("k", {"x": LARGE}, to="b")
        async with await getting as payload:
            assert payload.value == {"x": LARGE}
            assert payload.generation == receipt.generation

    run(main())


def test_what_is_there_is_had_without_a_wait(pair: Pair) -> None:
    async def main() -> None:
        await pair.tx.aput("hello", b"x", to="b")
        (await pair.rx.aget("hello", source="a", timeout=PATIENCE_S)).close()
        receipt = await pair.tx.aput("small", b"x", to="b")
        found = await pair.rx.aget("small", source="a", metadata=receipt.metadata)
        assert found.value == b"x"

    run(main())


def test_an_awaited_get_has_a_deadline_of_either_kind(pair: Pair) -> None:
    async def main() -> None:
        await pair.tx.aput("hello", b"x", to="b")
        (await pair.rx.aget("hello", source="a", timeout=PATIENCE_S)).close()
        start_s = time.monotonic()
        with pytest.raises(DeadlineError) as failed:
            await pair.rx.aget("k", source="a", timeout=0.05)
        assert failed.value.context.key == "k"
        with pytest.raises(DeadlineError):
            await pair.rx.aget("k", source="a", deadline=time.monotonic() + 0.05)
        assert 0.1 <= time.monotonic() - start_s < 5
        with pytest.raises(ConfigError, match="both"):
            await pair.rx.aget("k", source="a", timeout=1.0, deadline=time.monotonic())

    run(main())


def test_a_cancelled_get_ends_and_leaves_the_payload_to_the_next(pair: Pair) -> None:
    async def main() -> None:
        getting = asyncio.create_task(pair.rx.aget("k", source="a", timeout=PATIENCE_S))
        await is_waiting(pair.rx)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert pair.rx.health()["inbox"]["gets"] == 0
        await pair.tx.aput("k", LARGE, to="b")
        async with await pair.rx.aget("k", source="a", timeout=PATIENCE_S) as payload:
            assert payload.value == LARGE

    run(main())


@pytest.mark.parametrize("body", [b"small", LARGE])
@pytest.mark.parametrize("ask", ["get", "poll", "aget"])
def test_a_payload_delivered_in_the_moment_of_cancelling_is_not_lost(
    pair: Pair, body: bytes, ask: str
) -> None:
    async def main() -> None:
        getting = asyncio.create_task(pair.rx.aget("k", source="a", timeout=PATIENCE_S))
        await is_waiting(pair.rx)
        answered = threading.Event()
        [ticket] = pair.rx._driver.tickets.all()
        ticket.then(answered.set)
        pair.tx.put("k", body, to="b")
        assert answered.wait(PATIENCE_S)  # blocks this loop: the task cannot see its answer
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert pair.rx.health()["inbox"]["untaken"] == 1
        if ask == "aget":
            payload = await pair.rx.aget("k", source="a", timeout=PATIENCE_S)
        elif ask == "get":
            payload = pair.rx.get("k", source="a", timeout=PATIENCE_S)
        else:
            found = pair.rx.poll("k", source="a")
            assert found is not None
            payload = found
        assert payload.value == body
        payload.close()
        assert pair.rx.health()["inbox"]["untaken"] == 0

    run(main())


def test_a_get_that_the_garbage_collector_ends_loses_nothing(pair: Pair) -> None:
    async def main() -> None:
        getting = pair.rx.aget("k", source="a", timeout=PATIENCE_S)
        getting.send(None)
        del getting
        gc.collect()
        await is_waiting(pair.rx, 0)
        pair.tx.put("k", b"x", to="b")
        (await pair.rx.aget("k", source="a", timeout=PATIENCE_S)).close()

    run(main())


@pytest.mark.parametrize(("backend", "count"), [("shm", 10_000), ("memory", 2_000)])
def test_of_10_000_gets_of_which_a_third_is_cancelled_none_is_lost_or_had_twice(
    backend: str, count: int
) -> None:
    chance = random.Random(7)
    tx, rx = open_pair(backend, inline_bytes=1 << 16)
    had: dict[str, int] = {}

    async def get(key: str) -> None:
        async with await rx.aget(key, source="a", timeout=PATIENCE_S) as payload:
            assert len(payload.value) in {8, 9000}
            had[key] = had.get(key, 0) + 1

    async def round_of(keys: list[str]) -> None:
        gets = {asyncio.create_task(get(key)): key for key in keys}
        doomed = chance.sample(list(gets), len(gets) // 3)
        for number, key in enumerate(keys):
            tx.put(key, bytes(9000 if number % 10 == 0 else 8), to="b", timeout=PATIENCE_S)
            if number % 3 == 0:
                doomed[number // 3 % len(doomed)].cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        await asyncio.wait(gets)
        for task, key in gets.items():
            if task.cancelled() and key not in had:
                await get(key)

    async def main() -> None:
        for first in range(0, count, 500):
            await round_of([f"k{n}" for n in range(first, first + 500)])

    with tx, rx:
        run(main())
        assert had == {f"k{n}": 1 for n in range(count)}
        assert rx.health()["inbox"]["untaken"] == rx.health()["inbox"]["untaken_lost"] == 0


def test_the_loop_goes_on_while_gets_wait_and_a_large_put_runs() -> None:
    tx, rx = open_pair("shm", pool_bytes=8 << 20)
    turned = threading.Event()
    memory = tx._puts.memory

    def held(block: Any) -> memoryview:
        """The copy goes on only once the loop has turned, which it could not under the copy."""
        assert turned.wait(PATIENCE_S)
        found: memoryview = memory(block)
        return found

    async def main() -> None:
        gets = [
            asyncio.create_task(rx.aget(f"k{n}", source="a", timeout=PATIENCE_S))
            for n in range(50)
        ]
        await is_waiting(rx, 50)
        tx._puts.memory = held  # type: ignore[method-assign]
        putting = asyncio.create_task(tx.aput("large", bytes(4 << 20), to="b", timeout=PATIENCE_S))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not putting.done()
        turned.set()
        await putting
        for number in range(50):
            await tx.aput(f"k{number}", b"x", to="b")
        for payload in await asyncio.gather(*gets):
            payload.close()

    with tx, rx:
        run(main())


def test_an_awaited_put_waits_for_room_without_blocking_the_loop() -> None:
    tx, rx = open_pair("memory", pool_bytes=1 << 20)

    async def main() -> None:
        await tx.aput("first", bytes(500_000), to="b")
        waiting = asyncio.create_task(
            tx.aput("second", bytes(500_000), to="b", timeout=PATIENCE_S)
        )
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert not waiting.done()
        (await rx.aget("first", source="a", timeout=PATIENCE_S)).close()
        await waiting
        with pytest.raises(stagelink.CapacityError) as failed:
            await tx.aput("third", bytes(800_000), to="b", timeout=0.01)
        assert failed.value.context.key == "third"

    with tx, rx:
        run(main())


def test_a_cancelled_put_is_not_published_and_reads_nothing_any_more(pair: Pair) -> None:
    async def main() -> None:
        filler = pair.tx.alloc((3 << 20,), "uint8")
        value = bytearray(4 << 20)
        putting = asyncio.create_task(pair.tx.aput("k", value, to="b", timeout=PATIENCE_S))
        while not len(pair.tx._driver.tickets.all()):
            await asyncio.sleep(0.001)  # it waits for room by now
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        filler.close()
        await pair.tx.aput("after", LARGE, to="b")
        assert not pair.tx.withdraw("k", to="b")
        assert pair.tx.withdraw("after", to="b")

    run(main())


def test_an_awaited_put_raises_what_put_raises(pair: Pair) -> None:
    async def main() -> None:
        with pytest.raises(PayloadError):
            await pair.tx.aput("k", object(), to="b")
        await pair.tx.aput("k", LARGE, to="b")
        with pytest.raises(DuplicateKeyError):
            await pair.tx.aput("k", LARGE, to="b")
        with pytest.raises(DuplicateKeyError):
            await pair.tx.aput("k", b"small", to="b")
        with pytest.raises(ConfigError, match="only receives"):
            await pair.rx.aput("k", b"x", to="b")
        with pytest.raises(ConfigError, match="only sends"):
            await pair.tx.aget("k", source="a")
        pair.tx.withdraw("k", to="b")

    run(main())


def test_a_draft_is_put_from_a_coroutine(pair: Pair) -> None:
    async def main() -> None:
        with pair.tx.alloc((3, 5), "float32") as draft:
            draft.tensor.fill(2.0) if hasattr(draft.tensor, "fill") else draft.tensor.fill_(2.0)
            await pair.tx.aput("k", draft, to="b")
        async with await pair.rx.aget("k", source="a", timeout=PATIENCE_S) as payload:
            assert payload.value.sum() == 30.0

    run(main())


def test_the_first_of_many_keys_is_awaited(pair: Pair) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(
            pair.rx.await_keys(["k1", "k2"], source="a", timeout=PATIENCE_S)
        )
        while not pair.rx.health()["inbox"]["waits"]:
            await asyncio.sleep(0.001)
        pair.tx.put("k2", b"x", to="b")
        assert await waiting == "k2"
        (await pair.rx.aget("k2", source="a")).close()
        waiting = asyncio.create_task(pair.rx.await_keys(["k1"], source="a"))
        while not pair.rx.health()["inbox"]["waits"]:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not pair.rx.health()["inbox"]["waits"]

    run(main())


def test_closing_ends_what_is_awaited() -> None:
    tx, rx = open_pair("memory")

    async def main() -> None:
        async with tx:
            async with rx:
                getting = asyncio.create_task(rx.aget("k", source="a", timeout=PATIENCE_S))
                await is_waiting(rx)
            with pytest.raises(ClosedError):
                await getting
            with pytest.raises(ClosedError):
                await rx.aget("k", source="a")
        with pytest.raises(ClosedError):
            await tx.aput("k", LARGE, to="b")

    run(main())


def test_a_loop_that_ends_with_gets_open_leaves_the_connector_usable(pair: Pair) -> None:
    async def main() -> None:
        asyncio.ensure_future(pair.rx.aget("k", source="a", timeout=PATIENCE_S))  # noqa: RUF006
        await is_waiting(pair.rx)

    run(main())
    assert pair.rx.health()["inbox"]["gets"] == 0
    pair.tx.put("k", LARGE, to="b")
    pair.rx.get("k", source="a", timeout=PATIENCE_S).close()


def test_awaited_gets_are_served_while_threads_get_too(pair: Pair) -> None:
    def beside(number: int) -> None:
        with pair.rx.get(f"t{number}", source="a", timeout=PATIENCE_S) as payload:
            assert payload.value == b"x"

    threads = [threading.Thread(target=beside, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()

    async def main() -> None:
        gets = [
            asyncio.create_task(pair.rx.aget(f"k{n}", source="a", timeout=PATIENCE_S))
            for n in range(20)
        ]
        await is_waiting(pair.rx, 24)
        for number in range(4):
            pair.tx.put(f"t{number}", b"x", to="b")
        for number in range(20):
            pair.tx.put(f"k{number}", b"x", to="b")
        for payload in await asyncio.gather(*gets):
            payload.close()

    run(main())
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
