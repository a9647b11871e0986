"""Every connector's keys, what each may hold, and the keys of the models that stand among them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.values import (
    MOONCAKE,
    MORI,
    NIXL,
    OURS,
    SHARED,
    YUANRONG,
    Finding,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.adapters.hosts.planning.values import Spec

_ENDPOINT = {
    "host": str, "zmq_port": int, "role": str, "sender_host": str, "sender_zmq_port": int,
    "stage_id": int, "from_stage": int, "to_stage": int,
}  # fmt: skip
_POOL = {"memory_pool_size": int, "memory_pool_device": str, "device_name": str}
_MORI = {
    **_ENDPOINT, **_POOL, "backend_type": str, "qp_per_transfer": int, "post_batch_size": int,
    "num_worker_threads": int, "xgmi_num_streams": int, "xgmi_num_events": int,
}  # fmt: skip
_STORE = {
    "host": str, "metadata_server": str, "master": str, "segment": int, "localbuf": int,
    "proto": str, "rdma": str,
}  # fmt: skip

KEYS: dict[str, dict[str, type]] = {
    OURS: {
        **_MORI, "buffer_ttl_seconds": float, "put_timeout_seconds": float, "stagelink": dict,
    },
    SHARED: {"stage_id": int, "role": str},
    MORI: _MORI,
    MOONCAKE: {**_ENDPOINT, **_POOL, "protocol": str, "buffer_ttl_seconds": float},
    YUANRONG: {**_ENDPOINT, **_POOL, "protocol": str, "rpc_port": object},
    NIXL: {
        **_ENDPOINT, "backends": list, "agent_name": str, "num_threads": int,
        "lease_seconds": float, "receive_device": str, "memory_type": str,
        "transfer_timeout_s": float,
        "poll_interval_s": float, "handshake_timeout_ms": int, "metadata_query_timeout_ms": int,
        "handshake_max_wait_s": float, "handshake_retry_s": float,
    },
    "MooncakeStoreConnector": _STORE,
    "MooncakeConnector": _STORE,
    "YuanrongConnector": {"host": str, "port": int, "get_sub_timeout_ms": int},
}  # fmt: skip
"""Connectors that vLLM-Omni 0.30.0 has registered, and ours."""

_MODELS = """
    audio8_tts_codec_dtype audiocodec_token_offset audiocodec_vocab_size cfm_graph_bucket_frames
    cfm_max_graphs code2wav_bfloat16_attention_cache code2wav_initial_batch_size
    code2wav_min_batch_size code_predictor_prefix_graph_buckets
    code_predictor_prefix_graph_seq_lens code_predictor_prefix_graphs codec_chunk_adaptive
    codec_chunk_frames codec_chunk_frames_at_begin codec_chunk_min_frames codec_chunk_ramp
    codec_chunk_ramp_delta_min codec_chunk_ramp_divisor codec_chunk_safety_margin_ms
    codec_left_context_frames codec_max_chunk_frames codec_pre_lookahead_frames
    codec_right_holdback_frames codec_stream_scale_factor codec_streaming codec_token_offset
    codec_vocab_size connector_get_max_wait connector_get_max_wait_first_chunk
    connector_get_sleep_s crossfade_sec decode_batch_max_size decode_cudagraph_batch_sizes
    decode_cudagraph_capture_sizes decode_enable_tf32 decoder_emit_chunk_frames enable_cfm_graph
    enable_hift_graph fish_speech_backlog_codec_chunk_frames fish_speech_backlog_load_threshold
    fish_speech_dac_dtype fish_speech_dac_max_batch fish_speech_dac_max_padded_frames
    fish_speech_single_initial_chunk fish_speech_tensor_codes hift_graph_capture_batch_sizes
    initial_codec_chunk_frames initial_latent_chunk_size latent_chunk_size latent_left_context
    max_graphs n_timesteps native_talker ref_audio_artifact_cache_max_entries
    ref_code_context_frames
