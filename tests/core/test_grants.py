"""A receiver lends blocks; a put writes into one at once, and no get has to ask for anything."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from stagelink.core import events as ev
from stagelink.core.endpoint import Endpoint
from stagelink.core.handshake.fetch import DRAINING, GRANTED, LANDED
from stagelink.core.handshake.grants import (
    GRANTS_LIMIT,
    HISTORY,
    PASSED_LIMIT,
    GrantsIn,
    GrantsOut,
)
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import (
    Announce,
    Cancel,
    Done,
    Granted,
    Grants,
    Landed,
    Packet,
    Pull,
    Refused,
)
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard, RegionRef

PAGE = 4096
PAGES = 64
AT = "tcp://a"


# --- the two tables ------------------------------------------------------------------------


def test_the_smallest_block_that_fits_is_spent_and_none_twice() -> None:
    grants = GrantsOut()
    grants.free = {7: RegionRef(1, 0, 300), 8: RegionRef(1, 300, 100), 9: RegionRef(1, 400, 200)}

    assert grants.take(1, 150) == (9, RegionRef(1, 400, 150))
    assert grants.take(2, 150) == (7, RegionRef(1, 0, 150))
    assert grants.take(3, 150) is None
    assert grants.is_writing(1)
    assert grants.void() == (8,)
    assert not grants.is_writing(1)


def test_a_table_thaws_to_itself() -> None:
    grants = GrantsOut()
    grants.free = {7: RegionRef(1, 0, 300), 8: RegionRef(1, 300, 100)}
    grants.take(1, 150)

    assert GrantsOut.thaw(grants.freeze()).freeze() == grants.freeze()
    assert GrantsIn(*GrantsIn(True, 3, (1, 2), True).freeze()).freeze() == (True, 3, (1, 2), True)


@pytest.mark.parametrize(
    ("sent", "size"),
    [
        ((), 0),
        ((0,), PAGE),
        ((1,), PAGE),
        ((PAGE,), PAGE),
        ((PAGE + 1,), 2 * PAGE),
        ((1 << 20,), 1 << 20),
        (((1 << 20) + 1,), (1 << 20) + (1 << 17)),
        ((PAGE,) * 19 + (1 << 30,), PAGE),  # one in twenty may be larger
        ((PAGE,) * 18 + (1 << 20,) * 2, 1 << 20),
        ((1 << 30,) * HISTORY + (PAGE,) * HISTORY, PAGE),  # what was long ago says nothing
    ],
)
def test_what_is_lent_is_as_large_as_nearly_all_that_was_sent(
    sent: tuple[int, ...], size: int
) -> None:
    assert GrantsIn(sizes=sent).size(PAGE) == size


# --- two endpoints -------------------------------------------------------------------------

REPORT_S = TimeoutPolicy().ack_delay_s


def endpoint(stage: str, share: float = 1.0) -> Endpoint:
    """A connector whose pool has ``PAGES``."""
    instance = stage.encode() * 16
    settings = Settings(
        instance=instance, identity=Identity(stage), host=HostCard("host", stage),
        planes=(OwnPlane(PlaneCard("plane", "write", b""), crosses_hosts=False),),
        policy=TimeoutPolicy(), inline_bytes=100, max_writes=4, session_base=0, can_fence=False,
        peer_share=1.0, credit_share=share,
    )  # fmt: skip
    return Endpoint(settings, Pool(PAGES * PAGE, pool_id=1))


class Pair:
    """A sender "a", a receiver "b", and what is between them; writes end when they are told."""

    def __init__(self, lends: float = 1.0, borrows: float = 1.0) -> None:
        self.ends = {"a": endpoint("a", borrows), "b": endpoint("b", lends)}
        self.now_s = 0.0
        self.mail: deque[tuple[str, Any]] = deque()
        self.said: list[Any] = []
        self.answers: dict[int, Any] = {}
        self.writes: list[ev.StartWrite] = []
        self.tickets = 0
        self.links = 1
        self.ask("k0", 0.0)
        self.handle("b", ev.Connected(AT))

    def handle(self, place: str, event: Any) -> None:
        """Let one end take *event*, and both whatever comes of it."""
        for action in self.ends[place].handle(event, self.now_s):
            self._perform(place, action)
        while self.mail:
            self.handle(*self.mail.popleft())

    def _perform(self, place: str, action: Any) -> None:
        if isinstance(action, ev.Send):
            message = action.message
            self.said.append(message.message if isinstance(message, Packet) else message)
            other, link = ("b", AT) if place == "a" else ("a", f"link{self.links}")
            self.mail.append((other, ev.Received(link, message)))
        elif isinstance(action, ev.Attach):
            told = ev.Attached(action.peer, action.link, action.session, "")
            self.mail.append((place, told))
        elif isinstance(action, ev.StartWrite):
            self.writes.append(action)
        elif isinstance(action, ev.Complete):
            self.answers[action.ticket] = action.result

    def put(self, key: str, pages: int = 1, *, lands: bool = True) -> None:
        """Publish so many pages; a write that this begins ends at once, if it *lands*."""
        self.tickets += 1
        self.handle("a", ev.Reserve(self.tickets, pages * PAGE, 0.0))
        block = self.answers[self.tickets]
        assert isinstance(block, Block)
        self.tickets += 1
        order = (self.tickets, "b", key, pages * PAGE, block, b"", "", 1, 300.0, False)
        self.handle("a", ev.Publish(*order))
        if lands:
            self.land()

    def land(self) -> None:
        """Every write is over."""
        while self.writes:
            self.end()

    def end(self, error: str = "") -> None:
        """The oldest write is over."""
        write = self.writes.pop(0)
        self.handle("a", ev.WriteEnded(write.peer, write.transfer, error))

    def ask(self, key: str, wait_s: float = 10.0) -> int:
        """A get of *key*; with no time, a poll."""
        self.tickets += 1
        call = (self.tickets, AT, "a", key)
        if wait_s:
            self.handle("b", ev.Get(*call, 0, self.now_s + wait_s))
        else:
            self.handle("b", ev.Poll(*call, 10.0))
        return self.tickets

    def taken(self, key: str) -> ev.Delivery:
        """What a get of *key* is given."""
        answer = self.answers[self.ask(key)]
        assert isinstance(answer, ev.Delivery)
        self.handle("b", ev.Release(answer.handle))
        return answer

    def pass_time(self, seconds: float) -> None:
        """Let *seconds* go by, and what is due happen."""
        self.now_s += seconds
        for place in "ba":
            self.handle(place, ev.TimePassed())

    def cut(self) -> None:
        """The connection breaks; both hear of it."""
        self.handle("b", ev.Disconnected(AT, "cut"))
        self.handle("a", ev.Disconnected(f"link{self.links}", "cut"))

    def heal(self) -> None:
        """There is another connection."""
        self.links += 1
        self.handle("b", ev.Connected(AT))

    def spoken(self) -> list[Any]:
        """What was said since this was asked last."""
        said, self.said = self.said, []
        return said

    def states(self) -> list[str]:
        """The states of the receiver's gets."""
        return sorted(fetch.state for fetch in self.ends["b"].incoming.fetches.all())

    @property
    def lent(self) -> int:
        """Pages that are lent, as the sender knows."""
        [reader] = self.ends["a"].outgoing.readers.values()
        return sum(target.size for target in reader.grants.free.values()) // PAGE


