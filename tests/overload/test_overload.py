"""More load than a pool can hold: waits end, nobody starves, and a middle stage goes on.

Longer: ``python -m tests.overload --seconds 600``; ``stagelink bench --soak`` does it between
processes, without a middle stage.
"""

from __future__ import annotations

import pytest
from tests.overload import lanes
from tests.overload.lanes import DEADLINE_S, overload, wrong_refusal

import stagelink
from stagelink.core.errors import CapacityError

SECONDS = 2.0
LATE_MS = 2000.0
"""Of a refusal, on a machine that does much else."""


@pytest.mark.parametrize("backend", ["memory-write", "shm-write", "shm"])
def test_32_edges_through_one_pool_all_go_on(backend: str) -> None:
    found = overload(backend, SECONDS)

    assert found["ok"], found
    assert found["latest_refusal_ms"] < LATE_MS
    assert found["fewest_large"] * 8 >= found["most_large"], "a large one starves"


def test_without_a_floor_for_either_side_the_middle_would_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That the load above is one under which a mistake shows."""
    opened = stagelink.open
    shares = {"send_share": 0.0, "receive_share": 0.0}
    monkeypatch.setattr(stagelink, "open", lambda **more: opened(**more, **shares))
    monkeypatch.setattr(lanes, "STUCK_S", 2.0)

    assert not overload("memory-write", 1.0)["ok"]


def test_a_refusal_that_says_too_little_is_seen() -> None:
    numbers = {
        "requested": 9.0, "free": 4.0, "largest_free": 4.0, "capacity": float(lanes.POOL),
        "leases": 2.0, "oldest_lease_s": 1.0,
    }  # fmt: skip
    assert not wrong_refusal(CapacityError("free 4", numbers=numbers), DEADLINE_S)
    assert wrong_refusal(CapacityError("free 4", numbers=numbers), DEADLINE_S / 2)
    assert wrong_refusal(CapacityError("free 4", numbers={**numbers, "free": 3.0}), DEADLINE_S)
    assert wrong_refusal(CapacityError("free 4"), DEADLINE_S)
