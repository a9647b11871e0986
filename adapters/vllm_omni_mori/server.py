"""Their receivers pull what we have put: which answer each question gets.

No socket and no clock: questions come in with the time, answers go out. A question for a key takes
a loan of its payload and makes its bytes in their form; they are kept for the pull that follows.
"""

# (nothing) --query or pull--> READY --pull--> WRITING --written--> gone, counted as taken
#                              READY, nobody pulls for hold_s, or newer put --> gone, given back
#                              WRITING --failed--> READY

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from stagelink.adapters.vllm_omni_mori import frames, values
from stagelink.core.errors import PayloadError, StagelinkError, TransportError
from stagelink.core.events import Failure
from stagelink.core.pool import Block
from stagelink.core.values import RegionRef
from stagelink.ports.foreign import ForeignCard, ForeignOrder, Loan

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.vllm_omni_mori.figures import Figures
    from stagelink.ports.foreign import ForeignStore
    from stagelink.ports.log import EventLog

MOST_READY = 256
"""Payloads kept for a pull at once."""

MOST_WRITES = 64
"""Writes for them at once; further questions wait in the socket."""

Peer = bytes
"""Who asked, as the socket names it."""


class Reply(NamedTuple):
    """Send ``body`` to ``peer``."""

    peer: Peer
    body: bytes


class Served(NamedTuple):
    """Whose payloads are served: those that ``stage`` puts for ``readers``, out of ``region``."""

    stage: str
    readers: frozenset[str]
    region: int
    hold_s: float


class _Ready:
    """A payload in their form; ``number`` is the write under way (0: none), for ``peer``."""

    __slots__ = ("block", "loan", "number", "peer", "plain", "source", "until_s")

    def __init__(self, loan: Loan, source: RegionRef, block: Block | None, plain: bool) -> None:
        self.loan = loan
        self.source = source
        self.block = block
        self.plain = plain
        self.number = 0
        self.peer: Peer = b""
        self.until_s = inf


