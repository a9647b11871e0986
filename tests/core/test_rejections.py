"""What a receiver rejects before it has come, and what it takes for lost, over one sender's words."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import (
    Await,
    CancelKey,
    Complete,
    Connected,
    Delivery,
    Disconnected,
    Failure,
    Fence,
    Fenced,
    Get,
    Poll,
    Probe,
    Probed,
    Received,
    Send,
    TimePassed,
)
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import (
    ERROR,
    INLINE,
    PULL,
    Ack,
    Announce,
    Bye,
    Done,
    Ended,
    Gone,
    Packet,
    Synced,
    Welcome,
)
from stagelink.core.pool import Pool
from stagelink.core.rejections import REJECTED_KEYS
from stagelink.core.settings import Settings
from stagelink.core.streams import End, Progress, first_key
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.messages import ToReceiver

WHERE, STAGE = "tcp://talker", "talker"
ONE, OTHER = b"1" * 16, b"2" * 16
PLANE = PlaneCard("shm", "write", b"")


class Receiver:
    """A receiver's endpoint, and the sender's side of its conversation by hand."""

    def __init__(self) -> None:
        settings = Settings(
            instance=b"r" * 16, identity=Identity("code2wav"), host=HostCard("host", "proof"),
            planes=(OwnPlane(PLANE, False),), policy=TimeoutPolicy(), inline_bytes=100,
            max_writes=1, session_base=0, can_fence=False,
        )  # fmt: skip
        self.machine = Endpoint(settings, Pool(8 * 4096, pool_id=1))
        self.now_s = 0.0
        self._tickets = count(1)
        self.ask(Get(0, WHERE, STAGE, "other", 0, 1e9))
        self.meet(ONE)

    def meet(self, instance: bytes) -> None:
        """*instance* answers at the address."""
        self.handle(Connected(WHERE))
        self.session = self.source.session.number
        self._sequence = count()
        self.say(Welcome(instance, Identity(STAGE), HostCard("host", "proof"), PLANE, True))
        self.say(Synced(0))
        self._numbers = count(1)

    @property
    def source(self) -> Any:
        return self.machine.incoming.sources[WHERE]

    def handle(self, event: Any) -> list[Action]:
        return self.machine.handle(event, self.now_s)

    def ask(self, command: Any) -> Any:
        """The answer to a call, or None while it waits."""
        ticket = next(self._tickets)
        return self.answers(self.handle(command._replace(ticket=ticket))).get(ticket)

    @staticmethod
    def answers(actions: list[Action]) -> dict[int, Any]:
        return {one.ticket: one.result for one in actions if isinstance(one, Complete)}

    def say(self, message: ToReceiver) -> list[Any]:
        """The sender says *message*; what calls were answered by it."""
        packet = Packet(self.session, next(self._sequence), None, message)
        return list(self.answers(self.handle(Received(WHERE, packet))).values())

    def announce(self, key: str, generation: int, *, error: str = "") -> list[Any]:
        body, how = (error.encode(), ERROR) if error else (b"body", INLINE)
        size = 0 if error else len(body)
        return self.say(Announce(next(self._numbers), key, generation, size, how, None, body))

    def gone(self, key: str, generation: int, reason: str) -> list[Any]:
        record = Gone(next(self._numbers), key, generation, reason, "so it is")
        return self.say(Ended((record,)))

    def get(self, key: str, instance: bytes = b"") -> Any:
        return self.ask(Get(0, WHERE, STAGE, key, 0, 1e9, 0, instance))

    def reject(self, name: str, instance: bytes = b"") -> None:
        self.ask(CancelKey(0, WHERE, STAGE, name, True, instance))

    def consumed(self) -> list[int]:
        """The generations that the next report counts, when it is due."""
        self.now_s += 1.0
        acks = [
            action.message.message
            for action in self.handle(TimePassed())
            if isinstance(action, Send) and isinstance(action.message, Packet)
        ]
        return [generation for ack in acks if isinstance(ack, Ack) for generation in ack.consumed]


FIRST = first_key("k")
STREAM = Progress("k", 5)
ONE_CHUNK = Progress("k", 5, 1)


def chunk(number: int) -> str:
    return Progress("k", 5, number).next_key


def test_a_rejected_stream_covers_what_is_known_and_what_comes_until_its_end() -> None:
    world = Receiver()
    world.announce(FIRST, 5)
    assert isinstance(world.get(FIRST), Delivery)
    world.announce(chunk(1), 6)

    world.reject(STREAM.name, ONE)
    world.announce(chunk(2), 7)
    world.announce(chunk(3), 8, error=End(3, 12).text)

    assert world.consumed() == [5, 6, 7, 8]
    assert not world.source.rejected
    assert not len(world.source.inbox)


def test_a_stream_rejected_before_it_begins_is_rejected_whole() -> None:
    world = Receiver()
    world.reject(FIRST)

    world.announce(FIRST, 5)
    world.announce(chunk(1), 6)

    assert world.consumed() == [5, 6]
    assert list(world.source.rejected) == [STREAM.name]


def test_a_stream_rejected_when_only_its_first_chunk_is_known_is_rejected_whole() -> None:
    world = Receiver()
    world.announce(FIRST, 5)

    world.reject(FIRST)
    world.announce(chunk(1), 6)

    assert world.consumed() == [5, 6]


def test_a_rejected_stream_that_turns_out_empty_is_not_remembered() -> None:
    world = Receiver()
    world.reject(FIRST)

    world.announce(FIRST, 5, error=End(0, 0).text)

    assert world.consumed() == [5]
    assert not world.source.rejected


def test_the_next_stream_of_a_rejected_ones_key_is_wanted() -> None:
    world = Receiver()
    world.reject(STREAM.name, ONE)

    world.announce(FIRST, 9)
    world.announce(Progress("k", 9, 1).next_key, 10)

    assert world.consumed() == []
    assert isinstance(world.get(FIRST), Delivery)


def test_who_asks_again_is_not_served_by_an_old_rejection() -> None:
    world = Receiver()
    world.reject(FIRST)

    assert world.get(FIRST) is None
    [answer] = world.announce(FIRST, 5)

    assert isinstance(answer, Delivery)


def test_a_rejection_is_of_one_instances_stream() -> None:
    world = Receiver()
    world.reject(STREAM.name, ONE)
    world.reject("ordinary")
    world.handle(Disconnected(WHERE, "cut"))
    world.meet(OTHER)

    assert list(world.source.rejected) == ["ordinary"]
    world.reject(STREAM.name, ONE)
    assert list(world.source.rejected) == ["ordinary"]


def test_rejections_are_bounded_and_survive_a_freeze() -> None:
    world = Receiver()
    for generation in range(REJECTED_KEYS + 5):
        world.reject(Progress("k", generation + 1).name, ONE)

    assert len(world.source.rejected) == REJECTED_KEYS
    frozen = world.machine.freeze(0.0)
    assert Endpoint.thaw(world.machine.settings, frozen).freeze(0.0) == frozen


@pytest.mark.parametrize("reason", ["expired", "taken", "withdrawn"])
def test_a_lost_chunk_ends_a_get_that_comes_later(reason: str) -> None:
    world = Receiver()
    world.announce(chunk(1), 6)
    world.announce(chunk(2), 7)
    world.gone(chunk(2), 7, reason)

    assert isinstance(world.get(chunk(1), ONE), Delivery)
    for number in (2, 3):
        answer = world.get(chunk(number), ONE)
        assert isinstance(answer, Failure)
        assert answer.reason == reason


def test_a_lost_chunk_ends_the_get_that_waits_for_it() -> None:
    world = Receiver()
    assert world.get(chunk(1), ONE) is None

    [answer] = world.gone(chunk(1), 6, "taken")

    assert isinstance(answer, Failure)
    assert answer.reason == "taken"


def test_a_chunk_that_was_used_is_not_lost_when_it_leaves() -> None:
    world = Receiver()
    for number, reason in ((1, "taken"), (2, "expired")):
        world.announce(chunk(number), 5 + number)
        assert isinstance(world.get(chunk(number), ONE), Delivery)
        world.gone(chunk(number), 5 + number, reason)

    assert world.get(chunk(3), ONE) is None
    assert not world.source.recent


def test_lost_chunks_of_one_stream_are_one_memory() -> None:
    world = Receiver()
    for number in range(1, 50):
        world.announce(chunk(number), 5 + number)
        world.gone(chunk(number), 5 + number, "expired")

    assert list(world.source.recent) == [STREAM.name]


def test_a_get_of_an_instance_that_is_gone_fails_at_once() -> None:
    world = Receiver()
    world.handle(Disconnected(WHERE, "cut"))
    assert world.get(chunk(1), ONE) is None, "it may heal"
    world.now_s += 1.0
    world.handle(TimePassed())

    answer = world.get(chunk(1), ONE)
    assert isinstance(answer, Failure)
    assert answer.reason == "unreachable"
    world.machine.peers.proved_dead(ONE, world.now_s)
    world.now_s += 1.0
    world.handle(TimePassed())
    world.handle(Fenced(ONE, True))
    answer = world.get(chunk(1), ONE)
    assert isinstance(answer, Failure)
    assert answer.reason == "peer_gone"
    assert world.get("anything") is None, "a new sender may come"


def dead() -> Receiver:
    """A receiver whose sender is known to be dead, with nobody in its place."""
    world = Receiver()
    world.handle(Disconnected(WHERE, "cut"))
    world.machine.peers.proved_dead(ONE, world.now_s)
    world.now_s += 1.0
    world.handle(TimePassed())
    world.handle(Fenced(ONE, True))
    return world


def test_a_get_after_a_death_waits_for_a_successor_and_no_longer() -> None:
    world = dead()
    assert world.get("anything") is None

    world.now_s += TimeoutPolicy().successor_s
    [answer] = world.answers(world.handle(TimePassed())).values()

    assert isinstance(answer, Failure)
    assert answer.reason == "peer_gone"
    assert "dead" in answer.detail
    assert world.get("anything") is None, "each get gives it that time"


def test_a_wait_after_a_death_waits_for_a_successor_and_no_longer() -> None:
    world = dead()
    assert world.ask(Await(0, WHERE, STAGE, ("k", "l"), 1e9)) is None

    world.now_s += TimeoutPolicy().successor_s
    [answer] = world.answers(world.handle(TimePassed())).values()

    assert isinstance(answer, Failure)
    assert answer.reason == "peer_gone"


def test_a_deadline_before_that_names_the_death_too() -> None:
    world = dead()
    early_s = world.now_s + TimeoutPolicy().successor_s / 2
    assert world.ask(Get(0, WHERE, STAGE, "k", 0, early_s)) is None

    world.now_s = early_s
    [answer] = world.answers(world.handle(TimePassed())).values()

    assert isinstance(answer, Failure)
    assert answer.reason == "peer_gone"


def test_a_get_after_a_death_goes_on_with_a_successor() -> None:
    world = dead()
    assert world.get("k") is None
    world.meet(OTHER)

    world.now_s += TimeoutPolicy().successor_s
    assert world.answers(world.handle(TimePassed())) == {}
    [answer] = world.announce("k", 1)
    assert isinstance(answer, Delivery)


def test_a_get_hears_at_once_that_its_sender_has_closed() -> None:
    world = Receiver()
    assert world.get("k") is None
    assert world.ask(Await(0, WHERE, STAGE, ("k", "l"), 1e9)) is None

    other, *answers = world.say(Bye())  # the get that the world began with

    assert [other.reason, *(one.reason for one in answers)] == ["peer_gone"] * 3
    assert {one.detail for one in answers} == {"the sender closed"}
    assert world.get("k") is None, "a new sender may come"
    world.now_s += TimeoutPolicy().successor_s
    [answer] = world.answers(world.handle(TimePassed())).values()
    assert (answer.reason, answer.detail) == ("peer_gone", "the sender closed")


def test_a_get_of_a_closed_instance_fails_at_once() -> None:
    world = Receiver()
    world.say(Bye())

    answer = world.get(chunk(1), ONE)

    assert (answer.reason, answer.detail) == ("peer_gone", "the sender closed")


def test_a_goodbye_ends_no_transfer_and_frees_nothing() -> None:
    world = Receiver()
    world.say(Announce(1, "k", 6, 4096, PULL, None, b""))
    assert world.get("k") is None  # it is pulling

    [_] = world.say(Bye())  # the get that the world began with
    [answer] = world.say(Done(1, 6, 4096))

    assert isinstance(answer, Delivery)


def test_the_end_of_who_has_said_goodbye_is_known_as_such() -> None:
    world = Receiver()
    world.say(Bye())
    [probe] = [a for a in world.handle(Disconnected(WHERE, "cut")) if isinstance(a, Probe)]
    assert probe.left
    world.handle(Probed(ONE, True))
    world.now_s += 1.0
    [fence] = [a for a in world.handle(TimePassed()) if isinstance(a, Fence)]
    assert fence.left
    assert fence.dead
    world.handle(Fenced(ONE, True))
    assert world.source.gone == "the sender closed"

    world.meet(OTHER)

    assert world.source.gone == ""
    [probe] = [a for a in world.handle(Disconnected(WHERE, "cut")) if isinstance(a, Probe)]
    assert not probe.left


def test_a_death_survives_a_freeze() -> None:
    world = dead()
    machine = Endpoint.thaw(world.machine.settings, world.machine.freeze(world.now_s), world.now_s)

    assert machine.incoming.sources[WHERE].gone == world.source.gone != ""


def test_a_poll_takes_nothing_of_another_instance() -> None:
    world = Receiver()
    world.announce(chunk(1), 6)

    assert world.ask(Poll(0, WHERE, STAGE, chunk(1), 1e9, OTHER)) is None
    assert isinstance(world.ask(Poll(0, WHERE, STAGE, chunk(1), 1e9, ONE)), Delivery)


def test_the_end_of_a_stream_is_told_to_the_sender_at_once() -> None:
    world = Receiver()
    world.get(ONE_CHUNK.next_key, ONE)
    packet = Packet(
        world.session, next(world._sequence), None,
        Announce(1, ONE_CHUNK.next_key, 6, 0, ERROR, None, End(1, 4).text.encode()),
    )  # fmt: skip

    sent = [one for one in world.handle(Received(WHERE, packet)) if isinstance(one, Send)]

    assert [one.message.message for one in sent if isinstance(one.message, Packet)] == [Ack((6,))]