def met(pages: int = 1) -> Pair:
    """A pair that has moved one payload, so that as large ones are expected."""
    pair = Pair()
    pair.put("first", pages)
    ticket = pair.ask("first")
    pair.land()
    pair.handle("b", ev.Release(pair.answers[ticket].handle))
    pair.spoken()
    return pair


def test_nothing_is_lent_before_anything_was_sent() -> None:
    assert Pair().lent == 0


def test_a_payload_that_was_pulled_makes_the_receiver_lend_blocks_of_its_size() -> None:
    pair = Pair()
    pair.put("k")
    pair.spoken()
    pair.pass_time(REPORT_S)

    [grants] = [said for said in pair.spoken() if isinstance(said, Grants)]
    assert len(grants.blocks) == GRANTS_LIMIT
    assert {granted.target.size for granted in grants.blocks} == {PAGE}
    assert pair.lent == GRANTS_LIMIT


def test_a_put_into_a_lent_block_is_one_message_and_the_get_sends_none() -> None:
    pair = met()
    pair.put("k")

    [landed] = pair.spoken()
    assert isinstance(landed, Landed)
    assert landed.there
    got = pair.taken("k")
    assert got.block is not None
    assert got.size == PAGE
    assert not pair.spoken()


def test_a_get_that_waits_is_answered_by_what_lands() -> None:
    pair = met()
    ticket = pair.ask("k")
    pair.put("k")

    assert isinstance(pair.answers[ticket], ev.Delivery)
    assert [type(said) for said in pair.spoken()] == [Landed]


