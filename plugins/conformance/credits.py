"""Blocks that a receiver lends its sender, where the plane writes, as every connector keeps it.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.plugins.conformance.deaths import WHOLE_S, body
from stagelink.plugins.conformance.kit import (
    LARGE,
    LENDS_S,
    PATIENCE_S,
    POOL,
    Open,
    eventually,
    is_whole,
    polled,
    same,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.connector import Connector
    from stagelink.plugins.conformance.elsewhere import Elsewhere

SIZE = POOL // 64
"""Of one payload: some of these can be lent at once."""

PUTS = 20


def met(sender: Connector, receiver: Connector, size: int = SIZE) -> bool:
    """Move one payload; whether its like may be written into what is lent from now on."""
    sender.put("first", body("first", size), to="talker")
    assert same(receiver.get("first", source="thinker").value, body("first", size))
    if not receiver.health()["credits"]["takers"]:
        return False
    assert eventually(lambda: sender.health()["credits"]["borrowed_blocks"])
    return True


def used(sender: Connector) -> int:
    """How many puts were written into lent blocks."""
    return int(sender.health()["credits"]["used"])


def lent(receiver: Connector) -> int:
    """How many bytes are lent."""
    return int(receiver.health()["credits"]["lent_bytes"])


class CreditsContract:
    """Needs the fixtures of :class:`ConnectorContract`."""

    def test_puts_go_where_the_reader_has_lent_room_and_come_whole(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """Payloads of all sizes, each as it was put; those that fit need no pull."""
        lends = met(sender, receiver)
        for number in range(PUTS):
            size = SIZE - number % 3 * (SIZE // 8)
            key = f"key{number}"
            assert not lends or eventually(lambda: sender.health()["credits"]["borrowed_blocks"])
            sender.put(key, body(key, size), to="talker")
            assert same(receiver.get(key, source="thinker").value, body(key, size))
        assert (2 * used(sender) >= PUTS) == lends
        assert sender.drain(PATIENCE_S)
        assert eventually(lambda: is_whole(sender) and is_whole(receiver))

    def test_a_poll_finds_what_was_written_there(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """As it finds anything else."""
        lends = met(sender, receiver)
        sender.put("key", body("key", SIZE), to="talker")
        assert same(polled(receiver, "key").value, body("key", SIZE))
        assert (used(sender) == 1) == lends

    def test_more_puts_than_are_lent_all_arrive(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """The others are announced, and none waits for a block to be lent."""
        lends = met(sender, receiver)
        keys = [f"key{number}" for number in range(30)]
        for key in keys:
            sender.put(key, body(key, SIZE), to="talker", timeout=0)
        for key in reversed(keys):
            assert same(receiver.get(key, source="thinker").value, body(key, SIZE))
        assert (0 < used(sender) < len(keys)) == lends

    def test_a_payload_of_most_of_the_pool_finds_room_beside_what_is_lent(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """What is lent, or holds what nobody has asked for, gives way."""
        met(sender, receiver)
        for number in range(4):
            sender.put(f"key{number}", body("key", SIZE), to="talker")
        huge = bytes(POOL * 5 // 8)
        sender.put("huge", huge, to="talker")
        assert same(receiver.get("huge", source="thinker").value, huge)
        for number in range(4):
            got = receiver.get(f"key{number}", source="thinker")
            assert same(got.value, body("key", SIZE))

    def test_what_landed_and_was_withdrawn_or_cancelled_is_free_again(
        self, sender: Connector, receiver: Connector
    ) -> None:
        """And so is what stays lent, once it has not been used for a while."""
        met(sender, receiver)
        for key in ("withdrawn", "cancelled"):
            sender.put(key, body(key, SIZE), to="talker")
        sender.withdraw("withdrawn", to="talker")
        receiver.cancel("cancelled", source="thinker")
        sender.withdraw("cancelled", to="talker")
        assert eventually(lambda: is_whole(receiver) and is_whole(sender))

    def test_what_is_lent_and_not_used_comes_back(self, sender: Connector, receive: Open) -> None:
        """After ``credit_idle_s``."""
        receiver = receive(timeouts={"credit_idle_s": 0.2})
        met(sender, receiver)
        assert eventually(lambda: not lent(receiver))
        assert eventually(lambda: is_whole(receiver))
        assert not sender.health()["credits"]["borrowed_blocks"]

    def test_either_side_may_do_without(self, opened: Open) -> None:
        """And everything is pulled or mapped as ever."""
        for ours, theirs in ((True, False), (False, True)):
            sender = opened(stage="thinker", role="sender", credits=ours)
            where = {"role": "receiver", "sender": sender.endpoint}
            receiver = opened(stage="talker", credits=theirs, **where)
            assert not met(sender, receiver)
            sender.put("key", LARGE, to="talker")
            assert same(receiver.get("key", source="thinker").value, LARGE)
            assert used(sender) == lent(receiver) == 0
            receiver.close()
            sender.close()

    def test_a_sender_that_dies_takes_nothing_of_what_was_lent_to_it(
        self, far_sender: tuple[Elsewhere, str], opened: Open
    ) -> None:
        """All of it is free soon, also what was being written into."""
        process, endpoint = far_sender
        receiver = opened(stage="talker", role="receiver", sender=endpoint)
        process.ask("put", "first", SIZE)
        receiver.get("first", source="thinker").close()
        process.ask("put", "second", SIZE)
        process.kill()
        assert eventually(lambda: not lent(receiver) and is_whole(receiver), WHOLE_S)

    def test_a_reader_that_dies_leaves_a_sender_that_serves_the_next(
        self, sender: Connector, stage: Callable[..., tuple[Elsewhere, str]], opened: Open
    ) -> None:
        """Though blocks of the dead are lent to it."""
        far = {"stage": "talker", "role": "receiver", "sender": sender.endpoint}
        process, _ = stage(**far)
        sender.put("first", body("first", SIZE), to="talker")
        assert process.ask("get", "first", PATIENCE_S) == ""
        eventually(lambda: sender.health()["credits"]["borrowed_blocks"], LENDS_S)
        process.kill()
        sender.put("key", body("key", SIZE), to="talker")
        heir = opened(**far)
        assert same(heir.get("key", source="thinker").value, body("key", SIZE))
        # The same once the dead one has been cut off.
        assert eventually(lambda: len(sender.health()["sessions"]) == 1, WHOLE_S)
        sender.put("next", body("next", SIZE), to="talker")
        assert same(heir.get("next", source="thinker").value, body("next", SIZE))
