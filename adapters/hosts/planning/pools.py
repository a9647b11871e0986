"""Pools against what goes into them: chunks of codec frames, and one batch of hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.adapters.hosts.planning.devices import POOLED
from stagelink.adapters.hosts.planning.values import Finding, severity

if TYPE_CHECKING:
    from stagelink.adapters.hosts.planning.values import Deployment, Edge, Spec

GIB = 1 << 30
DEFAULT_POOL = GIB
LEAST = 1 << 16
FRAME_BYTES = 32 * 8
"""One codec frame: at most 32 codebooks, an int64 each."""
TOKEN_BYTES = 8192
"""One token of hidden states: two bfloat16 tensors of 2048, as Qwen3-Omni's Thinker sends."""
DEFAULT_TOKENS = 32768
"""``max_num_batched_tokens`` of a stage that does not say."""


class Load(NamedTuple):
    """What one edge may have in a pool at a time, estimated.

    Attributes:
        what: what travels there, in words.
        single: bytes of the largest single payload.
        batch: bytes that one step of the sending stage can produce.
    """

    what: str
    single: int
    batch: int


def pool_bytes(spec: Spec) -> int | None:
    """The size of the pool; None if the connector has none, or says no number."""
    if spec.name not in POOLED:
        return None
    told = spec.extra.get("memory_pool_size", DEFAULT_POOL)
    return told if isinstance(told, int) and not isinstance(told, bool) else None


def load_of(deployment: Deployment, edge: Edge, token_bytes: int) -> Load:
    """What *edge* carries: codec frames into the last stage, hidden states before that."""
    source, target = deployment.stage(edge.source), deployment.stage(edge.target)
    if (source and source.sends_kv) or (target and target.takes_kv):
        return Load("KV caches", 0, 0)
    frames = edge.spec.extra.get("codec_chunk_frames")
    last = not deployment.outgoing(edge.target)
    sequences = (source.sequences if source else 0) or 1
    if last and isinstance(frames, int) and not isinstance(frames, bool) and frames > 0:
        left = edge.spec.extra.get("codec_left_context_frames")
        context = left if isinstance(left, int) and left > 0 else 0
        single = (frames + context) * FRAME_BYTES
        words = f"chunks of {frames} codec frames" + (f" and {context} before" if context else "")
        return Load(words, single, single * sequences)
    tokens = (source.tokens if source else 0) or DEFAULT_TOKENS
    return Load(
        f"hidden states of up to {tokens} tokens", tokens * token_bytes, tokens * token_bytes
    )


def check_pools(deployment: Deployment, token_bytes: int) -> list[Finding]:
    """Pools that a single payload, or one step's worth of them, does not fit into."""
    found = []
    for edge in deployment.edges:
        carried = deployment.carried(edge.source) or edge
        size = pool_bytes(carried.spec)
        if size is None:
            continue
        where = carried.spec.at("memory_pool_size")
        if size < LEAST:
            what = f"memory_pool_size is {size} bytes"
            found.append(Finding("pool-size", "error", where, what, f"write {LEAST} or more"))
            continue
        load = load_of(deployment, edge, token_bytes)
        if load.single > size:
            grade = severity(bad="codec" in load.what)
            what = (
                f"{edge.name} carries {load.what}, about {mib(load.single)} at once, "
                f"and the pool has {mib(size)}"
            )
            remedy = f"memory_pool_size: {_round_up(load.single * 2)}, or fewer tokens a batch"
            found.append(Finding("pool-too-small", grade, where, what, remedy))
        elif load.batch > size:
            what = (
                f"one step of stage {edge.source} may put {mib(load.batch)} ({load.what}), "
                f"and the pool has {mib(size)}"
            )
            remedy = f"memory_pool_size: {_round_up(load.batch * 2)}"
            found.append(Finding("pool-too-small", "warning", where, what, remedy))
    return list({(f.where, f.what): f for f in found}.values())


def mib(count: int) -> str:
    """*count* bytes as people write them."""
    if count < 1 << 20:
        return f"{count / 1024:.0f} KiB"
    return f"{count / (1 << 20):,.0f} MiB"


def _round_up(count: int) -> int:
    """The next power of two."""
    return 1 << max(20, (count - 1).bit_length())
