"""Gets given up at any moment, and generations that are over, as every connector keeps them.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import DeadlineError, GoneError, Reason
from stagelink.plugins.conformance.kit import (
    LARGE,
    PATIENCE_S,
    SMALL,
    Waiter,
    eventually,
    is_whole,
    same,
    waits,
)  # fmt: skip

if TYPE_CHECKING:
    from stagelink.connector import Connector

ROUNDS = 40
LONGEST_S = 0.004
"""A hand-off of a megabyte is over by then, mostly."""


class AbortsContract:
    """Needs the fixtures of :class:`ConnectorContract`."""

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_a_get_may_be_cancelled_at_any_moment(
        self, sender: Connector, receiver: Connector, content: bytes
    ) -> None:
        """Before, during and after its transfer: the bytes come to it or the next one, whole."""
        chance = random.Random(5)  # noqa: S311 - moments, no secret
        for number in range(ROUNDS):
            self._abort(sender, receiver, f"k{number}", content, chance.uniform(0.0, LONGEST_S))
        assert sender.drain(PATIENCE_S)
        assert eventually(lambda: is_whole(sender) and is_whole(receiver))

    @staticmethod
    def _abort(
        sender: Connector, receiver: Connector, key: str, content: bytes, after_s: float
    ) -> None:
        waiter = Waiter(partial(receiver.get, key, source="thinker", timeout=PATIENCE_S))
        assert waits(receiver)
        sender.put(key, content, to="talker")
        time.sleep(after_s)
        receiver.cancel(key, source="thinker")
        payload, error = waiter.join().result, waiter.error
        if error is not None:
            assert isinstance(error, GoneError)
            assert error.reason is Reason.CANCELLED
            payload = receiver.get(key, source="thinker", timeout=PATIENCE_S)
        is_right = same(payload.value, content)
        assert is_right, f"{key}, given up after {after_s:.6f} s"
        payload.close()

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    def test_a_key_of_old_never_brings_the_bytes_of_a_new_one(
        self, sender: Connector, receiver: Connector, content: bytes
    ) -> None:
        """The metadata names one generation: when that is over, nothing else is meant."""
        old = sender.put("key", content, to="talker")
        assert sender.withdraw("key", to="talker")
        new = sender.put("key", content[::-1], to="talker")
        with pytest.raises((GoneError, DeadlineError)):
            receiver.get("key", metadata=old.metadata, timeout=0.3)
        payload = receiver.get("key", metadata=new.metadata, timeout=PATIENCE_S)
        assert payload.generation == new.generation > old.generation
        is_right = same(payload.value, content[::-1])
        assert is_right
