"""The control channel of the simulated world: connections that delay, lose, repeat and break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.events import Connected, Disconnected, Received

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

    from stagelink.core.messages import Message

REDIAL_S = 0.3


class Connection:
    """From a receiver, which dialled, to a sender; each side has its own name for it."""

    def __init__(self, dialler: Node, address: str, sender: Node, link: str) -> None:
        self.dialler, self.address, self.sender, self.link = dialler, address, sender, link
        self.instances = dialler.instance, sender.instance
        self.up = True
        self.last_s = [0.0, 0.0]  # when the latest message of each direction arrives


class Network:
    """Every connection, and how bad the weather is."""

    def __init__(self, world: World) -> None:
        self._world = world
        chance = world.random
        rough = chance.choice((0.0, 0.01, 0.05))
        self.loss, self.repeat, self.reorder = rough, rough / 2, rough / 2
        self.delay_s = chance.choice((0.0005, 0.01, 0.1))
        self.links = 0
        self.open: dict[tuple[str, str], Connection] = {}
        self._by_link: dict[str, Connection] = {}
        self._cut_until: dict[tuple[str, str], float] = {}

    def calm(self) -> None:
        """No more trouble."""
        self.loss = self.repeat = self.reorder = 0.0
        self._cut_until.clear()

    def dial(self, node: Node, address: str) -> None:
        """Keep a connection of *node* to *address* from now on."""
        node.dialled[address] = True
        self._redial(node, node.instance, address, self._world.random.uniform(0, 0.05))

    def _redial(self, node: Node, instance: bytes, address: str, after_s: float) -> None:
        self._world.after(after_s, lambda: self._connect(node, instance, address))

    def _connect(self, node: Node, instance: bytes, address: str) -> None:
        world, pair = self._world, (node.name, address)
        if not node.alive or node.instance != instance or pair in self.open:
            return
        sender = world.nodes[address]
        if not sender.alive or self._cut_until.get(pair, 0.0) > world.now_s:
            self._redial(node, instance, address, REDIAL_S)
            return
        self.links += 1
        connection = Connection(node, address, sender, f"link{self.links}")
        self.open[pair] = self._by_link[connection.link] = connection
        world.tell(node, instance, Connected(address))

    def cut(self, pair: tuple[str, str], for_s: float) -> None:
        """Break the connection of *pair*; both sides notice, each in its own time."""
        world = self._world
        self._cut_until[pair] = world.now_s + for_s
        connection = self.open.pop(pair, None)
        if connection is None:
            return
        connection.up = False
        here, there = connection.instances
        soon, late = world.random.uniform(0, 0.05), world.random.choice((0.0, 0.05, 1.5))
        node, address = connection.dialler, connection.address
        world.tell(node, here, Disconnected(address, "cut"), soon)
        world.tell(connection.sender, there, Disconnected(connection.link, "cut"), late)
        self._redial(node, here, address, soon + REDIAL_S * world.random.random())

    def cut_all_of(self, name: str, for_s: float = 0.0) -> None:
        """Break every connection of one node."""
        for pair in [pair for pair in self.open if name in pair]:
            self.cut(pair, for_s)

    def send(self, node: Node, link: str, message: Message) -> None:
        """Carry one message, if its connection is up and the weather allows."""
        upward = link in node.dialled
        connection = self.open.get((node.name, link)) if upward else self._by_link.get(link)
        if connection is None or not connection.up:
            return
        chance = self._world.random
        if chance.random() < self.loss:
            return
        for _ in range(1 + (chance.random() < self.repeat)):
            self._carry(connection, upward, message)

    def _carry(self, connection: Connection, upward: bool, message: Message) -> None:
        world = self._world
        arrives_s = world.now_s + self.delay_s * world.random.uniform(0.5, 1.5)
        if world.random.random() >= self.reorder:
            arrives_s = max(arrives_s, connection.last_s[upward])
            connection.last_s[upward] = arrives_s
        world.after(arrives_s - world.now_s, lambda: self._arrive(connection, upward, message))

    def _arrive(self, connection: Connection, upward: bool, message: Message) -> None:
        world = self._world
        if not connection.up:
            connection = self._successor(connection) or connection
            # Some channels resend after a reconnect what they had queued before.
            if not connection.up or world.random.random() > 0.2:
                return
        here, there = connection.instances
        if upward:
            world.tell(connection.sender, there, Received(connection.link, message))
        else:
            world.tell(connection.dialler, here, Received(connection.address, message))

    def _successor(self, old: Connection) -> Connection | None:
        new = self.open.get((old.dialler.name, old.address))
        same = new is not None and new.instances[0] == old.instances[0]
        return new if same else None
