"""The table of time-outs, beside a plain dictionary."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from stagelink.core.timers import Timers

KEYS = st.sampled_from([("ttl", "b", 1), ("ttl", "b", 2), ("fetch", 1), ("ack", "a")])
MOMENTS = st.integers(0, 5).map(float)
STEPS = st.one_of(
    st.tuples(st.just("arm"), KEYS, MOMENTS),
    st.tuples(st.just("arm_once"), KEYS, MOMENTS),
    st.tuples(st.just("disarm"), KEYS, MOMENTS),
    st.tuples(st.just("due"), KEYS, MOMENTS),
)


@given(st.lists(STEPS, max_size=40))
def test_the_next_moment_is_the_earliest_that_is_armed(
    steps: list[tuple[str, tuple[str | int | bytes, ...], float]],
) -> None:
    timers = Timers()
    armed: dict[tuple[str | int | bytes, ...], float] = {}

    for step, key, moment in steps:
        if step == "arm":
            timers.arm(key, moment)
            armed[key] = moment
        elif step == "arm_once":
            timers.arm_once(key, moment)
            armed.setdefault(key, moment)
        elif step == "disarm":
            timers.disarm(key)
            armed.pop(key, None)
        else:
            over = {name: when for name, when in armed.items() if when <= moment}
            told = timers.due(moment)
            assert [over.pop(name) for name in told] == sorted(armed[name] for name in told)
            assert not over
            armed = {name: when for name, when in armed.items() if when > moment}

        assert timers.next_s == min(armed.values(), default=inf)
        assert set(timers.armed()) == set(armed)


def test_what_was_next_may_be_put_off() -> None:
    timers = Timers()
    timers.arm(("a",), 1.0)
    timers.arm(("b",), 2.0)

    timers.arm(("a",), 3.0)

    assert timers.next_s == 2.0
    assert timers.due(2.5) == [("b",)]


def test_moments_that_never_come_are_never_due() -> None:
    timers = Timers()

    assert timers.due(inf) == []
    assert timers.next_s == inf
