"""Is the other side there? Tell early, free late."""

# UP --down--> SUSPECT --probe says dead--> DEAD --settled--> FENCING --Fenced--> GONE
# SUSPECT --fence_after_s--> FENCING (alive, cut off) --Fenced--> GONE; --cannot--> SUSPECT
# any --up--> UP: a Hello or Welcome of that very instance

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import Reason
from stagelink.core.events import Fence, Probe

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.timers import Timers
    from stagelink.core.values import Instance

UP = "up"
SUSPECT = "suspect"
DEAD = "dead"
FENCING = "fencing"
GONE = "gone"

PROBE_FIRST_S = 0.05
PROBE_LAST_S = 1.0


class Patience(NamedTuple):
    """How long to wait, in seconds; ``fence_after_s`` is infinite where no plane can fence.

    ``fence_far_s`` is that for peers on another host.
    """

    suspect_grace_s: float
    settle_s: float
    fence_after_s: float
    fence_far_s: float = inf


class Watch(NamedTuple):
    """What is known of one peer instance; ``told`` once its waiters have heard of the trouble.

    ``left`` once it has said goodbye: that tells people what its end means, and proves nothing.
    ``far`` if it is on another host.
    """

    state: str
    proof: str
    told: bool = False
    tries: int = 0
    left: bool = False
    far: bool = False


Frozen = tuple["Instance", Watch, "tuple[str, ...]", "tuple[str, ...]"]
"""A peer, its watch, the directions it talks in now, and those it ever did."""


class Peers:
    """One watch per peer instance, over both directions of talk."""

    __slots__ = ("_met", "_patience", "_sides", "_timers", "watches")

    def __init__(self, timers: Timers, patience: Patience) -> None:
        self._timers = timers
        self._patience = patience
        self._sides: dict[Instance, tuple[str, ...]] = {}
        self._met: dict[Instance, set[str]] = {}
        self.watches: dict[Instance, Watch] = {}

    def up(self, peer: Instance, side: str, proof: str, *, far: bool = False) -> None:
        """*peer* speaks with us as our *side*: whatever was suspected, it is there."""
        self._disarm(peer, "grace", "fence", "probe", "settle")
        self._sides[peer] = tuple(sorted({*self._sides.get(peer, ()), side}))
        self._met.setdefault(peer, set()).add(side)
        self.watches[peer] = Watch(UP, proof, far=far)

    def down(self, peer: Instance, side: str, now_s: float, out: list[Action]) -> None:
        """The conversation is cut: ask the kernel, and give it a moment before telling."""
        left = tuple(name for name in self._sides.get(peer, ()) if name != side)
        self._sides[peer] = left
        watch = self.watches.get(peer)
        if left or watch is None or watch.state != UP:
            return
        self._timers.arm(("grace", peer), now_s + self._patience.suspect_grace_s)
        self._arm_fence(peer, now_s)
        self.watches[peer] = watch._replace(state=SUSPECT, told=False, tries=0)
        self.probe(peer, now_s, out)

    def knows(self, peer: Instance, proof: str) -> bool:
        """Whether *proof* may be that of *peer*: it never changes while the instance lives."""
        watch = self.watches.get(peer)
        return watch is None or watch.proof == proof

    def forget(self, peer: Instance, side: str) -> bool:
        """Give up a peer that is away and only ever was our *side*; False if it is not so."""
        if self._sides.get(peer) != () or self._met.get(peer) != {side}:
            return False
        self._disarm(peer, "grace", "fence", "probe", "settle")
        del self.watches[peer], self._sides[peer], self._met[peer]
        return True

    def farewell(self, peer: Instance) -> None:
        """*peer* says that it was closed."""
        watch = self.watches.get(peer)
        if watch is not None:
            self.watches[peer] = watch._replace(left=True)

    def left(self, peer: Instance) -> bool:
        """Whether *peer*, which is not gone yet, has said goodbye."""
        watch = self.watches.get(peer)
        return watch is not None and watch.left

    def state(self, peer: Instance) -> str:
        """The state of *peer*; one never met counts as gone."""
        watch = self.watches.get(peer)
        return GONE if watch is None else watch.state

    def trouble(self, peer: Instance) -> str:
        """Why *peer*, with which we spoke, will not answer; empty while it may (again)."""
        watch = self.watches.get(peer)
        if watch is None:
            return Reason.PEER_GONE.value
        return Reason.UNREACHABLE.value if watch.told else ""

    def tell(self, peer: Instance) -> bool:
        """The grace is over: whether its waiters must hear of it now."""
        watch = self.watches.get(peer)
        if watch is None or watch.state == UP or watch.told:
            return False
        self.watches[peer] = watch._replace(told=True)
        return True

    def probe(self, peer: Instance, now_s: float, out: list[Action]) -> None:
        """Ask the kernel about a suspect, with growing pauses."""
        watch = self.watches.get(peer)
        if watch is None or watch.state != SUSPECT or not watch.proof:
            return
        pause = min(PROBE_LAST_S, PROBE_FIRST_S * 2.0 ** min(watch.tries, 10))
        self._timers.arm(("probe", peer), now_s + pause)
        self.watches[peer] = watch._replace(tries=min(watch.tries + 1, 10))
        out.append(Probe(peer, watch.proof, watch.left))

    def proved_dead(self, peer: Instance, now_s: float) -> None:
        """The kernel says it is dead; its devices' queues get a moment to settle."""
        watch = self.watches.get(peer)
        if watch is None or watch.state not in {SUSPECT, FENCING}:
            return
        self._disarm(peer, "grace", "fence", "probe")
        self._timers.arm(("settle", peer), now_s + self._patience.settle_s)
        self.watches[peer] = watch._replace(state=DEAD)

    def fence(self, peer: Instance, out: list[Action]) -> None:
        """Settled, or unreachable for so long that we cut it off."""
        watch = self.watches.get(peer)
        if watch is not None and watch.state in {SUSPECT, DEAD}:
            out.append(Fence(peer, watch.state == DEAD, watch.left, watch.far))
            self.watches[peer] = watch._replace(state=FENCING)

    def fenced(self, peer: Instance, really: bool, now_s: float) -> bool:
        """The plane's answer; True if *peer* counts as gone from now on."""
        watch = self.watches.get(peer)
        if watch is None or watch.state != FENCING:
            return False
        if really:
            self._disarm(peer, "grace", "probe")
            del self.watches[peer], self._sides[peer], self._met[peer]
            return True
        self.watches[peer] = watch._replace(state=SUSPECT)
        self._timers.arm_once(("probe", peer), now_s + PROBE_LAST_S)
        self._arm_fence(peer, now_s)
        return False

    def _arm_fence(self, peer: Instance, now_s: float) -> None:
        watch, patience = self.watches[peer], self._patience
        after_s = patience.fence_far_s if watch.far else patience.fence_after_s
        if after_s < inf:
            self._timers.arm(("fence", peer), now_s + after_s)

    def _disarm(self, peer: Instance, *kinds: str) -> None:
        for kind in kinds:
            self._timers.disarm((kind, peer))

    def freeze(self) -> tuple[Frozen, ...]:
        """The state as nested tuples."""
        rows = [
            (peer, watch, self._sides[peer], tuple(sorted(self._met[peer])))
            for peer, watch in self.watches.items()
        ]
        return tuple(sorted(rows))

    def restore(self, frozen: tuple[Frozen, ...]) -> None:
        """Become what froze to *frozen*."""
        self.watches = {peer: watch for peer, watch, _, _ in frozen}
        self._sides = {peer: sides for peer, _, sides, _ in frozen}
        self._met = {peer: set(met) for peer, _, _, met in frozen}
