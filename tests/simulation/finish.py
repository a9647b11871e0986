"""The end of a simulated story: heal everything, wait, and find nothing left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.node import Violation
from tests.simulation.story import EDGES

from stagelink.core.handshake.watch import UP

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World


def finish(world: World) -> None:
    """Bring *world* to rest, check that nothing is left, and that it still works."""
    heal(world)
    world.until(lambda: False, 40.0)
    for node in world.nodes.values():
        if node.alive:
            nothing_is_left(world, node)
    still_works(world)


def heal(world: World) -> None:
    """End every trouble: calm weather, all awake, every view dropped, every connection anew."""
    world.network.calm()
    world.plane.calm()
    for node in world.nodes.values():
        world.wake(node)
        if node.alive and node.closed:
            world.story.crash(node)
    for node in world.nodes.values():
        for handle in list(node.views):
            world.let_go(node, node.instance, handle)
        # What was lost without a sign is noticed at the next message; this is that sign.
        world.network.cut_all_of(node.name)


def nothing_is_left(world: World, node: Node) -> None:
    """No call, no get, no lease, no entry, no block, no timer but retries."""
    endpoint, outgoing = node.endpoint, node.endpoint.outgoing
    left = {
        "calls": list(node.tickets.values()),
        "views": list(node.views.values()),
        "gets": endpoint.incoming.fetches.all(),
        "waits": endpoint.incoming.waits.all(),
        "shelf": endpoint.incoming.shelf.all(),
        "queued writes": list(outgoing.transfers.queue),
        "writes": outgoing.transfers.writing,
        "refusals of the honest": +(outgoing.violations + endpoint.incoming.violations),
        "inline bytes": outgoing.inline_bytes,
        "entries": [e for led in outgoing.ledgers.values() for e in led.entries.values()],
        "leases": [
            (reader.instance, reader.leases.transfers, reader.leases.offers)
            for reader in outgoing.readers.values()
            if reader.leases.transfers or reader.leases.offers
        ],
        "timers": [key for key in endpoint.timers.armed() if key[0] not in {"probe", "greet"}],
        "suspects": [
            peer for peer, watch in endpoint.peers.watches.items()
            if watch.state != UP or not is_alive(world, peer)
        ],
    }  # fmt: skip
    found = {what: rest for what, rest in left.items() if rest}
    if found:
        raise Violation(f"at rest, {node.name} still has {found}")
    stats = endpoint.pool.stats()
    if stats.free != stats.capacity or stats.blocks or stats.waiting:
        raise Violation(f"at rest, the pool of {node.name} is not whole: {stats}")


def is_alive(world: World, instance: bytes) -> bool:
    """Whether that instance is running."""
    node = world.by_instance[instance]
    return node.alive and node.instance == instance


def still_works(world: World) -> None:
    """A payload gets across every edge, though the story was rough."""
    for number, (receiver, sender) in enumerate(EDGES):
        node, source = world.nodes[receiver], world.nodes[sender]
        if not (node.alive and source.alive):
            continue
        key, before = f"last{number}", len(node.delivered)
        world.story.get(node, sender, key, 5.0)
        world.story.publish(source, key, 10, None, plain=True)
        world.until(lambda: False, 5.0)
        if len(node.delivered) == before:
            raise Violation(f"nothing gets from {sender} to {receiver} any more")
