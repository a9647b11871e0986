"""The data plane of the simulated world: it alone knows which memory may still be touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.node import Violation, overlap

from stagelink.core.blocks import QUARANTINED, RESERVED
from stagelink.core.events import Attached, Fenced, PlaneReset, Probed, WriteEnded

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

    from stagelink.core.events import Attach, Fence, Probe, StartWrite


class Write:
    """A posted write: it may touch its target until it ends."""

    def __init__(self, order: StartWrite, owner: Node, target: Node, memory: bytearray) -> None:
        self.order, self.owner, self.target = order, owner, target
        self.instances = owner.instance, order.peer
        self.source_memory, self.target_memory = owner.memory, memory
        self.live = True
        self.applied = 0

    def apply(self, upto: int) -> None:
        """Let the bytes up to *upto* land, as they are at their source now."""
        source, target = self.order.source.offset, self.order.target.offset
        done = self.applied
        self.target_memory[target + done : target + upto] = self.source_memory[
            source + done : source + upto
        ]
        self.applied = upto

    def __repr__(self) -> str:
        """The two instances and the order."""
        return f"Write({self.instances}, {self.order})"


class Plane:
    """Writes under way, attachments, probes and fences."""

    def __init__(self, world: World) -> None:
        self._world = world
        chance = world.random
        self.failing = chance.choice((0.0, 0.05, 0.2))
        self.stuck = chance.choice((0.0, 0.0, 0.05))
        self.slow_s = chance.choice((0.001, 0.05, 0.5))
        self.writes: list[Write] = []
        self.pulled: dict[tuple[bytes, int], int] = {}  # (receiver, transfer) -> block serial

    def calm(self) -> None:
        """Nothing fails from now on."""
        self.failing = self.stuck = 0.0

    # --- the ground truth ----------------------------------------------------------------

    def check_untouched(self, node: Node, offset: int, size: int, what: str) -> None:
        """No posted write reads or writes that range of *node*'s memory."""
        for write in self.writes:
            for memory, ref in (
                (write.target_memory, write.order.target),
                (write.source_memory, write.order.source),
            ):
                if memory is node.memory and overlap(offset, size, ref.offset, ref.size):
                    raise Violation(f"{node.name} {what} [{offset}, +{size}) under {write}")

    # --- writes --------------------------------------------------------------------------

    def start(self, node: Node, order: StartWrite) -> None:
        """Post a write, or refuse it because its target is not attached."""
        world = self._world
        target = world.by_instance[order.peer]
        if order.peer not in node.attached:
            self._ended(node, node.instance, order, "not attached")
            return
        write = Write(order, node, target, world.memories[order.peer])
        if target.alive and target.instance == order.peer:
            self._check_target(write)
        self.writes.append(write)
        half_s = self.slow_s * world.random.random()
        whole_s = half_s + self.slow_s * world.random.random()
        world.after(half_s, lambda: self._half(write))
        if world.random.random() >= self.stuck:
            failed = world.random.random() < self.failing
            world.after(whole_s, lambda: self._finish(write, failed))

    def _check_target(self, write: Write) -> None:
        """A write must only go to the very block that was named in its Pull, or lent."""
        order, target = write.order, write.target
        row = target.block_at(order.target.offset)
        serial = self.pulled.get((order.peer, order.transfer))
        if row is None or row[2] != serial or row[4] not in {RESERVED, QUARANTINED}:
            raise Violation(f"{write} into block {row}, pulled into {serial}")
        if order.target.size > row[1]:
            raise Violation(f"{write} is larger than {row}")

    def _half(self, write: Write) -> None:
        if write.live:
            write.apply(write.order.source.size // 2)

    def _finish(self, write: Write, failed: bool) -> None:
        owner, peer = write.owner, write.target
        if not write.live:
            return
        if not (owner.alive and owner.instance == write.instances[0]):
            # Its sender is dead: the device may land it much later, unless it is fenced.
            if self._world.random.random() < 0.5:
                self._world.after(0.2, lambda: self._finish(write, failed))
                return
        dead = not (peer.alive and peer.instance == write.instances[1])
        if not failed:
            write.apply(write.order.source.size)
        self._drop(write, "the peer is dead" if dead else "failed half-way" if failed else "")

    def _drop(self, write: Write, error: str) -> None:
        write.live = False
        self.writes.remove(write)
        self._ended(write.owner, write.instances[0], write.order, error)

    def _ended(self, node: Node, instance: bytes, order: StartWrite, error: str) -> None:
        event = WriteEnded(order.peer, order.transfer, error)
        self._world.tell(node, instance, event, self._world.random.uniform(0, 0.01))

    # --- slow orders, one after the other ------------------------------------------------

    def attach(self, node: Node, order: Attach) -> None:
        """Reach the peer's regions, or say why not."""
        instance = node.instance

        def answer() -> None:
            peer = self._world.by_instance[order.peer]
            gone = not peer.alive or peer.instance != order.peer
            failed = gone or self._world.random.random() < self.failing / 5
            if not failed:
                node.attached[order.peer] = True
            error = "cannot map" if failed else ""
            self._world.tell(
                node, instance, Attached(order.peer, order.link, order.session, error)
            )

        self._later(node, answer)

    def fence(self, node: Node, order: Fence) -> None:
        """Cut two instances off from one another."""
        instance = node.instance

        def answer() -> None:
            world, peer = self._world, self._world.by_instance[order.peer]
            dead = not peer.alive or peer.instance != order.peer
            if order.dead and not dead:
                raise Violation(f"{node.name} takes {order.peer!r} for dead")
            fenced = (order.dead or node.can_fence) and world.random.random() >= self.failing
            if fenced:
                self._sever(node, peer, order.peer)
            world.tell(node, instance, Fenced(order.peer, fenced))

        self._later(node, answer)

    def _sever(self, node: Node, peer: Node, instance: bytes) -> None:
        both = {node.instance, instance}
        for write in [w for w in self.writes if set(w.instances) == both]:
            self._drop(write, "fenced")
        node.attached.pop(instance, None)
        if peer.instance == instance:
            peer.attached.pop(node.instance, None)

    def reset(self, node: Node) -> None:
        """Break everything of *node* that is under way."""
        instance = node.instance

        def answer() -> None:
            for write in [w for w in self.writes if w.instances[0] == instance]:
                self._drop(write, "reset")
            node.attached.clear()
            self._world.tell(node, instance, PlaneReset())

        self._later(node, answer)

    def probe(self, node: Node, order: Probe) -> None:
        """Ask the kernel, which never lies but may not know yet."""
        world, peer = self._world, self._world.by_instance[order.peer]
        dead = not peer.alive or peer.instance != order.peer
        dead = dead and world.random.random() < 0.8
        world.tell(node, node.instance, Probed(order.peer, dead), 0.001)

    def _later(self, node: Node, answer: object) -> None:
        world, instance = self._world, node.instance
        node.plane_free_s = max(node.plane_free_s, world.now_s) + world.random.uniform(0, 0.03)

        def run() -> None:
            if node.alive and node.instance == instance:
                answer()  # type: ignore[operator]

        world.after(node.plane_free_s - world.now_s, run)
