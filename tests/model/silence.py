"""What a peer that falls silent for ever costs: worlds, a look at each silence, and mistakes.

In every state what one peer may keep is within its share (:mod:`tests.model.shares`), so it costs
no more in whichever state it falls silent. Here the other side, left alone, ends all its calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.acts import ADVERSE
from tests.model.machines import PAGE
from tests.model.moves import apply, moves, place_of
from tests.model.mutations import Mutation
from tests.model.rest import unanswered
from tests.model.state import Bounds, Violation

from stagelink.core.gets import Gets
from stagelink.core.handshake.fetch import DRAINING, Fetches
from stagelink.core.handshake.lease import Leases
from stagelink.core.share import Share

if TYPE_CHECKING:
    from tests.model.state import State
    from tests.model.world import World

    from stagelink.core.endpoint import Endpoint

_PULL = Bounds(gets=2, puts=2, keys="kl", receiver_pages=2, peer_share=0.5)
_OFFER = Bounds(mode="offer", gets=2, puts=2, keys="kl", sender_pages=2, peer_share=0.5)

WORLDS = {
    "pull: share": _PULL,
    "pull: share, one key": _PULL._replace(gets=3, keys="k"),
    "pull: share, cancel": _PULL._replace(cancels=1),
    "pull: share, poll": _PULL._replace(gets=1, polls=1),
    "pull: share, cut": _PULL._replace(cuts=1),
    "pull: share, credits": _PULL._replace(credits=True, receiver_pages=4),
    "offer: share": _OFFER,
    "offer: share, cut": _OFFER._replace(gets=1, cuts=1),
    "offer: share, poll": _OFFER._replace(gets=1, polls=1),
    "offer: share, reject": _OFFER._replace(gets=1, rejects=1),
}


def begun(world: World) -> State:
    """A payload under each key, and a get of the first under way: here silence begins to cost."""
    state, keys = world.first(), world.bounds.keys
    for call in (*(("put", "s", key) for key in keys), ("get", "r", keys[0])):
        [move] = [move for move in moves(world, state) if move.what == call]
        state = apply(world, state, move)
        while True:
            sent = next(moves(world, state), None)
            if sent is None or sent.what[0] not in {"deliver", "connect", "perform"}:
                break
            state = apply(world, state, sent)
    return state


def survives_silence(world: World, state: State, silent: str) -> list[str]:
    """Let *silent* ("s" or "r") do nothing more: the other one comes to rest with its calls ended.

    Silence needs no moves of its own: whatever happens meanwhile is an interleaving like any other.

    Returns:
        What was done.

    Raises:
        Violation: somebody waits for ever, or more than a share is lost.
    """
    met, told = {state}, []
    while True:
        kind = (m for m in moves(world, state) if m.kind != ADVERSE and place_of(m) != silent)
        for move in kind:
            after = apply(world, state, move)
            if after not in met:
                break
        else:
            break
        told.append(str(move.what))
        state = after
        met.add(state)
    left = unanswered(state, silent)
    if left:
        raise Violation(f"7 {silent} is silent, and there are {left}: {told}")
    for place, node in zip(world.places, state.nodes, strict=True):
        if node and place != silent:
            _has_the_rest(world.machines.look(node), f"after {told}")
    return told


def _has_the_rest(endpoint: Endpoint, after: str) -> None:
    """A share is lost, and what a reader has claimed: it was alive and asked for that."""
    stats, readers = endpoint.pool.stats(), endpoint.outgoing.readers.values()
    claimed = sum(x.pinned for reader in readers for x in reader.leases.transfers.values())
    lost = max(PAGE, int(endpoint.settings.peer_share * stats.capacity)) + claimed
    if stats.free < stats.capacity - lost or stats.waiting:
        raise Violation(f"16 a silent peer costs more than {lost} bytes: {stats} {after}")


# --- mistakes ------------------------------------------------------------------------------


def _nothing(_: Any) -> Any:
    return lambda *_: None


def _pin_nothing(original: Any) -> Any:
    return lambda self, generation, _: original(self, generation, 0)


def _always(_: Any) -> Any:
    return lambda *_: True


def _forget_what_drains(original: Any) -> Any:
    return lambda self, fetch: fetch.state != DRAINING and original(self, fetch)


MUTATIONS = {
    "no share": Mutation(_PULL, Share, "admits", _always),
    "offers without a share": Mutation(_OFFER, Share, "admits", _always),
    "what drains is not counted": Mutation(_PULL, Fetches, "_reaches", _forget_what_drains),
    "an offer pins nothing": Mutation(_OFFER, Leases, "offer", _pin_nothing),
    "who waits for an end is not told": Mutation(_PULL, Gets, "retry_stalled", _nothing),
}
