"""How gets and waits end without a payload: too late, stopped, closed, or without their sender."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Failure
from stagelink.core.handshake.fetch import DRAINING, HELD, WAITING
from stagelink.core.handshake.session import DECLINED
from stagelink.core.prospects import no_room
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.core.events import Action
    from stagelink.core.gets import Gets
    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.source import Source


class Endings:
    """Tells callers why nothing comes; transfers under way are cancelled and drain."""

    __slots__ = ("_gets",)

    def __init__(self, gets: Gets) -> None:
        self._gets = gets

    # --- one call ------------------------------------------------------------------------

    def fetch_due(self, number: int, now_s: float, out: list[Action]) -> None:
        """A get's deadline."""
        self._gets.now_s = now_s
        fetch = self._gets.fetches.get(number)
        if fetch is None or fetch.state in {HELD, DRAINING}:
            return  # another time-out of this very moment has ended it
        source = self._gets.sources[fetch.address]
        trouble = (
            self._known_trouble(source)
            or self._stalled(source, fetch)
            or no_room(self._gets.pool, fetch)
        )
        reason, detail = trouble or (Reason.DEADLINE, _explain(source, fetch))
        self._gets.give_up(fetch, reason.value, detail, out)

    def wait_due(self, ticket: int, now_s: float, out: list[Action]) -> None:
        """The deadline of a wait for the first of many keys."""
        del now_s
        wait = self._gets.waits.get(ticket)
        if wait is None:
            return  # another time-out of this very moment has ended it
        source = self._gets.sources[wait.address]
        nothing = f"none of {len(wait.keys)} keys has been published"
        reason, detail = self._known_trouble(source) or (Reason.DEADLINE, nothing)
        self._gets.waits.fail(ticket, Failure(reason.value, detail, source.label), out)

    def _known_trouble(self, source: Source) -> tuple[Reason, str] | None:
        """What is known against the sender when a wait for it has reached its deadline."""
        if source.gone:
            return Reason.PEER_GONE, source.gone
        if source.session.state == DECLINED:
            return Reason.UNREACHABLE, source.detail
        if source.met:
            return None
        if self._gets.is_young(source):
            return Reason.DEADLINE, "the sender is not connected yet"
        return Reason.UNREACHABLE, source.detail

    def _stalled(self, source: Source, fetch: Fetch) -> tuple[Reason, str] | None:
        """Why a get could not be begun although its payload is announced."""
        known = source.inbox.get(fetch.key)
        if known is None or known.fetch or fetch.key not in source.stalled:
            return None
        gets = self._gets
        kept = gets.debts.kept(gets.fetches, source.peer, gets.now_s)
        if gets.debts.is_silent(kept, source.open):
            return Reason.QUARANTINED, str(kept)
        earlier = "earlier transfers from this sender were still under way"
        return Reason.DEADLINE, f"{earlier}: {kept}" if kept.blocks else earlier

    def stop(self, ticket: int, reason: str, now_s: float, out: list[Action]) -> None:
        """The caller of *ticket* no longer waits."""
        self._gets.now_s = now_s
        self._gets.waits.fail(ticket, Failure(reason, "the caller stopped waiting"), out)
        fetch = self._gets.fetches.of_ticket(ticket)
        if fetch is not None:
            self._gets.give_up(fetch, reason, "the caller stopped waiting", out)

    def of_another(self, source: Source, fetch: Fetch, out: list[Action]) -> bool:
        """End a get that wants the payload of an instance that is not at this address (now)."""
        if fetch.state != WAITING or fetch.want_instance in {NO_INSTANCE, source.peer}:
            return False
        detail = "the payload was published by an instance that is no longer at this address"
        self._gets.fail(fetch, Reason.PEER_RESTARTED.value, detail, out)
        return True

    # --- many calls ----------------------------------------------------------------------

    def close(self, out: list[Action]) -> None:
        """End every get and every wait."""
        detail = "the connector was closed"
        self.end_all(self._gets.fetches.all(), Reason.CLOSED, detail, out)
        for wait in self._gets.waits.all():
            self._gets.waits.fail(wait.ticket, Failure(Reason.CLOSED.value, detail), out)

    def fail_all(self, source: Source, reason: Reason, detail: str, out: list[Action]) -> None:
        """End every get and every wait on this sender, at once."""
        self.fail_waiting(source, reason, detail, out)
        self.fail_under_way(source, reason, detail, out)

    def fail_under_way(
        self, source: Source, reason: Reason, detail: str, out: list[Action]
    ) -> None:
        """End the gets that have something; after those that wait, which must not inherit it."""
        ours = [
            f for f in self._gets.fetches.all()
            if f.address == source.address and f.state != WAITING
        ]  # fmt: skip
        self.end_all(ours, reason, detail, out)

    def fail_waiting(self, source: Source, reason: Reason, detail: str, out: list[Action]) -> None:
        """End those of them that nothing is under way for."""
        fetches, waits = self._gets.fetches, self._gets.waits
        ours = [f for f in fetches.all() if f.address == source.address and f.state == WAITING]
        self.end_all(ours, reason, detail, out)
        failure = Failure(reason.value, detail, source.label)
        for wait in waits.at(source.address):
            waits.fail(wait.ticket, failure, out)

    def end_all(
        self, fetches: Iterable[Fetch], reason: Reason, detail: str, out: list[Action]
    ) -> None:
        """End those gets. Who waits goes first: the others must not leave it what they had.

        Each is looked up again, for room that one gives back may be granted to the next.
        """
        for old in sorted(fetches, key=lambda fetch: fetch.state != WAITING):
            fetch = self._gets.fetches.get(old.number)
            if fetch is not None and fetch.state not in {HELD, DRAINING}:
                self._gets.give_up(fetch, reason.value, detail, out)


def _explain(source: Source, fetch: Fetch) -> str:
    """What is known of a key whose get has reached its deadline."""
    if not source.open:
        return f"the sender is not connected: {source.detail}"
    if fetch.state != WAITING:
        return f"the transfer was still {fetch.state}"
    reason, _ = source.recent.get(fetch.key, ("", ""))
    last = f"; its last publication is {reason}" if reason else ""
    return f"the sender has not published this key{last}"
