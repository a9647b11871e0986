"""Three stages stream 64 requests through the real adapter, with nothing changed but a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_omni import pipeline
from tests.vllm_omni.stages import OURS, SHM

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_omni.stages import Stage

REQUESTS = 64
START_S = 240.0  # each imports vLLM for itself
CLEAN = {"wrong": [], "left": {}, "unfinished": 0}


def stream(stages: list[Stage], name: str, port: int, count: int) -> list[Any]:
    """Let the requests through; what each stage has to say."""
    for number, one in enumerate(stages):
        one.tell(pipeline.begin, name, port, number, count)
    for one in stages:
        one.answer(START_S)
    for one, act in zip(stages, (pipeline.think, pipeline.talk, pipeline.speak), strict=True):
        one.tell(act)
    return [one.answer(pipeline.PATIENCE_S + 20) for one in stages]


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("name", "start"), [(OURS, "spawn"), (OURS, "forkserver"), (SHM, "forkserver")]
)
def test_every_chunk_arrives_bit_for_bit_in_order_and_the_sentinel_last(
    stage: Callable[..., Stage], port: int, name: str, start: str
) -> None:
    stages = [stage(start=start) for _ in range(3)]

    thinker, talker, code2wav = stream(stages, name, port, REQUESTS)

    assert thinker == CLEAN
    assert talker == CLEAN
    chunks = code2wav.pop("chunks")
    assert code2wav == CLEAN
    each = [pipeline.frames_of(number) for number in range(REQUESTS)]
    assert chunks == sum(-(-one // 25) + (one % 25 == 0) for one in each)
