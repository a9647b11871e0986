"""A whole pipeline of endpoints under a virtual clock, driven by one seed.

``World(seed).run()`` always does the same. It raises :class:`SimulationError`, which names the
seed and the last events, when the world sees what must never happen.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from tests.simulation.errors import SimulationError
from tests.simulation.finish import finish
from tests.simulation.link import Network
from tests.simulation.node import ALIGNMENT, Node, Ticket, View, Violation, overlap
from tests.simulation.plane import Plane
from tests.simulation.story import EDGES, Story

from stagelink.core.events import (
    Attach,
    Complete,
    Delivery,
    Dial,
    Failure,
    Fence,
    HangUp,
    Probe,
    Published,
    Release,
    ResetPlane,
    Send,
    StartWrite,
    TimePassed,
    Untaken,
)  # fmt: skip
from stagelink.core.messages import Grants, Packet, Pull
from stagelink.core.pool import Block, Refusal
from stagelink.core.values import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.core.events import Action, Event
    from stagelink.core.values import RegionRef

TRACE = 40
AT_ONCE = frozenset({"publish", "poll", "cancel", "withdraw"})


class Payload:
    """What was published as one generation of one instance."""

    def __init__(self, key: str, to: str, data: bytes, error: str, readers: Any) -> None:
        self.key, self.to, self.data, self.error, self.readers = key, to, data, error, readers
        self.takers: dict[str, bool] = {}


class World:
    """The clock, the nodes, and everything between them."""

    def __init__(self, seed: int, acts: int = 70, *, impatient: bool = False) -> None:
        self.seed = seed
        # A stream of its own: with it or without, what else happens is drawn alike.
        self.whims = random.Random(seed + 1) if impatient else None
        self.random = chance = random.Random(seed)
        self.now_s = 0.0
        self.trace: deque[tuple[float, str, object]] = deque(maxlen=TRACE)
        self.steps = 0
        self.seen: Counter[str] = Counter()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._tickets = 0
        self.disturbed = False  # a crash or a fence: a payload may be had again
        self.published: dict[tuple[bytes, int], Payload] = {}
        self.by_instance: dict[bytes, Node] = {}
        self.memories: dict[bytes, bytearray] = {}  # also of those that have ended
        self.mode = chance.choice(("map", "write"))
        self.can_fence = self.mode == "write" and chance.random() < 0.5
        # Of a stream of its own as well.
        self.credit_share = random.Random(seed + 2).choice((0.0, 0.5, 1.0))
        self.capacity = ALIGNMENT * chance.choice((8, 16, 64))
        self.network, self.plane = Network(self), Plane(self)
        self.nodes: dict[str, Node] = {}
        for name, identity in (
            ("a", Identity("a")), ("b", Identity("b")), ("c", Identity("c")), ("d", Identity("b", 1)),
        ):  # fmt: skip
            self.nodes[name] = Node(name, identity, self.mode, can_fence=self.can_fence)
            self.nodes[name].credit_share = self.credit_share
            self.start(self.nodes[name])
        self.story = Story(self, acts)

    @property
    def operations(self) -> int:
        """How many calls were made."""
        return self._tickets

    # --- time ----------------------------------------------------------------------------

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Let *act* happen *delay_s* from now; what is due together happens in this order."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now_s + max(0.0, delay_s), self._count, act))

    def run(self) -> World:
        """Live through the whole story and check its end."""
        try:
            self.story.begin()
            self.until(lambda: self.story.over, 600.0)
            finish(self)
        except Exception as error:
            last = "\n".join(f"  {t:8.4f} {who} {what}" for t, who, what in self.trace)
            message = f"seed {self.seed}: {error!r}\nthe last events:\n{last}"
            raise SimulationError(message) from error
        return self

    def until(self, over: Callable[[], bool], limit_s: float) -> None:
        """Jump from one moment that matters to the next, until *over* or for *limit_s*."""
        end_s = self.now_s + limit_s
        while not over():
            node = self._first_due()
            due = end_s if node is None or node.due is None else max(node.due, self.now_s)
            if self._agenda and self._agenda[0][0] <= due:
                if self._agenda[0][0] > end_s:
                    break
                moment, _, act = heapq.heappop(self._agenda)
                self.now_s = max(self.now_s, moment)
                act()
            elif node is None or due >= end_s:
                break
            else:
                self.now_s = due
                self.tick(node)
        else:
            return
        self.now_s = end_s

    def _first_due(self) -> Node | None:
        first: Node | None = None
        for node in self.nodes.values():
            if not node.alive or node.paused or node.due is None:
                continue
            if first is None or first.due is None or node.due < first.due:
                first = node
        return first

    def tick(self, node: Node) -> None:
        """Hand in the time and look whether every wait that is over was answered."""
        self.handle(node, TimePassed())
        for ticket, call in node.tickets.items():
            if call.deadline_s <= self.now_s:
                raise Violation(f"{node.name}: {call} (ticket {ticket}) outlives its deadline")
        if node.alive and node.due is not None and node.due <= self.now_s:
            raise Violation(f"{node.name}: a timer stays due at {node.due}")

    # --- processes -----------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Open the next instance of a node."""
        node.start(self.capacity)
        self.by_instance[node.instance] = node
        self.memories[node.instance] = node.memory
        self._note(node, "starts")

    def crash(self, node: Node) -> None:
        """Kill a process: its views go with it, its posted writes may still land."""
        self._note(node, "crashes")
        self.disturbed = True
        node.alive = False
        node.views.clear()
        node.tickets.clear()
        self.network.cut_all_of(node.name)

    def pause(self, node: Node) -> None:
        """Stop a process, as SIGSTOP does."""
        self._note(node, "pauses")
        node.paused = True

    def wake(self, node: Node) -> None:
        """Let it go on: first the mail, then the time."""
        if not (node.alive and node.paused):
            return
        self._note(node, "wakes")
        node.paused, node.woke_s = False, self.now_s
        while node.waiting:
            self.handle(node, node.waiting.popleft())
        self.tick(node)

    def tell(self, node: Node, instance: bytes, event: Event, after_s: float = 0.0) -> None:
        """Let that instance hear of something, when it can."""
        self.after(after_s, lambda: self._hear(node, instance, event))

    def _hear(self, node: Node, instance: bytes, event: Event) -> None:
        if not node.alive or node.instance != instance:
            return
        if node.paused:
            node.waiting.append(event)
        else:
            self.handle(node, event)

    def handle(self, node: Node, event: Event) -> None:
        """Hand one event in, perform the orders, and compare memory with the truth."""
        self.steps += 1
        self._note(node, event)
        actions = node.endpoint.handle(event, self.now_s)
        freed, handed = node.changed_blocks()
        for action in actions:
            self._perform(node, action)
        for offset, size in freed:
            self.plane.check_untouched(node, offset, size, "frees")
        for offset, size in handed:
            self.plane.check_untouched(node, offset, size, "hands out")
            self._check_unviewed(node, offset, size)
        node.due = node.endpoint.next_deadline()

    def _check_unviewed(self, node: Node, offset: int, size: int) -> None:
        for other in self.nodes.values():
            for view in other.views.values():
                spans = (offset, size, view.offset, len(view.expected))
                if view.memory is node.memory and overlap(*spans):
                    raise Violation(f"{node.name} hands out what {other.name} views: {spans}")

    # --- calls ---------------------------------------------------------------------------

    def call(
        self, node: Node, kind: str, make: Callable[[int], Event], deadline_s: float, info: Any = None
    ) -> None:  # fmt: skip
        """Make one call under a new ticket; some are answered before it returns."""
        self._tickets += 1
        ticket = self._tickets
        node.tickets[ticket] = Ticket(kind, deadline_s, info)
        self.handle(node, make(ticket))
        if kind in AT_ONCE and ticket in node.tickets:
            raise Violation(f"{node.name}: {kind} (ticket {ticket}) was not answered at once")

    def has_whim(self, chance: float) -> bool:
        """Whether callers of this world behave that way, this time."""
        return self.whims is not None and self.whims.random() < chance

    def _perform(self, node: Node, action: Action) -> None:
        if isinstance(action, Complete):
            self._complete(node, action)
        elif isinstance(action, Send):
            message = action.message
            if isinstance(message, Packet) and isinstance(message.message, Pull):
                self._named(node, message.message.transfer, message.message.target)
            elif isinstance(message, Packet) and isinstance(message.message, Grants):
                for transfer, target in message.message.blocks:
                    self._named(node, transfer, target)
            self.network.send(node, action.link, message)
        elif isinstance(action, Dial):
            self.network.dial(node, action.link)
        elif isinstance(action, Attach):
            self.plane.attach(node, action)
        elif isinstance(action, StartWrite):
            self.plane.start(node, action)
        elif isinstance(action, Probe):
            self.plane.probe(node, action)
        elif isinstance(action, Fence):
            self.disturbed = True
            self.plane.fence(node, action)
        elif isinstance(action, ResetPlane):
            self.plane.reset(node)
        else:
            assert isinstance(action, HangUp)

    def _named(self, node: Node, transfer: int, target: RegionRef | None) -> None:
        """A receiver says where a transfer is to be written."""
        if target is None:
            return
        row = node.block_at(target.offset)
        serial = self.plane.pulled.setdefault(
            (node.instance, transfer), row[2] if row is not None else -1
        )
        if row is None or row[2] != serial:
            raise Violation(f"{node.name} names {target}, begun in block {serial}, now {row}")

    def _complete(self, node: Node, action: Complete) -> None:
        call = node.tickets.pop(action.ticket, None)
        if call is None:
            raise Violation(f"{node.name}: {action} answers no open call")
        self._note(node, f"  answers {call.kind} with {action.result!r}")
        if self.now_s > call.deadline_s + 1e-6 and node.woke_s <= call.deadline_s:
            raise Violation(f"{node.name}: {call} is answered late")
        result = action.result
        told = result.reason if isinstance(result, Failure) else "ok"
        self.seen[f"{call.kind}: {told}"] += 1
        if isinstance(result, Delivery):
            if self.has_whim(0.15) and not self.story.over:
                event = Untaken(dict(EDGES)[node.name], call.info[0], result)
                self.tell(node, node.instance, event)
            else:
                self._delivered(node, call, result)
        elif isinstance(result, Published):
            self.published[node.instance, result.generation] = call.info
        elif call.kind == "reserve" and isinstance(result, Block):
            self.story.reserved(node, call, result)
        elif (call.kind == "ping" and not isinstance(result, Failure)) or (
            not isinstance(result, (Failure, Refusal, bool, int, str)) and result is not None
        ):
            raise Violation(f"{call} is answered with {result}")

    def _delivered(self, node: Node, call: Ticket, got: Delivery) -> None:
        name = got.peer, got.generation
        payload = self.published.get(name)
        if payload is None or payload.error:
            raise Violation(f"{node.name} was given {got}, which was never published")
        key, generation = call.info
        wrong = key != payload.key or payload.to != node.identity.stage
        if wrong or generation not in {0, got.generation} or got.size != len(payload.data):
            raise Violation(f"{node.name} asked for {call.info} and was given {got}")
        if name in node.delivered:
            raise Violation(f"{node.name} was given {name} twice, first at {node.delivered[name]}")
        node.delivered[name] = self.now_s
        payload.takers[node.name] = True
        if isinstance(payload.readers, int) and len(payload.takers) > payload.readers:
            if not self.disturbed:
                raise Violation(f"{name} is for {payload.readers}, had by {payload.takers}")
        if got.inline:
            if got.body != payload.data:
                raise Violation(f"{node.name} was given other bytes than {name} has")
            return
        self._view(node, got, payload.data)

    def _view(self, node: Node, got: Delivery, data: bytes) -> None:
        if not data.startswith(got.body):
            raise Violation(f"{node.name} was told another beginning than {got} has")
        if got.block is not None:
            view = View(node.instance, node.memory, got.block.offset, data)
        else:
            assert got.where is not None
            view = View(got.peer, self.memories[got.peer], got.where.offset, data)
        if not view.whole:
            raise Violation(f"{node.name} was given other bytes than {got} should have")
        node.views[got.handle] = view
        instance = node.instance
        self.after(self.story.looks_for_s(), lambda: self.let_go(node, instance, got.handle))

    def let_go(self, node: Node, instance: bytes, handle: int) -> None:
        """The last view of a delivery goes, if it is still there; its bytes never changed."""
        if not node.alive or node.instance != instance or handle not in node.views:
            return
        if node.paused:
            self.after(0.1, lambda: self.let_go(node, instance, handle))
            return
        view = node.views.pop(handle)
        if not view.whole:
            raise Violation(f"{node.name}: the bytes of {handle} changed while they were viewed")
        self.handle(node, Release(handle))

    def _note(self, node: Node, what: object) -> None:
        self.trace.append((self.now_s, node.name, what))
