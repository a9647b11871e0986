"""What must hold when nothing more happens: every call has its answer, and nothing is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants import entries

if TYPE_CHECKING:
    from tests.model.state import State
    from tests.model.world import World

    from stagelink.core.endpoint import Endpoint


def unanswered(state: State, but: str = "") -> str:
    """7: calls that are still not answered, but for those of a place that is silent."""
    calls = [call for call in state.waiting if call.place != but]
    return f"unanswered calls {calls}" if calls else ""


def quiescent(world: World, state: State) -> str:
    """12: what is left when nothing can happen any more; empty if nothing is."""
    left = []
    for place, node in zip(world.places, state.nodes, strict=True):
        if node:
            left += [f"{place}: {what}" for what in _left(world.machines.look(node))]
    if state.writes:
        left.append(f"writes {state.writes}")
    if state.waiting:
        left.append(unanswered(state))
    return "; ".join(left)


def _left(endpoint: Endpoint) -> list[str]:
    stats, left = endpoint.pool.stats(), []
    if stats.free != stats.capacity or stats.waiting:
        left.append(f"{stats}")
    if entries(endpoint):
        left.append(f"{list(entries(endpoint).values())}")
    for reader in endpoint.outgoing.readers.values():
        leases = reader.leases.freeze()
        if any(leases):
            left.append(f"{reader.instance!r} has {leases}")
    if endpoint.incoming.fetches.all():
        left.append(f"{endpoint.incoming.fetches.all()}")
    if endpoint.incoming.waits.all() or len(endpoint.incoming.shelf):
        left.append(f"{endpoint.incoming.waits.all()}, {endpoint.incoming.shelf.all()}")
    for source in endpoint.incoming.sources.values():
        owed = source.notices and not source.gone  # of who has gone, nobody waits to be told
        if len(source.inbox) or owed or source.stalled:
            left.append(f"inbox {source.inbox.freeze()}, notices {source.notices}")
    return left
