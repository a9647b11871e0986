"""What a whole connector promises, over any backend. Subclass, give ``backend``, run pytest.

class TestMine(ConnectorContract):
    @pytest.fixture
    def backend(self):
        return "mine"

Payloads are bytes and arrays of the standard library, so the suite needs neither torch nor numpy.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink import ClosedError, DeadlineError, GoneError, PeerError, StagelinkError
from stagelink.core.errors import (
    CapacityError,
    ConfigError,
    DuplicateKeyError,
    ForkedError,
    LeaseError,
    Reason,
)  # fmt: skip
from stagelink.plugins.conformance.calls import CallsContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector
    from stagelink.payload import Payload

PATIENCE_S = 10.0
POOL = 8 << 20
SMALL = bytes(range(256)) * 4
LARGE = bytes(range(251)) * 4200  # about a megabyte, no multiple of a page
TIMEOUTS = {"transfer_base_s": 20.0, "close_s": 1.0}

Open = Callable[..., "Connector"]


class Waiter:
    """A call on a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: StagelinkError | None = None
        self.took_s = 0.0
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start_s = time.monotonic()
        try:
            self.result = self._call()
        except StagelinkError as error:
            self.error = error
        self.took_s = time.monotonic() - start_s

    def join(self, patience_s: float = PATIENCE_S) -> Waiter:
        """Wait for the call to end."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "the call never ended"
        return self


def eventually(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether *holds* comes true in time."""
    until_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


def polled(receiver: Connector, key: str) -> Payload:
    """What poll finds, sooner or later."""
    found: list[Payload | None] = [None]

    def look() -> bool:
        found[0] = receiver.poll(key, source="thinker")
        return found[0] is not None

    assert eventually(look)
    assert found[0] is not None
    return found[0]


def is_whole(connector: Connector) -> bool:
    """Whether every byte of the pool is free again, and nothing is under way."""
    health = connector.health()
    pool, ledger = health["pool"], health["ledger"]
    return (
        pool["free"] == pool["capacity"]
        and not pool["blocks"]
        and not ledger["leases"]
        and not health["inbox"]["gets"]
    )


def waits(connector: Connector, gets: int = 1) -> bool:
    """Whether so many gets wait at *connector*."""
    return eventually(lambda: connector.health()["inbox"]["gets"] == gets)


def is_linked(connector: Connector) -> bool:
    """Whether *connector* talks with its sender: until then a get just waits for one to start."""
    return eventually(
        lambda: any(row["state"] == "open" for row in connector.health()["sessions"])
    )


def same(value: Any, expected: bytes) -> bool:  # noqa: ANN401 - whatever came
    """Whether *value* is those bytes, in whatever type."""
    return bytes(value) == expected


