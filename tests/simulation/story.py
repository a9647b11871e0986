"""What the callers and the accidents of the simulated world do, by chance."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from stagelink.core.events import (
    Abandon,
    Await,
    CancelKey,
    Close,
    Get,
    Poll,
    Publish,
    Reserve,
    StopGet,
    Withdraw,
)  # fmt: skip
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from tests.simulation.node import Node, Ticket
    from tests.simulation.world import World

    from stagelink.core.pool import Block

EDGES = (("b", "a"), ("c", "b"), ("d", "a"))
"""Who receives from whom; d is a second reader of stage b."""

SENDERS = {"a": "b", "b": "c"}
KEYS = tuple(f"k{number}" for number in range(5))


class Story:
    """Random calls of random nodes at random moments, then the end."""

    def __init__(self, world: World, acts: int) -> None:
        self._world = world
        self._left = acts
        self._made = 0
        self._pace_s = world.random.choice((0.01, 0.05, 0.2))
        self._linger_s = world.random.choice((0.01, 0.3, 2.0))
        self._accidents = world.random.choice((0.0, 0.03, 0.1))
        self.over = False
        self._acts = (
            (self._publish, 30), (self._get, 34), (self._poll, 12), (self._stop, 3),
            (self._cancel, 4), (self._withdraw, 3),
        )  # fmt: skip
        self._troubles = ((self._cut, 5), (self._pause, 3), (self._crash, 3), (self._close, 1))

    def looks_for_s(self) -> float:
        """How long a caller looks at what it was given."""
        return self._world.random.uniform(0, self._linger_s)

    def begin(self) -> None:
        """From now on something happens now and then."""
        self._world.after(0.0, self._next)

    def _next(self) -> None:
        world = self._world
        if self._left == 0:
            self.over = True
            return
        self._left -= 1
        trouble = world.random.random() < self._accidents
        choices = self._troubles if trouble else self._acts
        acts, weights = zip(*choices, strict=True)
        world.random.choices(acts, weights)[0]()
        if world.has_whim(0.15):
            self._wait()
        world.after(world.random.expovariate(1 / self._pace_s), self._next)

    def _running(self, name: str) -> Node | None:
        node = self._world.nodes[name]
        return node if node.alive and not node.paused else None

    def _edge(self) -> tuple[Node | None, str, str]:
        receiver, sender = self._world.random.choice(EDGES)
        return self._running(receiver), sender, self._world.random.choice(KEYS)

    # --- puts ----------------------------------------------------------------------------

    def _payload(self, size: int) -> bytes:
        """Bytes that no other payload has, as far as their number allows."""
        self._made += 1
        stamp = self._made.to_bytes(4, "big")
        return (stamp * (size // 4 + 1))[:size]

    def _publish(self) -> None:
        world, chance = self._world, self._world.random
        sender = chance.choice(tuple(SENDERS))
        node = self._running(sender)
        if node is None:
            return
        kind = chance.random()
        if kind < 0.06:
            self.publish(node, chance.choice(KEYS), 0, None, error="boom")
        elif kind < 0.3:
            self.publish(node, chance.choice(KEYS), chance.choice((0, 1, 5, 40)), None)
        else:
            size = chance.choice((1, 40, 64, 130, 200, 300, 5000 if kind > 0.98 else 100))
            deadline_s = world.now_s + chance.choice((0.0, 0.3, 2.0))
            world.call(
                node, "reserve", lambda ticket: Reserve(ticket, size, deadline_s), deadline_s, size
            )

    def reserved(self, node: Node, call: Ticket, block: Block) -> None:
        """Room was found: fill it and publish it, a little later."""
        instance, size, delay_s = node.instance, call.info, self._world.random.uniform(0, 0.02)

        def go_on() -> None:
            if not node.alive or node.instance != instance:
                return
            if node.paused:
                self._world.after(0.1, go_on)
            elif self._world.random.random() < 0.05:
                self._world.handle(node, Abandon(block))
            else:
                self.publish(node, self._world.random.choice(KEYS), size, block)

        self._world.after(delay_s, go_on)

    def publish(
        self, node: Node, key: str, size: int, block: Block | None, *, error: str = "",
        plain: bool = False,
    ) -> None:  # fmt: skip
        """Publish under *key*; the world learns which bytes belong to the generation."""
        from tests.simulation.world import Payload

        chance = self._world.random
        data = self._payload(size)
        readers = None if plain else chance.choice((1, 1, 2, None))
        ttl_s = 8.0 if plain else chance.choice((0.3, 2.0, 8.0, 8.0))
        replace = not plain and chance.random() < 0.3
        body = b"" if block is not None or error else data
        if block is not None:
            body = data[: chance.choice((0, 1, 100))]  # some say how it begins
            node.memory[block.offset : block.offset + size] = data
        to = SENDERS[node.name]
        self._world.call(
            node, "publish",
            lambda ticket: Publish(ticket, to, key, size, block, body, error, readers, ttl_s, replace),
            inf, Payload(key, to, data, error, readers),
        )  # fmt: skip

    def _withdraw(self) -> None:
        chance = self._world.random
        sender, key = chance.choice(tuple(SENDERS)), chance.choice(KEYS)
        node = self._running(sender)
        if node is not None:
            self._world.call(
                node, "withdraw", lambda ticket: Withdraw(ticket, SENDERS[sender], key), inf
            )

    # --- gets ----------------------------------------------------------------------------

    def _get(self) -> None:
        node, sender, key = self._edge()
        chance, world = self._world.random, self._world
        if node is None:
            return
        generation, size, instance = 0, 0, NO_INSTANCE
        if chance.random() < 0.15 and world.published:
            (instance, generation), payload = chance.choice(list(world.published.items()))
            key, size = payload.key, len(payload.data)
        self.get(
            node, sender, key, chance.choice((0.05, 0.5, 1.0, 4.0)), generation, size, instance
        )

    def get(
        self, node: Node, sender: str, key: str, wait_s: float, generation: int = 0, size: int = 0,
        instance: bytes = NO_INSTANCE,
    ) -> None:  # fmt: skip
        """Get *key* from *sender* within *wait_s* seconds."""
        deadline_s = self._world.now_s + wait_s
        self._world.call(
            node, "get",
            lambda ticket: Get(ticket, sender, sender, key, generation, deadline_s, size, instance),
            deadline_s, (key, generation),
        )  # fmt: skip

    def _wait(self) -> None:
        """Wait for the first of some keys."""
        world, whims = self._world, self._world.whims
        assert whims is not None
        receiver, sender = whims.choice(EDGES)
        node = self._running(receiver)
        if node is None:
            return
        keys = tuple(whims.sample(KEYS, whims.randint(1, 4)))
        deadline_s = world.now_s + whims.choice((0.05, 0.5, 2.0))
        world.call(
            node, "wait", lambda ticket: Await(ticket, sender, sender, keys, deadline_s),
            deadline_s, keys,
        )  # fmt: skip

    def _poll(self) -> None:
        node, sender, key = self._edge()
        if node is None:
            return
        deadline_s = self._world.now_s + self._world.random.choice((0.3, 2.0))
        self._world.call(
            node,
            "poll",
            lambda ticket: Poll(ticket, sender, sender, key, deadline_s),
            inf,
            (key, 0),
        )

    def _stop(self) -> None:
        node, _, _ = self._edge()
        open_calls: list[tuple[int, Any]] = list(node.tickets.items()) if node else []
        if node is None or not open_calls:
            return
        ticket, call = self._world.random.choice(open_calls)
        if call.kind == "reserve":
            del node.tickets[ticket]  # nobody is left to be answered
        self._world.handle(node, StopGet(ticket, "cancelled"))
        if ticket in node.tickets:
            raise AssertionError(f"{node.name}: stopped {call} was not answered")

    def _cancel(self) -> None:
        node, sender, key = self._edge()
        reject = self._world.random.random() < 0.5
        if node is not None:
            self._world.call(
                node, "cancel", lambda ticket: CancelKey(ticket, sender, sender, key, reject), inf
            )

    # --- accidents -----------------------------------------------------------------------

    def _cut(self) -> None:
        chance = self._world.random
        pair = chance.choice(EDGES)
        self._world.network.cut(pair, chance.choice((0.0, 0.2, 1.0, 5.0)))

    def _pause(self) -> None:
        world, chance = self._world, self._world.random
        node = self._running(chance.choice(tuple(world.nodes)))
        if node is None:
            return
        world.pause(node)
        for_s = chance.choice((0.05, 0.4, 3.0, 6.0))
        if for_s > 1 and chance.random() < 0.5:  # its silence is noticed
            world.after(for_s / 2, lambda: world.network.cut_all_of(node.name))
        instance = node.instance
        world.after(for_s, lambda: world.wake(node) if node.instance == instance else None)

    def _crash(self) -> None:
        self.crash(self._world.nodes[self._world.random.choice(tuple(self._world.nodes))])

    def crash(self, node: Node) -> None:
        """Kill a node and, sooner or later, start it again."""
        world = self._world
        if not node.alive:
            return
        world.crash(node)
        after_s = world.random.choice((0.0, 0.1, 1.0, 10.0))
        world.after(after_s, lambda: None if node.alive else world.start(node))

    def _close(self) -> None:
        world = self._world
        node = self._running(world.random.choice(tuple(world.nodes)))
        if node is None or node.closed:
            return
        node.closed = True
        world.handle(node, Close())
        gets = [call for call in node.tickets.values() if call.kind in {"get", "wait"}]
        if gets:
            raise AssertionError(f"{node.name} is closed and has not answered {gets}")
        instance = node.instance
        world.after(
            world.random.uniform(0, 2),
            lambda: self.crash(node) if node.instance == instance else None,
        )
