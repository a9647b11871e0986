"""Where vLLM-Omni loads plugins, and what its factory makes of what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.vllm_omni.stages import OURS, SHM


def known() -> bool:
    """Whether the factory knows our name."""
    from tests.vllm_omni import host

    return OURS in host.OmniConnectorFactory.list_registered_connectors()


class _SeenError(Exception):
    """Ends the construction where the question is answered."""


def engine_core() -> tuple[bool, bool]:
    """Whether our name is known before an EngineCore begins, and when it makes its executor."""
    from vllm.v1.engine.core import EngineCore

    before = known()

    def executor(_: Any) -> None:
        raise _SeenError

    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank_local=1))
    try:
        EngineCore(config, executor, log_stats=False)
    except _SeenError:
        return before, known()
    raise AssertionError("it made no executor")


def worker() -> tuple[bool, bool]:
    """Whether our name is known before a worker begins, and when it chooses its class."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    before = known()

    class Parallel:
        @property
        def worker_cls(self) -> str:
            raise _SeenError

    config = SimpleNamespace(
        parallel_config=Parallel(), enable_trace_function_call_for_thread=lambda: None
    )
    try:
        WorkerWrapperBase(rpc_rank=0).init_worker([{"vllm_config": config}])
    except _SeenError:
        return before, known()
    raise AssertionError("it chose no class")


def load_twice() -> bool:
    """Whether registering again is harmless, as in a process that has done it."""
    from importlib.metadata import entry_points

    [ours] = [one for one in entry_points(group="vllm.general_plugins") if one.name == "stagelink"]
    ours.load()()
    ours.load()()
    return known()


def refusal(extra: dict[str, Any]) -> str:
    """What the factory says to this configuration; empty if it takes it and a put succeeds."""
    from tests.vllm_omni import host

    base = {"host": "127.0.0.1", "stage_id": 0, "role": "sender"}
    try:
        made = host.OmniConnectorFactory.create_connector(
            host.ConnectorSpec(OURS, {**base, **extra})
        )
    except ValueError as error:
        return str(error)
    done = made.put("0", "1", "k_0_0", {"a": 1})
    made.close()
    return "" if done[0] else "not put"


def shared_memory_works() -> bool:
    """Whether the host's own connector moves something here."""
    from tests.vllm_omni import host

    made = host.OmniConnectorFactory.create_connector(host.ConnectorSpec(SHM, {"stage_id": 0}))
    assert made.put("0", "1", "stagelink_test_0_0", {"a": 1})[0]
    found = made.get("0", "1", "stagelink_test_0_0")
    return bool(found and found[0] == {"a": 1})


def config_of(port: int) -> dict[str, Any]:
    """What models find on the connector's configuration."""
    from tests.vllm_omni import host

    extra = {"zmq_port": port, "codec_chunk_frames": 25, "codec_left_context_frames": 7, "x": [1]}
    made = host.OmniConnectorFactory.create_connector(host.ConnectorSpec(OURS, extra))
    assert made.config is extra
    made.close()
    return dict(made.config)
