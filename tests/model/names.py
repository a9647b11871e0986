"""When two states are the same: what an id is called tells none apart, only how ids compare.

Every number that only names something (a generation, a transfer, a session, a get, a block's
serial, a ticket, a connection, a content) is cut out of a value: what is left is its *shape*, with
the ids in order of appearance. States are equal when their shapes are and each id has the same
*rank* among the ids of its group: those that the machines ever compare with each other, as all
transfers of one receiver. The machines compare ids, add one to the largest, and do nothing else
with them, so states of equal ranks behave alike (a test compares their successors). Places in a
session are compared by distance: they are counted from the lowest that is left in their session.

Truths about what nobody can speak of any more (a publish, a delivery, a started write whose id is
left in no endpoint, message or view) tell no states apart either.
"""

from __future__ import annotations

from hashlib import blake2b
from marshal import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.shapes import Group, Walk

if TYPE_CHECKING:
    from tests.model.machines import Machines
    from tests.model.state import State


class Part(NamedTuple):
    """A value without its ids: the number of its shape, and each group of its ids, sorted.

    Which id stands where is in the shape already, as a rank among those of the part. Of places
    only the lowest is told.
    """

    shape: int
    groups: tuple[tuple[Group, tuple[int, ...]], ...]


class Names:
    """Parts of states, taken apart once each, and how their ids compare with each other's."""

    def __init__(self, machines: Machines, listeners: dict[str, str]) -> None:
        self._machines = machines
        self._listeners = listeners
        self._shapes: dict[Any, int] = {}
        self._parts: dict[Any, Part] = {}
        self._ranks: dict[Any, int] = {}

    def digest(self, state: State) -> bytes:
        """12 bytes that are equal for states that behave alike."""
        parts = [self._endpoint(number) for number in state.nodes if number]
        lengths = []
        for wire in state.wires:
            lengths.append((len(wire.to_listener), len(wire.to_dialer)))
            parts += [self._mail(mail) for mail in wire.to_listener]
            parts += [self._mail(mail) for mail in wire.to_dialer]
        ghost = None
        if state.ghost:
            parts.append(self._mail(state.ghost[2]))
            ghost = state.ghost[:2]
        for name in ("wires", "writes", "tasks", "views", "waiting", "memory", "readings"):
            value = getattr(state, name)
            parts.append(self._parts.get((name, value)) or self._other(name, value))
        columns: dict[Group, list[Any]] = {}
        for at, part in enumerate(parts):
            _add(columns, at, part)
        for name, told in self._truths(state, columns):
            part = self._parts.get((name, told)) or self._other(name, told)
            _add(columns, len(parts), part)
            parts.append(part)
        flat = [part.shape for part in parts]
        flat += [self._compared(group, column) for group, column in columns.items()]
        alive = tuple([bool(number) for number in state.nodes])
        rest = (
            alive, tuple(lengths), ghost, state.lives, state.attached, state.editions,
            state.barred, state.left,
        )  # fmt: skip
        flat.append(self._shapes.setdefault(rest, len(self._shapes)))
        return blake2b(dumps(tuple(flat), 2), digest_size=12).digest()

    def _compared(self, group: Group, column: list[Any]) -> int:
        """The number of a pattern: how the ids of a group in one part compare to the others'."""
        key = (group[0] == "place", *column)
        number = self._ranks.get(key)
        if number is None:
            values = sorted({value for found in column[1::2] for value in found})
            if group[0] == "place":
                ranks = {value: value - values[0] for value in values}
            else:
                ranks = {value: rank for rank, value in enumerate(values)}
            parts = [
                tuple([ranks[value] for value in found]) if at % 2 else found
                for at, found in enumerate(column)
            ]
            pattern = ("ranks", *parts)
            number = self._ranks[key] = self._shapes.setdefault(pattern, len(self._shapes))
        return number

    def _truths(self, state: State, columns: dict[Group, list[Any]]) -> list[tuple[str, Any]]:
        def spoken(kind: str, owner: bytes, value: int) -> bool:
            column = columns.get((kind, chr(owner[0])), ())
            return any(value in found for found in column[1::2])

        published = tuple([p for p in state.published if spoken("g", p.peer, p.generation)])
        delivered = tuple([d for d in state.delivered if spoken("g", d[1], d[2])])
        started = tuple([s for s in state.started if spoken("t", s[1], s[2])])
        return [("published", published), ("delivered", delivered), ("started", started)]

    def _endpoint(self, number: int) -> Part:
        part = self._parts.get(number)
        if part is None:
            instance, frozen = self._machines.frozen(number)
            walk = Walk()
            shape = (instance, walk.endpoint(instance[:1].decode(), frozen))
            part = self._parts[number] = self._part(shape, walk)
        return part

    def _mail(self, number: int) -> Part:
        part = self._parts.get(-number)
        if part is None:
            message = self._machines.mail(number)
            walk = Walk()
            walk.taker = self._machines.dialer_of(message)
            walk.giver = self._listeners[walk.taker]
            part = self._parts[-number] = self._part(walk.value(message), walk)
        return part

    def _other(self, name: str, value: Any) -> Part:
        walk = Walk()
        shape = (name, getattr(walk, name, walk.value)(value))
        part = self._parts[name, value] = self._part(shape, walk)
        return part

    def _part(self, shape: Any, walk: Walk) -> Part:
        groups: dict[Group, list[int]] = {}
        for group, value in walk.ids:
            groups.setdefault(group, []).append(value)
        ranks: dict[tuple[Group, int], int] = {}
        listed = []
        for group, found in groups.items():
            values = sorted(set(found))
            if group[0] == "place":
                ranks.update({(group, value): value - values[0] for value in values})
                values = values[:1]
            else:
                ranks.update({(group, value): rank for rank, value in enumerate(values)})
            listed.append((group, tuple(values)))
        order = {group: at for at, group in enumerate(groups)}
        local = tuple([(order[group], ranks[group, value]) for group, value in walk.ids])
        number = self._shapes.setdefault((shape, local), len(self._shapes))
        return Part(number, tuple(listed))


def _add(columns: dict[Group, list[Any]], at: int, part: Part) -> None:
    """Note where a group of ids occurs: in which part, as which of its groups, and which ids."""
    for order, (group, values) in enumerate(part.groups):
        column = columns.get(group)
        if column is None:
            columns[group] = [64 * at + order, values]
        else:
            column += (64 * at + order, values)
