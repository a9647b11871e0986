"""Eight faults keep vLLM-Omni's own Mori connector from running; each scenario fails with it and not with ours.

The shipped class is the released one, unmodified, over a stand-in for AMD's package (a write in it
cannot fail). That it fails is asserted, and how: the day it does not, we want to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_omni import acts
from tests.vllm_omni.stages import OURS, SHIPPED, Stage, StageFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

EDGE, NEXT = ("0", "1"), ("1", "2")

both = pytest.mark.parametrize("name", [OURS, SHIPPED])


def test_the_shipped_connector_works_when_everything_is_told_to_it(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", SHIPPED, port, 0)
    receiver.do(acts.connect, "c", SHIPPED, port, 1)

    ok, _, metadata = sender.do(acts.put, "c", EDGE, "k_0_0", 7)
    found = receiver.do(acts.get, "c", EDGE, "k_0_0", metadata)

    assert ok
    assert found["number"] == 7


@both
def test_m1_a_stage_may_make_its_connector_twice(
    stage: Callable[..., Stage], port: int, name: str
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "runner", name, port, 0, "runner")

    if name == SHIPPED:
        with pytest.raises(StageFailedError, match="Address already in use"):
            sender.do(acts.connect, "scheduler", name, port, 0)
        return

    sender.do(acts.connect, "scheduler", name, port, 0)
    receiver.do(acts.connect, "c", name, port, 1)
    told = receiver.do(acts.told, name, port, 0)
    for number, label in enumerate(("runner", "scheduler")):
        assert sender.do(acts.put, label, EDGE, f"k_0_{number}", number)[0]
        assert receiver.do(acts.get, "c", EDGE, f"k_0_{number}", told)["number"] == number
    sender.do(acts.close, "runner")
    assert sender.do(acts.put, "scheduler", EDGE, "k_0_2", 2)[0]
    assert receiver.do(acts.get, "c", EDGE, "k_0_2", told)["number"] == 2


@both
def test_m2_a_host_and_a_port_are_enough_to_get(
    stage: Callable[..., Stage], port: int, name: str
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", name, port, 0)
    receiver.do(acts.connect, "c", name, port, 1)
    told = receiver.do(acts.told, name, port, 0) or {
        "source_host": "127.0.0.1",
        "source_port": port,
    }
    assert set(told) == {"source_host", "source_port"}

    assert sender.do(acts.put, "c", EDGE, "k_0_0", 1)[0]
    found = receiver.do(acts.get, "c", EDGE, "k_0_0", told, 2.0 if name == SHIPPED else 20.0)

    assert found["number"] == (None if name == SHIPPED else 1)


@both
def test_m3_a_stage_in_the_middle_may_put(
    stage: Callable[..., Stage], port: int, name: str
) -> None:
    middle, last = stage(), stage()
    middle.do(acts.connect, "c", name, port, 1)

    ok, size, metadata = middle.do(acts.put, "c", NEXT, "k_1_0", 3)

    if name == SHIPPED:
        assert (ok, size, metadata) == (False, 0, None)
        return
    last.do(acts.connect, "c", name, port, 2)
    told = last.do(acts.told, name, port, 1)
    assert ok
    assert last.do(acts.get, "c", NEXT, "k_1_0", told)["number"] == 3


def test_m4_a_poll_that_finds_nothing_asks_nobody(stage: Callable[..., Stage], port: int) -> None:
    sender, receiver = stage(), stage()
    taken = {}
    for name, base in ((OURS, port), (SHIPPED, port + 32)):
        for one, number in ((sender, 0), (receiver, 1)):
            one.do(acts.connect, name, name, base, number)
        _, _, metadata = sender.do(acts.put, name, EDGE, "k_0_0", 1)
        assert receiver.do(acts.get, name, EDGE, "k_0_0", metadata)["number"] == 1
        told = receiver.do(acts.told, name, base, 0) if name == OURS else None
        taken[name] = receiver.do(acts.misses, name, EDGE, told)

    assert taken[OURS] < taken[SHIPPED] / 4, taken


@both
def test_m5_a_get_may_have_a_deadline(stage: Callable[..., Stage], port: int, name: str) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", name, port, 0)
    receiver.do(acts.connect, "c", name, port, 1)
    assert sender.do(acts.put, "c", EDGE, "k_0_0", 5)[0]
    told = receiver.do(acts.told, name, port, 0)

    if name == SHIPPED:
        with pytest.raises(StageFailedError, match="NotImplementedError"):
            receiver.do(acts.get_until, "c", EDGE, "k_0_0", told, 2.0)
        return

    assert receiver.do(acts.get_until, "c", EDGE, "k_0_0", told, 20.0)["number"] == 5
    nothing = receiver.do(acts.get_until, "c", EDGE, "k_0_1", told, 0.3)
    assert nothing["number"] is None
    assert nothing["late_s"] < 1.0, "a deadline is not overrun"


@both
def test_m6_a_dead_sender_costs_a_poll_nothing(
    stage: Callable[..., Stage], port: int, name: str
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", name, port, 0)
    receiver.do(acts.connect, "c", name, port, 1)
    told = receiver.do(acts.told, name, port, 0) if name == OURS else None
    _, _, metadata = sender.do(acts.put, "c", EDGE, "k_0_0", 5)
    assert receiver.do(acts.get, "c", EDGE, "k_0_0", metadata)["number"] == 5

    sender.kill()
    found = receiver.do(acts.get, "c", EDGE, "k_0_1", told, 4.0)

    assert found["number"] is None
    if name == SHIPPED:
        assert found["polls"] == 1
        assert found["longest_s"] > 4.5
    else:
        assert found["polls"] > 30
        assert found["longest_s"] < 1.0, "other requests wait for the same thread"


@both
def test_m7_closing_does_not_wait_for_another_thread(
    stage: Callable[..., Stage], port: int, name: str
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", name, port, 0)
    receiver.do(acts.connect, "c", name, port, 1)
    told = receiver.do(acts.told, name, port, 0) if name == OURS else None
    assert sender.do(acts.put, "c", EDGE, "k_0_0")[0]

    found = receiver.do(acts.close_beside_a_poll, "c", EDGE, told)
    if name == SHIPPED:
        receiver.kill()  # it would not end

    assert found == ("stuck" if name == SHIPPED else None)


@both
def test_m8_what_could_not_bind_stops_nobody_else(
    stage: Callable[..., Stage], port: int, taken: int, name: str
) -> None:
    sender = stage()
    sender.do(acts.connect, "good", name, port, 0)
    failed: Any = sender.do(acts.fail_to_bind, "bad", name, taken, 0)

    found = sender.do(acts.within, acts.collect_and_put, 5.0, "good", EDGE, "k_0_0")

    if name == SHIPPED:
        sender.kill()
        assert "Address already in use" in failed
        assert found == "stuck"
    else:
        assert failed == (False, 0, None)
        assert found[0] is True