class Server:
    """Answers; *post* starts a write, and raises TransportError where it cannot begin."""

    def __init__(
        self, served: Served, store: ForeignStore, post: Callable[[ForeignOrder], None],
        figures: Figures, log: EventLog,
    ) -> None:  # fmt: skip
        self._served = served
        self._store = store
        self._post = post
        self._figures = figures
        self._log = log
        self._ready: dict[tuple[str, str], _Ready] = {}  # the one used last comes last
        self._writes: dict[int, tuple[str, str]] = {}
        self._unservable: dict[tuple[str, str], int] = {}
        self._number = 0

    @property
    def busy(self) -> bool:
        """Whether no more questions should be taken for now."""
        return len(self._writes) >= MOST_WRITES

    def asked(self, peer: Peer, body: bytes, now_s: float) -> list[Reply]:
        """The answer to a question, unless it comes only once a write has ended."""
        try:
            request = frames.decode_request(body)
        except StagelinkError as error:
            self._figures.frames_refused += 1
            count = self._figures.frames_refused
            self._log.warning("dialect_refused", cause=error.message, count=count)
            of_query = body.startswith(frames.QUERY_INFO)
            return [Reply(peer, frames.INFO_NOT_FOUND if of_query else frames.TRANS_ERROR)]
        if isinstance(request, frames.Query):
            return [Reply(peer, self._query(request, now_s))]
        answer = self._pull(peer, request, now_s)
        return [Reply(peer, answer)] if answer else []

    def written(self, number: int, error: str, now_s: float) -> list[Reply]:
        """A write has ended; unknown ones are fine."""
        place = self._writes.pop(number, None)
        if place is None:
            return []
        ready, figures = self._ready[place], self._figures
        peer, ready.number = ready.peer, 0
        if error:
            figures.writes_failed += 1
            ready.until_s = now_s + self._served.hold_s
            edge = f"{self._served.stage}->{place[0]}"
            self._log.warning("dialect_write_failed", key=place[1], edge=edge, cause=error)
            return [Reply(peer, frames.TRANS_ERROR)]
        figures.served += 1
        figures.served_bytes += ready.source.size
        self._drop(place, taken=True)
        return [Reply(peer, frames.TRANS_DONE)]

    def on_time(self, now_s: float) -> None:
        """Give back what nobody has pulled by now. Early or twice does nothing."""
        for place, ready in list(self._ready.items()):
            if ready.until_s <= now_s and not ready.number:
                self._drop(place, taken=False)

    def next_deadline(self) -> float:
        """When time must be handed in at the latest."""
        return min((r.until_s for r in self._ready.values() if not r.number), default=inf)

    @property
    def writing(self) -> int:
        """How many writes have not ended."""
        return len(self._writes)

    def close(self) -> None:
        """Give everything back; no write may be under way any more."""
        for place in list(self._ready):
            self._drop(place, taken=False)

    # --- questions -----------------------------------------------------------------------

    def _query(self, request: frames.Query, now_s: float) -> bytes:
        self._figures.queries += 1
        place = self._place(request.request_id)
        ready = self._prepared(place, now_s) if place else None
        if ready is None:
            self._figures.not_found += 1
            return frames.INFO_NOT_FOUND
        info = frames.Info(request.request_id, ready.source.size, ready.plain)
        return frames.encode(info)

    def _pull(self, peer: Peer, request: frames.Pull, now_s: float) -> bytes:
        """The answer, or none yet: the write has begun."""
        figures = self._figures
        figures.pulls += 1
        place = self._place(request.request_id)
        ready = self._prepared(place, now_s) if place else None
        if place is None or ready is None:
            figures.not_found += 1
            return frames.TRANS_ERROR
        if ready.number or request.length != ready.source.size:
            figures.pulls_refused += 1
            return frames.TRANS_ERROR
        self._number += 1
        card = ForeignCard(request.engine_desc_packed, request.mem_desc_packed)
        order = ForeignOrder(self._number, ready.source, card, request.dst_offset)
        ready.number, ready.peer = order.number, peer
        self._writes[order.number] = place
        try:
            self._post(order)
        except TransportError as error:
            del self._writes[order.number]
            ready.number = 0
            figures.pulls_refused += 1
            self._log.warning("dialect_refused", cause=error.message, count=figures.pulls_refused)
            return frames.TRANS_ERROR
        return b""

    def _place(self, request_id: str) -> tuple[str, str] | None:
        """The stage and the key that a request id is for, if they may ask for it."""
        found = frames.split(request_id, self._served.stage, self._served.readers)
        return found and (found[1], found[0])

    # --- payloads ------------------------------------------------------------------------

    def _prepared(self, place: tuple[str, str], now_s: float) -> _Ready | None:
        """The live payload of a key in their form, or None: not there, or there is no form."""
        ready = self._ready.pop(place, None)
        if ready is not None:
            self._ready[place] = ready  # now used last
            if ready.number:
                return ready
            if self._store.newest(*place) != ready.loan.generation:
                self._drop(place, taken=False)
                ready = None
        if ready is None:
            ready = self._translated(place)
        if ready is not None:
            ready.until_s = now_s + self._served.hold_s
        return ready

    def _translated(self, place: tuple[str, str]) -> _Ready | None:
        generation = self._store.newest(*place)
        if not generation or self._unservable.get(place) == generation or not self._has_room():
            return None
        try:
            loan = self._store.lend(*place)
        except StagelinkError as error:
            self._give_up(place, generation, error.message)
            return None
        if isinstance(loan, Failure):
            self._give_up(place, generation, f"the producer failed: {loan.detail}")
            return None
        if loan is None:
            return None
        ready = self._made(place, loan)
        if ready is None:
            self._store.repay(loan, taken=False)
        else:
            self._ready[place] = ready
        return ready

    def _made(self, place: tuple[str, str], loan: Loan) -> _Ready | None:
        """The bytes of *loan* in their form: where they lie, or in a block of their own."""
        if loan.where is not None and loan.where.size:
            return _Ready(loan, loan.where, None, plain=True)
        try:
            data, plain = values.encode(loan.value)
        except PayloadError as error:
            self._give_up(place, loan.generation, error.message)
            return None
        if not len(data):
            self._give_up(place, loan.generation, "it has no bytes, which they never take")
            return None
        block = self._store.reserve(len(data), receive=False)
        if not isinstance(block, Block):
            self._figures.no_room += 1
            return None
        try:
            self._store.fill(block, data)
        except TransportError:
            self._store.free(block)
            return None
        return _Ready(loan, RegionRef(self._served.region, block.offset, len(data)), block, plain)

    def _has_room(self) -> bool:
        """Whether one more may be kept: else the one used longest ago is given back."""
        if len(self._ready) >= MOST_READY:
            idle = next((place for place, ready in self._ready.items() if not ready.number), None)
            if idle is None:
                return False
            self._drop(idle, taken=False)
        return True

    def _give_up(self, place: tuple[str, str], generation: int, why: str) -> None:
        """Say once that a payload cannot be served; their receiver goes on asking."""
        self._figures.unservable += 1
        while len(self._unservable) >= MOST_READY:
            del self._unservable[next(iter(self._unservable))]
        self._unservable[place] = generation
        edge = f"{self._served.stage}->{place[0]}"
        remedy = "put what their connectors could put, or move that stage to stagelink"
        self._log.warning("dialect_unservable", key=place[1], edge=edge, cause=why, remedy=remedy)

    def _drop(self, place: tuple[str, str], *, taken: bool) -> None:
        ready = self._ready.pop(place)
        if ready.block is not None:
            self._store.free(ready.block)
        self._store.repay(ready.loan, taken=taken)
