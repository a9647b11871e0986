from __future__ import annotations

from math import inf, nan

import pytest

from stagelink.core.errors import ConfigError
from stagelink.core.timeouts import TimeoutPolicy, deadline

MIB = 1 << 20


def test_the_defaults_fit_together() -> None:
    assert TimeoutPolicy.checked() == TimeoutPolicy()


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 30.0), (100 * MIB, 35.0), (50 * MIB, 32.5), (1000 * MIB, 80.0)]
)
def test_a_transfer_has_30_s_and_5_s_for_every_100_mib(size: int, seconds: float) -> None:
    assert TimeoutPolicy().transfer_s(size) == seconds


def test_a_write_is_stuck_at_ten_times_its_transfer_time() -> None:
    assert TimeoutPolicy().stuck_write_s(100 * MIB) == 350.0


def test_a_write_is_never_stuck_before_the_floor() -> None:
    hasty = TimeoutPolicy.checked(transfer_base_s=0.1)

    assert hasty.stuck_write_s(0) == 30.0


@pytest.mark.parametrize("name", TimeoutPolicy._fields)
@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf, "5", True, None])
def test_a_duration_that_is_no_duration_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        TimeoutPolicy.checked(**{name: value})

    assert repr(value) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["transfer_base_s", "query_s", "put_s"])
def test_nobody_waits_as_long_as_a_payload_lives(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 300.0 s, ttl_s only 300.0 s"):
        TimeoutPolicy.checked(**{name: 300.0})


def test_a_wait_just_below_the_time_to_live_is_allowed() -> None:
    assert TimeoutPolicy.checked(query_s=299.9).query_s == 299.9


def test_a_cut_must_be_noticed_before_it_counts_as_silence() -> None:
    with pytest.raises(ConfigError, match=r"suspect_grace_s 10.0"):
        TimeoutPolicy.checked(suspect_grace_s=10.0)


def test_an_unknown_timeout_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown timeout 'tll_s'.*ttl_s"):
        TimeoutPolicy.checked(tll_s=1.0)


@pytest.mark.parametrize(("timeout_s", "moment"), [(0, 7.0), (2.5, 9.5), (1, 8.0)])
def test_a_deadline_is_counted_from_now(timeout_s: float, moment: float) -> None:
    assert deadline(7.0, timeout_s) == moment


@pytest.mark.parametrize("timeout_s", [-0.1, nan, inf, -inf, "5", True, None, [1]])
def test_a_wait_that_is_not_bounded_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout") as caught:
        deadline(7.0, timeout_s)

    assert caught.value.remedy
