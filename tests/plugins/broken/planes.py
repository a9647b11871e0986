"""Planes with one mistake each, and the test of the kit that must see it.

Not collected by itself: ``tests/plugins/test_kit_catches.py`` runs it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from stagelink.adapters.shm import SharedMemoryProvider, ShmMapPlane, ShmWritePlane
from stagelink.adapters.shm.copier import STOPPED
from stagelink.core.errors import TransportError
from stagelink.plugins.conformance import meeting, plane_deaths
from stagelink.plugins.conformance.meeting import PAGE, REGION, SIZE
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.regions import Region
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.memory import Memory
    from stagelink.ports.plane import WriteOrder

    Done = Callable[[WriteOrder, str], None]


def later(call: Callable[..., object], *arguments: object, after_s: float = 0.04) -> None:
    """Call it on another thread, a little later."""
    timer = threading.Timer(after_s, call, arguments)
    timer.daemon = True
    timer.start()


def nobody(order: WriteOrder, error: str) -> None:
    """Who would be told."""


def clipped(where: RegionRef, size: int) -> RegionRef:
    """As much of it as lies inside the memory."""
    offset = max(0, min(where.offset, SIZE))
    return where._replace(region=REGION, offset=offset, size=max(0, min(size, SIZE - offset)))


class CompletesEarly(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        done(order, "")
        later(super().post, order, nobody)


class TrustsTheTarget(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        target = clipped(order.target, order.source.size)
        inside = order._replace(target=target, source=order.source._replace(size=target.size))
        super().post(inside, lambda _, error: done(order, error))


class TrustsItsOwnNumbers(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        source = clipped(order.source, order.target.size)
        inside = order._replace(source=source, target=order.target._replace(size=source.size))
        super().post(inside, lambda _, error: done(order, error))


class WritesWholePages(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        size = min(SIZE, (order.source.size + PAGE - 1) // PAGE * PAGE)
        whole = [clipped(ref._replace(offset=0), size) for ref in order[2:4]]
        super().post(order._replace(source=whole[0], target=whole[1]), done)


class WritesHalf(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        half = [ref._replace(size=ref.size // 2) for ref in order[2:4]]
        super().post(order._replace(source=half[0], target=half[1]), done)


class LosesItsFence(ShmWritePlane):
    def fence(self, peer: Instance, dead: bool) -> bool:
        self.drop(peer)
        return dead


class FencesByWord(ShmWritePlane):
    def fence(self, peer: Instance, dead: bool) -> bool:
        super().fence(peer, dead)
        return True


class DoubtsEveryDeath(ShmWritePlane):
    def fence(self, peer: Instance, dead: bool) -> bool:
        super().fence(peer, dead)
        return False


class WritesAfterTheReset(ShmWritePlane):
    last: WriteOrder | None = None

    def post(self, order: WriteOrder, done: Done) -> None:
        self.last = order
        super().post(order, done)

    def reset(self) -> None:
        super().reset()
        for turn in range(20):
            later(super().post, self.last, nobody, after_s=0.02 * turn)


class StaysBroken(ShmWritePlane):
    broken = False

    def reset(self) -> None:
        super().reset()
        self.broken = True

    def post(self, order: WriteOrder, done: Done) -> None:
        if self.broken:
            done(order, "broken")
        else:
            super().post(order, done)


class SwallowsTheEnd(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        def unless_stopped(one: WriteOrder, error: str) -> None:
            if error != STOPPED:
                done(one, error)

        super().post(order, unless_stopped)


class TellsTwice(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        def twice(one: WriteOrder, error: str) -> None:
            done(one, error)
            later(done, one, error, after_s=0.02)

        super().post(order, twice)


class WaitsForTheReader(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        time.sleep(0.6)
        super().post(order, done)


class LeavesItsThread(ShmWritePlane):
    def close(self) -> None:
        self._copier.stop(None)
        self.drop_all()


class LeavesADescriptor(ShmWritePlane):
    def __init__(self) -> None:
        super().__init__()
        os.open("/dev/null", os.O_RDONLY)


class Believes(ShmWritePlane):
    def attach(self, peer: Instance, descriptor: bytes) -> None:
        with contextlib.suppress(TransportError):
            super().attach(peer, descriptor)


class MixesPeers(ShmWritePlane):
    def theirs(self, peer: Instance, where: RegionRef) -> Region:
        last = [*self._peers, peer][-2:][0]
        return super().theirs(last, where)


class DescribesTwice(ShmWritePlane):
    def register(self, region: int, memory: Memory) -> None:
        if region in self._own:
            super().register(region + 1, memory)
        super().register(region, memory)


class ClaimsOtherMemory(ShmWritePlane):
    capabilities = ShmWritePlane.capabilities._replace(memory_kind="device")


class SlicesUnchecked(ShmMapPlane):
    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        whole = self.theirs(peer, where).view
        return whole[where.offset : where.offset + where.size]


class ShowsTheFenced(ShmMapPlane):
    def fence(self, peer: Instance, dead: bool) -> bool:
        return dead


class TakesViewsBack(ShmMapPlane):
    def __init__(self) -> None:
        super().__init__()
        self._views: list[memoryview] = []

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        self._views.append(super().view(peer, where))
        return self._views[-1]

    def close(self) -> None:
        super().close()
        for view in self._views:
            view.release()


class BlanksTheViewsOfTheDead(ShmMapPlane):
    def __init__(self) -> None:
        super().__init__()
        self._copies: list[bytearray] = []

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        self._copies.append(bytearray(super().view(peer, where)))
        return memoryview(self._copies[-1])

    def fence(self, peer: Instance, dead: bool) -> bool:
        for copy in self._copies:
            copy[:] = bytes(len(copy))
        return super().fence(peer, dead)


OUTSIDE = "test_what_is_out_of_bounds_is_refused_and_nothing_touched"
CAUGHT: dict[type[Any], list[str]] = {
    CompletesEarly: [
        "test_a_completion_means_that_the_bytes_are_there",
        "test_a_write_to_a_frozen_receiver_ends_only_with_its_bytes_there",
    ],
    TrustsTheTarget: [OUTSIDE],
    TrustsItsOwnNumbers: ["test_a_write_from_outside_our_own_memory_is_refused"],
    WritesWholePages: ["test_nothing_beside_the_target_is_touched"],
    WritesHalf: ["test_exactly_the_bytes_asked_for_arrive", "test_a_long_transfer_arrives_whole"],
    LosesItsFence: ["test_no_write_lands_after_the_fence_of_a_dead_peer"],
    FencesByWord: ["test_no_write_lands_after_the_fence_of_a_living_peer"],
    DoubtsEveryDeath: [
        "test_a_stranger_can_be_fenced",
        "test_writes_to_a_killed_peer_end_and_it_can_be_fenced",
    ],
    WritesAfterTheReset: ["test_no_write_lands_after_the_reset"],
    StaysBroken: ["test_no_write_lands_after_the_reset"],
    SwallowsTheEnd: ["test_no_write_lands_after_the_close"],
    TellsTwice: ["test_what_has_landed_stays"],
    WaitsForTheReader: ["test_a_write_to_a_frozen_receiver_ends_only_with_its_bytes_there"],
    LeavesItsThread: ["test_the_close_leaves_nothing"],
    LeavesADescriptor: ["test_the_close_leaves_nothing"],
    Believes: [
        "test_a_malformed_description_is_refused",
        "test_memory_of_somebody_else_is_refused",
    ],
    MixesPeers: ["test_a_stranger_is_not_reachable"],
    DescribesTwice: ["test_registering_twice_is_fine_or_refused"],
    ClaimsOtherMemory: ["test_its_capabilities_are_true"],
    SlicesUnchecked: [OUTSIDE],
    ShowsTheFenced: ["test_a_fenced_dead_peer_is_out_of_reach"],
    TakesViewsBack: ["test_a_view_outlives_what_it_was_made_from"],
    BlanksTheViewsOfTheDead: ["test_views_of_a_killed_owner_stay_as_its_plane_says"],
}


def party(plane: type[Any], size: int) -> Party:
    """A party with that plane."""
    instance = secrets.token_bytes(16)
    return Party(instance, plane(), SharedMemoryProvider(instance).allocate(size))


class Kit(DataPlaneContract):
    """The contract of one plane."""

    plane: ClassVar[type[Any]]

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """Over /dev/shm."""
        return partial(party, self.plane)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is not waited for long."""
    monkeypatch.setattr(meeting, "PATIENCE_S", 3.0)
    monkeypatch.setattr(plane_deaths, "AT_ONCE_S", 1.0)


for made in CAUGHT:
    globals()[f"Test{made.__name__}"] = type(f"Test{made.__name__}", (Kit,), {"plane": made})
