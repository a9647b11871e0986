"""We get what their senders have put: what is asked, when, and what becomes of our blocks.

No socket and no clock: answers and the time come in, orders go out. Their protocol knows no
cancel, so a block that they may still write to is never given back on silence alone: it is
stranded until its answer comes, or every card given out is fenced, or their end is proved.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from stagelink.adapters.vllm_omni_mori import frames, troubles
from stagelink.adapters.vllm_omni_mori.blocks import Blocks, stranded_at
from stagelink.adapters.vllm_omni_mori.pulls import (
    ASKING,
    LATE,
    PULLING,
    RESTING,
    Ask,
    Kept,
    Landed,
    Leave,
    Pull,
    Ref,
    Rest,
)  # fmt: skip
from stagelink.core.errors import (
    CapacityError,
    ClosedError,
    GoneError,
    ProtocolViolationError,
    Reason,
    StagelinkError,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.vllm_omni_mori.figures import Figures
    from stagelink.adapters.vllm_omni_mori.pulls import Bounds, Order, Waiter
    from stagelink.core.pool import Refusal
    from stagelink.ports.foreign import ForeignCard, ForeignStore

FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.02
"""Between two questions for what is not there yet; twice as long each time."""

MOST_PULLS = 1024
"""Gets under way at once, stranded ones included."""


class Client:
    """Gets by reference; *card* says by what a sender may write into our pool."""

    def __init__(
        self, bounds: Bounds, store: ForeignStore, card: Callable[[], ForeignCard],
        figures: Figures,
    ) -> None:  # fmt: skip
        self._bounds = bounds
        self._blocks = Blocks(store, figures)
        self._card = card
        self._figures = figures
        self._number = 0
        self._pulls: dict[int, Pull] = {}
        self.active: dict[Ref, Pull] = {}
        """Gets that may yet bring something; any thread may look."""

        self.kept = Kept(store, figures)
        self._fences = True

    # --- calls ---------------------------------------------------------------------------

    def begin(self, ref: Ref, waiter: Waiter | None, now_s: float) -> list[Order]:
        """Begin a get, or join one; without a *waiter* it is a poll's."""
        found = self.kept.take(ref) if waiter is not None else None
        if waiter is not None and found is not None:
            waiter.settle(found)
            return []
        pull = self.active.get(ref)
        if pull is not None:
            pull.unwanted = False
            if waiter is not None:
                pull.waiters.append(waiter)
            return []
        if waiter is None and ref in self.kept.landed:
            return []
        return self._start(ref, [] if waiter is None else [waiter], now_s)

    def leave(self, ref: Ref, waiter: Waiter) -> None:
        """The caller behind *waiter* has gone; what comes is kept for the next one."""
        pull = self.active.get(ref)
        if pull is not None and waiter in pull.waiters:
            pull.waiters.remove(waiter)

    def put_back(self, ref: Ref, landed: Landed, now_s: float) -> None:
        """A payload reached no caller: it is kept for the next one."""
        self.kept.keep(ref, landed, now_s + self._bounds.keep_s)

    def waiting(self, ref: Ref) -> int:
        """How many callers wait for *ref*."""
        pull = self.active.get(ref)
        return len(pull.waiters) if pull is not None else 0

    def cancel(self, ref: Ref, reason: Reason) -> list[Order]:
        """End every get of *ref*; what comes of it all the same is dropped."""
        self.kept.forget(ref)
        pull = self.active.get(ref)
        if pull is None:
            return []
        pull.settle(GoneError(f"the get was {reason.value} on this side", reason=reason))
        if pull.state == PULLING:
            pull.unwanted = True
            return []
        return self._end(pull, Leave(pull.number))

    def ended(self, address: str) -> list[Order]:
        """Somebody has proved that no process is behind *address* any more: nothing lands."""
        orders: list[Order] = []
        for pull in [p for p in self._pulls.values() if p.ref.address == address]:
            if pull.state in {PULLING, LATE}:
                pull.settle(troubles.has_ended())
                self._blocks.release(pull)
                orders += self._end(pull, Leave(pull.number))
        return orders

    def close(self) -> list[Order]:
        """End every get; what may still be written to stays stranded."""
        orders: list[Order] = []
        self.kept.forget_until(inf)
        for pull in list(self._pulls.values()):
            closed = ClosedError("the connector is closed", reason=Reason.CLOSED)
            pull.settle(closed)
            if pull.state == PULLING:
                self._strand(pull, 0.0)
            orders.append(Leave(pull.number))
        self._pulls.clear()
        self.active.clear()
        return orders

    # --- steps ---------------------------------------------------------------------------

    def _start(self, ref: Ref, waiters: list[Waiter], now_s: float) -> list[Order]:
        if len(self._pulls) >= MOST_PULLS:
            full = CapacityError(f"{MOST_PULLS} gets of the dialect are under way already")
            for waiter in waiters:
                waiter.settle(full)
            return []
        self._number += 1
        pull = self._pulls[self._number] = self.active[ref] = Pull(ref, self._number)
        pull.waiters = waiters
        info = waiters[0].info if waiters else None
        return self._want(pull, *info, now_s) if info else self._ask(pull, now_s)

    def _ask(self, pull: Pull, now_s: float) -> list[Order]:
        self._figures.asked += 1
        pull.state, pull.due_s = ASKING, now_s + self._bounds.query_s
        question = frames.encode(frames.Query(pull.ref.request))
        return [Ask(pull.number, pull.ref.address, question)]

    def _want(self, pull: Pull, size: int, plain: bool, now_s: float) -> list[Order]:
        """The payload is there: ask for it, if there is room and nothing against it."""
        kept = stranded_at(pull.ref.address, self._pulls.values())
        if kept and kept + size > self._bounds.share_bytes:
            return self._fail(pull, troubles.keeps_its_share(kept), now_s)
        if self.wants_fence:
            return self._pause(pull, now_s, Rest(pull.number))
        refusal = self._blocks.reserve(pull, size)
        if refusal is not None:
            return self._no_room(pull, refusal, now_s)
        assert pull.block is not None
        pull.plain, pull.trouble = plain, None
        pull.state, pull.due_s = PULLING, now_s + self._bounds.pull_s(size)
        card = self._card()
        wish = frames.Pull(pull.ref.request, card.engine, card.memory, pull.block.offset, size)
        return [Ask(pull.number, pull.ref.address, frames.encode(wish))]

    def _no_room(self, pull: Pull, refusal: Refusal, now_s: float) -> list[Order]:
        error = troubles.no_room(refusal)
        if refusal.never_fits:
            return self._fail(pull, error, now_s)
        pull.trouble = error
        return self._pause(pull, now_s, Rest(pull.number))

    def _pause(self, pull: Pull, now_s: float, socket: Order) -> list[Order]:
        """Ask again in a moment; a get that nobody waits for is over."""
        if not pull.waiters:
            return self._end(pull, socket)
        pull.pause_s = min(LAST_PAUSE_S, 2 * pull.pause_s) or FIRST_PAUSE_S
        pull.state, pull.due_s = RESTING, now_s + pull.pause_s
        return [socket]

    def _landed(self, pull: Pull, now_s: float) -> list[Order]:
        """The bytes are there: for who has waited longest, or for the next to come."""
        assert pull.block is not None
        landed = Landed(pull.block, pull.size, pull.plain)
        waiters, pull.waiters = pull.waiters, []
        orders = self._end(pull, Rest(pull.number))
        if waiters:
            waiters[0].settle(landed)
        else:
            self.kept.keep(pull.ref, landed, now_s + self._bounds.keep_s)
            if pull.unwanted:
                self.kept.forget(pull.ref)
        if waiters[1:]:
            orders += self._start(pull.ref, waiters[1:], now_s)
        return orders

    def _fail(self, pull: Pull, error: StagelinkError, now_s: float) -> list[Order]:
        """Nothing comes; if nobody waits, the next to ask is told."""
        if not pull.waiters and not pull.unwanted:
            self.kept.keep(pull.ref, error, now_s + self._bounds.keep_s)
        pull.settle(error)
        return self._end(pull, Leave(pull.number))

    def _end(self, pull: Pull, socket: Order) -> list[Order]:
        del self._pulls[pull.number]
        self._drop_active(pull)
        return [socket]

    def _drop_active(self, pull: Pull) -> None:
        if self.active.get(pull.ref) is pull:
            del self.active[pull.ref]

    # --- answers -------------------------------------------------------------------------

    def answered(self, number: int, body: bytes, now_s: float) -> list[Order]:
        """An answer came on the socket of *number*."""
        pull = self._pulls.get(number)
        if pull is None:
            return [Leave(number)]
        try:
            answer = frames.decode_answer(body)
            if pull.state == ASKING:
                return self._told(pull, answer, now_s)
            if pull.state in {PULLING, LATE}:
                return self._pulled(pull, answer, now_s)
            raise troubles.unasked(answer)
        except ProtocolViolationError as error:
            return self._broken(pull, error, now_s)

    def unsent(self, number: int, now_s: float) -> list[Order]:
        """The last question of *number* could not be sent: so nobody can act on it."""
        pull = self._pulls.get(number)
        if pull is None:
            return []
        if pull.state == PULLING:
            self._blocks.release(pull)
        pull.trouble = troubles.unsendable(pull.ref.address)
        return self._pause(pull, now_s, Leave(number))

    def _told(self, pull: Pull, answer: frames.Answer, now_s: float) -> list[Order]:
        """The answer to a question."""
        if answer == frames.NOT_FOUND:
            pull.trouble = None
            return self._pause(pull, now_s, Rest(pull.number))
        if not isinstance(answer, frames.Info) or answer.request_id != pull.ref.request:
            raise troubles.unasked(answer)
        return self._want(pull, answer.data_size, answer.is_fast_path, now_s)

    def _pulled(self, pull: Pull, answer: frames.Answer, now_s: float) -> list[Order]:
        """The answer to a pull, which is the proof that no write of it comes any more.

        In 0.30.0 ``trans_error`` is sent before anything is posted, or once its status has ended.
        """
        if answer not in {frames.DONE, frames.ERROR}:
            raise troubles.unasked(answer)
        if pull.state == LATE:
            self._figures.late_answers += 1
            self._blocks.release(pull)
            return self._end(pull, Rest(pull.number))
        if answer == frames.DONE:
            return self._landed(pull, now_s)
        self._figures.refused += 1
        self._blocks.release(pull)
        pull.trouble = troubles.refused_pull(pull.size)
        return self._pause(pull, now_s, Rest(pull.number))

    def _broken(
        self, pull: Pull, error: ProtocolViolationError, now_s: float
    ) -> list[Order]:  # fmt: skip
        """Who is there does not speak their protocol; whatever may be written is stranded."""
        self._figures.frames_refused += 1
        if pull.state in {PULLING, LATE}:
            pull.settle(error)
            self._strand(pull, now_s)
            return [Leave(pull.number)]
        return self._fail(pull, error, now_s)

    # --- time ----------------------------------------------------------------------------

    def on_time(self, now_s: float) -> list[Order]:
        """Let time-outs at or before *now_s* happen. Early or twice does nothing."""
        orders: list[Order] = []
        self.kept.forget_until(now_s)
        for pull in list(self._pulls.values()):
            pull.dismiss(now_s)
            if pull.state == RESTING and not pull.waiters:
                orders += self._end(pull, Leave(pull.number))
            elif pull.due_s <= now_s:
                orders += self._due(pull, now_s)
        return orders

    def next_deadline(self) -> float:
        """When time must be handed in at the latest."""
        dues = [pull.due_s for pull in self._pulls.values()]
        waits = [w.deadline_s for pull in self._pulls.values() for w in pull.waiters]
        return min([self.kept.next_deadline(), *dues, *waits])

    def _due(self, pull: Pull, now_s: float) -> list[Order]:
        if pull.state == RESTING:
            return self._ask(pull, now_s)
        if pull.state == LATE:
            pull.overdue, pull.due_s = True, inf
            return []
        self._figures.timeouts += 1
        if pull.state == PULLING:
            pull.settle(troubles.silent_pull(pull.size))
            self._strand(pull, now_s)
            return []
        pull.trouble = troubles.unanswered(self._bounds.query_s)
        return self._pause(pull, now_s, Leave(pull.number))

    # --- stranded blocks -----------------------------------------------------------------

    def _strand(self, pull: Pull, now_s: float) -> None:
        """Keep the block of a pull from everyone; its key may be asked for anew."""
        if pull.state == PULLING:
            self._blocks.strand(pull)
            pull.due_s = now_s + self._bounds.fence_s
            self._drop_active(pull)

    @property
    def wants_fence(self) -> bool:
        """Whether blocks are stranded that a fence could free: no new pull is begun."""
        return self._fences and any(pull.overdue for pull in self._pulls.values())

    @property
    def may_fence(self) -> bool:
        """Whether a fence would break nothing: no pull is under way."""
        return self.wants_fence and all(p.state != PULLING for p in self._pulls.values())

    def fenced(self, done: bool) -> list[Order]:
        """All cards that were given out are useless (*done*), or the plane cannot tell."""
        if not done:
            self._fences = False
            return []
        self._figures.fences += 1
        orders: list[Order] = []
        for pull in [p for p in self._pulls.values() if p.state == LATE]:
            self._blocks.release(pull)
            orders += self._end(pull, Leave(pull.number))
        return orders
