"""Payloads that are here: begun by a poll, brought to a caller who had gone, or held by views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.events import Complete
from stagelink.core.handshake.fetch import HELD, LANDED, PULLING, QUEUED
from stagelink.core.shelf import SHELF_LIMIT, suits
from stagelink.core.streams import stream_of
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from stagelink.core.events import Action, Get, Untaken
    from stagelink.core.gets import Gets
    from stagelink.core.settings import Settings
    from stagelink.core.shelf import Kept
    from stagelink.core.source import Source
    from stagelink.core.timers import Timers


class Deliveries:
    """Gives to later gets what has no taker; ``lost`` counts what was kept in vain."""

    __slots__ = ("_gets", "_settings", "_timers", "lost")

    def __init__(self, settings: Settings, timers: Timers, gets: Gets) -> None:
        self._settings = settings
        self._timers = timers
        self._gets = gets
        self.lost = 0

    def release(self, handle: int, now_s: float, out: list[Action]) -> None:
        """The last view of a delivery has gone; unknown handles are fine."""
        gets = self._gets
        gets.now_s = now_s
        fetch = gets.fetches.get(handle)
        if fetch is None or fetch.state != HELD:
            return
        source = gets.sources[fetch.address]
        if fetch.where is not None:
            # Before the table forgets it: the count must not come after the report of its end.
            gets.consumed(source, fetch, out)
        gets.let_go(fetch, out)
        gets.retry_stalled(source, out)
        gets.lending.lend(source, out)

    # --- begun by a poll -----------------------------------------------------------------

    def adopt(self, source: Source, command: Get, out: list[Action]) -> bool:
        """Let a get take over what a poll began, if that is the payload it wants."""
        key, ticket, deadline_s = command.key, command.ticket, command.deadline_s
        known = source.inbox.get(key)
        if (
            known is None
            or command.generation not in {0, known.generation}
            or command.size not in {0, known.size}
            or command.instance not in {NO_INSTANCE, source.peer}
        ):
            return False
        if self.landed(source, key, ticket, out):
            return True
        fetches = self._gets.fetches
        known = source.inbox.get(key)
        fetch = fetches.get(known.fetch) if known else None
        if fetch is None or fetch.ticket or fetch.state not in {QUEUED, PULLING}:
            return False
        fetches.set(fetch._replace(ticket=ticket, lent=False))
        self._timers.arm(("fetch", fetch.number), deadline_s)
        self._gets.lending.lend(source, out)
        return True

    def landed(self, source: Source, key: str, ticket: int, out: list[Action]) -> bool:
        """Give *ticket* what a poll has fetched, if it has."""
        fetches = self._gets.fetches
        known = source.inbox.get(key)
        fetch = fetches.get(known.fetch) if known else None
        if fetch is None or fetch.state != LANDED:
            return False
        taken = fetches.set(fetch._replace(ticket=ticket, lent=False))
        self._gets.deliver(source, taken, out)
        self._gets.lending.lend(source, out)
        return True

    # --- brought to a caller who had gone ------------------------------------------------

    def untaken(self, event: Untaken, now_s: float, out: list[Action]) -> None:
        """A delivery reached no caller: whoever waits for its key has it, or the next who asks."""
        gets = self._gets
        gets.now_s = now_s
        address, key, delivery = event
        fetch = gets.fetches.get(delivery.handle)
        if delivery.handle and (fetch is None or fetch.state != HELD):
            return  # it has been released meanwhile
        if self._hand_on(event, out):
            return
        kept = gets.shelf.keep(address, key, delivery)
        self._timers.arm(("kept", kept.number), now_s + self._settings.policy.ttl_s)
        if len(gets.shelf) > SHELF_LIMIT:
            self._lose(gets.shelf.all()[0], now_s, out)
        gets.waits.tell(address, key, out)

    def from_shelf(self, source: Source, command: Get, out: list[Action]) -> bool:
        """Give a get what an earlier one was delivered and did not take."""
        kept = self._gets.shelf.find(command)
        if kept is None or command.source != source.stage:
            return False
        self._gets.shelf.drop(kept)
        self._timers.disarm(("kept", kept.number))
        out.append(Complete(command.ticket, kept.delivery))
        return True

    def kept_due(self, number: int, now_s: float, out: list[Action]) -> None:
        """A delivery that reached no caller has been kept for as long as any payload."""
        kept = self._gets.shelf.get(number)
        if kept is not None:
            self._lose(kept, now_s, out)

    def unshelve(self, kept: Kept, now_s: float, out: list[Action]) -> None:
        """Let go of a delivery that has no taker."""
        self._gets.shelf.drop(kept)
        self._timers.disarm(("kept", kept.number))
        self.release(kept.delivery.handle, now_s, out)

    def _hand_on(self, event: Untaken, out: list[Action]) -> bool:
        """Give a delivery that nobody took to the oldest get that waits for its key."""
        gets, delivery = self._gets, event.delivery
        for fetch in gets.fetches.waiting_for(event.address, event.key):
            if suits(delivery, fetch.want, fetch.want_size, fetch.want_instance):
                out.append(Complete(fetch.ticket, delivery))
                gets.let_go(fetch, out)
                return True
        return False

    def _lose(self, kept: Kept, now_s: float, out: list[Action]) -> None:
        """Nobody took it in time: a get of its key is told so until there is a new one."""
        self.unshelve(kept, now_s, out)
        self.lost += 1
        source = self._gets.sources[kept.address]
        if source.inbox.get(kept.key) is None:
            detail = "it was delivered to a call that had been cancelled, and then not taken"
            source.remember(stream_of(kept.key) or kept.key, Reason.EXPIRED.value, detail)