"""
MODELS = frozenset(_MODELS.split())
"""Keys that models read from a connector's configuration; connectors pass them through."""

MEANT = {
    "protocol": "backend_type",
    "rpc_port": "",
    "backends": "backend_type",
    "lease_seconds": "buffer_ttl_seconds",
    "receive_device": "memory_pool_device",
    "pool_bytes": "memory_pool_size",
    "backend": "backend_type",
    "ttl_s": "buffer_ttl_seconds",
    "port": "zmq_port",
}
"""What keys of others and of ``stagelink.open`` are called here; empty: there is no such thing."""
NEAR = 0.82
"""How alike two keys are when one is taken for a misspelling of the other."""


def check_specs(specs: Iterable[Spec]) -> list[Finding]:
    """Names that nobody knows, keys that are misspelt, values of a wrong type."""
    found: list[Finding] = []
    for spec in specs:
        if "role" in spec.extra:
            what = (
                f"role is {spec.extra['role']!r} on both ends of every edge of this connector; "
                "a stage that is a sender waits for no input"
            )
            remedy = "leave it out: vLLM-Omni tells each stage its role"
            found.append(Finding("role-in-file", "warning", spec.at("role"), what, remedy))
        if spec.name in KEYS:
            for key, value in spec.extra.items():
                found += _key(spec, key, value)
        else:
            found.append(_unknown(spec))
    return found


def _unknown(spec: Spec) -> Finding:
    where = f"{spec.where}.name"
    near = get_close_matches(spec.name, KEYS, 1, 0.8)
    if near:
        what = f"there is no connector {spec.name!r}: the stage does not start"
        return Finding("unknown-connector", "error", where, what, f"did you mean {near[0]!r}?")
    what = (
        f"vLLM-Omni 0.30.0 has no connector {spec.name!r}: "
        "unless a plugin registers it, the stage does not start"
    )
    remedy = f"connectors that are known: {', '.join(KEYS)}"
    return Finding("unknown-connector", "warning", where, what, remedy)


def _key(spec: Spec, key: str, value: object) -> list[Finding]:
    known = KEYS[spec.name]
    if key in known:
        return _value(spec, key, value, known[key])
    if key in MODELS:
        return []
    if spec.name == OURS and key in MEANT:
        what = f"{OURS} has no key {key!r}; it is passed on to the model, which has none either"
        remedy = f"write {MEANT[key]!r}" if MEANT[key] else "leave it out"
        return [Finding("foreign-key", "warning", spec.at(key), what, remedy)]
    near = get_close_matches(key, [*known, *MODELS], 1, NEAR)
    if near:
        what = f"neither {spec.name} nor a model of vLLM-Omni 0.30.0 reads {key!r}"
        return [
            Finding("misspelt-key", "warning", spec.at(key), what, f"did you mean {near[0]!r}?")
        ]
    if any(key in keys for keys in KEYS.values()):
        owners = [name for name, keys in KEYS.items() if key in keys]
        what = f"{key!r} is a key of {', '.join(owners)}, and {spec.name} does not read it"
        return [Finding("foreign-key", "note", spec.at(key), what, "leave it out")]
    return []


def _value(spec: Spec, key: str, value: object, kind: type) -> list[Finding]:
    """A finding if *value* is of no use as a *kind*."""
    if value is None or (isinstance(value, kind) and not (kind is int and value is True)):
        return []
    if kind is float and isinstance(value, int):
        return []
    if kind is int and isinstance(value, str) and ("$" in value or value.isdigit()):
        return []  # a port may come from the environment
    what = f"{key} is {value!r:.60}, a {type(value).__name__}, and must be {_WORDS[kind]}"
    remedy = "write bytes as a number" if key == "memory_pool_size" else ""
    return [Finding("wrong-type", "error", spec.at(key), what, remedy)]


_WORDS = {int: "a whole number", str: "text", float: "a number", list: "a list", dict: "a table"}
