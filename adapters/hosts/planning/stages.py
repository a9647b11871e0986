"""The stages of a document, each with what its platform overrides."""

from __future__ import annotations

from typing import Any

from stagelink.adapters.hosts.planning.values import Finding, Stage

_DIFFUSION = frozenset((
    "parallel_config", "ulysses_degree", "ring_degree", "sequence_parallel_size",
    "cfg_parallel_size", "vae_patch_parallel_size", "use_hsdp", "model_class_name",
))  # fmt: skip
"""Fields of diffusion stages, which have other ways to use several devices."""
MOST = 1024
"""Replicas, or ranks: nobody has more."""
MOST_TOKENS = 1 << 40
KV_PATIENCE_S = 30.0
"""How long a stage waits for a KV cache, unless the file says otherwise."""


def read_stages(data: dict[str, Any], platform: str, findings: list[Finding]) -> list[Stage]:
    """Every stage that has an id, in order; *findings* gets what vLLM-Omni would refuse."""
    told = data.get("stages")
    if "stage_args" in data:
        what = "stage_args is the schema of older releases, and vLLM-Omni 0.30.0 refuses it"
        findings.append(
            Finding("old-schema", "error", "stage_args", what, "write the stages under stages:")
        )
    if told is None:
        what = "the file has no stages: every stage gets the model's defaults, and shared memory"
        findings.append(Finding("no-stages", "note", "stages", what))
        return []
    if not isinstance(told, list):
        what = f"stages is a {type(told).__name__} and no list"
        findings.append(Finding("no-stages", "error", "stages", what))
        return []
    found = _numbered(data, told, _overrides(data, platform, findings), findings)
    if found and sorted(found) != list(range(len(found))):
        what = f"the stages are numbered {', '.join(map(str, sorted(found)))}"
        remedy = "number them 0, 1, 2, …: vLLM-Omni takes the id for the position"
        findings.append(Finding("stage-ids", "error", "stages", what, remedy))
    return [found[number] for number in sorted(found)]


def _numbered(
    data: dict[str, Any], told: list[Any], over: dict[int, dict[str, Any]],
    findings: list[Finding],
) -> dict[int, Stage]:  # fmt: skip
    """Every stage by its id."""
    found: dict[int, Stage] = {}
    for index, raw in enumerate(told):
        number = raw.get("stage_id") if isinstance(raw, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            what = f"the stage has no stage_id that is a number (it is {number!r:.40})"
            findings.append(Finding("parse-error", "error", f"stages[{index}]", what))
            continue
        stage = _stage(data, raw, over.get(number, {}), number, findings)
        if number in found:
            what = f"two stages have the id {number}"
            findings.append(Finding("stage-ids", "error", stage.where, what, "give each its own"))
        found[number] = stage
    return found


def _overrides(
    data: dict[str, Any], platform: str, findings: list[Finding]
) -> dict[int, dict[str, Any]]:
    """By stage, what the section of *platform* sets; connectors there are looked for in all."""
    sections = data.get("platforms")
    chosen: dict[int, dict[str, Any]] = {}
    for name, section in (sections if isinstance(sections, dict) else {}).items():
        stages = section.get("stages") if isinstance(section, dict) else None
        for stage in stages if isinstance(stages, list) else ():
            number = stage.get("stage_id") if isinstance(stage, dict) else None
            if not isinstance(number, int):
                continue
            if name == platform:
                chosen[number] = stage
            for field in ("input_connectors", "output_connectors"):
                if field in stage:
                    where = f"platforms.{name}.stages[{number}].{field}"
                    what = "connectors in a section of platforms have no effect"
                    remedy = f"write them under stages, in a file for {name}"
                    findings.append(Finding("platform-connectors", "warning", where, what, remedy))
    return chosen


def _stage(
    data: dict[str, Any], raw: dict[str, Any], over: dict[str, Any], number: int,
    findings: list[Finding],
) -> Stage:  # fmt: skip
    where = f"stages[{number}]"
    flat = _flat(raw) | _flat(over)
    parallel = flat.get("parallel_config")
    parallel = parallel if isinstance(parallel, dict) else {}
    kv = flat.get("omni_kv_config")
    kv = kv if isinstance(kv, dict) else {}

    def count(name: str, *tables: dict[str, Any], least: int = 1) -> int:
        value = next((t[name] for t in tables if t.get(name) is not None), least)
        most = MOST if least else MOST_TOKENS
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        what = f"{name} is {value!r:.40}, and must be a number from {least} to {most}"
        findings.append(Finding("wrong-type", "error", f"{where}.{name}", what))
        return least

    ranks = count("tensor_parallel_size", flat, parallel)
    engines = count("data_parallel_size", flat, parallel, data)
    pipeline = count("pipeline_parallel_size", flat, parallel, data)
    patience = kv.get("recv_timeout", KV_PATIENCE_S)
    env = flat.get("env")
    return Stage(
        number,
        _devices(flat.get("devices")),
        ranks,
        count("num_replicas", flat),
        engines,
        0 if _DIFFUSION & flat.keys() else ranks * engines * pipeline,
        data.get("async_chunk", True) is not False and flat.get("async_chunk") is not False,
        bool(kv.get("need_send_cache")),
        bool(kv.get("need_recv_cache")),
        count("max_num_seqs", flat, least=0),
        count("max_num_batched_tokens", flat, least=0),
        float(patience) if isinstance(patience, (int, float)) else KV_PATIENCE_S,
        {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {},
        where,
    )


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    """A stage's fields, those of the nested layout among them."""
    nested = (raw.get("engine_extras"), raw.get("engine_args"), raw.get("runtime"))
    found = {key: value for key, value in raw.items() if value is not None}
    for table in nested:
        found |= table if isinstance(table, dict) else {}
    return found


def _devices(told: object) -> tuple[str, ...]:
    """The devices of a list such as ``0,1``."""
    if isinstance(told, (list, tuple)):
        return tuple(str(item).strip() for item in told)
    if told is None or isinstance(told, bool):
        return ()
    return tuple(part.strip() for part in str(told).split(",") if part.strip())
