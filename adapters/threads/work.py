"""What the core orders of planes and of the proof of life; performed with no lock held."""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from stagelink.adapters.threads.draining import drain
from stagelink.adapters.threads.errands import Errands, error_of
from stagelink.core.errors import Reason, TransportError
from stagelink.core.events import (
    Attach,
    Attached,
    Fence,
    Fenced,
    PlaneReset,
    Probe,
    Probed,
    StartWrite,
    WriteEnded,
)  # fmt: skip
from stagelink.core.values import PlaneCard
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.threads.narrator import Narrator
    from stagelink.core.events import Action, Event
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.liveness import Liveness
    from stagelink.ports.plane import DataPlane


DESCRIBED = "described"
"""What all that cut off a living peer have in common: their reports say how we describe ourselves
from now on, so the last report must be the latest description."""


def _concerned(action: Action) -> tuple[object, ...]:
    """What *action* must not overtake: orders for the same peer; a reset, all of them."""
    if isinstance(action, Fence):
        return (action.peer,) if action.dead else (action.peer, DESCRIBED)
    return (action.peer,) if isinstance(action, Attach) else ()


class Work:
    """Orders that are no messages: writes, probes, and what may take long.

    ``submit`` reports at once; ``note`` keeps a report for whoever pumps next, and ``pump`` is
    called when a thread of a plane brought one; ``lost``, when an interruption kept an order from
    being carried out, or did so halfway.
    """

    def __init__(
        self,
        planes: dict[str, DataPlane],
        liveness: Liveness,
        submit: Callable[[Event], object],
        note: Callable[[Event], object],
        pump: Callable[[], object],
        *,
        lost: Callable[[], object],
        narrator: Narrator,
    ) -> None:
        self._planes = planes
        self._liveness = liveness
        self._submit = submit
        self._note = note
        self._pump = pump
        self._lost = lost
        self._narrator = narrator
        self._log = narrator.log
        self._posting: set[int] = set()
        self._plane_of: dict[Instance, DataPlane] = {}
        self.todo: deque[Action] = deque()
        self.errands = Errands(narrator.log)

    def run(self) -> None:
        """Perform what is queued."""
        drain(self.todo, self._carry_out, self._lost)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, StartWrite):
            self._post(action)
        elif isinstance(action, Probe):
            self._note(Probed(action.peer, self._is_dead(action)))
        else:
            self.errands.run(partial(self._errand, action), *_concerned(action))

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """The bytes of *peer* at *where*, writable.

        Raises:
            TransportError: that peer has been cut off.
        """
        plane = self._plane_of.get(peer)
        if plane is None:
            msg = f"the memory of peer {peer.hex()} has been cut off"
            raise TransportError(msg, reason=Reason.FENCED, remedy="get the key again")
        return plane.view(peer, where)

    def _is_dead(self, action: Probe) -> bool:
        """Whether the peer is proven dead; a proof that cannot be read proves nothing."""
        try:
            dead = self._liveness.is_dead(action.proof)
        except Exception as error:  # noqa: BLE001 - a backend may be anybody's code
            name = self._narrator.name(action.peer)
            self._log.warning("probe_failed", peer=name, cause=f"{type(error).__name__}: {error}")
            return False
        name, instance = self._narrator.name(action.peer), action.peer.hex()
        if dead and action.left:
            self._log.info("peer_closed", peer=name, instance=instance)
        elif dead:
            self._log.warning("peer_dead", peer=name, instance=instance, cause="died or closed")
        return dead

    def _post(self, action: StartWrite) -> None:
        order = WriteOrder(*action)
        plane = self._plane_of.get(action.peer)
        if plane is None:
            self._written(order, "the peer is not attached")
            return
        me = get_ident()
        self._posting.add(me)
        try:
            error = error_of(lambda: plane.post(order, self._written))
            if error:
                self._written(order, error)
        finally:
            self._posting.discard(me)

    def _written(self, order: WriteOrder, error: str) -> None:
        """A plane is through with a write; its own thread tells the peer, without another hop."""
        self._note(WriteEnded(order.peer, order.transfer, error))
        if get_ident() not in self._posting:
            self._pump()

    def _errand(self, action: Action) -> None:
        """Do what may take long, and report."""
        if isinstance(action, Attach):
            error = self._attach(action)
            self._submit(Attached(action.peer, action.link, action.session, error))
        elif isinstance(action, Fence):
            fenced = self._fence(action)
            cards = () if action.dead or not fenced else self._cards()
            self._submit(Fenced(action.peer, fenced, cards))
        else:
            cause, remedy = "a write was under way for too long", "see the plane's own log"
            self._log.error("plane_reset", cause=cause, remedy=remedy)
            for plane in self._planes.values():
                plane.reset()
            self._submit(PlaneReset(self._cards()))

    def _attach(self, action: Attach) -> str:
        """Let the plane map a peer; empty, or what stands in the way."""
        plane = self._planes.get(action.plane.name)
        if plane is None:
            return f"no plane is called {action.plane.name!r} here"
        error = error_of(lambda: plane.attach(action.peer, action.plane.descriptor))
        if error:
            name = self._narrator.name(action.peer)
            self._log.warning("attach_failed", peer=name, backend=action.plane.name, cause=error)
        else:
            self._plane_of[action.peer] = plane
        self._narrator.soon()
        return error

    def _cards(self) -> tuple[PlaneCard, ...]:
        """Our planes as they describe themselves now."""
        return tuple(
            PlaneCard(name, plane.capabilities.mode, plane.describe())
            for name, plane in self._planes.items()
        )

    def _fence(self, action: Fence) -> bool:
        """Cut a peer off on every plane that can reach it."""
        planes = [
            plane
            for plane in self._planes.values()
            if plane.capabilities.crosses_hosts or not action.far
        ]
        fenced = [plane.fence(action.peer, action.dead) for plane in planes]
        if all(fenced):
            self._plane_of.pop(action.peer, None)
            name, instance = self._narrator.name(action.peer), action.peer.hex()
            if not (
                action.left and action.dead
            ):  # whoever closed is cut off as a matter of course
                self._log.warning("peer_fenced", peer=name, instance=instance, dead=action.dead)
        return all(fenced)
