"""How connectors end, and what they refuse, as every one keeps it.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.core.errors import (
    ClosedError,
    ConfigError,
    ForkedError,
    GoneError,
    PeerError,
)  # fmt: skip
from stagelink.plugins.conformance.kit import (
    AT_ONCE_S,
    LARGE,
    PATIENCE_S,
    SMALL,
    TIMEOUTS,
    Open,
    Waiter,
    eventually,
    is_linked,
    is_whole,
    same,
    waits,
)  # fmt: skip

if TYPE_CHECKING:
    from stagelink.connector import Connector


class EndsContract:
    """Needs the fixtures of :class:`ConnectorContract`."""

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
        assert time.monotonic() - start_s < AT_ONCE_S
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
        assert time.monotonic() - start_s < TIMEOUTS["close_s"] + AT_ONCE_S
        for waiter in waiters:
            assert isinstance(waiter.join().error, ClosedError)

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
