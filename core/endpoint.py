"""The whole protocol behind two calls: facts go in, orders come out.

``handle(event, now_s)`` takes one fact or command and returns what to do; ``next_deadline()`` says
when to hand in :class:`~stagelink.core.events.TimePassed` at the latest. The endpoint only routes:
the sending half is :mod:`stagelink.core.outgoing`, the receiving half
:mod:`stagelink.core.incoming`; they share the pool, the timers and what is known of peers.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.events import (
    Abandon,
    Ashore,
    Attached,
    Await,
    CancelKey,
    Close,
    Complete,
    Connected,
    Disconnected,
    Failure,
    Fenced,
    Get,
    Lend,
    PlaneReset,
    Poll,
    Probed,
    Publish,
    Received,
    Release,
    Repay,
    Reserve,
    StopGet,
    Strand,
    TimePassed,
    Untaken,
    Withdraw,
    WriteEnded,
)  # fmt: skip
from stagelink.core.handshake.watch import Peers
from stagelink.core.incoming import Incoming
from stagelink.core.messages import Declined, Hello, Lost, Packet
from stagelink.core.outgoing import Outgoing
from stagelink.core.pool import Block, Pool
from stagelink.core.timers import Timers
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.core.events import Action, Event
    from stagelink.core.pool import Grant
    from stagelink.core.settings import Settings
    from stagelink.core.values import Instance, PlaneCard


class Endpoint:
    """One connector's protocol state; not thread-safe, never blocks, at most some 30 µs a call."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.timers = Timers()
        self.peers = Peers(self.timers, settings.patience)
        shared = (settings, pool, self.timers, self.peers, self._granted)
        self.outgoing = Outgoing(*shared)
        self.incoming = Incoming(*shared)
        self.closed = False
        self._handlers: dict[type, Callable[..., None]] = {
            Reserve: self._reserve,
            Abandon: self._abandon,
            Strand: self._strand,
            Ashore: self._ashore,
            Lend: self.outgoing.loans.lend,
            Repay: self.outgoing.loans.repay,
            Publish: self.outgoing.publish,
            Withdraw: self.outgoing.withdraw,
            Get: self.incoming.get,
            Poll: self.incoming.poll,
            Await: self.incoming.wait,
            Untaken: self._untaken,
            StopGet: self._stop_get,
            CancelKey: self.incoming.cancel_key,
            Release: self._release,
            Close: self._close,
            Connected: self._connected,
            Disconnected: self._disconnected,
            Received: self._received,
            Attached: self._attached,
            WriteEnded: self.outgoing.transfers.write_ended,
            Probed: self._probed,
            Fenced: self._fenced,
            PlaneReset: self._plane_reset,
            TimePassed: self._time_passed,
        }
        self._due: dict[str, Callable[..., None]] = {
            "fetch": self.incoming.endings.fetch_due,
            "wait": self.incoming.endings.wait_due,
            "kept": self.incoming.deliveries.kept_due,
            "idle": self.incoming.idle_due,
            "greet": self.incoming.senders.greet_due,
            "ack": self.incoming.senders.ack_due,
            "first": self.incoming.senders.first_due,
            "heir": self.incoming.senders.successor_due,
            "ttl": self.outgoing.expire,
            "budget": self.outgoing.transfers.budget_due,
            "stuck": self._stuck_due,
            "grace": self._grace_due,
            "probe": self.peers.probe,
            "settle": self._fence_due,
            "fence": self._fence_due,
        }

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take one fact or command at *now_s* (monotonic seconds); return what to do about it."""
        out: list[Action] = []
        self._handlers[type(event)](event, now_s, out)
        return out

    def next_deadline(self) -> float | None:
        """When time must be handed in at the latest, or None when nothing waits for it."""
        due_s = self.timers.next_s
        if self.pool.waits:
            room_s = self.pool.next_deadline()
            assert room_s is not None
            return min(due_s, room_s)
        return None if due_s == inf else due_s

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way that would touch memory: no write, no quarantine."""
        return not self.outgoing.transfers.writing and not self.pool.stats().quarantined

    # --- commands ------------------------------------------------------------------------

    def _reserve(self, event: Reserve, now_s: float, out: list[Action]) -> None:
        room = self.pool.reserve(2 * event.ticket, event.size, event.use, event.deadline_s, now_s)
        if room is not None:
            out.append(Complete(event.ticket, room))
        if not isinstance(room, Block):
            self.incoming.make_room(out)

    def _abandon(self, event: Abandon, now_s: float, out: list[Action]) -> None:
        del now_s
        self._granted(self.pool.free(event.block), out)

    def _strand(self, event: Strand, now_s: float, out: list[Action]) -> None:
        del now_s
        self._granted(self.pool.quarantine(event.block, {event.transfer}), out)

    def _ashore(self, event: Ashore, now_s: float, out: list[Action]) -> None:
        del now_s
        self._granted(self.pool.ended(event.transfer), out)

    def _untaken(self, event: Untaken, now_s: float, out: list[Action]) -> None:
        if self.closed:
            self.incoming.deliveries.release(event.delivery.handle, now_s, out)
        else:
            self.incoming.deliveries.untaken(event, now_s, out)

    def _stop_get(self, event: StopGet, now_s: float, out: list[Action]) -> None:
        self.incoming.endings.stop(event.ticket, event.reason, now_s, out)
        self._granted(self.pool.leave(2 * event.ticket), out)

    def _release(self, event: Release, now_s: float, out: list[Action]) -> None:
        self.incoming.deliveries.release(event.handle, now_s, out)

    def _close(self, event: Close, now_s: float, out: list[Action]) -> None:
        del event
        if not self.closed:
            self._shut()
            self.outgoing.close(out)
            self.incoming.close(now_s, out)

    def _shut(self) -> None:
        """From now on what would begin something is refused."""
        self.closed = True
        self.incoming.lend_no_more()
        self._handlers.update(
            dict.fromkeys((Reserve, Lend, Publish, Get, Poll, Await), self._refuse)
        )

    def _refuse(
        self, event: Reserve | Lend | Publish | Get | Poll | Await, now_s: float,
        out: list[Action],
    ) -> None:  # fmt: skip
        del now_s
        if isinstance(event, Publish) and event.block is not None:
            self._granted(self.pool.free(event.block), out)
        failure = Failure(Reason.CLOSED.value, "the connector is closed")
        out.append(Complete(event.ticket, failure))

    # --- news ----------------------------------------------------------------------------

    def _connected(self, event: Connected, now_s: float, out: list[Action]) -> None:
        self.incoming.senders.connected(event.link, now_s, out)

    def _disconnected(self, event: Disconnected, now_s: float, out: list[Action]) -> None:
        if event.link in self.incoming.sources:
            self.incoming.senders.disconnected(event, now_s, out)
        else:
            self.outgoing.receivers.disconnected(event.link, now_s, out)

    def _received(self, event: Received, now_s: float, out: list[Action]) -> None:
        link, message = event
        if type(message) is Packet:
            half = self.outgoing if message.report is not None else self.incoming
            half.packet(link, message, now_s, out)
        elif isinstance(message, Hello):
            if not self.closed:
                self.outgoing.receivers.hello(link, message, out)
        elif isinstance(message, Declined):
            self.incoming.senders.declined(link, message, now_s, out)
        else:
            assert isinstance(message, Lost)
            self.incoming.senders.lost(link, message, now_s, out)

    def _attached(self, event: Attached, now_s: float, out: list[Action]) -> None:
        theirs = event.link in self.incoming.sources
        half = self.incoming.senders if theirs else self.outgoing.receivers
        half.attached(event, now_s, out)

    def _probed(self, event: Probed, now_s: float, out: list[Action]) -> None:
        del out
        if event.dead:
            self.peers.proved_dead(event.peer, now_s)

    def _fenced(self, event: Fenced, now_s: float, out: list[Action]) -> None:
        self._describe_anew(event.planes, event.peer, now_s, out)
        if self.peers.fenced(event.peer, event.fenced, now_s):
            self.outgoing.receivers.gone(event.peer, now_s, out)
            self.incoming.senders.gone(event.peer, now_s, out)
        elif event.fenced:
            # It came back while it was being cut off: both must attach again.
            self.outgoing.receivers.cut_off(event.peer, out)
            self.incoming.senders.cut_off(event.peer, now_s, out)

    def _plane_reset(self, event: PlaneReset, now_s: float, out: list[Action]) -> None:
        self._describe_anew(event.planes, NO_INSTANCE, now_s, out)
        self.outgoing.receivers.plane_reset(out)

    def _describe_anew(
        self, planes: tuple[PlaneCard, ...], but: Instance, now_s: float, out: list[Action]
    ) -> None:
        """Others reach our *planes* by these from now on; before anybody is greeted with them."""
        if planes:
            changed = self.incoming.senders.redescribe(planes)
            self.incoming.senders.greet_others(but, changed, now_s, out)

    # --- time ----------------------------------------------------------------------------

    def _time_passed(self, event: TimePassed, now_s: float, out: list[Action]) -> None:
        del event
        for key in self.timers.due(now_s):
            self._due[str(key[0])](*key[1:], now_s, out)
        expired, grants = self.pool.expire(now_s)
        for waiter, refusal in expired:
            if waiter % 2 == 0:
                out.append(Complete(waiter // 2, refusal))
            else:
                self.incoming.endings.fetch_due(waiter // 2, now_s, out)
        self._granted(grants, out)

    def _grace_due(self, peer: bytes, now_s: float, out: list[Action]) -> None:
        if self.peers.tell(peer):
            self.incoming.senders.unreachable(peer, now_s, out)

    def _fence_due(self, peer: bytes, now_s: float, out: list[Action]) -> None:
        del now_s
        self.peers.fence(peer, out)

    def _stuck_due(self, peer: bytes, transfer: int, now_s: float, out: list[Action]) -> None:
        del now_s
        self.outgoing.transfers.stuck(peer, transfer, out)

    def _granted(self, grants: Iterable[Grant], out: list[Action]) -> None:
        """Room has been found for waiters: puts are answered, gets go on."""
        for grant in grants:
            if grant.waiter % 2 == 0:
                out.append(Complete(grant.waiter // 2, grant.blocks[0]))
            else:
                self.incoming.space(grant.waiter // 2, grant.blocks[0], out)

    # --- state ---------------------------------------------------------------------------

    def freeze(self, now_s: float | None = None) -> tuple[object, ...]:
        """The whole state as nested tuples; times relative to *now_s*, or left out."""
        return (
            self.closed, self.pool.freeze(now_s or 0.0), self.timers.freeze(now_s),
            self.peers.freeze(), self.outgoing.freeze(), self.incoming.freeze(),
        )  # fmt: skip

    @classmethod
    def thaw(cls, settings: Settings, frozen: tuple[object, ...], now_s: float = 0.0) -> Endpoint:
        """The endpoint that froze to *frozen*, with *now_s* as the present."""
        state: Any = frozen
        closed, pool, timers, peers, outgoing, incoming = state
        endpoint = cls(settings, Pool.thaw(pool, now_s))
        if closed:
            endpoint._shut()
        for key, ahead in timers:
            endpoint.timers.arm(key, now_s + ahead)
        endpoint.peers.restore(peers)
        endpoint.outgoing.restore(outgoing)
        endpoint.incoming.restore(incoming)
        return endpoint
