"""What every data plane promises, as tests. Subclass, give ``make_party``, run pytest.

class TestMine(DataPlaneContract):
    @pytest.fixture
    def make_party(self):
        def make(size):
            instance = secrets.token_bytes(16)
            return Party(instance, MyPlane(instance), MyProvider(instance).allocate(size))
        return make

A party is one process's end: a plane and the memory it serves. The suite registers the memory as
region 1, introduces the parties to each other and closes both. In a ``map`` plane the peer views
the owner's memory; in a ``write`` plane the owner writes into the peer's.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import threading
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import (
    LONG,
    PAGE,
    PATIENCE_S,
    REGION,
    SIZE,
    MakeParty,
    Meeting,
    Outcome,
    Party,
)  # fmt: skip
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DataPlaneContract", "MakeParty", "Meeting", "Outcome", "Party"]

OUTSIDE = [
    RegionRef(REGION, SIZE, 1),
    RegionRef(REGION, 0, SIZE + 1),
    RegionRef(REGION, SIZE - 1, 2),
    RegionRef(REGION, -1, 1),
    RegionRef(REGION, 0, -1),
    RegionRef(REGION, 2, -1),
    RegionRef(REGION, 1 << 64, 1),
    RegionRef(REGION, 0, 1 << 64),
    RegionRef(REGION, (1 << 64) - 1, 2),
    RegionRef(REGION + 1, 0, 1),
    RegionRef(-1, 0, 1),
]


class DataPlaneContract:
    """Bytes move exactly, or not at all and somebody is told."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """Override: a party with a memory of so many bytes."""
        raise NotImplementedError

    @pytest.fixture
    def meet(self, make_party: MakeParty) -> Iterator[Callable[[int], Meeting]]:
        """Makes two parties that know each other."""
        meetings: list[Meeting] = []

        def make(size: int) -> Meeting:
            meetings.append(Meeting(make_party(size), make_party(size)))
            return meetings[-1]

        yield make
        for meeting in meetings:
            meeting.close()

    @pytest.fixture
    def pair(self, meet: Callable[[int], Meeting]) -> Meeting:
        """Two parties with a little memory each."""
        return meet(SIZE)

    # --- bytes ---------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("offset", "size"), [(0, 1), (0, SIZE), (PAGE - 1, 2), (SIZE - 1, 1), (123, 4567)]
    )
    def test_exactly_the_bytes_asked_for_arrive(
        self, pair: Meeting, offset: int, size: int
    ) -> None:
        """Neither more nor less, from the edges as well."""
        content = pair.fill()
        assert pair.move(offset, size) == content[offset : offset + size]

    def test_nothing_beside_the_target_is_touched(self, pair: Meeting) -> None:
        """The bytes around it stay as they were."""
        content = pair.fill()
        pair.peer.memory.buffer[:] = b"\xee" * SIZE
        pair.move(100, 50)
        expected = bytearray(b"\xee" * SIZE)
        if pair.writes:
            expected[100:150] = content[100:150]
        assert bytes(pair.peer.memory.buffer) == bytes(expected)

    def test_a_long_transfer_arrives_whole(self, meet: Callable[[int], Meeting]) -> None:
        """Tens of megabytes, whatever the plane cuts them into."""
        pair = meet(24 << 20)
        content = pair.fill()
        assert pair.move(5, (24 << 20) - 5) == content[5:]

    def test_no_bytes_at_all_are_fine(self, pair: Meeting) -> None:
        """An empty range at either edge is inside."""
        assert pair.move(0, 0) == b""
        assert pair.move(SIZE, 0) == b""

    # --- numbers that lie ----------------------------------------------------------------

    @pytest.mark.parametrize("where", OUTSIDE)
    def test_what_is_out_of_bounds_is_refused_and_nothing_touched(
        self, pair: Meeting, where: RegionRef
    ) -> None:
        """Remote numbers are checked here once more."""
        pair.refuse(where)

    def test_a_write_from_outside_our_own_memory_is_refused(self, pair: Meeting) -> None:
        """Our own numbers are checked as well."""
        for where in OUTSIDE:
            if where.size >= 0:
                target = RegionRef(REGION, 0, min(where.size, SIZE))
                assert pair.post(0, source=where, target=target).wait()

    def test_a_write_between_different_sizes_is_refused(self, pair: Meeting) -> None:
        """Half a payload is none."""
        assert pair.post(0, RegionRef(REGION, 0, 3), RegionRef(REGION, 0, 2)).wait()

    def test_a_stranger_is_not_reachable(self, pair: Meeting) -> None:
        """Nothing is attached for it."""
        stranger, where = secrets.token_bytes(16), RegionRef(REGION, 0, 1)
        outcome = Outcome()
        pair.owner.plane.post(WriteOrder(stranger, 1, where, where), outcome)
        assert outcome.wait()
        with pytest.raises(TransportError):
            pair.peer.plane.view(stranger, where)

    # --- descriptions that lie -----------------------------------------------------------

    def test_a_description_is_short(self, pair: Meeting) -> None:
        """It travels in a greeting."""
        assert 0 < len(pair.owner.plane.describe()) <= PAGE

    def test_a_malformed_description_is_refused(self, pair: Meeting) -> None:
        """Cut, extended or random bytes name nothing."""
        good, chance = pair.owner.plane.describe(), random.Random(3)  # noqa: S311 - a pattern
        bad = [good[:cut] for cut in range(len(good))] + [good + b"\0", good + b"x" * 30]
        bad += [chance.randbytes(chance.randrange(1, 200)) for _ in range(200)]
        for descriptor in bad:
            with pytest.raises(TransportError):
                pair.peer.plane.attach(pair.owner.instance, descriptor)

    def test_an_altered_description_never_crashes(self, pair: Meeting) -> None:
        """Any one byte changed is refused, or describes something smaller that is there."""
        good = pair.owner.plane.describe()
        for index in range(len(good)):
            for bit in range(8):
                bad = bytearray(good)
                bad[index] ^= 1 << bit
                self._attach_or_refuse(pair, bytes(bad))
        pair.peer.plane.attach(pair.owner.instance, good)
        assert pair.move(0, SIZE) == bytes(pair.owner.memory.buffer)

    @staticmethod
    def _attach_or_refuse(pair: Meeting, descriptor: bytes) -> None:
        try:
            pair.peer.plane.attach(pair.owner.instance, descriptor)
        except TransportError as error:
            assert str(error)  # noqa: PT017 - either outcome will do

    def test_memory_of_somebody_else_is_refused(self, pair: Meeting) -> None:
        """A peer can only offer its own."""
        with pytest.raises(TransportError):
            pair.owner.plane.attach(secrets.token_bytes(16), pair.peer.plane.describe())

    def test_attaching_twice_is_fine(self, pair: Meeting) -> None:
        """A peer that reconnects describes itself again."""
        content = pair.fill()
        for _ in range(3):
            pair.owner.plane.attach(pair.peer.instance, pair.peer.plane.describe())
            pair.peer.plane.attach(pair.owner.instance, pair.owner.plane.describe())
        assert pair.move(0, SIZE) == content

    # --- the end -------------------------------------------------------------------------

    def test_a_view_outlives_what_it_was_made_from(self, pair: Meeting) -> None:
        """Closing and fencing drop only mappings that nobody views."""
        if pair.writes:
            return
        content = pair.fill()
        view = pair.peer.plane.view(pair.owner.instance, RegionRef(REGION, 0, SIZE))
        assert pair.peer.plane.fence(pair.owner.instance, dead=True)
        if pair.peer.plane.capabilities.survives_owner:
            pair.owner.plane.close()
            pair.owner.memory.close()
        pair.peer.plane.close()
        assert bytes(view) == content

    def test_a_plane_does_only_what_its_mode_says(self, pair: Meeting) -> None:
        """The other operation is an error and never silence."""
        if pair.writes:
            with pytest.raises(TransportError):
                pair.peer.plane.view(pair.owner.instance, RegionRef(REGION, 0, 1))
        else:
            assert pair.post(1).wait()

    def test_a_fenced_dead_peer_is_out_of_reach(self, pair: Meeting) -> None:
        """Neither a view nor a write gets there any more."""
        assert pair.owner.plane.fence(pair.peer.instance, dead=True)
        assert pair.peer.plane.fence(pair.owner.instance, dead=True)
        pair.refuse(RegionRef(REGION, 0, 1))

    def test_a_fence_that_cannot_hold_says_so_and_changes_nothing(self, pair: Meeting) -> None:
        """A living peer is cut off only where the plane says that it can."""
        content = pair.fill()
        fenced = pair.owner.plane.fence(pair.peer.instance, dead=False)
        if not pair.owner.plane.capabilities.can_fence:
            assert not fenced
        if not fenced:
            assert pair.move(0, SIZE) == content

    def test_who_was_cut_off_alive_attaches_by_a_later_description_only(
        self, pair: Meeting
    ) -> None:
        """It may hold an older one, and be about to use it."""
        old = pair.peer.plane.describe()
        if not pair.peer.plane.fence(pair.owner.instance, dead=False):
            return
        with pytest.raises(TransportError):
            pair.owner.plane.attach(pair.peer.instance, old)
        pair.owner.plane.attach(pair.peer.instance, pair.peer.plane.describe())

    def test_a_stranger_can_be_fenced(self, pair: Meeting) -> None:
        """A peer that died before it was attached."""
        assert pair.owner.plane.fence(secrets.token_bytes(16), dead=True)

    def test_a_write_ends_exactly_once_when_the_peer_is_fenced(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """With all bytes there, or an error; and not a byte moves after the fence."""
        pair = meet(LONG)
        self._stopped(pair, lambda: pair.owner.plane.fence(pair.peer.instance, dead=True))

    def test_a_write_ends_exactly_once_when_the_plane_is_reset(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """The plane works afterwards, for those who attach again."""
        pair = meet(LONG)
        self._stopped(pair, pair.owner.plane.reset)
        pair.owner.plane.attach(pair.peer.instance, pair.peer.plane.describe())
        content = pair.fill()
        assert pair.move(3, SIZE) == content[3 : 3 + SIZE]

    def test_a_write_ends_exactly_once_when_the_plane_is_closed(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """And a write after that is refused."""
        pair = meet(LONG)
        self._stopped(pair, pair.owner.plane.close)
        for size in (1, LONG):
            assert pair.post(size).wait()

    @staticmethod
    def _stopped(pair: Meeting, stop: Callable[[], object]) -> None:
        """Post long and short writes, *stop*, and see each of them end once and for all."""
        if not pair.writes:
            stop()
            return
        pair.owner.memory.buffer[:] = b"\x11" * LONG
        outcomes = [pair.post(LONG) for _ in range(3)] + [pair.post(10)]
        stop()
        pair.owner.memory.buffer[:] = b"\x22" * LONG
        errors = [outcome.wait() for outcome in outcomes]
        assert b"\x22" not in bytes(pair.peer.memory.buffer)
        if "" in errors[:3]:
            assert bytes(pair.peer.memory.buffer) == b"\x11" * LONG
        assert [len(outcome.errors) for outcome in outcomes] == [1] * 4

    def test_closing_twice_is_fine(self, pair: Meeting) -> None:
        """So is closing what was never used."""
        for party in (pair.owner, pair.peer):
            party.plane.close()
            party.plane.close()

    def test_after_the_close_nothing_is_reachable(self, pair: Meeting) -> None:
        """An error, not a crash."""
        pair.owner.plane.close()
        pair.peer.plane.close()
        pair.refuse(RegionRef(REGION, 0, 1))

    def test_the_close_leaves_no_thread_and_no_descriptor(self, make_party: MakeParty) -> None:
        """Those of the mappings go with the last view."""
        gc.collect()
        threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        size = 4 << 20
        meeting = Meeting(make_party(size), make_party(size))
        meeting.move(0, size)
        meeting.close()
        del meeting
        gc.collect()
        assert set(threading.enumerate()) == threads
        assert len(os.listdir("/proc/self/fd")) == files

    def test_many_writes_at_once_all_arrive(self, meet: Callable[[int], Meeting]) -> None:
        """From several threads, to places of their own."""
        pair = meet(16 << 20)
        content, part = pair.fill(), 1 << 20
        moved: dict[int, bytes] = {}

        def move(index: int) -> None:
            moved[index] = pair.move(index * part, part)

        threads = [threading.Thread(target=move, args=(index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert moved == {i: content[i * part : (i + 1) * part] for i in range(16)}
