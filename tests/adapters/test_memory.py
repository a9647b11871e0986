"""The in-memory adapters keep the contracts; what they do wrong, they do on purpose."""

from __future__ import annotations

import random
import re
import secrets
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stagelink.adapters.memory import (
    Faults,
    Hub,
    HubLiveness,
    MemoryChannel,
    MemoryMapPlane,
    MemoryWritePlane,
    PrivateMemoryProvider,
    WriteFault,
)
from stagelink.core.errors import CapacityError, ConfigError, TransportError
from stagelink.plugins.conformance.channel import (
    HEADER,
    ControlChannelContract,
    Maker,
    connect,
    drain,
    is_readable,
    mails,
    take_mail,
    until_down,
    until_up,
)
from stagelink.plugins.conformance.plane import (
    DataPlaneContract,
    MakeParty,
    Meeting,
    Outcome,
    Party,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.ports.channel import ControlChannel

SIZE = 1 << 16


def seeded(seed: int = 1) -> random.Random:
    """Chance that repeats itself."""
    return random.Random(seed)


@pytest.fixture
def hub() -> Hub:
    """A world of its own."""
    return Hub()


@pytest.fixture
def here_and_there(hub: Hub) -> Iterator[tuple[MemoryChannel, MemoryChannel]]:
    """Two channels of one hub."""
    pair = MemoryChannel(hub=hub), MemoryChannel(hub=hub)
    yield pair
    for channel in pair:
        channel.close()


class TestMemoryChannel(ControlChannelContract):
    """Queues."""

    crosses_processes = False

    @pytest.fixture
    def make_channel(self, hub: Hub) -> Maker:
        """In a hub of this test."""

        def make(address: str = "") -> ControlChannel:
            return MemoryChannel(address, hub=hub)

        return make


def party(plane: Callable[[bytes], MemoryMapPlane | MemoryWritePlane], size: int) -> Party:
    """A party with private memory."""
    instance = secrets.token_bytes(16)
    return Party(instance, plane(instance), PrivateMemoryProvider().allocate(size))


class TestMemoryMapPlane(DataPlaneContract):
    """Readers map."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, hub: Hub) -> MakeParty:
        """In a hub of this test."""
        return lambda size: party(lambda instance: MemoryMapPlane(instance, hub=hub), size)


class TestMemoryWritePlane(DataPlaneContract):
    """Senders write."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, hub: Hub) -> MakeParty:
        """In a hub of this test."""
        return lambda size: party(lambda instance: MemoryWritePlane(instance, hub=hub), size)


# --- names and connections ---------------------------------------------------------------


def test_a_link_holds_as_many_messages_as_it_says(hub: Hub) -> None:
    """And takes another as soon as one has been read."""
    here, there = MemoryChannel(hub=hub), MemoryChannel(hub=hub)
    connect(here, there)
    taken = 0
    while here.send(there.address, [HEADER]):
        taken += 1
    assert taken == 1024
    there.receive()
    assert here.send(there.address, [HEADER])
    assert not here.send(there.address, [HEADER])
    here.close()
    there.close()


def test_five_frames_are_dropped_and_counted(
    here_and_there: tuple[MemoryChannel, MemoryChannel],
) -> None:
    """By who receives; four are fine."""
    here, there = here_and_there
    connect(here, there)
    assert here.send(there.address, [HEADER] * 5)
    assert here.send(there.address, [HEADER] * 4)
    assert [len(mail.frames) for mail in mails(drain(there))] == [4]
    assert there.dropped == 1


def test_an_address_is_bound_once(hub: Hub) -> None:
    """And is free again after the close; what is none is refused."""
    first = MemoryChannel("memory://1", hub=hub)
    with pytest.raises(ConfigError, match="taken"):
        MemoryChannel("memory://1", hub=hub)
    second = MemoryChannel(hub=hub)
    assert second.address != first.address
    first.close()
    MemoryChannel("memory://1", hub=hub).close()
    second.close()
    for garbage in ("memory://", "memory://0", "memory://01", "memory://1 ", "memory://x"):
        with pytest.raises(ConfigError):
            MemoryChannel(garbage, hub=hub)


def test_hubs_are_worlds_of_their_own() -> None:
    """The same name elsewhere is somebody else."""
    here, there = (MemoryChannel("memory://1", hub=Hub()) for _ in range(2))
    dialler = MemoryChannel("memory://2", hub=Hub())
    dialler.dial("memory://1")
    assert not drain(dialler)
    for channel in (here, there, dialler):
        channel.close()


def test_what_is_cut_comes_back_when_it_heals(
    hub: Hub, here_and_there: tuple[MemoryChannel, MemoryChannel]
) -> None:
    """Both sides hear of the cut; a dial meanwhile waits."""
    here, there = here_and_there
    back = connect(here, there)
    hub.cut(there.address)
    until_down(here, there.address)
    until_down(there, back)
    there.dial(here.address)
    assert not is_readable(here)
    assert not is_readable(there)
    hub.heal(there.address)
    until_up(here, there.address)
    until_up(there, here.address)


# --- faults of mail ----------------------------------------------------------------------


def arrivals_under(faults: Faults, count: int = 300) -> list[int]:
    """What arrives of 0, 1, 2 ... when sent through *faults*; a refused one is not repeated."""
    hub = Hub()
    here, there = MemoryChannel(hub=hub, faults=faults), MemoryChannel(hub=hub)
    here.dial(there.address)
    for number in range(count):
        here.send(there.address, [HEADER, b"%d" % number])
    got = [int(mail.frames[1]) for mail in mails(drain(there))]
    here.close()
    there.close()
    return got


def test_without_a_fault_nothing_is_changed() -> None:
    """The machinery itself does no harm."""
    assert arrivals_under(Faults(seeded())) == list(range(300))


def test_loss_and_refusal_leave_gaps() -> None:
    """In order, none twice; each message says what befell it."""
    faults = Faults(seeded(), loss=0.2, refuse=0.2)
    got = arrivals_under(faults)
    assert got == [i for i, fate in enumerate(faults.trace) if fate == "passed"]
    assert {"lost", "refused"} < set(faults.trace)


def test_a_refused_message_is_not_taken(hub: Hub) -> None:
    """Send says so."""
    here, there = MemoryChannel(hub=hub, faults=Faults(seeded(), refuse=1)), MemoryChannel(hub=hub)
    here.dial(there.address)
    assert not here.send(there.address, [HEADER])
    assert not drain(there)
    here.close()
    there.close()


def test_duplication_shows_some_twice() -> None:
    """Side by side."""
    got = arrivals_under(Faults(seeded(), duplication=0.2))
    assert sorted(set(got)) == list(range(300))
    assert len(got) > 300
    assert got == sorted(got)


def test_reordering_swaps_neighbours() -> None:
    """And loses none but, perhaps, the last."""
    got = arrivals_under(Faults(seeded(), reordering=0.2))
    assert any(one > two for one, two in pairwise(got))
    assert set(range(299)) <= set(got)
    assert len(set(got)) == len(got)


def test_delayed_mail_comes_when_the_clock_says_so_and_in_order() -> None:
    """The clock is virtual; who sleeps on the descriptor is woken by deliver()."""
    now_s = [0.0]
    hub = Hub(lambda: now_s[0])
    here = MemoryChannel(hub=hub, faults=Faults(seeded(), delay_s=(1.0, 2.0)))
    there = MemoryChannel(hub=hub)
    here.dial(there.address)
    for number in range(50):
        assert here.send(there.address, [HEADER, b"%d" % number])
    assert not drain(there)
    while (due_s := hub.deliver()) is not None:
        assert 1.0 <= due_s <= 2.0
        now_s[0] = due_s
    assert is_readable(there)
    assert [int(mail.frames[1]) for mail in mails(drain(there))] == list(range(50))
    here.send(there.address, [HEADER, b"under way"])
    hub.cut(there.address)
    hub.heal(there.address)
    now_s[0] += 9
    assert not mails(drain(there))
    here.close()
    there.close()


def test_the_same_seed_gives_the_same_trace() -> None:
    """And another seed another."""

    def told(seed: int) -> tuple[list[str], list[int]]:
        faults = Faults(seeded(seed), loss=0.1, duplication=0.1, reordering=0.1, refuse=0.1)
        got = arrivals_under(faults)
        return faults.trace, got

    assert told(1) == told(1)
    assert told(1) != told(2)


# --- faults of writes --------------------------------------------------------------------


@pytest.fixture
def faulty(hub: Hub) -> Iterator[Callable[[WriteFault], Meeting]]:
    """Makes two parties, of which the owner's writes all go wrong in one way."""
    made: list[Meeting] = []

    def make(fault: WriteFault) -> Meeting:
        faults = Faults(seeded(), writes={fault: 1.0})
        owner = party(lambda name: MemoryWritePlane(name, hub=hub, faults=faults), SIZE)
        peer = party(lambda name: MemoryWritePlane(name, hub=hub), SIZE)
        made.append(Meeting(owner, peer))
        return made[-1]

    yield make
    for meeting in made:
        meeting.close()


def writer(meeting: Meeting) -> MemoryWritePlane:
    """The owner's plane, as what it is."""
    assert isinstance(meeting.owner.plane, MemoryWritePlane)
    return meeting.owner.plane


def landed(meeting: Meeting) -> int:
    """How many bytes of the owner's, none of them zero, are at the peer's."""
    return SIZE - bytes(meeting.peer.memory.buffer).count(0)


@pytest.mark.parametrize(("fault", "before"), [("delayed", 0), ("half", SIZE // 2), ("stuck", 0)])
def test_a_write_that_waits_ends_when_it_is_told(
    faulty: Callable[[WriteFault], Meeting], fault: str, before: int
) -> None:
    """Half a write is seen as half; one that is stuck can only fail."""
    meeting = faulty(WriteFault(fault))
    plane = writer(meeting)
    meeting.owner.memory.buffer[:] = b"\x11" * SIZE
    outcome = meeting.post(SIZE)
    (order,) = plane.pending()
    assert landed(meeting) == before
    assert not outcome.errors
    assert plane.finish(order) is (fault != "stuck")
    assert landed(meeting) == (0 if fault == "stuck" else SIZE)
    assert plane.fail(order, "enough") is (fault == "stuck")
    assert outcome.wait() == ("enough" if fault == "stuck" else "")
    assert not plane.pending()
    assert not plane.finish(order)


def test_a_failing_write_says_so_and_moves_nothing(
    faulty: Callable[[WriteFault], Meeting],
) -> None:
    """At once."""
    meeting = faulty(WriteFault.FAILING)
    meeting.owner.memory.buffer[:] = b"\x11" * SIZE
    assert meeting.post(SIZE).wait()
    assert landed(meeting) == 0


@pytest.mark.parametrize("fault", ["delayed", "half", "stuck"])
@pytest.mark.parametrize("who", ["owner", "peer", "reset", "close"])
def test_what_waits_is_discarded_by_a_fence_on_either_side(
    faulty: Callable[[WriteFault], Meeting], fault: str, who: str
) -> None:
    """It ends with an error, and its second half never lands."""
    meeting = faulty(WriteFault(fault))
    plane = writer(meeting)
    meeting.owner.memory.buffer[:] = b"\x11" * SIZE
    outcome = meeting.post(SIZE)
    (order,) = plane.pending()
    {
        "owner": lambda: plane.fence(meeting.peer.instance, dead=False),
        "peer": lambda: meeting.peer.plane.fence(meeting.owner.instance, dead=False),
        "reset": plane.reset,
        "close": plane.close,
    }[who]()
    assert outcome.wait()
    before = landed(meeting)
    assert not plane.finish(order)
    assert landed(meeting) == before < SIZE
    assert len(outcome.errors) == 1


@pytest.mark.parametrize("who", ["owner", "peer"])
def test_a_fenced_pair_is_parted_both_ways_until_it_attaches_again(hub: Hub, who: str) -> None:
    """Alive as both are; a third party notices nothing."""
    owner, peer, third = (party(lambda i: MemoryWritePlane(i, hub=hub), SIZE) for _ in range(3))
    both, other = Meeting(owner, peer), Meeting(owner, third)
    back = Meeting(peer, owner)
    fencer, fenced = (owner, peer) if who == "owner" else (peer, owner)
    assert fencer.plane.fence(fenced.instance, dead=False)
    assert both.post(SIZE).wait()
    assert back.post(SIZE).wait()
    assert not other.post(SIZE).wait()
    owner.plane.attach(peer.instance, peer.plane.describe())
    assert not both.post(SIZE).wait()
    assert back.post(SIZE).wait()
    for one in (owner, peer, third):
        one.plane.close()


def test_write_faults_repeat_themselves_too(hub: Hub) -> None:
    """By the seed."""

    def told(seed: int) -> list[str]:
        faults = Faults(seeded(seed), writes=dict.fromkeys(WriteFault, 0.2))
        owner = party(lambda name: MemoryWritePlane(name, hub=hub, faults=faults), SIZE)
        meeting = Meeting(owner, party(lambda name: MemoryWritePlane(name, hub=hub), SIZE))
        for _ in range(100):
            meeting.post(8)
        meeting.close()
        return faults.trace

    assert told(1) == told(1) != told(2)
    assert {line.split()[-1] for line in told(1)} == {fault.value for fault in WriteFault}


# --- memory and proof of death -----------------------------------------------------------


def test_private_memory_is_there_zeroed_and_goes_with_its_last_view() -> None:
    """A close leaves views alone, and may come twice."""
    memory = PrivateMemoryProvider().allocate(8192)
    assert (memory.kind, memory.name, memory.size) == ("host-private", "", 8192)
    view = memory.buffer
    assert view.format == "B"
    assert not any(view)
    memory.close()
    memory.close()
    view[0] = 1
    with pytest.raises(TransportError, match="closed"):
        _ = memory.buffer


def test_more_than_the_host_has_is_refused_with_numbers() -> None:
    """Rather than granted, and taken back by a kill."""
    with pytest.raises(CapacityError) as caught:
        PrivateMemoryProvider().allocate(1 << 50)
    assert caught.value.numbers["requested"] == float(1 << 50)
    for size in (0, -1):
        with pytest.raises(ConfigError):
            PrivateMemoryProvider().allocate(size)


def test_the_dead_are_those_who_closed_or_were_killed(hub: Hub) -> None:
    """Who is unknown is not."""
    first, second = (HubLiveness(secrets.token_bytes(16), hub=hub) for _ in range(2))
    assert first.host == second.host == hub.id
    assert not second.is_dead(first.proof)
    first.close()
    first.close()
    assert second.is_dead(first.proof)
    assert not first.is_dead(second.proof)
    hub.kill(bytes.fromhex(second.proof))
    assert first.is_dead(second.proof)
    for proof in ("", "nonsense", secrets.token_bytes(16).hex()):
        assert not first.is_dead(proof)
    assert HubLiveness(b"x" * 16, hub=Hub()).host != hub.id


def test_a_description_of_another_hub_or_mode_is_refused(hub: Hub) -> None:
    """It says what both sides must share."""
    mine = party(lambda name: MemoryWritePlane(name, hub=hub), SIZE)
    for plane in (
        MemoryWritePlane(mine.instance, hub=Hub()),
        MemoryMapPlane(mine.instance, hub=hub),
    ):
        plane.register(1, mine.memory)
        with pytest.raises(TransportError, match=re.escape("one hub")):
            mine.plane.attach(mine.instance, plane.describe())


# --- threads -----------------------------------------------------------------------------


def test_threads_hammer_a_pair_and_nothing_is_lost(hub: Hub) -> None:
    """Writes and mail, while a third party dials, hangs up, attaches and is fenced."""
    meeting = Meeting(
        *(party(lambda name: MemoryWritePlane(name, hub=hub), 1 << 20) for _ in range(2))
    )
    here, there = MemoryChannel(hub=hub), MemoryChannel(hub=hub)
    connect(here, there)
    stop = threading.Event()
    outcomes: list[Outcome] = []

    def disturb() -> None:
        third = party(lambda name: MemoryWritePlane(name, hub=hub), SIZE)
        third.plane.register(1, third.memory)
        while not stop.is_set():
            with_mail = MemoryChannel(hub=hub)
            with_mail.dial(there.address)
            third.plane.attach(meeting.owner.instance, meeting.owner.plane.describe())
            third.plane.fence(meeting.owner.instance, dead=False)
            with_mail.close()
        third.plane.close()

    def write() -> None:
        outcomes.extend(meeting.post(1 << 20) for _ in range(50))

    def send() -> None:
        for number in range(2000):
            while not here.send(there.address, [HEADER, b"%d" % number]):
                is_readable(here, 0.001)

    threads = [
        threading.Thread(target=target) for target in (disturb, disturb, write, write, send)
    ]
    for thread in threads:
        thread.start()
    got = [int(mail.frames[1]) for mail in take_mail(there, 2000)]
    stop.set()
    for thread in threads:
        thread.join()
    assert got == list(range(2000))
    assert [outcome.wait() for outcome in outcomes] == [""] * 100
    meeting.close()
    here.close()
    there.close()


# --- the narrow places -------------------------------------------------------------------


def test_a_message_held_back_dies_with_its_connection(hub: Hub) -> None:
    """The next connection's first message does not bring it along."""
    here = MemoryChannel(hub=hub)
    there = MemoryChannel(hub=hub, faults=Faults(seeded(), reordering=1.0))
    assert there.send(connect(here, there), [HEADER, b"held"])
    hub.cut(there.address)
    hub.heal(there.address)
    until_up(here, there.address)
    assert here.send(there.address, [HEADER, b"hello"])
    assert there.send(take_mail(there)[-1].link, [HEADER, b"held as well"])
    assert not drain(here)
    here.close()
    there.close()


def test_who_dials_what_is_cut_waits(
    hub: Hub, here_and_there: tuple[MemoryChannel, MemoryChannel]
) -> None:
    """Until it heals."""
    here, there = here_and_there
    hub.cut(there.address)
    here.dial(there.address)
    assert not drain(here)
    hub.heal(there.address)
    until_up(here, there.address)


def test_a_region_said_to_be_larger_than_it_is_is_refused(hub: Hub) -> None:
    """Its size is the last eight bytes of the description."""
    mine, yours = (party(lambda name: MemoryMapPlane(name, hub=hub), SIZE) for _ in range(2))
    yours.plane.register(1, yours.memory)
    good = yours.plane.describe()
    with pytest.raises(TransportError, match="claims"):
        mine.plane.attach(yours.instance, good[:-8] + (SIZE + 1).to_bytes(8, "big"))
    mine.plane.attach(yours.instance, good)


@pytest.mark.parametrize("who", ["owner", "peer"])
def test_a_fence_waits_for_the_copy_that_runs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """On whichever side it is called."""
    both = Meeting(*(party(lambda name: MemoryWritePlane(name, hub=hub), SIZE) for _ in range(2)))
    begun, go_on = threading.Event(), threading.Event()

    def memmove(*_: int) -> None:
        begun.set()
        go_on.wait(10)

    monkeypatch.setattr("stagelink.adapters.memory.plane_write.ctypes.memmove", memmove)
    fencer, other = (both.owner, both.peer) if who == "owner" else (both.peer, both.owner)
    writing = threading.Thread(target=both.post, args=(SIZE,))
    fencing = threading.Thread(target=fencer.plane.fence, args=(other.instance, False))
    writing.start()
    assert begun.wait(10)
    fencing.start()
    fencing.join(0.05)
    assert fencing.is_alive()
    go_on.set()
    fencing.join()
    writing.join()
    both.close()
