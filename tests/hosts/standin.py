"""Just enough of vLLM-Omni 0.30.0 to build a connector: each name does what the real one does."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch

ROOT = "vllm_omni.distributed.omni_connectors"


class OmniConnectorBase(ABC):
    supports_raw_data = False

    @abstractmethod
    def put(self, from_stage: str, to_stage: str, put_key: str, data: Any) -> Any: ...

    @abstractmethod
    def get(self, from_stage: str, to_stage: str, get_key: str, metadata: Any = None) -> Any: ...

    @abstractmethod
    def cleanup(self, request_id: str) -> None: ...

    @abstractmethod
    def health(self) -> dict[str, Any]: ...

    @abstractmethod
    def close(self) -> None: ...

    def __del__(self) -> None:
        self.close()


class SharedMemoryConnector(OmniConnectorBase):
    """Never made here; the host asks connectors whether they are one before it cleans up."""


class OmniConnectorFactory:
    registry: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_connector(cls, name: str, constructor: Any) -> None:
        if name in cls.registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls.registry[name] = constructor

    @classmethod
    def list_registered_connectors(cls) -> list[str]:
        return list(cls.registry)


class OmniMsgpackEncoder:
    def __init__(self) -> None:
        self.encoder = msgspec.msgpack.Encoder(enc_hook=self._enc_hook)

    def encode(self, obj: Any) -> bytes:
        return self.encoder.encode(obj)

    def _enc_hook(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._encode_tensor(obj)
        if isinstance(obj, np.ndarray) and obj.dtype.kind not in ("O", "V"):
            return self._encode_ndarray(obj)
        raise TypeError(f"Object of type {type(obj).__name__} is not serializable.")

    def _encode_tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"__tensor__": True, "dtype": dtype, "shape": list(tensor.shape), "data": data}

    def _encode_ndarray(self, arr: np.ndarray) -> dict[str, Any]:
        shape = list(arr.shape)
        return {"__ndarray__": True, "dtype": arr.dtype.str, "shape": shape, "data": arr.tobytes()}


class OmniMsgpackDecoder:
    def decode(self, data: Any) -> Any:
        return self._post_process(msgspec.msgpack.decode(data))

    def _post_process(self, obj: Any) -> Any:
        if isinstance(obj, dict):
            if obj.get("__tensor__"):
                flat = torch.frombuffer(bytearray(obj["data"]), dtype=torch.uint8)
                return flat.view(getattr(torch, obj["dtype"])).reshape(obj["shape"])
            if obj.get("__ndarray__"):
                return np.frombuffer(obj["data"], obj["dtype"]).reshape(obj["shape"])
            return {key: self._post_process(value) for key, value in obj.items()}
        return [self._post_process(item) for item in obj] if isinstance(obj, list) else obj


class OmniSerde:
    def serialize(self, obj: Any) -> bytes:
        return OmniMsgpackEncoder().encode(obj)

    def deserialize(self, data: bytes) -> Any:
        return OmniMsgpackDecoder().decode(data)


def compute_connector_zmq_port(
    base_port: int, *, purpose: str, from_stage: int, local_rank: int = 0, replica_id: int = 0
) -> int:
    offset = {"request_forwarding": 0, "kv_transfer": 100, "orchestrator": 200}[purpose]
    if not 0 <= from_stage < 16:
        raise ValueError(f"from_stage must be in [0, 16), got {from_stage}")
    port = base_port + offset + replica_id * 1024 + local_rank * 16 + from_stage
    if not 1 <= port <= 65535:
        raise ValueError(f"Resolved connector port must be in [1, 65535], got {port}")
    return port


def get_local_tp_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_omni_replica_id() -> int:
    return int(os.environ.get("VLLM_OMNI_REPLICA_ID", "0"))


NAMES: dict[str, dict[str, Any]] = {
    "factory": {"OmniConnectorFactory": OmniConnectorFactory},
    "connectors": {},
    "connectors.base": {"OmniConnectorBase": OmniConnectorBase},
    "connectors.shm_connector": {"SharedMemoryConnector": SharedMemoryConnector},
    "utils": {},
    "utils.logging": {"get_connector_logger": logging.getLogger},
    "utils.initialization": {"compute_connector_zmq_port": compute_connector_zmq_port},
    "utils.kv_utils": {
        "get_local_tp_rank": get_local_tp_rank,
        "get_omni_replica_id": get_omni_replica_id,
    },
    "utils.serialization": {
        "OmniMsgpackDecoder": OmniMsgpackDecoder,
        "OmniMsgpackEncoder": OmniMsgpackEncoder,
        "OmniSerializer": OmniSerde(),
        "_PIL_IMAGE_MARKER": "__pil_image__",
    },
}


def modules() -> dict[str, ModuleType]:
    """What ``sys.modules`` is to hold, by name."""
    made: dict[str, ModuleType] = {}
    for name in ("vllm_omni", "vllm_omni.distributed", ROOT, *(f"{ROOT}.{n}" for n in NAMES)):
        module = made[name] = ModuleType(name)
        module.__path__ = []
        module.__spec__ = None
        above, _, last = name.rpartition(".")
        if above:
            setattr(made[above], last, module)
        for attribute, value in NAMES.get(name.removeprefix(f"{ROOT}."), {}).items():
            setattr(module, attribute, value)
    return made
