"""vLLM-Omni in a stage's process: what its engine does before and around a connector.

Importing this module imports vLLM, which takes ten seconds and more. Tests therefore import it in
processes of their own only (:mod:`tests.vllm_omni.stages`).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import os
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from tests.vllm_omni.stages import OURS, SHIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

POOL = 64 << 20


class _NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty torchvision.

    A table of all models imports it, for pictures that nobody makes here; its wheels do not load
    beside a torch without CUDA.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def anything(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{spec.name}.{name}")

        module.__getattr__ = anything  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import vllm_omni  # noqa: E402 - it reads the level when it is imported

sys.meta_path.insert(0, _NoTorchvision())

from vllm.v1.core.sched.request_queue import (  # noqa: E402
    SchedulingPolicy,
    create_request_queue,
)
from vllm.v1.request import RequestStatus  # noqa: E402
from vllm_omni.distributed.omni_connectors import (  # noqa: E402
    ConnectorSpec,
    OmniConnectorFactory,
    load_omni_transfer_config,
)
from vllm_omni.distributed.omni_connectors.kv_transfer_manager import (  # noqa: E402
    KVCacheTransferData,
    OmniKVTransferManager,
)
from vllm_omni.distributed.omni_connectors.model_runner.omni_connector_runtime import (  # noqa: E402
    _OmniConnectorRuntimeMixin,
)
from vllm_omni.distributed.omni_connectors.transfer_adapter.chunk_transfer_adapter import (  # noqa: E402
    OmniChunkTransferAdapter,
    _LoadEntry,
)
from vllm_omni.distributed.omni_connectors.utils.initialization import (  # noqa: E402
    resolve_omni_kv_config_for_stage,
)
from vllm_omni.engine.stage_engine_core_client import StageEngineCoreClientBase  # noqa: E402
from vllm_omni.engine.stage_init_utils import get_stage_connector_spec  # noqa: E402
from vllm_omni.model_executor.stage_input_processors import qwen3_omni  # noqa: E402

__all__ = [
    "ConnectorSpec", "KVCacheTransferData", "OmniChunkTransferAdapter",
    "OmniConnectorFactory", "OmniKVTransferManager", "RequestStatus", "SchedulingPolicy", "adapter",
    "create_request_queue", "deployment", "kv_manager", "load_plugins", "model_config",
    "payload_connector", "qwen3_omni", "request", "runner_connector", "sender_info",
    "source_metadata",
]  # fmt: skip


def load_plugins() -> None:
    """Load the plugins as every process of vLLM-Omni does when it begins."""
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()


def deployment(name: str, port: int, **extra: Any) -> Any:
    """What the real loader makes of the deployment shipped for Mori, with the name changed.

    There is no GPU here, so the pool is the host's; what else differs is in *extra*.
    """
    import yaml

    shipped = Path(vllm_omni.__file__).parent / "deploy" / "qwen3_omni_moe_mori_intranode.yaml"
    raw = yaml.safe_load(shipped.read_text())
    [connector] = raw["connectors"].values()
    connector["name"] = name
    backend = "rdma" if name == SHIPPED else "auto"
    changed = {"backend_type": backend, "memory_pool_device": "cpu", "memory_pool_size": POOL}
    connector["extra"].update({"host": "127.0.0.1", "zmq_port": port, **changed, **extra})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(raw, file)
        file.flush()
        return load_omni_transfer_config(file.name)


PROCESSORS = {
    0: "vllm_omni.model_executor.stage_input_processors.qwen3_omni.thinker2talker_async_chunk",
    1: "vllm_omni.model_executor.stage_input_processors.qwen3_omni.talker2code2wav_async_chunk",
}


def model_config(transfer: Any, stage: int, processor: str | None = None) -> Any:
    """The part of a stage's model configuration that connectors and the adapter read."""
    spec = get_stage_connector_spec(transfer, stage, async_chunk=True)
    kv, source, target = resolve_omni_kv_config_for_stage(transfer, stage)
    return SimpleNamespace(
        stage_id=stage,
        async_chunk=True,
        worker_type="generation" if stage == 2 else "ar",
        max_num_seqs=128,
        hf_config=SimpleNamespace(talker_config=SimpleNamespace(accept_hidden_layer=24)),
        custom_process_next_stage_input_func=processor or PROCESSORS.get(stage),
        # as create_model_config of the engine's arguments writes it
        stage_connector_config={
            "name": spec["name"],
            "extra": {**spec["extra"], "stage_id": stage},
        },
        omni_kv_config={
            "connector_config": kv,
            "omni_from_stage": source,
            "omni_to_stage": target,
        },
    )


