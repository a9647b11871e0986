"""Chunks of an aborted request that nobody has read are freed at once, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.vllm_omni import aborts, acts, pipeline
from tests.vllm_omni.stages import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_omni.stages import Stage

EDGE = ("0", "1")
ALL = ["r0", "r1", "r2"]


def sender(stage: Callable[..., Stage], port: int) -> Stage:
    """A stage with three requests."""
    made = stage()
    made.do(pipeline.begin, OURS, port, 0, len(ALL))
    return made


def test_an_abort_frees_the_unread_chunks_of_its_request_and_no_others(
    stage: Callable[..., Stage], port: int
) -> None:
    first = sender(stage, port)
    chunks = first.do(aborts.send, ALL, 6)
    assert first.do(aborts.published) == sum(chunks.values()) >= 3 * 5

    first.do(aborts.abort, ["r0", "r2"])

    assert first.do(aborts.published) == chunks["r1"]
    receiver = stage()
    receiver.do(acts.connect, "c", OURS, port, 1)
    told = receiver.do(acts.told, OURS, port, 0)
    keys = [f"ext-r1_0_{number}" for number in range(chunks["r1"])]
    assert receiver.do(acts.there, "c", EDGE, keys, told) == keys
    assert receiver.do(acts.there, "c", EDGE, ["ext-r0_0_0", "ext-r2_0_3"], told, 0.1) == []


def test_a_request_of_an_aborted_ones_name_is_read_from_its_own_first_chunk(
    stage: Callable[..., Stage], port: int
) -> None:
    first, receiver = sender(stage, port), stage()
    receiver.do(acts.connect, "c", OURS, port, 1)
    told = receiver.do(acts.told, OURS, port, 0)
    put = first.do(aborts.send, ["r0"], 6)["r0"]
    read = [f"ext-r0_0_{number}" for number in range(2)]
    assert receiver.do(acts.there, "c", EDGE, read, told) == read

    first.do(aborts.abort, ["r0"])
    first.do(aborts.again, "r0", 1)
    assert first.do(aborts.send, ["r0"], 3)["r0"] < put

    assert first.do(aborts.published) <= 3
    assert receiver.do(acts.there, "c", EDGE, read, told) == read
    assert receiver.do(acts.there, "c", EDGE, [f"ext-r0_0_{put - 1}"], told, 0.1) == []


def test_the_host_asks_for_its_shared_memorys_class_where_it_cleans_up_and_nowhere_else(
    stage: Callable[..., Stage],
) -> None:
    assert stage().do(aborts.questions) == {"chunk_transfer_adapter": 2}
