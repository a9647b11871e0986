"""A peer that falls silent keeps its share of the pool, and no more; all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagelink.core import events as ev
from stagelink.core.blocks import RECEIVE as RECEIVING
from stagelink.core.endpoint import Endpoint
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import (
    CLAIM,
    OFFER,
    PULL,
    Ack,
    Announce,
    Done,
    Hello,
    Offer,
    Packet,
    Pull,
    Refused,
    Report,
    Subscribe,
    Welcome,
)
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = 4096
PAGES = 64
RECEIVE = 48
"""Pages that one direction may use: all but the other's floor."""

SHARE = 0.5
WAIT_S = 10.0


def endpoint(mode: str, share: float = SHARE) -> Endpoint:
    """A connector of stage "b" whose pool has ``PAGES``."""
    settings = Settings(
        instance=b"i" * 16, identity=Identity("b"), host=HostCard("host", "proof"),
        planes=(OwnPlane(PlaneCard("plane", mode, b""), crosses_hosts=False),),
        policy=TimeoutPolicy(), inline_bytes=100, max_writes=4, session_base=0, can_fence=False,
        peer_share=share,
    )  # fmt: skip
    return Endpoint(settings, Pool(PAGES * PAGE, pool_id=1))


def answers(actions: Iterable[ev.Action]) -> dict[int, Any]:
    """What calls were answered, by ticket."""
    return {a.ticket: a.result for a in actions if isinstance(a, ev.Complete)}


class Reach(NamedTuple):
    """A pull that has not ended: what its sender may still write to."""

    transfer: int
    generation: int
    size: int


class Sender:
    """The far end of a conversation, played by hand; ``reach`` is what it may write to."""

    def __init__(self, machine: Endpoint, name: str) -> None:
        self.machine, self.address, self.instance = machine, name, name.encode() * 16
        self.session = self.sent = self.generation = self.tickets = 0
        self.speaks = True
        self.reach: list[Reach] = []
        self.handle(ev.Poll(ord(name), name, "a", "nothing", 0.0), 0.0)  # which dials
        self.connect(0.0)

    def get_of(self, key: str, now_s: float, wait_s: float = WAIT_S) -> ev.Get:
        """A call for *key*; tickets of senders do not meet."""
        self.tickets += 1
        ticket = self.tickets * 100 + ord(self.address)
        return ev.Get(ticket, self.address, "a", key, 0, now_s + wait_s)

    def handle(self, event: Any, now_s: float) -> list[ev.Action]:
        """Let the machine take *event*; what it says to us is noted."""
        out = self.machine.handle(event, now_s)
        self.note(out)
        return out

    def note(self, actions: Iterable[ev.Action]) -> None:
        """Take in what is sent to us."""
        for action in actions:
            if not isinstance(action, ev.Send) or action.link != self.address:
                continue
            if isinstance(action.message, Hello):
                self.session, self.sent = action.message.session, 0
            elif isinstance(action.message, Packet) and isinstance(action.message.message, Pull):
                pull = action.message.message
                assert pull.target is not None
                ours = Reach(pull.transfer, pull.generation, pull.target.size)
                if ours not in self.reach:  # else said again after a cut
                    self.reach.append(ours)

    def say(self, message: Any, now_s: float) -> list[ev.Action]:
        """Send *message* in the present conversation."""
        packet = Packet(self.session, self.sent, None, message)
        self.sent += 1
        return self.handle(ev.Received(self.address, packet), now_s)

    def connect(self, now_s: float) -> None:
        """Open the conversation."""
        self.handle(ev.Connected(self.address), now_s)
        card, host = PlaneCard("plane", "write", b""), HostCard("host", self.address)
        self.say(Welcome(self.instance, Identity("a"), host, card, fresh=False), now_s)

    def announce(self, pages: int, now_s: float) -> str:
        """Publish a payload of so many pages under a fresh key."""
        self.generation += 1
        key = f"{self.address}{self.generation}"
        number = self.generation
        self.say(Announce(number, key, number, pages * PAGE, PULL, None, b""), now_s)
        return key

    def end(self, reach: Reach, now_s: float, *, well: bool) -> list[ev.Action]:
        """Say that a write is over."""
        self.reach.remove(reach)
        if well:
            return self.say(Done(reach.transfer, reach.generation, reach.size), now_s)
        return self.say(Refused(reach.transfer, "cancelled", ""), now_s)


