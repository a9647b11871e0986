"""What every data plane promises, as tests. Subclass, give ``make_party``, run pytest.

def make(size):
    instance = secrets.token_bytes(16)
    return Party(instance, MyPlane(instance), MyProvider(instance).allocate(size))

class TestMine(DataPlaneContract):
    @pytest.fixture
    def make_party(self):
        return make

A party is one process's end: a plane and the memory it serves. The suite registers the memory as
region 1, introduces the parties to each other and closes both. In a ``map`` plane the peer views
the owner's memory; in a ``write`` plane the owner writes into the peer's.

Some parties are made in another process, to be frozen and killed there: so ``make`` stands at the
top of a module that can be imported. ``crosses_processes = False`` leaves those tests out.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import (
    PAGE,
    PATIENCE_S,
    REGION,
    SIZE,
    MakeParty,
    Meeting,
    Outcome,
    Party,
    comes,
    difference,
)  # fmt: skip
from stagelink.plugins.conformance.plane_deaths import PlaneDeathsContract
from stagelink.plugins.conformance.plane_ends import PlaneEndsContract
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DataPlaneContract", "MakeParty", "Meeting", "Outcome", "Party"]

OUTSIDE = [
    RegionRef(REGION, SIZE, 1),
    RegionRef(REGION, SIZE + 1, 0),
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


class DataPlaneContract(PlaneEndsContract, PlaneDeathsContract):
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
        assert not difference(pair.move(offset, size), content[offset : offset + size])

    def test_nothing_beside_the_target_is_touched(self, pair: Meeting) -> None:
        """The bytes around it stay as they were."""
        content = pair.fill()
        pair.peer.memory.buffer[:] = b"\xee" * SIZE
        pair.move(100, 50)
        expected = bytearray(b"\xee" * SIZE)
        if pair.writes:
            expected[100:150] = content[100:150]
        assert not difference(pair.peer.memory.buffer, bytes(expected))

    def test_a_long_transfer_arrives_whole(self, meet: Callable[[int], Meeting]) -> None:
        """Tens of megabytes, whatever the plane cuts them into."""
        pair = meet(24 << 20)
        content = pair.fill()
        is_whole = pair.move(5, (24 << 20) - 5) == content[5:]
        assert is_whole

    def test_no_bytes_at_all_are_fine(self, pair: Meeting) -> None:
        """An empty range at either edge is inside."""
        assert pair.move(0, 0) == b""
        assert pair.move(SIZE, 0) == b""

    def test_a_completion_means_that_the_bytes_are_there(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """In the very moment of the call: the reader may look at once."""
        pair = meet(8 << 20)
        if not pair.writes:
            pytest.skip("this plane does not write")
        content = pair.fill()
        seen: dict[int, tuple[str, bool]] = {}

        def look(order: WriteOrder, error: str) -> None:
            where = order.target
            got = bytes(pair.peer.memory.buffer[where.offset : where.offset + where.size])
            seen[order.transfer] = error, got == content[where.offset : where.offset + where.size]

        parts = [(0, 1), (PAGE, SIZE), (1 << 20, 3 << 20), (4 << 20, 4 << 20)]
        for transfer, (offset, size) in enumerate(parts):
            where = RegionRef(REGION, offset, size)
            pair.owner.plane.post(WriteOrder(pair.peer.instance, transfer, where, where), look)
        assert comes(lambda: len(seen) == len(parts))
        assert seen == dict.fromkeys(range(len(parts)), ("", True))

    # --- regions -------------------------------------------------------------------------

    def test_its_capabilities_are_true(self, pair: Meeting) -> None:
        """The core believes them."""
        for party in (pair.owner, pair.peer):
            told = party.plane.capabilities
            assert told.mode in {"map", "write"}
            assert told.memory_kind == party.memory.kind
            assert {type(flag) for flag in told[2:]} == {bool}

    def test_registering_twice_is_fine_or_refused(self, pair: Meeting) -> None:
        """The memory is reachable all the same, once."""
        for party in (pair.owner, pair.peer):
            described = party.plane.describe()
            with contextlib.suppress(TransportError):
                party.plane.register(REGION, party.memory)
            assert len(party.plane.describe()) == len(described)
        pair.introduce()
        content = pair.fill()
        assert not difference(pair.move(0, SIZE), content)

    # --- numbers that lie ----------------------------------------------------------------

    @pytest.mark.parametrize("where", OUTSIDE)
    def test_what_is_out_of_bounds_is_refused_and_nothing_touched(
        self, pair: Meeting, where: RegionRef
    ) -> None:
        """Remote numbers are checked here once more."""
        pair.refuse(where)

    def test_a_write_from_outside_our_own_memory_is_refused(self, pair: Meeting) -> None:
        """Our own numbers are checked as well, and nothing of the peer's is touched."""
        before = bytes(pair.peer.memory.buffer)
        for where in OUTSIDE:
            if where.size >= 0:
                target = RegionRef(REGION, 0, min(where.size, SIZE))
                assert pair.post(0, source=where, target=target).wait()
        assert bytes(pair.peer.memory.buffer) == before

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
        assert not difference(pair.move(0, SIZE), bytes(pair.owner.memory.buffer))

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
            pair.introduce()
        assert not difference(pair.move(0, SIZE), content)

    # --- several at once ------------------------------------------------------------------

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
        wrong = [i for i in range(16) if moved[i] != content[i * part : (i + 1) * part]]
        assert not wrong
