"""Fences, resets and closes, as every data plane keeps them.

A part of the contract in :mod:`stagelink.plugins.conformance.plane`, whose fixtures it uses.
"""

from __future__ import annotations

import gc
import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import (
    LONG,
    REGION,
    SIZE,
    Meeting,
    Outcome,
    difference,
    filled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.plugins.conformance.meeting import MakeParty

SHARED = "/dev/shm"  # noqa: S108 - where memory is shared
LINGER_S = 0.1
"""How long we look whether something lands after the end."""


class PlaneEndsContract:
    """Needs the fixtures of :class:`DataPlaneContract`."""

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
        assert not difference(view, content)

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
            assert not difference(pair.move(0, SIZE), content)

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

    def test_a_fenced_peer_is_not_its_successor(
        self, pair: Meeting, make_party: MakeParty
    ) -> None:
        """A restarted process has another name: what is meant for the old one reaches nobody."""
        content = pair.fill()
        again = Meeting(pair.owner, make_party(SIZE), register_owner=False)
        assert pair.owner.plane.fence(pair.peer.instance, dead=True)
        assert not difference(again.move(0, SIZE), content)
        if pair.writes:
            again.peer.memory.buffer[:] = b"\x33" * SIZE
            assert pair.post(SIZE).wait()
            assert not difference(again.peer.memory.buffer, b"\x33" * SIZE)
        again.peer.plane.close()
        again.peer.memory.close()

    # --- writes under way ----------------------------------------------------------------

    def test_no_write_lands_after_the_fence_of_a_dead_peer(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """Each ends once, with all bytes there or an error; and not a byte moves afterwards."""
        pair = meet(LONG)
        stop = _Stop(pair)
        assert pair.owner.plane.fence(pair.peer.instance, dead=True)
        stop.use_again()
        stop.check()

    def test_no_write_lands_after_the_fence_of_a_living_peer(
        self, meet: Callable[[int], Meeting]
    ) -> None:
        """By the reader, whose memory it is: where it cannot hold, all bytes come."""
        pair = meet(LONG)
        stop = _Stop(pair)
        if pair.peer.plane.fence(pair.owner.instance, dead=False):
            stop.use_again()
            stop.check()
        elif pair.writes:
            assert [outcome.wait() for outcome in stop.outcomes] == [""] * len(stop.outcomes)
            assert filled(pair.peer.memory.buffer, 0x11)

    def test_no_write_lands_after_the_reset(self, meet: Callable[[int], Meeting]) -> None:
        """The plane works afterwards, for those who attach again."""
        pair = meet(LONG)
        stop = _Stop(pair)
        pair.owner.plane.reset()
        stop.check()
        pair.owner.plane.attach(pair.peer.instance, pair.peer.plane.describe())
        content = pair.fill()
        assert not difference(pair.move(3, SIZE), content[3 : 3 + SIZE])

    def test_no_write_lands_after_the_close(self, meet: Callable[[int], Meeting]) -> None:
        """And a write after that is refused."""
        pair = meet(LONG)
        stop = _Stop(pair)
        pair.owner.plane.close()
        stop.check()
        for size in (1, LONG):
            assert pair.post(size).wait()

    def test_what_has_landed_stays(self, pair: Meeting) -> None:
        """A fence, a reset and a close come too late for it, and say nothing of it."""
        content = pair.fill()
        outcomes = [pair.post(size) for size in (1, SIZE)] if pair.writes else []
        outcomes += [pair.post(SIZE + 1), pair.post(1, RegionRef(REGION + 1, 0, 1))]
        first = [bool(outcome.wait()) for outcome in outcomes]
        pair.owner.plane.reset()
        pair.owner.plane.fence(pair.peer.instance, dead=True)
        pair.owner.plane.close()
        time.sleep(LINGER_S)
        assert [len(outcome.errors) for outcome in outcomes] == [1] * len(outcomes)
        assert first[-4:] == ([False, False] if pair.writes else []) + [True, True]
        assert not pair.writes or not difference(pair.peer.memory.buffer, content)

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

    def test_the_close_leaves_nothing(self, make_party: MakeParty) -> None:
        """No thread, no descriptor, no shared mapping and no name; with a write under way."""
        size = 4 << 20
        Meeting(make_party(size), make_party(size)).close()  # what is opened once, is open now
        before = _leftovers()
        meeting = Meeting(make_party(size), make_party(size))
        names = {party.memory.name for party in (meeting.owner, meeting.peer)} - {""}
        meeting.move(0, size)
        outcome = meeting.post(size)
        meeting.close()
        outcome.wait()
        del meeting
        after = _leftovers()
        assert after[0] <= before[0], "a thread is left"
        assert after[1:] == before[1:], "descriptors or shared mappings are left"
        assert not [name for name in os.listdir(SHARED) if any(one in name for one in names)]


class _Stop:
    """Long and short writes of 0x11 under way, which are then stopped."""

    def __init__(self, pair: Meeting) -> None:
        self._pair = pair
        self._whole: bool | None = None
        self.outcomes: list[Outcome] = []
        if pair.writes:
            pair.owner.memory.buffer[:] = b"\x11" * LONG
            self.outcomes = [pair.post(LONG) for _ in range(3)] + [pair.post(10)]

    def use_again(self) -> None:
        """Nothing can land any more: put something else there."""
        memory = self._pair.peer.memory.buffer
        self._whole = filled(memory, 0x11)
        memory[:] = b"\x33" * LONG

    def check(self) -> None:
        """Every write has ended once, whole or with an error, and nothing came afterwards."""
        errors = [outcome.wait() for outcome in self.outcomes]
        if self._whole is None:
            self.use_again()
        time.sleep(LINGER_S if self.outcomes else 0.0)
        assert filled(self._pair.peer.memory.buffer, 0x33), "a write came late"
        if "" in errors[:3]:
            assert self._whole, "a write ended well without its bytes"
        assert [len(outcome.errors) for outcome in self.outcomes] == [1] * len(errors)


def _leftovers() -> tuple[set[threading.Thread], int, int]:
    """Threads, and how many descriptors and shared mappings this process has."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    shared = sum(line.split()[1].endswith("s") for line in maps.splitlines())
    return set(threading.enumerate()), len(os.listdir("/proc/self/fd")), shared
