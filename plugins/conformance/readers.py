"""Several readers, gets that are given up and views, as every connector keeps them.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.core.errors import GoneError, LeaseError, Reason
from stagelink.plugins.conformance.kit import (
    LARGE,
    PATIENCE_S,
    SMALL,
    Open,
    Waiter,
    eventually,
    is_whole,
    same,
    waits,
)  # fmt: skip

if TYPE_CHECKING:
    from stagelink.connector import Connector


def serves(sender: Connector, readers: int) -> bool:
    """Whether so many readers are there."""
    rows = sender.health()["sessions"]
    there = [row for row in rows if row["direction"] == "out" and row["state"] == "open"]
    return len(there) == readers


class ReadersContract:
    """Needs the fixtures of :class:`ConnectorContract`."""

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
            Waiter(partial(one.get, "key", source="thinker", timeout=PATIENCE_S))
            for one in receivers
        ]
        assert all(map(waits, receivers))
        assert eventually(lambda: serves(sender, 2))  # else one may have it before the other comes
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
        error = waiter.join().error
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

    def viewed(self) -> Any:  # noqa: ANN401 - whatever can be put
        """A large value that comes as a view; override it where memoryviews come as copies."""
        return memoryview(LARGE)

    def test_the_last_view_gives_the_memory_back(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Without anybody's calling close."""
        sender.put("key", self.viewed(), to="talker")
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
        sender.put("key", self.viewed(), to="talker")
        payload = receiver.get("key", source="thinker")
        view = payload.value
        with pytest.raises(LeaseError):
            payload.close(strict=True)
        del view
        payload.close(strict=True)
