"""Stages that die, come back, or give up; requests without end; and what is left of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_omni import acts, pipeline
from tests.vllm_omni.stages import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_omni.stages import Stage

EDGE = ("0", "1")


def linked(stage: Callable[..., Stage], port: int) -> tuple[Stage, Stage, Any]:
    """A sender and a receiver that has got something from it; and where from."""
    sender, receiver = stage(), stage()
    for number, one in enumerate((sender, receiver)):
        one.do(acts.connect, "c", OURS, port, number)
    told = receiver.do(acts.told, OURS, port, 0)
    assert sender.do(acts.put, "c", EDGE, "first_0_0", 1)[0]
    assert receiver.do(acts.get, "c", EDGE, "first_0_0", told)["number"] == 1
    return sender, receiver, told


def test_a_killed_sender_is_waited_for_at_no_cost_and_its_restart_is_found(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver, told = linked(stage, port)
    assert sender.do(acts.put, "c", EDGE, "lost_0_0", 2, 1 << 20)[0]
    sender.kill()

    waited = receiver.do(acts.get, "c", EDGE, "next_0_0", told, 1.0)
    assert waited["number"] is None
    assert waited["longest_s"] < 1.0
    again = stage()
    again.do(acts.connect, "c", OURS, port, 0)
    assert again.do(acts.put, "c", EDGE, "next_0_0", 3)[0]

    assert receiver.do(acts.get, "c", EDGE, "next_0_0", told, 20.0)["number"] == 3


def test_a_restarted_receiver_finds_what_nobody_took(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver, told = linked(stage, port)
    for number, size in enumerate((4096, 1 << 20)):
        assert sender.do(acts.put, "c", EDGE, f"k_0_{number}", number, size)[0]
    receiver.kill()

    again = stage()
    again.do(acts.connect, "c", OURS, port, 1)
    for number in (1, 0):
        assert again.do(acts.get, "c", EDGE, f"k_0_{number}", told, 20.0)["number"] == number


def test_a_key_that_is_put_again_is_the_new_one_whoever_was_told_of_the_old(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver, told = linked(stage, port)
    for number in (1, 2, 3):  # as after an abort, or a put that is tried again
        assert sender.do(acts.put, "c", EDGE, "k_0_0", number)[0]
        assert receiver.do(acts.get, "c", EDGE, "nobody_0_0", told, 0.05)["number"] is None

    assert receiver.do(acts.get, "c", EDGE, "k_0_0", told)["number"] == 3
    assert sender.do(acts.put, "c", EDGE, "k_0_0", 4)[0]
    assert receiver.do(acts.get, "c", EDGE, "k_0_0", told)["number"] == 4


def test_a_receiver_that_comes_late_finds_thousands_of_chunks(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver = stage(), stage()
    sender.do(acts.connect, "c", OURS, port, 0)
    assert sender.do(acts.put_many, "c", EDGE, 0, 3000) == 0

    receiver.do(acts.connect, "c", OURS, port, 1)
    told = receiver.do(acts.told, OURS, port, 0)
    assert receiver.do(acts.get_many, "c", EDGE, 0, 3000, told) == []


@pytest.mark.timeout(240)
def test_requests_that_are_aborted_during_a_chunk_leave_nothing_and_disturb_nobody(
    stage: Callable[..., Stage], port: int
) -> None:
    count, gone = 12, ["r3", "r4", "r9"]
    stages = [stage() for _ in range(3)]
    for number, one in enumerate(stages):
        one.do(pipeline.begin, OURS, port, number, count)
    stages[1].do(pipeline.abort, gone)
    stages[2].do(pipeline.never, gone)

    for one, act in zip(stages, (pipeline.think, pipeline.talk, pipeline.speak), strict=True):
        one.tell(act)
    found = [one.answer() for one in stages]

    assert sorted(stages[1].do(caught)) == gone
    for one in found:
        one.pop("chunks", None)
        assert one == {"wrong": [], "left": {}, "unfinished": 0}


def caught() -> list[str]:
    return pipeline.ABORT["here"].caught


@pytest.mark.timeout(400)
def test_ten_thousand_requests_leave_no_trace(stage: Callable[..., Stage], port: int) -> None:
    sender, receiver, told = linked(stage, port)
    each, sizes = 250, []

    for batch in range(40):
        first = batch * each
        sender.tell(acts.put_many, "c", EDGE, first, each)
        receiver.tell(acts.get_many, "c", EDGE, first, each, told)
        assert sender.answer() == 0
        assert receiver.answer() == []
        if batch in (9, 39):
            sizes.append([one.do(acts.size_of_process) for one in (sender, receiver)])

    for before, after in zip(*sizes, strict=True):
        assert after["rss_kib"] < before["rss_kib"] + 8 * 1024, (before, after)
        assert {**after, "rss_kib": 0} == {**before, "rss_kib": 0}
    # the last ends are reported within a moment
    receiver.do(acts.get, "c", EDGE, "nobody_0_0", told, 1.0)
    assert [one.do(acts.entries, "c") for one in (sender, receiver)] == [{}, {}]


def test_nothing_is_left_in_dev_shm_by_stages_that_end_or_are_killed(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver, told = linked(stage, port)
    assert sender.do(acts.put, "c", EDGE, "k_0_0", 2, 4 << 20)[0]
    assert receiver.do(acts.get, "c", EDGE, "k_0_0", told)["number"] == 2
    segments = sender.do(acts.segments) | receiver.do(acts.segments)
    assert segments

    receiver.end()
    sender.kill()
    # What a killed sender leaves, the next one on the machine sweeps when it opens.
    again = stage()
    again.do(acts.connect, "c", OURS, port, 0)
    assert again.do(acts.put, "c", EDGE, "k_0_0", 2, 4 << 20)[0]

    assert not [one for one in segments if os.path.exists(one)]
