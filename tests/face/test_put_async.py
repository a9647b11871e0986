"""Puts that are copied and published on another thread, and the tickets that tell of them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink import (
    CapacityError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DuplicateKeyError,
    ForkedError,
    GoneError,
    PayloadError,
)
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads import Outcome, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.connector import Connector

LARGE = bytes(range(250)) * 1200
PATIENCE_S = 20.0
BACKENDS = ["shm", "memory"]


def sender(backend: str = "memory", **settings: Any) -> Connector:
    return stagelink.open(stage="a", role="sender", backend=backend, **settings)


def receiver(tx: Connector, backend: str = "memory", **settings: Any) -> Connector:
    settings = {"backend": backend, "sender": tx.endpoint, **settings}
    return stagelink.open(stage="b", role="receiver", **settings)


class Held:
    """Keeps the worker of a connector busy until let go."""

    def __init__(self, connector: Connector) -> None:
        self._go, self._running = threading.Event(), threading.Event()
        connector._driver.worker.give(self, PATIENCE_S)
        assert self._running.wait(PATIENCE_S)

    def run(self) -> None:
        self._running.set()
        assert self._go.wait(PATIENCE_S)

    def drop(self) -> None:
        pass

    def let_go(self) -> None:
        self._go.set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_put_on_another_thread_arrives_and_its_ticket_tells(backend: str) -> None:
    with sender(backend) as tx, receiver(tx, backend) as rx:
        seen: list[object] = []
        ticket = tx.put_async("k", LARGE, to="b")
        ticket.add_done_callback(seen.append)

        receipt = ticket.result(PATIENCE_S)

        assert (ticket.done, ticket.state, ticket.size) == (True, "published", receipt.size)
        ticket.add_done_callback(seen.append)
        assert seen == [ticket, ticket]
        with rx.get("k", source="a", metadata=receipt.metadata) as payload:
            assert payload.value == LARGE


def test_a_put_of_100_mb_is_handed_in_within_5_ms() -> None:
    value = bytes(100_000_000)
    with sender("shm", pool_bytes=300 << 20) as tx:
        took = []
        for number in range(4):
            start_s = time.perf_counter()
            ticket = tx.put_async(f"k{number}", value, to="b")
            took.append(time.perf_counter() - start_s)
            ticket.result(PATIENCE_S)
            tx.withdraw(f"k{number}", to="b")
        assert min(took) < 0.005, took


def test_puts_are_published_in_the_order_of_the_calls() -> None:
    with sender() as tx:
        tickets = [
            tx.put_async(f"k{n}", LARGE if n % 3 == 0 else b"small", to="b") for n in range(60)
        ]
        generations = [ticket.result(PATIENCE_S).generation for ticket in tickets]
    assert generations == sorted(generations)


def test_the_states_of_a_put_follow_each_other() -> None:
    with sender() as tx:
        held = Held(tx)
        ticket = tx.put_async("k", LARGE, to="b")
        assert (ticket.state, ticket.done) == ("queued", False)
        with pytest.raises(DeadlineError, match="still queued"):
            ticket.result(0.0)
        held.let_go()
        ticket.result(PATIENCE_S)
        assert "published" in repr(ticket)


def test_errors_of_type_and_use_come_at_once() -> None:
    with sender() as tx, receiver(tx) as rx:
        with pytest.raises(PayloadError):
            tx.put_async("k", {"x": object()}, to="b")
        with pytest.raises(ConfigError, match="only receives"):
            rx.put_async("k", b"", to="b")
        with pytest.raises(ConfigError, match="both"):
            tx.put_async("k", b"", to="b", timeout=1.0, deadline=time.monotonic())
        with pytest.raises(ConfigError):
            tx.put_async("k", b"", to="b", ttl=-1.0)


def test_errors_of_the_put_come_by_the_ticket_with_their_context() -> None:
    with sender(pool_bytes=1 << 20) as tx:
        first = tx.put_async("k", LARGE, to="b")
        second = tx.put_async("k", LARGE, to="b")
        third = tx.put_async("huge", bytes(2 << 20), to="b")
        first.result(PATIENCE_S)
        with pytest.raises(DuplicateKeyError) as failed:
            second.result(PATIENCE_S)
        assert (failed.value.context.key, failed.value.context.edge) == ("k", "a->b")
        with pytest.raises(CapacityError, match="never fit"):
            third.result(PATIENCE_S)
        assert third.state == "failed"
        assert sum(tx.health()["errors"].values()) == 2


def test_a_full_queue_makes_the_caller_wait_and_then_says_so() -> None:
    with sender() as tx:
        held = Held(tx)
        tickets = [tx.put_async(f"k{n}", b"x", to="b") for n in range(64)]
        with pytest.raises(CapacityError, match="64 puts"):
            tx.put_async("more", b"x", to="b", timeout=0.01)
        timer = threading.Timer(0.05, held.let_go)
        timer.start()
        tickets.append(tx.put_async("more", b"x", to="b", deadline=time.monotonic() + PATIENCE_S))
        for ticket in tickets:
            ticket.result(PATIENCE_S)
        timer.join()


@pytest.mark.parametrize("backend", BACKENDS)
def test_closing_fails_what_is_queued_and_is_bounded(backend: str) -> None:
    with sender(backend, pool_bytes=1 << 20, timeouts={"close_s": 0.2}) as tx:
        tx.put("first", bytes(500_000), to="b")
        waits = tx.put_async("waits for room", bytes(500_000), to="b", timeout=PATIENCE_S)
        queued = tx.put_async("queued", LARGE, to="b", timeout=PATIENCE_S)
        start_s = time.monotonic()
    assert time.monotonic() - start_s < PATIENCE_S / 2
    for ticket in (waits, queued):
        with pytest.raises(ClosedError):
            ticket.result(PATIENCE_S)
    with pytest.raises(ClosedError):
        tx.put_async("k", b"x", to="b")
    assert "stagelink-worker" not in {thread.name for thread in threading.enumerate()}


def test_a_cancelled_put_is_not_published() -> None:
    with sender() as tx:
        held = Held(tx)
        ticket = tx.put_async("k", LARGE, to="b")
        assert ticket.cancel()
        assert not ticket.cancel()
        held.let_go()
        with pytest.raises(GoneError) as failed:
            ticket.result(PATIENCE_S)
        assert failed.value.reason == "cancelled"
        assert not tx.withdraw("k", to="b")
        assert tx.drain(PATIENCE_S)
        published = tx.put_async("k", LARGE, to="b")
        published.result(PATIENCE_S)
        assert not published.cancel()


def test_a_ticket_is_awaited_by_many_tasks_and_a_cancelled_one_ends_its_wait_only() -> None:
    with sender() as tx:

        async def main() -> None:
            held = Held(tx)
            ticket = tx.put_async("k", LARGE, to="b")

            async def wait() -> int:
                return (await ticket).generation

            tasks = [asyncio.create_task(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            held.let_go()
            assert await tasks[1] == await tasks[2]
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]

        asyncio.run(main())


def test_a_callback_that_raises_harms_nobody_and_is_told(lines: list[logging.LogRecord]) -> None:
    with sender() as tx:
        ticket = tx.put_async("k", LARGE, to="b")
        ticket.add_done_callback(lambda _: 1 // 0)
        ticket.result(PATIENCE_S)
        tx.put_async("l", LARGE, to="b").result(PATIENCE_S)
    assert [r.__dict__["event"] for r in lines].count("callback_failed") == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callback_may_close_the_connector(backend: str, lines: list[logging.LogRecord]) -> None:
    tx, over = sender(backend), threading.Event()

    def close(_: object) -> None:
        tx.close()
        over.set()

    held = Held(tx)
    ticket = tx.put_async("k", LARGE, to="b")
    ticket.add_done_callback(close)
    behind = tx.put_async("l", LARGE, to="b")
    held.let_go()

    assert over.wait(PATIENCE_S)
    assert ticket.done
    with pytest.raises(ClosedError):
        behind.result(PATIENCE_S)
    with pytest.raises(ClosedError):
        tx.put("m", 1, to="b")
    tx.close()
    assert "callback_failed" not in [r.__dict__.get("event") for r in lines]


def test_a_draft_is_published_by_the_call_itself() -> None:
    with sender() as tx:
        draft = tx.alloc((8,), "float32")
        ticket = tx.put_async("k", draft, to="b")
        assert ticket.done
        assert ticket.result().size == ticket.size


def in_a_child(check: Callable[[], None]) -> int:
    """The exit status of a forked child that runs *check*."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_no_new_call_works_in_a_forked_child() -> None:
    with sender() as tx, receiver(tx) as rx:
        held = Held(tx)
        ticket = tx.put_async("k", LARGE, to="b")

        async def await_all() -> None:
            for call in (
                lambda: rx.aget("k", source="a"),
                lambda: rx.await_keys(["k"], source="a"),
                lambda: tx.aput("k", b"x", to="b"),
            ):
                with pytest.raises(ForkedError):
                    await call()
            with pytest.raises(ForkedError):
                await ticket

        def check() -> None:
            for call in (
                lambda: tx.put_async("k", b"x", to="b"),
                lambda: rx.get_many(["k"], source="a"),
                lambda: rx.wait(["k"], source="a"),
                ticket.result,
            ):
                with pytest.raises(ForkedError):
                    call()
            asyncio.run(await_all())

        assert in_a_child(check) == 0
        held.let_go()
        ticket.result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_what_a_forked_child_closes_stays_the_parents() -> None:
    """A lock that another thread holds at the fork is never let go of in the child."""
    with sender(pool_bytes=1 << 20) as tx, receiver(tx, pool_bytes=1 << 20) as rx:
        tx.put("k", LARGE, to="b")
        payload = rx.get("k", source="a", timeout=PATIENCE_S)
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with rx._driver.state, tx._driver.state:
                held.set()
                let_go.wait(PATIENCE_S)

        def check() -> None:
            signal.alarm(10)
            drivers = rx._driver, tx._driver
            before = [list(driver._outbox) for driver in drivers]  # the parent may be sending
            payload.close()
            assert [list(driver._outbox) for driver in drivers] == before
            for connector in (rx, tx):
                connector.health()
                connector.close()

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(PATIENCE_S)
        child = in_a_child(check)
        let_go.set()
        holder.join()
        assert child == 0
        payload.close()


def test_a_stopped_worker_drops_what_it_is_given() -> None:
    worker, dropped = Worker(Log()), []

    class Job:
        def run(self) -> None:
            raise AssertionError

        def drop(self) -> None:
            dropped.append(self)

    worker.stop()
    worker.stop()
    assert worker.give(Job(), 0.0)
    assert len(dropped) == 1


def test_an_outcome_is_told_once() -> None:
    outcome, calls = Outcome(Log()), []
    outcome.then(lambda: calls.append(1))
    assert not outcome.wait(0.0)
    outcome.settle("first")
    outcome.settle("second")
    outcome.then(lambda: calls.append(2))
    assert (outcome.result, outcome.wait(0.0), calls) == ("first", True, [1, 2])
