"""Payloads lent to readers that speak another protocol, for whom somebody here answers.

Such a reader has no conversation and no cursor. A loan is a lease like any other: it pins the
bytes and holds a reader's slot until it is given back, as taken or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Complete, Delivery, Failure
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from stagelink.core.edges import Edges
    from stagelink.core.events import Action, Lend, Repay
    from stagelink.core.ledger import Entry


class Loans:
    """Loans of live entries; they are counted in the entries alone, so nothing else is kept."""

    __slots__ = ("_edges",)

    def __init__(self, edges: Edges) -> None:
        self._edges = edges

    def lend(self, command: Lend, now_s: float, out: list[Action]) -> None:
        """Lease the live entry of a key, if this reader may take it and does not hold it."""
        del now_s
        ledger = self._edges.ledgers.get(command.to)
        entry = ledger.live(command.key) if ledger is not None else None
        answer: Delivery | Failure | None = None
        if entry is not None and entry.error:
            answer = Failure(Reason.FAILED.value, entry.error, generation=entry.generation)
        elif ledger is not None and entry is not None and _may(entry, command):
            ledger.lease(entry.generation, _name(entry, command))
            where = (NO_INSTANCE, entry.body, entry.block, None)
            answer = Delivery(0, entry.generation, entry.size, *where)
        out.append(Complete(command.ticket, answer))

    def repay(self, command: Repay, now_s: float, out: list[Action]) -> None:
        """End a loan; one that was taken counts its reader."""
        del now_s
        edges, generation = self._edges, command.generation
        ledger = edges.ledgers[command.to]
        name = _name(ledger.entries[generation], command)
        if command.taken and ledger.count(generation, name):
            edges.leave(command.to, generation, Reason.TAKEN, "every reader has it", out)
        edges.end_lease(command.to, generation, name, out)


def _may(entry: Entry, command: Lend) -> bool:
    name = _name(entry, command)
    return name not in entry.holders and entry.admits(name)


def _name(entry: Entry, command: Lend | Repay) -> str:
    """By whom it is counted: named readers are stages, and this one stands for its own."""
    return command.to if isinstance(entry.readers, tuple) else command.reader
