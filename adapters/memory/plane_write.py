"""The write plane: the owner of the data copies it into the reader's pool."""

from __future__ import annotations

import ctypes
from math import inf
from typing import TYPE_CHECKING

from stagelink.adapters.memory.faults import WriteFault
from stagelink.adapters.memory.provider import KIND
from stagelink.adapters.memory.regions import Regions
from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import same_size
from stagelink.ports.plane import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.memory.faults import Faults
    from stagelink.adapters.memory.hub import Hub
    from stagelink.core.values import Instance, RegionRef
    from stagelink.ports.plane import WriteOrder

STOPPED = "the write was stopped"
INJECTED = "the write failed, as it was told to"


class _Job:
    """A write; *begun* bytes of it are there, and *alive* keeps both pools."""

    __slots__ = ("alive", "begun", "done", "due_s", "fault", "order", "source", "target")

    def __init__(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        self.order = order
        self.done = done
        self.begun = 0
        self.due_s = inf
        self.fault = WriteFault.NONE
        self.source = 0
        self.target = 0
        self.alive: object = None

    def copy(self, until: int) -> None:
        """Copy up to byte *until*; other threads run meanwhile."""
        begun, self.begun = self.begun, until
        ctypes.memmove(self.target + begun, self.source + begun, until - begun)


class MemoryWritePlane(Regions):
    """A :class:`stagelink.ports.DataPlane` that copies at once, unless *faults* say otherwise.

    A write that is delayed, or stopped half-way, waits for :meth:`finish`, or for the moment that
    *faults* set and :meth:`advance` reaches. One that is stuck ends only by :meth:`fail`,
    :meth:`fence`, :meth:`reset` or :meth:`close`.
    """

    capabilities = Capabilities(
        mode="write", memory_kind=KIND, crosses_hosts=False, survives_owner=True, can_fence=True
    )

    def __init__(
        self, instance: Instance, *, hub: Hub | None = None, faults: Faults | None = None
    ) -> None:
        self._faults = faults
        self._pending: list[_Job] = []
        self._running: list[_Job] = []
        super().__init__(instance, self.capabilities.mode, hub)

    def view(self, peer: Instance, where: RegionRef) -> memoryview:
        """Refuse: this plane does not map."""
        msg = f"this plane writes, it shows no bytes of peer {peer.hex()} ({where})"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="use a map plane")

    def post(self, order: WriteOrder, done: Callable[[WriteOrder, str], None]) -> None:
        """Copy now, and call *done*; or keep it for later, by a fault."""
        job = _Job(order, done)
        now_s = self.hub.now() if self._faults is not None else 0.0
        try:
            with self.hub.lock:
                if self._dead:
                    return
                self._begin(job, now_s)
        except TransportError as error:
            done(order, str(error))
            return
        if job.fault is WriteFault.FAILING:
            done(order, INJECTED)
        elif job.fault is WriteFault.HALF:
            self._run(job, order.source.size // 2, whole=False)
        elif job.fault is WriteFault.NONE:
            self._run(job, order.source.size, whole=True)

    def pending(self) -> list[WriteOrder]:
        """The writes that wait, oldest first."""
        with self.hub.lock:
            return [job.order for job in self._pending]

    def finish(self, order: WriteOrder) -> bool:
        """Copy what is missing of a waiting write; False if it waits no more, or is stuck."""
        with self.hub.lock:
            job = self._waiting(order)
            if job is None or job.fault is WriteFault.STUCK:
                return False
            self._resume(job)
        self._run(job, order.source.size, whole=True)
        return True

    def advance(self, now_s: float) -> None:
        """Finish what is due at or before *now_s*, the earliest first."""
        while True:
            with self.hub.lock:
                job = min(self._pending, key=lambda one: one.due_s, default=None)
                if job is None or job.due_s > now_s:
                    return
                self._resume(job)
            self._run(job, job.order.source.size, whole=True)

    def fail(self, order: WriteOrder, error: str) -> bool:
        """End a waiting write with *error*; False if it waits no more."""
        with self.hub.lock:
            job = self._waiting(order)
            if job is None:
                return False
            self._pending.remove(job)
        job.done(order, error)
        return True

    def fence(self, peer: Instance, dead: bool) -> bool:
        """Part us from *peer*, alive or dead: what waits between us ends with an error."""
        with self.hub.lock:
            self.drop(peer)
            if not dead:
                self.cut_off(peer)
            stopped = self._stop(peer)
            other = self.hub.planes.get((peer, self.mode))
            if isinstance(other, MemoryWritePlane):
                stopped += other._stop(self.instance)  # noqa: SLF001 - one of us
        _tell(stopped)
        return True

    def reset(self) -> None:
        """End every write under way, those that wait with an error; peers stay attached."""
        with self.hub.lock:
            stopped = self._stop(None)
        _tell(stopped)

    def close(self) -> None:
        """End every write, forget every region. Twice is fine."""
        self.close_foreign()
        with self.hub.lock:
            self.drop_all()
            stopped = self._stop(None)
        _tell(stopped)

    # --- the caller holds the lock -------------------------------------------------------

    def next_due_s(self) -> float:
        """When the next delayed write is due; infinite when none is."""
        return min((job.due_s for job in self._pending), default=inf)

    def die(self, *, drop_writes: bool) -> None:
        """End as a crash does: nobody hears of our writes, which may still land."""
        super().die(drop_writes=drop_writes)
        for job in [*self._pending, *self._running]:
            job.done = _nobody
        if drop_writes:
            self._stop(None)

    def forget(self) -> None:
        """Be closed without telling anybody."""
        super().forget()
        self._pending.clear()
        self._running.clear()

    def _resume(self, job: _Job) -> None:
        self._pending.remove(job)
        self._running.append(job)

    def _begin(self, job: _Job, now_s: float) -> None:
        """Check *job* and put it where it belongs.

        Raises:
            TransportError: the plane is closed, or the order cannot be carried out.
        """
        order = job.order
        if self._closed:
            msg = "the plane is closed"
            raise TransportError(msg, reason=Reason.CLOSED)
        same_size(order.source, order.target)
        source, target = self.ours(order.source), self.theirs(order.peer, order.target)
        job.source, job.target = source.at(order.source), target.at(order.target)
        job.alive = source, target
        if self._faults is not None:
            job.fault = self._faults.write_fault(order)
            if job.fault in {WriteFault.DELAYED, WriteFault.HALF}:
                job.due_s = self._faults.write_due_s(now_s)
        if job.fault in {WriteFault.NONE, WriteFault.HALF}:
            self._running.append(job)
        elif job.fault in {WriteFault.DELAYED, WriteFault.STUCK}:
            self._pending.append(job)

    def _waiting(self, order: WriteOrder) -> _Job | None:
        return next((job for job in self._pending if job.order == order), None)

    def _stop(self, peer: Instance | None) -> list[_Job]:
        """Wait for the copies to *peer* (None: to anybody) that run; return those that wait.

        The latter are no longer pending, and no byte of them can follow.
        """
        running = [job for job in self._running if peer in {None, job.order.peer}]
        self.hub.changed.wait_for(lambda: not any(job in self._running for job in running))
        stopped = [job for job in self._pending if peer in {None, job.order.peer}]
        self._pending = [job for job in self._pending if job not in stopped]
        return stopped

    # --- without the lock ----------------------------------------------------------------

    def _run(self, job: _Job, until: int, *, whole: bool) -> None:
        """Copy a running job; then it is done, or waits for the rest."""
        job.copy(until)
        with self.hub.lock:
            self._running.remove(job)
            if not whole:
                self._pending.append(job)
            self.hub.changed.notify_all()
        if whole:
            job.done(job.order, "")


def _nobody(order: WriteOrder, error: str) -> None:
    """Who posted it is dead."""


def _tell(stopped: list[_Job]) -> None:
    for job in stopped:
        job.done(job.order, STOPPED)
