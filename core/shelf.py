"""Deliveries whose caller was gone when they came: the next get of their key is given them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from stagelink.core.events import Delivery, Get

SHELF_LIMIT = 1024
"""Deliveries kept; beyond, the oldest is let go."""


class Kept(NamedTuple):
    """A delivery without a taker, of ``key`` from the sender at ``address``."""

    number: int
    address: str
    key: str
    delivery: Delivery


FrozenShelf = tuple[int, tuple[Kept, ...]]


class Shelf:
    """What is kept, by key in the order it came; numbers are never used twice."""

    __slots__ = ("_by_key", "_next", "by_number")

    def __init__(self) -> None:
        self._next = 1
        self.by_number: dict[int, Kept] = {}
        self._by_key: dict[tuple[str, str], list[int]] = {}

    def __len__(self) -> int:
        """How many deliveries wait for a taker."""
        return len(self.by_number)

    def keep(self, address: str, key: str, delivery: Delivery) -> Kept:
        """Keep *delivery* until it is taken or dropped."""
        kept = Kept(self._next, address, key, delivery)
        self._next += 1
        self._add(kept)
        return kept

    def find(self, command: Get) -> Kept | None:
        """The oldest delivery that *command* would take."""
        for kept in self.of(command.address, command.key):
            if suits(kept.delivery, command.generation, command.size, command.instance):
                return kept
        return None

    def of(self, address: str, key: str) -> list[Kept]:
        """Everything kept of one key, oldest first."""
        return [self.by_number[number] for number in self._by_key.get((address, key), ())]

    def get(self, number: int) -> Kept | None:
        """What is kept under that number, if it still is."""
        return self.by_number.get(number)

    def drop(self, kept: Kept) -> None:
        """It is kept no longer."""
        del self.by_number[kept.number]
        numbers = self._by_key[kept.address, kept.key]
        numbers.remove(kept.number)
        if not numbers:
            del self._by_key[kept.address, kept.key]

    def all(self) -> list[Kept]:
        """Everything kept, oldest first."""
        return list(self.by_number.values())

    def _add(self, kept: Kept) -> None:
        self.by_number[kept.number] = kept
        self._by_key.setdefault((kept.address, kept.key), []).append(kept.number)

    def freeze(self) -> FrozenShelf:
        """The state as nested tuples."""
        return self._next, tuple(self.by_number.values())

    def restore(self, frozen: FrozenShelf) -> None:
        """Become what froze to *frozen*."""
        self.by_number, self._by_key = {}, {}
        self._next, kept = frozen
        for one in kept:
            self._add(one)


def suits(delivery: Delivery, generation: int, size: int, instance: bytes) -> bool:
    """Whether a get that asks for exactly this (0: anything) would take *delivery*."""
    return (
        generation in {0, delivery.generation}
        and size in {0, delivery.size}
        and instance in {NO_INSTANCE, delivery.peer}
    )
