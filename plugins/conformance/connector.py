"""What a whole connector promises, over any backend. Subclass, give ``backend``, run pytest.

class TestMine(ConnectorContract):
    @pytest.fixture
    def backend(self):
        return "mine"

``crosses_processes = False`` leaves out what needs a second process, in which ``stagelink.open``
must know the backend too: it is installed.

Payloads are bytes and arrays of the standard library, so the suite needs neither torch nor numpy.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.core.errors import (
    CapacityError,
    DeadlineError,
    DuplicateKeyError,
    GoneError,
    LeaseError,
    Reason,
    StagelinkError,
)
from stagelink.plugins.conformance.aborts import AbortsContract
from stagelink.plugins.conformance.calls import CallsContract
from stagelink.plugins.conformance.credits import CreditsContract
from stagelink.plugins.conformance.deaths import DeathsContract
from stagelink.plugins.conformance.ends import EndsContract
from stagelink.plugins.conformance.kit import (
    AT_ONCE_S,
    LARGE,
    PATIENCE_S,
    POOL,
    SMALL,
    TIMEOUTS,
    Open,
    Waiter,
    eventually,
    is_linked,
    is_whole,
    polled,
    same,
    waits,
)  # fmt: skip
from stagelink.plugins.conformance.readers import ReadersContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

__all__ = [
    "AT_ONCE_S", "LARGE", "PATIENCE_S", "POOL", "SMALL", "TIMEOUTS", "ConnectorContract", "Open",
    "Waiter", "eventually", "is_linked", "is_whole", "polled", "same", "waits",
]  # fmt: skip


class ConnectorContract(
    CallsContract, ReadersContract, EndsContract, AbortsContract, DeathsContract, CreditsContract
):
    """One sender and its receivers, in this process or in others that are frozen and killed."""

    @pytest.fixture
    def backend(self) -> str:
        """Override: the backend's name."""
        raise NotImplementedError

    @pytest.fixture
    def opened(self, backend: str) -> Iterator[Open]:
        """Opens connectors, and closes those that are left, receivers first."""
        made: list[Connector] = []

        def open_(**settings: Any) -> Connector:  # noqa: ANN401
            timeouts = {**TIMEOUTS, **settings.pop("timeouts", {})}
            settings = {"backend": backend, "pool_bytes": POOL, "timeouts": timeouts, **settings}
            made.append(stagelink.open(**settings))
            return made[-1]

        yield open_
        for connector in sorted(made, key=lambda one: one.config.role != "receiver"):
            connector.close()

    @pytest.fixture
    def sender(self, opened: Open) -> Connector:
        """Stage ``thinker``."""
        return opened(stage="thinker", role="sender")

    @pytest.fixture
    def receive(self, opened: Open, sender: Connector) -> Open:
        """Opens receivers of *sender*, of stage ``talker``."""
        base = {"stage": "talker", "role": "receiver", "sender": sender.endpoint}
        return lambda **settings: opened(**{**base, **settings})

    @pytest.fixture
    def receiver(self, receive: Open) -> Connector:
        """Stage ``talker``."""
        return receive()

    # --- put and get ---------------------------------------------------------------------

    @pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
    def test_what_was_put_is_what_comes(
        self, sender: Connector, receiver: Connector, content: bytes
    ) -> None:
        """Whole and once; then both pools are whole."""
        value = {"data": content, "view": memoryview(content), "n": [1, None, "x", 2.5]}
        receipt = sender.put("key", value, to="talker")
        with receiver.get("key", source="thinker") as payload:
            assert isinstance(payload.value["data"], bytes)
            assert same(payload.value["data"], content)
            assert same(payload.value["view"], content)
            assert payload.value["n"] == [1, None, "x", 2.5]
            assert (payload.size, payload.generation) == (receipt.size, receipt.generation)
        del payload
        assert sender.drain(PATIENCE_S)
        assert eventually(lambda: is_whole(sender) and is_whole(receiver))

    def test_a_get_that_waits_before_the_put_gets_it(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """In whatever order they come."""
        for key, content in (("small", SMALL), ("large", LARGE)):
            waiter = Waiter(partial(receiver.get, key, source="thinker"))
            assert waits(receiver)
            sender.put(key, content, to="talker")
            assert same(waiter.join().result.value, content)

    def test_the_caller_may_change_its_value_after_the_put(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Its bytes are ours by then."""
        for key, content in (("small", SMALL), ("large", LARGE)):
            value = bytearray(content)
            sender.put(key, value, to="talker")
            value[:] = bytes(len(value))
            assert same(receiver.get(key, source="thinker").value, content)

    def test_poll_says_none_and_then_the_payload(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """It never waits."""
        for key, content in (("small", SMALL), ("large", LARGE)):
            assert receiver.poll(key, source="thinker") is None
            sender.put(key, content, to="talker")
            assert same(polled(receiver, key).value, content)
            assert receiver.poll(key, source="thinker") is None

    def test_metadata_alone_finds_the_payload(self, sender: Connector, opened: Open) -> None:
        """A receiver that was told of no sender."""
        receiver = opened(stage="talker", role="receiver")
        receipt = sender.put("key", LARGE, to="talker")
        payload = receiver.get("key", metadata=receipt.metadata)
        assert same(payload.value, LARGE)

    def test_many_keys_on_many_threads_all_arrive(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Each with its own bytes, small and large mixed."""

        def move(index: int) -> bool:
            content = bytes([index]) * (100 if index % 2 else 300_000)
            right = True
            for turn in range(10):
                sender.put(f"{index}/{turn}", content, to="talker")
                with receiver.get(f"{index}/{turn}", source="thinker") as payload:
                    right = right and same(payload.value, content)
            return right

        movers = [Waiter(partial(move, index)) for index in range(6)]
        assert all(mover.join(30.0).result for mover in movers), [m.error for m in movers]
        assert eventually(lambda: is_whole(sender) and is_whole(receiver))

    def test_a_draft_is_filled_in_place_and_put(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Where tensors or arrays are at hand."""
        numpy = pytest.importorskip("numpy")
        with sender.alloc((256, 1024), numpy.dtype("int32")) as draft:
            draft.tensor[...] = 7
            sender.put("key", draft, to="talker")
        payload = receiver.get("key", source="thinker")
        assert payload.value.shape == (256, 1024)
        assert int(payload.value.sum()) == 7 * 256 * 1024
        with pytest.raises(LeaseError):
            sender.put("again", draft, to="talker")

    def test_a_draft_that_is_not_put_gives_its_block_back(self, sender: Connector) -> None:
        """Leaving the block is enough."""
        numpy = pytest.importorskip("numpy")
        with sender.alloc((1 << 20,), numpy.dtype("uint8")):
            assert not is_whole(sender)
        assert eventually(lambda: is_whole(sender))

    # --- what does not come --------------------------------------------------------------

    def test_a_get_ends_at_its_deadline(self, sender: Connector, receiver: Connector) -> None:
        """Not before, and soon after."""
        sender.put("warm", SMALL, to="talker")
        receiver.get("warm", source="thinker").close()
        for timeout_s in (0.0, 0.2):
            start_s = time.monotonic()
            with pytest.raises(DeadlineError, match="never"):
                receiver.get("never", source="thinker", timeout=timeout_s)
            assert timeout_s <= time.monotonic() - start_s < timeout_s + AT_ONCE_S
        assert is_whole(receiver)

    def test_a_producers_failure_reaches_the_reader(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """With its words; whether it waits already or comes later."""
        waiter = Waiter(lambda: receiver.get("first", source="thinker"))
        assert waits(receiver)
        sender.fail("first", ValueError("out of ideas"), to="talker")
        sender.fail("second", "out of words", to="talker")
        error = waiter.join().error
        assert isinstance(error, GoneError)
        assert error.reason is Reason.FAILED
        assert "out of ideas" in str(error)
        with pytest.raises(GoneError, match="out of words"):
            receiver.get("second", source="thinker")

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_what_was_withdrawn_does_not_come(
        self, sender: Connector, receiver: Connector, content: bytes
    ) -> None:
        """And its memory is free at once."""
        sender.put("key", content, to="talker")
        assert sender.withdraw("key", to="talker")
        assert not sender.withdraw("key", to="talker")
        with pytest.raises(StagelinkError) as caught:
            receiver.get("key", source="thinker", timeout=0.2)
        assert caught.value.reason in {Reason.WITHDRAWN, Reason.DEADLINE}
        assert eventually(lambda: is_whole(sender))

    def test_an_expired_payload_is_gone_and_says_why(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """To a get that comes late as well."""
        with pytest.raises(DeadlineError):
            receiver.get("nothing", source="thinker", timeout=0.05)
        for key, content in (("small", SMALL), ("large", LARGE)):
            sender.put(key, content, to="talker", ttl=0.05)
        assert eventually(lambda: not sender.health()["ledger"]["entries"])
        assert eventually(lambda: is_whole(sender))
        for key in ("small", "large"):
            with pytest.raises(GoneError) as caught:
                receiver.get(key, source="thinker", timeout=PATIENCE_S)
            assert caught.value.reason is Reason.EXPIRED

    def test_a_live_key_is_not_put_twice_unless_replaced(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """The first one is untouched by the refusal."""
        sender.put("key", SMALL, to="talker")
        with pytest.raises(DuplicateKeyError):
            sender.put("key", LARGE, to="talker")
        assert sender.put("other", LARGE, to="talker").generation
        with receiver.get("key", source="thinker") as payload:
            assert same(payload.value, SMALL)
        sender.put("new", LARGE, to="talker")
        second = sender.put("new", SMALL, to="talker", replace=True)
        payload = receiver.get("new", metadata=second.metadata)
        assert same(payload.value, SMALL)
        sender.withdraw("other", to="talker")
        assert eventually(lambda: is_whole(sender))

    def test_a_full_pool_refuses_in_time_and_recovers(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """A put waits for room as long as it is told, not longer."""
        with pytest.raises(CapacityError) as caught:
            sender.put("huge", bytes(2 * POOL), to="talker")
        assert caught.value.never_fits
        count = 0
        with pytest.raises(CapacityError) as caught:
            for count in range(100):
                sender.put(f"k{count}", LARGE, to="talker", timeout=0.05)
        assert not caught.value.never_fits
        waiter = Waiter(lambda: sender.put("last", LARGE, to="talker", timeout=PATIENCE_S))
        for index in range(count):
            with receiver.get(f"k{index}", source="thinker") as payload:
                assert same(payload.value, LARGE)
        assert waiter.join().error is None
        assert same(receiver.get("last", source="thinker").value, LARGE)
