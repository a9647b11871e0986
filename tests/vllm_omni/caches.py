"""What a worker does with KV caches, through the real manager of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LAYERS, TOKENS, HEADS, WIDTH = 3, 20, 8, 16
MANAGER: dict[str, Any] = {}


def cache(request: str, kind: int, layer: int) -> torch.Tensor:
    """One layer's whole cache of a request: tokens, heads, width."""
    import torch

    seed = int.from_bytes(hashlib.sha256(f"{request} {kind} {layer}".encode()).digest()[:4], "big")
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(TOKENS, HEADS, WIDTH, generator=generator)
    return made.to(torch.bfloat16)


def part(request: str, rank: int, ranks: int) -> dict[str, list[torch.Tensor]]:
    """The heads of a request that a rank has."""
    each = HEADS // ranks
    return {
        name: [
            cache(request, kind, layer)[:, rank * each : (rank + 1) * each].contiguous()
            for layer in range(LAYERS)
        ]
        for kind, name in enumerate(("key_cache", "value_cache"))
    }


def begin(port: int, stage: int, tp: tuple[int, int], **more: Any) -> tuple[int, int]:
    """Make the manager; its rank, and what is tensor-parallel on our side."""
    from tests.vllm_omni import acts, host

    manager = host.kv_manager(port, stage, sends=stage == 0, tp=tp, **more)
    MANAGER["here"] = acts.MADE["kv"] = manager
    return manager.tp_topology.local_rank, tp[stage]


def told(port: int, replica: int = 0) -> Any:
    """Where the orchestrator says that the caches of stage 0 are."""
    from tests.vllm_omni import host
    from tests.vllm_omni.stages import OURS

    return host.sender_info(host.deployment(OURS, port), 0, replica)["kv"]


def send(requests: list[str], rank: int, ranks: int) -> list[str]:
    """Send what this rank has of them; the keys that were put."""
    from tests.vllm_omni import host

    manager, keys = MANAGER["here"], []
    connector = manager.connector
    plain = connector.put

    def seen(**named: Any) -> Any:
        keys.append(named["put_key"])
        return plain(**named)

    connector.put = seen
    for request in requests:
        data = host.KVCacheTransferData(
            request, part(request, rank, ranks), [0, 1], {"seq_len": TOKENS}
        )
        manager._transfer_kv_cache(data, request)
    connector.put = plain
    return keys


def receive(requests: list[str], rank: int, ranks: int, source: Any, *, each: bool = False) -> Any:
    """Receive this rank's heads; the requests whose caches came unharmed.

    *source* is what the orchestrator told; with *each*, it comes with every request.
    """
    import torch

    manager, good = MANAGER["here"], []
    if not each:
        manager.update_sender_info(source)
    for request in requests:
        data, size = manager.receive_kv_cache_for_request(
            request, sender_info=source if each else None
        )
        if data is None:
            continue
        wanted, found = part(request, rank, ranks), data["layer_blocks"]
        same = all(
            torch.equal(mine, theirs)
            for name in wanted
            for mine, theirs in zip(wanted[name], found[name], strict=True)
        )
        if same and size and data["metadata"]["seq_len"] == TOKENS:
            good.append(request)
    return good


def again(key: str, source: Any, rank: int) -> Any:
    """What a second get of a key that was taken finds."""
    where = {"source_host": source["host"], "source_port": source["zmq_port"] + 16 * rank}
    return MANAGER["here"].connector.get("0", "1", key, where)