class AnySilence(RuleBasedStateMachine):
    """One receiver, three senders, who fall silent when they like and speak again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = endpoint("write")
        self.now_s = 0.0
        self.senders = [Sender(self.machine, name) for name in "xyz"]
        self.waiting: dict[int, Sender] = {}
        self.views: list[int] = []
        self.take(self.machine.handle(ev.TimePassed(), self.now_s))

    def take(self, actions: list[ev.Action]) -> None:
        """Note what was sent and answered."""
        for sender in self.senders:
            sender.note(actions)
        for ticket, result in answers(actions).items():
            self.waiting.pop(ticket, None)
            if isinstance(result, ev.Delivery):
                self.views.append(result.handle)

    @rule(who=st.integers(0, 2), pages=st.integers(1, 30))
    def get(self, who: int, pages: int) -> None:
        sender = self.senders[who]
        if not sender.speaks:
            return
        key = sender.announce(pages, self.now_s)
        roomy = self.has_room(pages)
        idle = not sender.reach and not any(s is sender for s in self.waiting.values())
        call = sender.get_of(key, self.now_s)
        self.waiting[call.ticket] = sender
        self.take(sender.handle(call, self.now_s))

        if idle and roomy:
            assert sender.reach, "a sender that owes nothing is asked at once"

    def has_room(self, pages: int) -> bool:
        """Whether a block of so many pages could be had now, tried on a copy."""
        frozen = self.machine.freeze(self.now_s)
        copy = Endpoint.thaw(self.machine.settings, frozen, self.now_s)
        return isinstance(copy.pool.reserve(999, pages * PAGE, RECEIVING, 0.0, 0.0), Block)

    @rule(who=st.integers(0, 2), pages=st.integers(1, 30))
    def put_without_get(self, who: int, pages: int) -> None:
        if self.senders[who].speaks:
            self.senders[who].announce(pages, self.now_s)

    @rule(who=st.integers(0, 2), well=st.booleans())
    def write_ends(self, who: int, *, well: bool) -> None:
        sender = self.senders[who]
        if sender.speaks and sender.reach:
            self.take(sender.end(sender.reach[0], self.now_s, well=well))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop_a_get(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.take(self.machine.handle(ev.StopGet(ticket, "cancelled"), self.now_s))
        assert ticket not in self.waiting

    @precondition(lambda self: self.views)
    @rule()
    def drop_a_view(self) -> None:
        self.take(self.machine.handle(ev.Release(self.views.pop()), self.now_s))

    @rule(who=st.integers(0, 2))
    def fall_silent(self, who: int) -> None:
        self.senders[who].speaks = False

    @rule(who=st.integers(0, 2))
    def silence_is_noticed(self, who: int) -> None:
        sender = self.senders[who]
        if not sender.speaks:
            self.take(self.machine.handle(ev.Disconnected(sender.address, "silent"), self.now_s))

    @rule(seconds=st.sampled_from([0.1, 1.0, WAIT_S]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.machine.handle(ev.TimePassed(), self.now_s))

    @invariant()
    def nobody_has_more_than_a_share(self) -> None:
        for sender in self.senders:
            total = sum(reach.size for reach in sender.reach)
            assert len(sender.reach) <= 1 or total <= SHARE * RECEIVE * PAGE

    @invariant()
    def every_byte_that_may_be_written_is_counted(self) -> None:
        fetches = self.machine.incoming.fetches
        assert fetches.everywhere == sum(fetches.reached.values())
        for sender in self.senders:
            counted = fetches.reached.get(sender.instance, 0)
            assert counted >= sum(reach.size for reach in sender.reach)
        thawed = Endpoint.thaw(self.machine.settings, self.machine.freeze(self.now_s), self.now_s)
        assert thawed.incoming.fetches.reached == fetches.reached

    def teardown(self) -> None:
        """Everybody speaks again, and nothing is left."""
        for sender in self.senders:
            self.take(self.machine.handle(ev.Disconnected(sender.address, "cut"), self.now_s))
            sender.connect(self.now_s)
        self.end_all()
        self.now_s += WAIT_S
        self.take(self.machine.handle(ev.TimePassed(), self.now_s))
        for handle in self.views:
            self.machine.handle(ev.Release(handle), self.now_s)
        self.end_all()  # what a poll or a dropped view set free may have begun once more
        assert not self.waiting
        assert self.machine.pool.stats().free == PAGES * PAGE
        assert not self.machine.incoming.fetches.reached

    def end_all(self) -> None:
        """End what is under way, and what begins in its place, until nothing is."""
        for _ in range(200):
            busy = [sender for sender in self.senders if sender.reach]
            if not busy:
                return
            self.take(busy[0].end(busy[0].reach[0], self.now_s, well=False))


TestAnySilence = AnySilence.TestCase
TestAnySilence.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


# --- one silent sender, told in full ---------------------------------------------------------


def stuffed(machine: Endpoint) -> Sender:
    """A sender that has been silent since its share was under way; all those gets have ended."""
    sender = Sender(machine, "x")
    for pages in (10, 10, 4):
        key = sender.announce(pages, 0.0)
        sender.handle(sender.get_of(key, 0.0), 0.0)
    assert sum(reach.size for reach in sender.reach) == SHARE * RECEIVE * PAGE
    sender.machine.handle(ev.TimePassed(), WAIT_S)
    assert machine.pool.stats().quarantined == SHARE * RECEIVE * PAGE
    return sender


def test_beyond_its_share_a_get_waits_for_an_end_and_then_goes_on() -> None:
    machine = endpoint("write")
    sender = Sender(machine, "x")
    for pages in (20, 8):
        key = sender.announce(pages, 0.0)
        assert not answers(sender.handle(sender.get_of(key, 0.0), 0.0))
    assert [reach.size for reach in sender.reach] == [20 * PAGE]

    sender.end(sender.reach[0], 1.0, well=True)

    assert [reach.size for reach in sender.reach] == [8 * PAGE]


def test_a_get_that_leaves_the_queue_for_room_lets_the_next_one_try() -> None:
    machine = endpoint("write")
    most = machine.pool.reserve(999, 44 * PAGE, 0, 0.0, 0.0)
    assert isinstance(most, Block)
    sender = Sender(machine, "x")
    queued = sender.get_of(sender.announce(24, 0.0), 0.0, wait_s=1.0)
    small = sender.get_of(sender.announce(4, 0.0), 0.0)
    sender.handle(queued, 0.0)
    sender.handle(small, 0.0)
    assert not sender.reach
    assert machine.pool.stats().waiting == 1

    out = machine.handle(ev.TimePassed(), 1.0)
    sender.note(out)

    assert answers(out)[queued.ticket].reason == "no_room"
    assert [reach.size for reach in sender.reach] == [4 * PAGE]


def test_a_silent_sender_is_refused_with_bytes_and_age_and_nobody_else_is() -> None:
    machine = endpoint("write")
    silent, other = stuffed(machine), Sender(machine, "y")
    key = silent.announce(1, WAIT_S)
    machine.handle(ev.Disconnected("x", "silent"), WAIT_S)

    call = silent.get_of(key, WAIT_S)
    [refused] = answers(silent.handle(call, WAIT_S + 2.0)).values()

    assert isinstance(refused, ev.Failure)
    assert refused.reason == "quarantined"
    assert refused.detail == (
        "98304 bytes of this pool are in quarantine, in 3 blocks that the sender may still "
        "write to, the oldest for 2.0 s"
    )
    other.handle(other.get_of(other.announce(12, 20.0), 20.0), 20.0)
    assert [reach.size for reach in other.reach] == [12 * PAGE]


def test_until_its_silence_is_known_a_get_waits_for_its_deadline_which_tells_as_much() -> None:
    machine = endpoint("write")
    silent = stuffed(machine)
    call = silent.get_of(silent.announce(1, WAIT_S), WAIT_S, wait_s=1.0)
    assert not answers(silent.handle(call, WAIT_S))

    [late] = answers(machine.handle(ev.TimePassed(), WAIT_S + 1.0)).values()

    assert isinstance(late, ev.Failure)
    assert late.reason == "deadline"
    assert "98304 bytes of this pool are in quarantine" in late.detail


def test_a_sender_that_owes_the_end_of_a_transfer_for_long_is_silent_though_connected() -> None:
    machine = endpoint("write")
    silent = stuffed(machine)
    key, then_s = silent.announce(1, WAIT_S), WAIT_S + machine.settings.policy.silence_s

    before = answers(silent.handle(silent.get_of(key, then_s, wait_s=5.0), then_s - 0.1))
    after = answers(silent.handle(silent.get_of(key, then_s, wait_s=5.0), then_s))

    assert not before
    assert [result.reason for result in after.values()] == ["quarantined"] * 2  # both gets


def test_what_a_silent_sender_kept_comes_back_when_it_speaks_or_is_dead() -> None:
    machine = endpoint("write")
    silent = stuffed(machine)
    silent.end(silent.reach[0], WAIT_S, well=False)
    assert machine.pool.stats().quarantined == 14 * PAGE

    machine.handle(ev.Disconnected("x", "silent"), WAIT_S)
    machine.handle(ev.Probed(silent.instance, dead=True), WAIT_S)
    out = machine.handle(ev.TimePassed(), 2 * WAIT_S)
    assert ev.Fence(silent.instance, dead=True) in out
    machine.handle(ev.Fenced(silent.instance, fenced=True), 2 * WAIT_S)

    assert machine.pool.stats().free == PAGES * PAGE


def test_each_further_silent_sender_costs_a_share_of_what_the_others_left() -> None:
    machine = endpoint("write")
    costs = []
    for name in "xyz":
        sender = Sender(machine, name)
        for _ in range(RECEIVE):
            sender.handle(sender.get_of(sender.announce(1, 0.0), 0.0), 0.0)
        costs.append(len(sender.reach))

    assert costs == [24, 12, 6]


def test_a_payload_larger_than_the_share_still_comes_alone() -> None:
    machine = endpoint("write")
    sender = Sender(machine, "x")

    for _ in range(2):
        sender.handle(sender.get_of(sender.announce(RECEIVE, 0.0), 0.0), 0.0)

    assert [reach.size for reach in sender.reach] == [RECEIVE * PAGE]


def test_a_share_of_1_is_no_bound() -> None:
    machine = endpoint("write", share=1.0)
    sender = Sender(machine, "x")

    for _ in range(2):
        sender.handle(sender.get_of(sender.announce(RECEIVE // 2, 0.0), 0.0), 0.0)

    assert len(sender.reach) == 2


# --- readers that map ------------------------------------------------------------------------


class Readers:
    """A sender of stage "b" whose payloads the readers of "c" and "d" use where they lie."""

    def __init__(self) -> None:
        self.machine = endpoint("map")
        self.tickets = 0
        self.said = {"c": 0, "d": 0}
        for stage in self.said:
            card, host = PlaneCard("plane", "map", b""), HostCard("host", stage)
            hello = Hello(
                1, stage.encode() * 16, Identity(stage), "b", b"", Report(1, (), 0, ()), host, (card,)
            )  # fmt: skip
            self.machine.handle(ev.Received(stage, hello), 0.0)
            self.say(stage, Subscribe(), Report(1, (), 0, ()))

    def say(self, stage: str, message: Any, report: Report) -> list[Any]:
        """A reader's message; what is said in return."""
        packet = Packet(1, self.said[stage], report, message)
        self.said[stage] += 1
        out = self.machine.handle(ev.Received(stage, packet), 0.0)
        return [a.message.message for a in out if isinstance(a, ev.Send)]  # type: ignore[union-attr]

    def put(self, stage: str, pages: int) -> int:
        """Publish; how it is announced."""
        self.tickets += 1
        out = self.machine.handle(ev.Reserve(self.tickets, pages * PAGE, 0.0), 0.0)
        block = answers(out)[self.tickets]
        assert isinstance(block, Block), block
        publish = ev.Publish(
            self.tickets, stage, f"k{self.tickets}", pages * PAGE, block, b"", "", 1, 60.0, False
        )
        [said] = [a for a in self.machine.handle(publish, 0.0) if isinstance(a, ev.Send)]
        assert isinstance(said.message, Packet)
        assert isinstance(said.message.message, Announce)
        return said.message.message.how


