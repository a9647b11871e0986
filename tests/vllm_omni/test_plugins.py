"""vLLM-Omni finds us by our entry point, and says what is wrong with what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_omni import acts, plugins
from tests.vllm_omni.stages import OURS, SHIPPED, StageFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_omni.stages import Stage

PAGE = Path(__file__).parents[2] / "docs" / "reference"
OTHERS = "vllm_omni_register_models"


@pytest.mark.parametrize("process", [plugins.engine_core, plugins.worker])
def test_a_process_of_the_engine_knows_our_name_before_it_makes_anything(
    stage: Callable[..., Stage], process: Callable[[], Any]
) -> None:
    assert stage(plugins=False).do(process) == (False, True)


def test_registering_twice_is_harmless(stage: Callable[..., Stage]) -> None:
    assert stage().do(plugins.load_twice)


def test_a_list_of_plugins_without_us_is_named_and_the_host_goes_on(
    stage: Callable[..., Stage], port: int
) -> None:
    without = stage(environ={"VLLM_PLUGINS": OTHERS})

    with pytest.raises(StageFailedError, match=f"Unknown connector: {OURS}"):
        without.do(acts.connect, "c", OURS, port, 0)
    assert without.do(plugins.shared_memory_works)

    # None of our code runs there, so that it is our list to mend is said where one looks it up.
    [page] = PAGE.glob("*vllm-omni.md")
    assert "`VLLM_PLUGINS`" in page.read_text()
    assert f"add `stagelink` to the list, beside `{OTHERS}`" in " ".join(page.read_text().split())
    listed = stage(environ={"VLLM_PLUGINS": f"{OTHERS},stagelink"})
    assert listed.do(acts.connect, "c", OURS, port, 0) == OURS


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"role": "director"}, ["role", "director", "sender"]),
        ({"zmq_port": "many"}, ["zmq_port", "many"]),
        ({"zmq_port": 70000}, ["zmq_port", "70000"]),
        ({"memory_pool_size": -1}, ["memory_pool_size", "-1"]),
        ({"memory_pool_size": "large"}, ["memory_pool_size", "large"]),
        ({"memory_pool_device": "tpu"}, ["memory_pool_device", "tpu", "cpu"]),
        ({"backend_type": "xgmi"}, ["memory_pool_device", "cpu", "cuda"]),
        ({"host": 7}, ["host", "7"]),
        ({"qp_per_transfer": "two"}, ["qp_per_transfer", "two"]),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_what_to_do_and_the_host_goes_on(
    stage: Callable[..., Stage], port: int, extra: dict[str, Any], said: list[str]
) -> None:
    one = stage()

    found = one.do(plugins.refusal, extra)

    assert found.startswith(f"Failed to create connector {OURS}: ")
    for word in said:
        assert word in found
    assert one.do(plugins.refusal, {"zmq_port": port, "memory_pool_size": 1 << 20}) == ""


def test_a_backend_that_is_named_and_not_there_is_never_exchanged_for_another(
    stage: Callable[..., Stage], port: int
) -> None:
    one = stage()

    assert one.do(plugins.refusal, {"zmq_port": port, "backend_type": "rdma"}) == "not put"
    assert one.do(plugins.refusal, {"zmq_port": port}) == ""


def test_what_the_models_want_to_know_is_left_as_it_is(
    stage: Callable[..., Stage], port: int
) -> None:
    found = stage().do(plugins.config_of, port)

    assert found == {
        "zmq_port": port, "codec_chunk_frames": 25, "codec_left_context_frames": 7, "x": [1],
    }  # fmt: skip


@pytest.mark.parametrize("other", [None, SHIPPED])
def test_nobody_there_or_somebody_of_another_kind_is_nothing_to_get(
    stage: Callable[..., Stage], port: int, other: str | None
) -> None:
    receiver = stage()
    receiver.do(acts.connect, "c", OURS, port, 1)
    if other is not None:
        sender = stage()
        sender.do(acts.connect, "c", other, port, 0)
        assert sender.do(acts.put, "c", ("0", "1"), "k_0_0")[0]

    for told in (receiver.do(acts.told, OURS, port, 0), None):
        found = receiver.do(acts.get, "c", ("0", "1"), "k_0_0", told, 1.0)
        assert found["number"] is None
        assert found["longest_s"] < 1.0
