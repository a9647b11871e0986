"""Calls that do not block and calls for many keys, as every connector keeps them.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.core.errors import ClosedError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from stagelink.connector import Connector

PATIENCE_S = 10.0
BODIES = {"small": b"x" * 100, "large": bytes(range(251)) * 4200}


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run *main* in an event loop of its own, for a bounded time."""
    asyncio.run(asyncio.wait_for(main, 3 * PATIENCE_S))


async def becomes(holds: Callable[[], object]) -> None:
    """Wait until *holds*."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.001)


class CallsContract:
    """Needs the fixtures ``sender`` (stage thinker) and ``receiver`` (stage talker)."""

    @pytest.mark.parametrize("size", list(BODIES))
    def test_what_is_awaited_comes(
        self, sender: Connector, receiver: Connector, size: str
    ) -> None:
        """A get that waits before the put, under asyncio."""

        async def main() -> None:
            getting = asyncio.create_task(receiver.aget("key", source="thinker"))
            await becomes(lambda: receiver.health()["inbox"]["gets"])
            await sender.aput("key", BODIES[size], to="talker")
            async with await getting as payload:
                assert payload.value == BODIES[size]

        run(main())

    @pytest.mark.parametrize("size", list(BODIES))
    def test_a_cancelled_get_leaves_its_payload_to_the_next(
        self, sender: Connector, receiver: Connector, size: str
    ) -> None:
        """Also one that was delivered before the task could see it."""

        async def main() -> None:
            getting = asyncio.create_task(receiver.aget("key", source="thinker"))
            await becomes(lambda: receiver.health()["inbox"]["gets"])
            sender.put("key", BODIES[size], to="talker")
            time.sleep(0.01)  # it is delivered, most often; this loop has not seen it
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            async with await receiver.aget("key", source="thinker", timeout=PATIENCE_S) as payload:
                assert payload.value == BODIES[size]

        run(main())

    def test_puts_on_another_thread_arrive_in_order(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """And their tickets tell of it."""
        bodies = list(BODIES.values())
        tickets = [sender.put_async(f"k{n}", bodies[n % 2], to="talker") for n in range(6)]
        generations = [ticket.result(PATIENCE_S).generation for ticket in tickets]
        assert generations == sorted(generations)
        assert {ticket.state for ticket in tickets} == {"published"}
        for number, payload in enumerate(
            receiver.get_many([f"k{n}" for n in range(6)], source="thinker", timeout=PATIENCE_S)
        ):
            assert payload.value == bodies[number % 2]
            payload.close()

    @pytest.mark.parametrize("size", list(BODIES))
    def test_many_keys_are_taken_all_or_none(
        self, sender: Connector, receiver: Connector, size: str
    ) -> None:
        """What had come already is there for the next get."""
        sender.put("a", BODIES[size], to="talker")
        assert receiver.wait(["a"], source="thinker", timeout=PATIENCE_S) == "a"
        with pytest.raises(DeadlineError) as failed:
            receiver.get_many(["a", "never"], source="thinker", timeout=0.1)
        # What came with its announcement is here; what must be written first may be late itself.
        late = {"never"} if size == "small" else {"never", "a"}
        assert failed.value.context.key in late
        with receiver.get("a", source="thinker", timeout=PATIENCE_S) as payload:
            assert payload.value == BODIES[size]

    def test_the_first_of_many_keys_is_named_and_not_taken(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Whether it waits for it or finds it."""
        sender.put("b", BODIES["large"], to="talker")
        for keys in (["a", "b"], ["b", "a"]):
            assert receiver.wait(keys, source="thinker", timeout=PATIENCE_S) == "b"
        receiver.get("b", source="thinker", timeout=PATIENCE_S).close()

    def test_closing_ends_what_is_awaited_and_queued(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """With one typed error each, soon."""

        async def main() -> None:
            getting = asyncio.create_task(receiver.aget("key", source="thinker"))
            await becomes(lambda: receiver.health()["inbox"]["gets"])
            await receiver.aclose()
            with pytest.raises(ClosedError):
                await getting

        run(main())
        sender.close()
        with pytest.raises(ClosedError):
            sender.put_async("key", b"x", to="talker")
        assert "stagelink-worker" not in {thread.name for thread in threading.enumerate()}
