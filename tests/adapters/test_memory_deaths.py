"""Crashes, forks and virtual time in memory, as harsh as between processes."""

from __future__ import annotations

import os
import random
import secrets
import signal
from typing import TYPE_CHECKING

import pytest

from stagelink.adapters.memory import (
    Faults,
    Hub,
    HubLiveness,
    MemoryChannel,
    MemoryWritePlane,
    PrivateMemoryProvider,
    WriteFault,
)
from stagelink.core.errors import TransportError
from stagelink.plugins.conformance.channel import (
    HEADER,
    connect,
    drain,
    is_readable,
    mails,
    until_down,
)
from stagelink.plugins.conformance.plane import Meeting, Party
from stagelink.ports.channel import LinkDown, LinkUp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

SIZE = 1 << 16


class World:
    """A hub whose clock stands until it is set, and what was made in it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.hub = Hub(lambda: self.now_s)
        self.opened: list[MemoryChannel | MemoryWritePlane] = []

    def channel(
        self, instance: bytes | None = None, faults: Faults | None = None
    ) -> MemoryChannel:
        made = MemoryChannel(hub=self.hub, instance=instance, faults=faults)
        self.opened.append(made)
        return made

    def meeting(self, fault: WriteFault, delay_s: tuple[float, float] | None = None) -> Meeting:
        faults = Faults(random.Random(1), writes={fault: 1.0}, write_delay_s=delay_s)
        parties = []
        for one in (faults, None):
            instance = secrets.token_bytes(16)
            plane = MemoryWritePlane(instance, hub=self.hub, faults=one)
            self.opened.append(plane)
            memory = PrivateMemoryProvider().allocate(SIZE)
            parties.append(Party(instance, plane, memory))
        meeting = Meeting(*parties)
        meeting.owner.memory.buffer[:] = b"\x11" * SIZE
        return meeting


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for one in made.opened:
        one.close()


def landed(meeting: Meeting) -> int:
    return SIZE - bytes(meeting.peer.memory.buffer).count(0)


def in_a_child(call: Callable[[], None]) -> int:
    """Run *call* in a forked child; how that ended. A hang is killed."""
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_killed_instance_is_gone_from_the_channel_and_dead(world: World) -> None:
    victim = secrets.token_bytes(16)
    here, there = world.channel(), world.channel(victim)
    proof, judge = HubLiveness(victim, hub=world.hub), HubLiveness(b"j" * 16, hub=world.hub)
    connect(here, there)

    world.hub.kill(victim)

    until_down(here, there.address)
    assert judge.is_dead(proof.proof)
    assert there.receive() is None
    assert there.fileno() == -1


@pytest.mark.parametrize(("writes", "lands"), [("land", SIZE), ("drop", SIZE // 2)])
def test_what_a_killed_instance_posted_may_land_and_nobody_is_told(
    world: World, writes: Literal["land", "drop"], lands: int
) -> None:
    meeting = world.meeting(WriteFault.HALF, (1.0, 1.0))
    outcome = meeting.post(SIZE)

    world.hub.kill(meeting.owner.instance, writes)
    world.hub.advance(1.0)

    assert landed(meeting) == lands
    assert not outcome.errors
    assert not meeting.post(SIZE).errors
    with pytest.raises(TransportError):
        meeting.peer.plane.attach(meeting.owner.instance, meeting.owner.plane.describe())


def test_a_fence_drops_the_late_write_of_the_dead(world: World) -> None:
    meeting = world.meeting(WriteFault.HALF, (1.0, 1.0))
    outcome = meeting.post(SIZE)
    world.hub.kill(meeting.owner.instance)

    assert meeting.peer.plane.fence(meeting.owner.instance, dead=True)
    world.hub.advance(9.0)

    assert landed(meeting) == SIZE // 2
    assert not outcome.errors
    assert world.hub.next_event_s() is None


@pytest.mark.parametrize(("fault", "before"), [("delayed", 0), ("half", SIZE // 2)])
def test_a_late_write_lands_at_its_moment_and_not_before(
    world: World, fault: str, before: int
) -> None:
    meeting = world.meeting(WriteFault(fault), (1.0, 2.0))
    outcome = meeting.post(SIZE)
    due_s = world.hub.next_event_s()
    assert due_s is not None
    assert 1.0 <= due_s <= 2.0

    world.hub.advance(due_s - 1e-6)
    assert landed(meeting) == before
    assert not outcome.errors

    world.hub.advance(due_s)
    assert outcome.errors == [""]
    assert landed(meeting) == SIZE
    assert world.hub.next_event_s() is None


def test_a_stuck_write_is_no_event(world: World) -> None:
    meeting = world.meeting(WriteFault.STUCK, (1.0, 2.0))
    outcome = meeting.post(SIZE)

    world.hub.advance(1e9)

    assert world.hub.next_event_s() is None
    assert not outcome.errors


def test_the_next_event_is_the_earliest_of_mail_and_writes(world: World) -> None:
    meeting = world.meeting(WriteFault.DELAYED, (5.0, 5.0))
    meeting.post(SIZE)
    here = world.channel(faults=Faults(random.Random(1), delay_s=(2.0, 2.0)))
    there = world.channel()
    here.dial(there.address)
    assert here.send(there.address, [HEADER])
    assert world.hub.next_event_s() == 2.0

    world.now_s = 2.0
    world.hub.advance(2.0)

    assert is_readable(there)
    assert len(mails(drain(there))) == 1
    assert world.hub.next_event_s() == 5.0


def test_a_cut_loses_the_mail_that_nobody_has_read(world: World) -> None:
    here, there = world.channel(), world.channel()
    back = connect(here, there)
    assert here.send(there.address, [HEADER, b"queued"])
    assert there.send(back, [HEADER, b"queued"])

    world.hub.cut(there.address)

    assert [type(one) for one in drain(there)] == [LinkDown]
    assert [type(one) for one in drain(here)] == [LinkDown]


def test_a_close_lets_what_has_arrived_be_read_first(world: World) -> None:
    here, there = world.channel(), world.channel()
    connect(here, there)
    assert here.send(there.address, [HEADER, b"goodbye"])

    here.close()

    assert [one.frames[1] for one in mails(drain(there))] == [b"goodbye"]


def test_a_link_that_flaps_unread_piles_nothing_up(world: World) -> None:
    here, there = world.channel(), world.channel()
    here.dial(there.address)
    for _ in range(1000):
        world.hub.cut(there.address)
        world.hub.heal(there.address)

    address = there.address
    assert [(type(one), one.link) for one in drain(here)] == [
        (LinkDown, address), (LinkUp, address),
    ]  # fmt: skip
    assert drain(there) == []
    assert not is_readable(there)


def test_a_message_without_frames_is_dropped_and_counted(world: World) -> None:
    here, there = world.channel(), world.channel()
    connect(here, there)

    assert here.send(there.address, [])

    assert drain(there) == []
    assert there.dropped == 1


def test_a_forked_child_neither_hangs_nor_disturbs_its_parent(world: World) -> None:
    here, there = world.channel(), world.channel()
    connect(here, there)
    meeting = world.meeting(WriteFault.DELAYED)
    outcome = meeting.post(SIZE)
    address, name = there.address, world.hub.id

    def child() -> None:
        assert here.send(address, [HEADER, b"from the child"])
        for one in world.opened:
            one.close()
        assert world.hub.id != name
        assert not outcome.errors, "the parent's write was answered in the child"

    with world.hub.lock:  # another thread might hold it at the fork
        ended = in_a_child(child)

    assert ended == 0
    assert not is_readable(there)
    assert drain(there) == []
    assert not outcome.errors
    assert here.send(address, [HEADER, b"from the parent"])
    assert is_readable(there)