class ConnectorContract(CallsContract):
    """One sender, its receivers, one process; see the chaos tests for deaths."""

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
            assert payload.value["data"] == content
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
        """Not before, and hardly after."""
        sender.put("warm", SMALL, to="talker")
        receiver.get("warm", source="thinker").close()
        for timeout_s in (0.0, 0.2):
            start_s = time.monotonic()
            with pytest.raises(DeadlineError, match="never"):
                receiver.get("never", source="thinker", timeout=timeout_s)
            assert timeout_s <= time.monotonic() - start_s < timeout_s + 0.5
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

    # --- several readers -----------------------------------------------------------------

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_two_readers_each_get_it_and_then_it_is_free(
        self, sender: Connector, receive: Open, content: bytes
    ) -> None:
        """The memory is the sender's again after the last."""
        receivers = [receive(replica=replica) for replica in (0, 1)]
        sender.put("key", content, to="talker", readers=2)
        for receiver in receivers:
            with receiver.get("key", source="thinker") as payload:
                assert same(payload.value, content)
            del payload
        assert sender.drain(PATIENCE_S)
        assert eventually(lambda: all(map(is_whole, [sender, *receivers])))

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_of_two_receivers_one_gets_it_and_the_other_an_error(
        self, sender: Connector, receive: Open, content: bytes
    ) -> None:
        """readers=1 is one reader, whoever is first."""
        receivers = [receive(replica=replica) for replica in (0, 1)]
        waiters = [
            Waiter(partial(one.get, "key", source="thinker", timeout=2.0)) for one in receivers
        ]
        assert all(map(waits, receivers))
        sender.put("key", content, to="talker")
        for waiter in waiters:
            waiter.join()
        got = [waiter.result for waiter in waiters if waiter.error is None]
        assert len(got) == 1
        assert same(got[0].value, content)
        errors = [waiter.error for waiter in waiters if waiter.error]
        assert [error.reason for error in errors] <= [Reason.TAKEN]
        del got, waiters, waiter
        assert eventually(lambda: all(map(is_whole, [sender, *receivers])))

    # --- giving up -----------------------------------------------------------------------

    def test_a_cancelled_get_ends_at_once_and_another_may_follow(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """The payload is still there for it."""
        waiter = Waiter(lambda: receiver.get("key", source="thinker"))
        assert waits(receiver)
        assert receiver.cancel("key", source="thinker") == 1
        error = waiter.join(2.0).error
        assert isinstance(error, GoneError)
        assert error.reason is Reason.CANCELLED
        sender.put("key", LARGE, to="talker")
        assert same(receiver.get("key", source="thinker").value, LARGE)

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_a_rejected_key_frees_the_senders_memory(
        self, sender: Connector, receiver: Connector, content: bytes
    ) -> None:
        """Long before its time to live is over."""
        sender.put("warm", SMALL, to="talker")
        receiver.get("warm", source="thinker").close()
        sender.put("key", content, to="talker")
        assert eventually(lambda: receiver.health()["inbox"]["entries"] == 1)
        receiver.reject("key", source="thinker")
        assert eventually(lambda: not sender.health()["ledger"]["entries"])
        assert eventually(lambda: is_whole(sender))

    # --- views ---------------------------------------------------------------------------

    def test_a_view_outlives_its_payload_and_its_connectors(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Memory goes with the last view, whatever was closed before."""
        sender.put("key", memoryview(LARGE), to="talker")
        with receiver.get("key", source="thinker") as payload:
            view = payload.value
        with pytest.raises(LeaseError):
            _ = payload.value
        del payload
        assert receiver.health()["views"] == 1
        sender.put("next", memoryview(LARGE[::-1]), to="talker")
        assert same(receiver.get("next", source="thinker").value, LARGE[::-1])
        receiver.close()
        sender.close()
        assert same(view, LARGE)

    def test_the_last_view_gives_the_memory_back(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Without anybody's calling close."""
        sender.put("key", memoryview(LARGE), to="talker")
        view = receiver.get("key", source="thinker").value
        gc.collect()
        assert receiver.health()["views"] == 1
        assert not (is_whole(sender) and is_whole(receiver))
        del view
        gc.collect()
        assert eventually(lambda: is_whole(sender) and is_whole(receiver))

    def test_a_strict_close_refuses_while_a_view_lives(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """And closes when it has gone."""
        sender.put("key", memoryview(LARGE), to="talker")
        payload = receiver.get("key", source="thinker")
        view = payload.value
        with pytest.raises(LeaseError):
            payload.close(strict=True)
        del view
        payload.close(strict=True)

    # --- the end -------------------------------------------------------------------------

    def test_a_senders_close_reaches_a_waiting_get_within_a_second(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """As an error that says so, long before the deadline."""
        waiter = Waiter(lambda: receiver.get("key", source="thinker"))
        assert waits(receiver)
        assert is_linked(receiver)
        closer, start_s = Waiter(sender.close), time.monotonic()
        error = waiter.join().error
        assert time.monotonic() - start_s < 1.0
        closer.join()
        assert isinstance(error, (PeerError, GoneError))
        assert "the sender closed" in str(error)
        assert is_whole(receiver)

    def test_a_new_sender_at_the_same_address_serves_new_gets(
        self, opened: Open, sender: Connector, receiver: Connector
    ) -> None:
        """The receiver finds it without being told."""
        sender.put("key", LARGE, to="talker")
        receiver.get("key", source="thinker").close()
        where = self._address_settings(sender)
        if where is None:
            pytest.skip("this channel has no address that could be taken again")
        sender.close()
        again = opened(stage="thinker", role="sender", **where)
        again.put("new", LARGE, to="talker")
        payload = self._get_from_restarted(receiver, "new")
        assert same(payload.value, LARGE)

    @staticmethod
    def _address_settings(connector: Connector) -> dict[str, Any] | None:
        host, _, port = connector.endpoint.rpartition(":")
        return {"zmq_port": int(port)} if host.startswith("tcp://") else None

    @staticmethod
    def _get_from_restarted(receiver: Connector, key: str) -> Any:  # noqa: ANN401
        """The first get or two may still be answered with the old one's end."""
        for _ in range(20):
            try:
                return receiver.get(key, source="thinker", timeout=PATIENCE_S)
            except PeerError:
                time.sleep(0.05)
        msg = "the restarted sender was never found"
        raise AssertionError(msg)

    def test_a_close_ends_a_get_that_waits_beside_it(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """With ClosedError, soon."""
        del sender
        waiters = [Waiter(lambda: receiver.get("key", source="thinker")) for _ in range(2)]
        assert waits(receiver, 2)
        start_s = time.monotonic()
        receiver.close()
        assert time.monotonic() - start_s < TIMEOUTS["close_s"] + 1.0
        for waiter in waiters:
            assert isinstance(waiter.join(1.0).error, ClosedError)

    def test_a_closed_connector_says_so_and_closes_twice(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Every call, with the same error."""
        for connector in (receiver, sender):
            connector.close()
            connector.close()
        for call in (
            lambda: sender.put("key", SMALL, to="talker"),
            lambda: sender.put("key", LARGE, to="talker"),
            lambda: sender.fail("key", "x", to="talker"),
            lambda: sender.withdraw("key", to="talker"),
            lambda: receiver.get("key", source="thinker"),
            lambda: receiver.poll("key", source="thinker"),
            lambda: receiver.cancel("key", source="thinker"),
        ):
            with pytest.raises(ClosedError):
                call()
        assert sender.health()["status"] == "closed"

    def test_a_wrong_role_is_an_error_of_configuration(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """A sender does not get, a receiver does not put."""
        with pytest.raises(ConfigError):
            receiver.put("key", SMALL, to="talker")
        with pytest.raises(ConfigError):
            sender.get("key", source="thinker")

    def test_threads_and_descriptors_are_given_back(self, opened: Open) -> None:
        """What was opened is closed, every time."""

        def once() -> None:
            sender = opened(stage="thinker", role="sender")
            receiver = opened(stage="talker", role="receiver", sender=sender.endpoint)
            sender.put("key", LARGE, to="talker")
            receiver.get("key", source="thinker").close()
            receiver.close()
            sender.close()

        def leftovers() -> tuple[int, int]:
            gc.collect()
            return threading.active_count(), len(os.listdir("/proc/self/fd"))

        once()
        before = leftovers()
        once()
        assert eventually(lambda: leftovers() <= before)

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    def test_a_forked_child_is_told_and_the_parent_goes_on(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """The child has neither our threads nor our sockets."""
        sender.put("key", SMALL, to="talker")
        child = os.fork()
        if child == 0:
            os._exit(self._calls_refused(sender, receiver))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        sender.put("large", LARGE, to="talker")
        assert same(receiver.get("key", source="thinker").value, SMALL)
        assert same(receiver.get("large", source="thinker").value, LARGE)

    @staticmethod
    def _calls_refused(sender: Connector, receiver: Connector) -> int:
        """In the child: how many calls were not refused as they must be."""
        wrong = 0
        for call in (
            lambda: sender.put("other", SMALL, to="talker"),
            lambda: receiver.get("key", source="thinker"),
            lambda: receiver.poll("key", source="thinker"),
        ):
            try:
                call()
                wrong += 1
            except ForkedError:
                pass
            except BaseException:  # noqa: BLE001 - the child reports by its exit status alone
                wrong += 1
        sender.close()
        receiver.close()
        return wrong
