"""The end of a story of whole connectors: calm, rest, nothing left, and all of it still works."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.whole.clockwork import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.whole.books import Books
    from tests.simulation.whole.stage import Stage
    from tests.simulation.whole.surroundings import Opened
    from tests.simulation.whole.world import World

REST_S = 40.0
ENDS = ("gets", "waits", "untaken", "entries", "inline_bytes", "unacknowledged")


def finish(world: World) -> None:
    """Bring *world* to rest, check that nothing is left, that it still works, and close it."""
    heal(world)
    world.works.run(lambda: False, REST_S)
    for node in world.stages.values():
        nothing_is_left(node)
        all_is_counted(world.books, node)
    still_works(world)
    for node in world.stages.values():
        world.works.spawn(f"{node.name} closer", node.process, node.close)
    world.works.run(lambda: False, 5.0)
    nobody_is_left(world)


def heal(world: World) -> None:
    """End every trouble, and start whoever is not there."""
    world.calm()
    works, stages = world.works, list(world.stages.values())
    for node in stages:
        if node.process.paused:
            works.resume(node.process)
    works.run(lambda: not any(n.alive and n.closing for n in stages), 10.0)
    for node in stages:
        if not node.alive:
            node.start()
    works.run(lambda: all(n.alive for n in stages), 1.0)
    world.calm()
    works.run(lambda: not any(callers(n) for n in stages), 30.0)
    for node in stages:
        node.let_go()
        # What was lost without a sign is noticed at the next message; this is that sign.
        world.hub.cut(node.address)
        world.hub.heal(node.address)
    gc.collect()


def callers(node: Stage) -> list[str]:
    """Those of a process that are not home yet."""
    return [one.name for one in node.process.actors if not one.over and "/" in one.name]


def nothing_is_left(node: Stage) -> None:
    """No call, no get, no lease, no entry, no block, no thread of a caller."""
    found = left_by(node)
    if callers(node):
        found["callers"] = callers(node)
    if found:
        msg = f"at rest, {node.name} still has {found}"
        raise Violation(msg)


def left_by(node: Opened) -> dict[str, Any]:
    """What a connector that nobody calls and whose payloads are over still has."""
    health, driver = node.connector.health(), node.driver
    endpoint, pool = driver.parts.endpoint, health["pool"]
    left: dict[str, Any] = {
        "calls": driver.tickets.all(),
        "begun": driver._begun.open,
        "views": len(driver.views),
        "outbox": list(driver.exchange.outbox),
        "stalled": driver.exchange.stalled,
        "todo": list(driver.work.todo),
        "ledger": {name: n for name, n in health["ledger"].items() if n},
        "inbox": {name: n for name, n in health["inbox"].items() if n and name in ENDS},
        "leases": [
            (reader.name, reader.leases.transfers, reader.leases.offers)
            for reader in list(endpoint.outgoing.readers.values())
            if reader.leases.transfers or reader.leases.offers
        ],
        "timers": [k for k in endpoint.timers.armed() if k[0] not in {"probe", "greet"}],
        "pool": pool if pool["free"] != pool["capacity"] or pool["waiting"] else {},
    }
    return {what: rest for what, rest in left.items() if rest}


def all_is_counted(books: Books, node: Opened) -> None:
    """The connector's own figures are those of its callers."""
    health, seen = node.connector.health(), books.published[node.instance]
    if health["puts"] != node.published or seen > node.published:
        msg = f"{node.name} counts {health['puts']} puts of {node.published}, its callers {seen}"
        raise Violation(msg)
    raised, counted = _told(books.errors.get(node.instance, {})), _told(health["errors"])
    if counted != raised:
        msg = f"{node.name} counts the errors {counted}, and its callers saw {raised}"
        raise Violation(msg)


def _told(errors: Mapping[str, int]) -> dict[str, int]:
    """Errors by cause; but what is refused before it is a call, and what nobody is told."""
    return {
        cause: count
        for cause, count in errors.items()
        if cause != "duplicate" and not cause.endswith("Error")
    }


def still_works(world: World) -> None:
    """A payload gets across every edge, though the story was rough."""
    arrived: list[str] = []

    def across(source: Stage, target: Stage, key: str) -> None:
        put(world.books, source, target, key)

    def taken(source: Stage, target: Stage, key: str) -> None:
        get(world.books, source, target, key)
        arrived.append(f"{source.name}->{target.name}")

    edges = [("a", "b"), ("a", "b1"), ("b", "c"), ("c", "b"), ("c", "b1")]
    for number, names in enumerate(edges):
        source, target = (world.stages[name] for name in names)
        for act, node in ((taken, target), (across, source)):
            call = partial(act, source, target, f"last{number}")
            world.works.spawn(f"{node.name} last", node.process, call)
    if not world.works.run(lambda: len(arrived) == len(edges), 10.0):
        msg = f"of {edges} only {arrived} still work"
        raise Violation(msg)


def put(books: Books, source: Opened, target: Opened, key: str) -> None:
    """Put one more payload."""
    last = books.put(source, target.stage, key, 700, 2)
    value = {"n": last.serial, "data": last.data()}
    source.connector.put(key, value, to=target.stage, readers=2, ttl=5.0)


def get(books: Books, source: Opened, target: Opened, key: str) -> None:
    """And get it."""
    with target.connector.get(key, source=source.stage, timeout=5.0) as payload:
        books.delivered(target, target.process.name, source.stage, key, payload.value)


def nobody_is_left(world: World) -> None:
    """Closed connectors leave no thread, no address, no plane and no connection."""
    hub = world.hub
    left = {
        "threads": [
            actor.name
            for node in world.stages.values()
            for actor in node.process.actors
            if not actor.over
        ],
        "addresses": list(hub.bound),
        "planes": [who for who, _ in hub.planes if who.hex() not in hub.dead],
        "dialled": hub.dialled,
    }
    found = {what: rest for what, rest in left.items() if rest}
    if found:
        msg = f"after the last close there still are {found}"
        raise Violation(msg)
