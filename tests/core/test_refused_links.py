"""A link that is refused for a reason that only people can change: told at once, and not for ever."""

from __future__ import annotations

import pytest
from tests.core.test_waits import ADDRESS, Pair

from stagelink.core.errors import Reason
from stagelink.core.events import Connected, Disconnected, Failure
from stagelink.core.handshake.session import DECLINED


@pytest.fixture
def pair() -> Pair:
    return Pair()


def refuse(pair: Pair, detail: str = "unknown key") -> None:
    pair.linked = False
    pair.handle(pair.rx, Disconnected(ADDRESS, detail, refused=True))


def failed(pair: Pair, ticket: int) -> tuple[str, str]:
    answer = pair.answers[ticket]
    assert isinstance(answer, Failure)
    return answer.reason, answer.detail


def test_who_waits_is_told_at_once() -> None:
    pair = Pair()
    pair.linked = False
    get, wait = pair.get("k"), pair.wait("k", "l")

    refuse(pair)

    assert failed(pair, get) == failed(pair, wait) == (Reason.DECLINED.value, "unknown key")


def test_who_asks_later_is_told_too_until_the_link_is_up(pair: Pair) -> None:
    pair.linked = False
    pair.get("first")
    refuse(pair)
    assert failed(pair, pair.get("k"))[0] == Reason.DECLINED.value

    pair.heal()
    pair.put("k")

    assert not isinstance(pair.answers[pair.get("k")], Failure)


def test_a_refusal_after_an_ordinary_cut_ends_the_waits_that_the_cut_has_left(pair: Pair) -> None:
    get = pair.get("k")
    pair.cut()
    assert pair.is_open(get)

    refuse(pair)

    assert failed(pair, get)[0] == Reason.DECLINED.value


def test_an_ordinary_cut_after_a_refusal_lets_gets_wait_again(pair: Pair) -> None:
    pair.linked = False
    pair.get("first")
    refuse(pair)

    pair.handle(pair.rx, Disconnected(ADDRESS, "connection refused"))

    assert pair.is_open(pair.get("k"))


def test_what_is_under_way_is_left_to_the_rules_of_a_cut(pair: Pair) -> None:
    pair.get("hello")
    pair.put_block("k")
    view = pair.answers[pair.get("k")]
    assert not isinstance(view, Failure)

    refuse(pair)

    source = pair.rx.incoming.sources[ADDRESS]
    assert source.session.state == DECLINED
    assert source.met


def test_a_refusal_of_a_link_that_nobody_dialled_changes_nothing(pair: Pair) -> None:
    pair.handle(pair.rx, Disconnected("tcp://elsewhere:1", "unknown key", refused=True))
    pair.handle(pair.rx, Connected("tcp://elsewhere:1"))

    assert not pair.rx.incoming.sources
