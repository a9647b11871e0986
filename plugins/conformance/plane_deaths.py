"""Frozen and killed peers, as every data plane between processes survives them.

A part of the contract in :mod:`stagelink.plugins.conformance.plane`, whose fixtures it uses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance import meeting
from stagelink.plugins.conformance.kit import AT_ONCE_S
from stagelink.plugins.conformance.meeting import (
    LONG,
    REGION,
    SIZE,
    Meeting,
    Outcome,
    Party,
    difference,
    filled,
)
from stagelink.plugins.conformance.parties import FarParty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.plugins.conformance.meeting import MakeParty
    from stagelink.ports.plane import WriteOrder

LINGER_S = 0.1
"""How long we look whether something comes after the end."""

SIZES = [1000, 4 << 20]


class PlaneDeathsContract:
    """Needs ``make_party`` to be a function that another process can import."""

    crosses_processes = True

    @pytest.fixture
    def near(self, make_party: MakeParty) -> Iterator[Party]:
        """A party here, its memory full of 0x11."""
        if not self.crosses_processes:
            pytest.skip("this plane stays within one process")
        made = make_party(LONG)
        made.memory.buffer[:] = b"\x11" * LONG
        made.plane.register(REGION, made.memory)
        yield made
        made.plane.close()
        made.memory.close()

    @pytest.fixture
    def meet_far(self, make_party: MakeParty, near: Party) -> Iterator[Callable[[int], FarParty]]:
        """Makes a party in another process, its memory full of one byte."""
        made: list[FarParty] = []

        def make(byte: int) -> FarParty:
            made.append(FarParty(make_party, near, LONG, byte))
            return made[-1]

        yield make
        for party in made:
            party.end()

    @pytest.fixture
    def far(self, meet_far: Callable[[int], FarParty]) -> FarParty:
        """A party in another process, its memory full of 0x44."""
        return meet_far(0x44)

    # --- frozen --------------------------------------------------------------------------

    def test_a_write_to_a_frozen_receiver_ends_only_with_its_bytes_there(
        self, near: Party, meet_far: Callable[[int], FarParty]
    ) -> None:
        """We look into the receiver's memory, which it cannot change while it is frozen."""
        if near.plane.capabilities.mode != "write":
            pytest.skip("this plane does not write")
        far = meet_far(0x44)
        seen: list[tuple[str, bool]] = []

        def look(order: WriteOrder, error: str) -> None:
            size = order.target.size
            seen.append((error, far.peek(size) == b"\x11" * size))

        try:
            assert far.peek(9) == b"\x44" * 9
        except OSError as error:
            pytest.skip(f"nobody may look into another process here: {error}")
        far.process.freeze()
        began_s = time.monotonic()
        for size in SIZES:
            far.post(size, look)
        assert time.monotonic() - began_s < AT_ONCE_S, "post waits for the receiver"
        until_s = time.monotonic() + LINGER_S
        while len(seen) < len(SIZES) and time.monotonic() < until_s:
            time.sleep(0.005)
        assert ("", False) not in seen, "completed before its bytes were there"
        far.process.thaw()
        assert meeting.comes(lambda: len(seen) == len(SIZES))
        assert seen == [("", True)] * len(SIZES)
        assert far.ask("holds", 0x11, max(SIZES))

    def test_a_frozen_peer_holds_up_no_other(
        self, make_party: MakeParty, near: Party, far: FarParty
    ) -> None:
        """Somebody else is served meanwhile."""
        other = make_party(LONG)
        far.process.freeze()
        if near.plane.capabilities.mode == "write":
            far.post(LONG)
        pair = Meeting(near, other)
        assert not difference(pair.move(7, SIZE), b"\x11" * SIZE)
        far.process.thaw()
        other.plane.close()
        other.memory.close()

    def test_the_bytes_of_a_frozen_owner_are_there_to_view(
        self, near: Party, meet_far: Callable[[int], FarParty]
    ) -> None:
        """A map plane needs nothing of it."""
        if near.plane.capabilities.mode != "map":
            pytest.skip("this plane does not map")
        far = meet_far(0x44)
        far.process.freeze()
        view = near.plane.view(far.instance, RegionRef(REGION, 5, SIZE))
        assert filled(view, 0x44)

    # --- killed --------------------------------------------------------------------------

    def test_writes_to_a_killed_peer_end_and_it_can_be_fenced(
        self, near: Party, meet_far: Callable[[int], FarParty]
    ) -> None:
        """Each once; its successor is served, and it is out of reach."""
        far = meet_far(0x44)
        outcomes: list[Outcome] = []
        if near.plane.capabilities.mode == "write":
            outcomes = [far.post(LONG) for _ in range(3)]
        far.process.kill()
        assert near.plane.fence(far.instance, dead=True)
        for outcome in outcomes:
            outcome.wait()
        self._is_out_of_reach(near, far)
        time.sleep(LINGER_S)
        assert [len(outcome.errors) for outcome in outcomes] == [1] * len(outcomes)
        successor = meet_far(0x55)
        if near.plane.capabilities.mode == "write":
            assert not successor.post(SIZE).wait()
            assert successor.ask("holds", 0x11, SIZE)
        self._is_out_of_reach(near, far)

    def test_nothing_of_a_killed_writer_lands_after_the_fence(
        self, near: Party, meet_far: Callable[[int], FarParty]
    ) -> None:
        """Our memory is used again by then."""
        if near.plane.capabilities.mode != "write":
            pytest.skip("this plane does not write")
        far = meet_far(0x44)
        far.ask("write", near.instance, LONG, 3)
        far.process.kill()
        assert near.plane.fence(far.instance, dead=True)
        near.memory.buffer[:] = b"\x33" * LONG
        time.sleep(LINGER_S)
        assert filled(near.memory.buffer, 0x33)

    def test_views_of_a_killed_owner_stay_as_its_plane_says(
        self, near: Party, meet_far: Callable[[int], FarParty]
    ) -> None:
        """Before the fence and after it."""
        if near.plane.capabilities.mode != "map":
            pytest.skip("this plane does not map")
        far = meet_far(0x44)
        view = near.plane.view(far.instance, RegionRef(REGION, 0, LONG))
        far.process.kill()
        survives = near.plane.capabilities.survives_owner
        assert not survives or filled(view, 0x44)
        assert near.plane.fence(far.instance, dead=True)
        assert not survives or filled(view, 0x44)
        self._is_out_of_reach(near, far)

    @staticmethod
    def _is_out_of_reach(near: Party, far: FarParty) -> None:
        """Neither a write nor a view gets there."""
        assert far.post(SIZE).wait()
        with pytest.raises(TransportError):
            near.plane.view(far.instance, RegionRef(REGION, 0, 1))