def test_a_poll_finds_what_landed() -> None:
    pair = met()
    pair.put("k")

    assert isinstance(pair.answers[pair.ask("k", 0.0)], ev.Delivery)


def test_a_write_that_takes_its_time_is_told_when_something_follows_it() -> None:
    pair = met()
    pair.put("slow", lands=False)
    assert not pair.spoken()

    pair.put("next", lands=False)
    [first] = pair.spoken()
    assert (first.key, first.there) == ("slow", False)
    ticket = pair.ask("slow")
    pair.land()

    assert isinstance(pair.answers[ticket], ev.Delivery)
    done, second = pair.spoken()
    assert isinstance(done, Done)
    assert (second.key, second.there) == ("next", True)


def test_what_is_larger_than_every_lent_block_is_announced() -> None:
    pair = met()
    pair.put("large", 2)

    assert type(pair.spoken()[0]) is Announce


def test_grants_grow_with_what_is_sent() -> None:
    pair = met()
    for number in range(HISTORY // 8):
        pair.put(f"k{number}", 2)
        pair.ask(f"k{number}")
        pair.land()
    pair.pass_time(REPORT_S)

    pair.spoken()
    pair.put("k", 2)
    assert [type(said) for said in pair.spoken()] == [Landed]


def test_a_backlog_turns_puts_into_announcements_and_a_get_turns_them_back() -> None:
    pair = met()
    for number in range(GRANTS_LIMIT):
        pair.put(f"k{number}")
    assert {type(said) for said in pair.spoken()} == {Landed}

    pair.put("more")
    assert type(pair.spoken()[0]) is Announce
    for number in range(GRANTS_LIMIT):
        pair.taken(f"k{number}")
    pair.spoken()
    pair.put("again")
    assert type(pair.spoken()[0]) is Landed


def test_blocks_are_lent_anew_when_half_of_them_are_spent() -> None:
    pair = met()
    for number in range(3 * GRANTS_LIMIT):
        pair.put(f"k{number}")
        pair.taken(f"k{number}")

    said = pair.spoken()
    assert sum(isinstance(one, Landed) for one in said) == 3 * GRANTS_LIMIT
    assert 4 <= sum(isinstance(one, Grants) for one in said) <= 7


def test_what_is_not_used_comes_back_after_a_while() -> None:
    pair = met()
    pair.pass_time(4.9)
    assert pair.lent
    pair.pass_time(0.2)

    assert not pair.lent
    assert not pair.ends["b"].incoming.fetches.lent_bytes
    said = pair.spoken()
    assert sum(isinstance(one, Cancel) for one in said) == GRANTS_LIMIT
    assert sum(isinstance(one, Refused) for one in said) == GRANTS_LIMIT


def test_a_sender_that_uses_nothing_of_what_is_lent_is_lent_nothing_for_a_while() -> None:
    pair = met()
    [reader] = pair.ends["a"].outgoing.readers.values()
    pair.ends["a"].outgoing._edges.stages["b"].append(reader)  # as if there were another
    for number in range(PASSED_LIMIT):
        pair.put(f"k{number}")
    assert not pair.ends["b"].incoming.fetches.lent_bytes

    pair.put("more")
    assert not pair.lent
    pair.pass_time(5.1)
    pair.put("then")
    pair.pass_time(REPORT_S)
    assert pair.lent


def test_a_landed_payload_that_expires_gives_its_block_back() -> None:
    pair = met()
    pair.put("k")
    free = pair.ends["b"].pool.stats().free
    pair.handle("a", ev.Withdraw(99, "b", "k"))

    assert pair.ends["b"].pool.stats().free == free + PAGE


def test_a_payload_that_leaves_while_it_is_written_ends_its_grant() -> None:
    pair = met()
    pair.put("k", lands=False)
    pair.handle("a", ev.Withdraw(99, "b", "k"))
    pair.land()

    assert pair.states().count(GRANTED) == GRANTS_LIMIT - 1
    assert [said.reason for said in pair.spoken() if isinstance(said, Refused)] == ["withdrawn"]


def test_a_cancel_gives_back_what_landed_and_ends_no_call() -> None:
    pair = met()
    pair.put("k")
    pair.handle("b", ev.CancelKey(99, AT, "a", "k", reject=False))

    assert LANDED not in pair.states()
    assert pair.answers[99] == 0


def test_a_write_that_fails_is_asked_for_again() -> None:
    pair = met()
    ticket = pair.ask("k")
    pair.put("k", lands=False)
    pair.end("broken")
    pair.land()

    assert isinstance(pair.answers[ticket], ev.Delivery)
    said = [type(one) for one in pair.spoken()]
    assert said[:2] == [Refused, Announce]
    assert Pull in said


def test_a_cut_voids_what_is_lent_and_no_block_is_free_before_the_sender_has_said_so() -> None:
    pair = met()
    pair.put("k", lands=False)
    pair.cut()
    assert pair.states().count(DRAINING) == GRANTS_LIMIT
    assert not pair.lent

    pair.heal()
    [writing] = [
        fetch for fetch in pair.ends["b"].incoming.fetches.all() if fetch.state == DRAINING
    ]
    assert writing.transfer == pair.writes[0].transfer
    pair.land()

    assert DRAINING not in pair.states()
    ticket = pair.ask("k")
    pair.land()
    assert isinstance(pair.answers[ticket], ev.Delivery)


def test_closing_either_side_leaves_nothing_lent() -> None:
    for place in "ab":
        pair = met()
        pair.handle(place, ev.Close())

        assert not pair.ends["b"].incoming.fetches.lent_bytes
        assert not pair.lent
        assert pair.ends["b"].at_rest


@pytest.mark.parametrize(("lends", "borrows"), [(0.0, 1.0), (1.0, 0.0)])
def test_either_side_may_do_without(lends: float, borrows: float) -> None:
    pair = Pair(lends, borrows)
    pair.put("k")
    ticket = pair.ask("k")
    pair.land()

    assert isinstance(pair.answers[ticket], ev.Delivery)
    assert not [said for said in pair.spoken() if isinstance(said, Grants)]


def test_a_get_without_room_makes_the_sender_give_back_what_is_lent() -> None:
    pair = met(2)
    lent = pair.lent
    assert lent
    ticket = pair.ask("huge")
    pair.put("huge", 45)
    pair.land()

    assert isinstance(pair.answers[ticket], ev.Delivery)


def test_a_block_that_nobody_lent_is_a_violation_and_the_payload_is_pulled() -> None:
    pair = met()
    [source] = pair.ends["b"].incoming.sources.values()
    lie = Landed(99, "k", 99, PAGE, 12345, True, b"")
    place = source.session
    pair.handle("b", ev.Received(AT, Packet(place.number, place.taken, None, lie)))

    assert pair.ends["b"].incoming.violations["answer"] == 1  # type: ignore[index]
    assert source.inbox.get("k") is not None


def test_a_grant_that_was_used_is_not_taken_again() -> None:
    pair = met()
    pair.put("k")
    [reader] = pair.ends["a"].outgoing.readers.values()
    used = max(reader.leases.ended)
    again = Grants((Granted(used, RegionRef(1, 0, PAGE)),))
    place = reader.session
    pair.handle("a", ev.Received("link1", Packet(place.number, place.taken, reader.report, again)))

    assert used not in reader.grants.free
    assert pair.ends["a"].outgoing.violations["transfers"] == 1  # type: ignore[index]
