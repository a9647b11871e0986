"""How long the end of a driver waits, and for what."""

from __future__ import annotations

from threading import Lock
from types import SimpleNamespace
from typing import Any

from stagelink.adapters.threads.closing import FLUSH_S, _settle


def driver_with(*, stalled: dict[str, object], views: list[object], at_rest: bool) -> Any:
    """What the end looks at; its naps are all that takes time, and are counted."""
    now = SimpleNamespace(s=0.0, naps=0)

    def nap(seconds: float) -> None:
        now.s += seconds
        now.naps += 1

    return SimpleNamespace(
        now=now,
        clock=lambda: now.s,
        parts=SimpleNamespace(endpoint=SimpleNamespace(at_rest=at_rest)),
        exchange=SimpleNamespace(stalled=stalled),
        views=views,
        state=Lock(),
        standby=SimpleNamespace(nap=nap),
        pump=lambda: None,
        pass_time=lambda: None,
    )


def test_a_close_waits_for_a_full_link_only_a_moment() -> None:
    driver = driver_with(stalled={"link": ["message"]}, views=[], at_rest=True)

    _settle(driver, 2.0)

    assert FLUSH_S <= driver.now.s < FLUSH_S + 0.02


def test_a_close_waits_for_views_and_writes_as_long_as_it_has_patience() -> None:
    for driver in (
        driver_with(stalled={}, views=["view"], at_rest=True),
        driver_with(stalled={"link": ["message"]}, views=[], at_rest=False),
    ):
        _settle(driver, 2.0)

        assert 2.0 <= driver.now.s < 2.02
        assert driver.now.naps >= 300


def test_a_close_with_nothing_to_wait_for_does_not_sleep() -> None:
    driver = driver_with(stalled={}, views=[], at_rest=True)

    _settle(driver, 2.0)

    assert driver.now.naps == 0
