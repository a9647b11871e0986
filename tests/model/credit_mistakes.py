"""Mistakes about lent blocks that the explorer must find, like those of :mod:`mutations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.mutations import Mutation, nothing, refuse_while_writing
from tests.model.worlds import LARGE, SMALL

from stagelink.core.arrivals import Arrivals
from stagelink.core.handshake.fetch import DRAINING, GRANTED
from stagelink.core.handshake.grants import GrantsOut, Spent
from stagelink.core.lending import Lending
from stagelink.core.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable

_WORLDS = {**SMALL, **LARGE}
_USED, _CUT = _WORLDS["credit: used"], _WORLDS["credit: cut"]
_WITHDRAW, _FENCE = _WORLDS["credit: withdraw"], _WORLDS["credit: fence"]


def _void_nothing(_: Any) -> Any:
    return lambda self: ()


def _landed_too_early(original: Any) -> Any:
    def take(self: GrantsOut, generation: int, size: int) -> Any:
        taken = original(self, generation, size)
        if taken is not None:
            self.spent[generation] = Spent(taken[0], over=True)
        return taken

    return take


def _spend_twice(original: Any) -> Any:
    def take(self: GrantsOut, generation: int, size: int) -> Any:
        before = dict(self.free)
        taken = original(self, generation, size)
        self.free.update(before)
        return taken

    return take


def _free_what_is_lent(original: Any) -> Any:
    def discard(self: Lending, fetch: Any, out: Any) -> None:
        if fetch.state == GRANTED:
            self._gets.let_go(fetch, out)
        else:
            original(self, fetch, out)

    return discard


def _keep_what_landed(original: Any) -> Any:
    def left(self: Arrivals, fetch: Any, message: Any, out: Any) -> None:
        if not fetch.lent:
            original(self, fetch, message, out)

    return left


def _told_as_done(_: Any) -> Any:
    return lambda self, reader, transfer, lease: False


def _hold_for_ever(original: Any) -> Any:
    def end(self: Transfers, reader: Any, transfer: int, answer: Any, out: Any) -> None:
        feed = reader.feed
        before, feed.subscribed = feed.subscribed, False
        original(self, reader, transfer, answer, out)
        feed.subscribed = before

    return end


def _take_what_drains(original: Any) -> Any:
    def fits(self: Arrivals, fetch: Any, message: Any) -> bool:
        if fetch is not None and fetch.state == DRAINING and fetch.lent and not message.there:
            return True
        return bool(original(self, fetch, message))

    return fits


def _answer_is_ignored(_: Any) -> Any:
    return lambda self, source, fetch, message, out: None


def _lend_without_limit(_: Callable[..., bool]) -> Any:
    return lambda self, source, size, limit: True


def _another_beginning(original: Any) -> Any:
    def hand_over(self: Arrivals, source: Any, lent: Any, message: Any, out: Any) -> bool:
        return bool(original(self, source, lent, message._replace(body=b"7"), out))

    return hand_over


def _lend_what_came_back(_: Any) -> Any:
    return lambda self, source, out: self.lend(source, out)


CREDIT_MISTAKES = {
    "lent: refuse while writing": Mutation(
        _USED, Transfers, "cancel", refuse_while_writing
    ),
    "lent: a cut voids nothing": Mutation(_FENCE, GrantsOut, "void", _void_nothing),
    "lent: landed before the write ends": Mutation(_USED, GrantsOut, "take", _landed_too_early),
    "lent: a grant is spent twice": Mutation(
        _WORLDS["credit: backlog"], GrantsOut, "take", _spend_twice
    ),
    "lent: free before the sender has answered": Mutation(_CUT, Lending, "discard", _free_what_is_lent),
    "lent: kept though its payload has gone": Mutation(
        _WITHDRAW, Arrivals, "_left", _keep_what_landed
    ),
    "lent: an untold end is told as done": Mutation(
        _USED, Transfers, "_is_untold", _told_as_done
    ),
    "lent: what landed is never told": Mutation(_USED, Transfers, "_end", _hold_for_ever),
    "lent: into a block asked back": Mutation(
        _WORLDS["credit: backlog"], Arrivals, "_fits", _take_what_drains
    ),
    "lent: landed is no answer to a revoke": Mutation(
        _USED, Arrivals, "_misses", _answer_is_ignored
    ),
    "lent: told another beginning": Mutation(
        _WORLDS["credit: backlog"], Arrivals, "_hand_over", _another_beginning
    ),
    "lent: again what came back unused": Mutation(
        SMALL["credit: never used"], Lending, "lend_if_due", _lend_what_came_back
    ),
    "lent: for ever": Mutation(SMALL["credit: never used"], Lending, "idle_due", nothing),
    "lent: without a limit": Mutation(
        _WORLDS["credit: two lent"], Lending, "_may_lend", _lend_without_limit
    ),
}  # fmt: skip