def test_a_reader_is_offered_its_share_and_told_of_the_rest() -> None:
    talk = Readers()

    assert [talk.put("c", 8) for _ in range(5)] == [OFFER, OFFER, OFFER, CLAIM, CLAIM]
    assert talk.put("d", 8) == OFFER  # nobody else is held up


def test_what_a_silent_reader_was_not_offered_goes_at_the_end_of_its_life() -> None:
    talk = Readers()
    for _ in range(5):
        talk.put("c", 8)

    talk.machine.handle(ev.TimePassed(), 60.0)

    assert talk.machine.pool.stats().held == SHARE * RECEIVE * PAGE


def test_a_reader_that_consumes_is_offered_again() -> None:
    talk = Readers()
    for _ in range(4):
        talk.put("c", 8)
    assert talk.put("c", 8) == CLAIM

    talk.say("c", Ack((1, 2)), Report(1, (), 5, ()))

    assert talk.put("c", 8) == OFFER


def test_a_reader_that_asks_gets_more_than_its_share() -> None:
    """Who holds much and asks for more is alive; it only pays a round trip."""
    talk = Readers()
    for _ in range(4):
        talk.put("c", 8)

    [offer] = [
        m
        for m in talk.say("c", Pull(1, 4, None, 5.0), Report(2, (1,), 4, ()))
        if isinstance(m, Offer)
    ]

    assert offer.generation == 4
    assert talk.machine.outgoing.readers[b"c" * 16].leases.pinned == 32 * PAGE