def adapter(transfer: Any, stage: int, processor: str | None = None) -> Any:
    """The adapter that moves chunks for a stage's scheduler."""
    sizes = SimpleNamespace(max_num_seqs=128)
    return OmniChunkTransferAdapter(
        SimpleNamespace(
            model_config=model_config(transfer, stage, processor), scheduler_config=sizes
        )
    )


def payload_connector(transfer: Any, stage: int) -> Any:
    """The connector that a stage's scheduler makes."""
    return OmniChunkTransferAdapter.create_connector(model_config(transfer, stage))


def runner_connector(transfer: Any, stage: int) -> Any:
    """The connector that a stage's model runner makes."""
    return _OmniConnectorRuntimeMixin._create_connector(model_config(transfer, stage))


def sender_info(transfer: Any, stage: int, replica: int = 0) -> dict[str, Any]:
    """What the orchestrator tells the stages after *stage* of where its payloads are."""
    model = model_config(transfer, stage)
    client = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=model),
        _omni_kv_config=model.omni_kv_config,
        stage_id=stage,
        replica_id=replica,
        client_addresses={},
        _kv_sender_host="127.0.0.1",
        _kv_sender_info=None,
        _kv_sender_initialized=False,
        _detect_local_ip=StageEngineCoreClientBase._detect_local_ip,
    )
    for name in (
        "_get_kv_connector_config",
        "_resolve_sender_host_from_config",
        "_resolve_contact_host",
        "_initialize_kv_sender_endpoint",
        "_build_payload_sender_info",
    ):
        setattr(client, name, getattr(StageEngineCoreClientBase, name).__get__(client))
    client._initialize_kv_sender_endpoint()
    return {"payload": client._build_payload_sender_info(), "kv": client._kv_sender_info}


def source_metadata(told: dict[str, Any]) -> dict[str, Any] | None:
    """What the adapter makes of it for each get: a host and a port, and no more."""
    found = _LoadEntry(
        SimpleNamespace(request_id="r", external_req_id="e", payload_sender_info=told)
    )
    return found.source_metadata  # type: ignore[no-any-return]


def request(name: str, prompt: list[int], told: dict[str, Any] | None = None) -> Any:
    """A request of the engine; *told* is where the orchestrator says its payloads come from."""
    import vllm.v1.request as v1  # vllm_omni has put its own class there
    from vllm.sampling_params import SamplingParams

    made = v1.Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=4096),
        pooling_params=None,
    )
    made.external_req_id = f"ext-{name}"
    made.resumable = False
    if told is not None:
        made.payload_sender_info = told
    return made


def kv_manager(
    port: int,
    stage: int,
    *,
    sends: bool,
    name: str = OURS,
    tp: tuple[int, int] = (1, 1),
    **more: Any,
) -> Any:
    """The manager of KV caches between stages 0 and 1; this process's rank is ``LOCAL_RANK``."""
    role = "sender" if sends else "receiver"
    connector = {"type": name, "role": role, "host": "127.0.0.1", "zmq_port": port}
    return OmniKVTransferManager._create(
        {
            "omni_from_stage": "0",
            "omni_to_stage": "1",
            "stage_id": stage,
            "rank_mapping": {"from_tp": tp[0], "to_tp": tp[1]},
            "need_send_cache": sends,
            "need_recv_cache": not sends,
            "engine_input_source": [] if sends else [0],
            "recv_timeout": 20.0,
            "connector_config": {**connector, "memory_pool_size": POOL, **more},
        }
    )


def quiet() -> None:
    """Keep the host's log to errors."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    logging.getLogger("vllm_omni").setLevel(logging.ERROR)
