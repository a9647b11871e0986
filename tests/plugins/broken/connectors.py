"""Whole backends with one part that is mistaken, and the test of the kit that must see it.

Not collected by itself: ``tests/plugins/test_kit_catches.py`` runs it. In the tests of deaths only
the connectors of this process are mistaken; those that are killed and frozen are sound.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import stagelink.adapters.memory
import stagelink.adapters.shm
from stagelink.adapters.memory import (
    MemoryMapPlane,
    MemoryWritePlane,
    PrivateMemoryProvider,
)
from stagelink.adapters.shm import LockLiveness, ShmMapPlane, ShmWritePlane
from stagelink.plugins.conformance import aborts, deaths, kit
from stagelink.plugins.conformance import credits as lending
from stagelink.plugins.conformance.connector import ConnectorContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagelink.adapters.memory.provider import PrivateMemory
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.plane import WriteOrder

    Done = Callable[[WriteOrder, str], None]


def nobody(order: WriteOrder, error: str) -> None:
    """Who would be told."""


class WritesHalf(MemoryWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        half = [ref._replace(size=ref.size // 2) for ref in order[2:4]]
        super().post(
            order._replace(source=half[0], target=half[1]), lambda _, error: done(order, error)
        )


class WritesNothing(MemoryWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        done(order, "")


class WritesOnlyOnce(MemoryWritePlane):
    written = False

    def post(self, order: WriteOrder, done: Done) -> None:
        if self.written:
            done(order, "")
        else:
            self.written = True
            super().post(order, done)


class WritesWhereItWroteBefore(MemoryWritePlane):
    target: RegionRef | None = None

    def post(self, order: WriteOrder, done: Done) -> None:
        before = self.target or order.target
        self.target = order.target
        target = before._replace(size=order.target.size)
        super().post(order._replace(target=target), lambda _, error: done(order, error))


class RefusesToWrite(MemoryWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        done(order, "not today")


class SwallowsTheEnd(MemoryWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        super().post(order, nobody)


class ShowsTheBeginning(MemoryMapPlane):
    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        return super().view(peer, where._replace(offset=0))


class RemembersWhatItShowed(MemoryMapPlane):
    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._seen: dict[RegionRef, memoryview] = {}

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        copy = memoryview(bytearray(super().view(peer, where)))
        return self._seen.setdefault(where, copy)


class TakesViewsBack(MemoryMapPlane):
    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._copies: list[bytearray] = []

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        self._copies.append(bytearray(super().view(peer, where)))
        return memoryview(self._copies[-1])

    def close(self) -> None:
        super().close()
        for copy in self._copies:
            copy[:] = bytes(len(copy))


class LeavesADescriptor(MemoryMapPlane):
    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        os.open("/dev/null", os.O_RDONLY)


class AllocatesHalf(PrivateMemoryProvider):
    def allocate(self, size: int) -> PrivateMemory:
        return super().allocate(size // 2)


class BelievesNoDeath(LockLiveness):
    def is_dead(self, proof: str) -> bool:
        return False


class BlanksTheViewsOfTheDead(ShmMapPlane):
    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._copies: list[bytearray] = []

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        self._copies.append(bytearray(super().view(peer, where)))
        return memoryview(self._copies[-1])

    def fence(self, peer: Instance, dead: bool) -> bool:
        for copy in self._copies:
            copy[:] = bytes(len(copy))
        return super().fence(peer, dead)


class DoubtsEveryDeath(ShmWritePlane):
    def fence(self, peer: Instance, dead: bool) -> bool:
        super().fence(peer, dead)
        return False


class StaysBrokenAfterADeath(ShmWritePlane):
    broken = False

    def fence(self, peer: Instance, dead: bool) -> bool:
        self.broken = True
        return super().fence(peer, dead)

    def post(self, order: WriteOrder, done: Done) -> None:
        if self.broken:
            done(order, "broken")
        else:
            super().post(order, done)


class WaitsForTheReader(ShmWritePlane):
    def post(self, order: WriteOrder, done: Done) -> None:
        time.sleep(1.1)
        super().post(order, done)


WHOLE = "test_what_was_put_is_what_comes"
LENT = "test_puts_go_where_the_reader_has_lent_room_and_come_whole"
KILLED = "test_a_killed_sender_is_told_within_a_second"
CAUGHT: dict[type[Any], list[str]] = {
    WritesHalf: [WHOLE, LENT],
    WritesNothing: [WHOLE, LENT],
    WritesOnlyOnce: [LENT, "test_a_poll_finds_what_was_written_there"],
    WritesWhereItWroteBefore: ["test_more_puts_than_are_lent_all_arrive"],
    RefusesToWrite: [WHOLE],
    SwallowsTheEnd: ["test_a_get_may_be_cancelled_at_any_moment"],
    ShowsTheBeginning: ["test_many_keys_on_many_threads_all_arrive"],
    RemembersWhatItShowed: ["test_many_keys_on_many_threads_all_arrive"],
    TakesViewsBack: ["test_a_view_outlives_its_payload_and_its_connectors"],
    LeavesADescriptor: ["test_threads_and_descriptors_are_given_back"],
    AllocatesHalf: ["test_a_full_pool_refuses_in_time_and_recovers"],
    BelievesNoDeath: ["test_a_killed_receiver_leaves_its_sender_whole"],
    BlanksTheViewsOfTheDead: [KILLED],
    DoubtsEveryDeath: ["test_a_sender_that_dies_takes_nothing_of_what_was_lent_to_it"],
    StaysBrokenAfterADeath: ["test_a_reader_that_dies_leaves_a_sender_that_serves_the_next"],
    WaitsForTheReader: ["test_what_a_frozen_receiver_views_stays_its_own"],
}

BACKENDS = {
    MemoryMapPlane: "memory",
    MemoryWritePlane: "memory-write",
    PrivateMemoryProvider: "memory-write",
    ShmMapPlane: "shm",
    ShmWritePlane: "shm-write",
    LockLiveness: "shm",
}


def package(sound: type[Any]) -> ModuleType:
    """Where ``builtin`` finds that part."""
    shm = sound.__module__.startswith("stagelink.adapters.shm")
    return stagelink.adapters.shm if shm else stagelink.adapters.memory


class Kit(ConnectorContract):
    """The contract over a backend of which one part is mistaken."""

    part: ClassVar[type[Any]]

    @pytest.fixture
    def backend(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Ours, with that part in place of the sound one."""
        sound = self.part.__mro__[1]
        monkeypatch.setattr(package(sound), sound.__name__, self.part)
        return BACKENDS[sound]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is not waited for long."""
    monkeypatch.setitem(kit.TIMEOUTS, "transfer_base_s", 2.0)
    monkeypatch.setitem(kit.TIMEOUTS, "close_s", 0.1)
    monkeypatch.setattr(aborts, "PATIENCE_S", 2.0)
    monkeypatch.setattr(deaths, "AT_ONCE_S", 1.0)
    for contract in (deaths, lending):
        monkeypatch.setattr(contract, "WHOLE_S", 2.0)
    monkeypatch.setattr(kit.eventually, "__defaults__", (2.0,))


for made in CAUGHT:
    globals()[f"Test{made.__name__}"] = type(f"Test{made.__name__}", (Kit,), {"part": made})
