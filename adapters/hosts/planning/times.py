"""How long payloads are kept, against how long their readers may wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.values import MOONCAKE, MORI, NIXL, OURS, Finding

if TYPE_CHECKING:
    from stagelink.adapters.hosts.planning.values import Deployment, Edge

KEPT = {
    OURS: ("buffer_ttl_seconds", 600.0),
    MORI: ("", 300.0),
    MOONCAKE: ("buffer_ttl_seconds", 300.0),
    NIXL: ("lease_seconds", 3600.0),
}
"""By connector, the key that says how long a payload is kept, and its default in seconds."""
WAIT = "VLLM_OMNI_INPUT_WAIT_TIMEOUT_S"
WAIT_S = 600.0
"""How long a stage waits for its input before the request fails, by the variable of that name."""


def check_times(deployment: Deployment, env: dict[str, str]) -> list[Finding]:
    """Payloads that may be gone before their reader gives up."""
    found: dict[str, Finding] = {}
    for edge in deployment.edges:
        spec = (deployment.carried(edge.source) or edge).spec
        if spec.name in KEPT:
            for finding in _edge(deployment, edge._replace(spec=spec), env):
                found.setdefault(finding.code + finding.where, finding)
    return list(found.values())


def _edge(deployment: Deployment, edge: Edge, env: dict[str, str]) -> list[Finding]:
    key, default = KEPT[edge.spec.name]
    told = edge.spec.extra.get(key, default) if key else default
    if not isinstance(told, (int, float)) or isinstance(told, bool):
        return []
    where = edge.spec.at(key) if key else edge.spec.where
    target = deployment.stage(edge.target)
    patience = target.recv_timeout_s if target else 0.0
    if told <= 0:
        return [Finding("ttl", "error", where, f"{key} is {told}", "write seconds above 0")]
    if target and target.takes_kv and told <= patience:
        what = (
            f"{edge.name}: KV caches are kept {told:g} s, and stage {edge.target} "
            f"waits {patience:g} s for them"
        )
        remedy = f"keep them longer than {patience:g} s, or lower recv_timeout"
        return [Finding("ttl", "error", where, what, remedy)]
    wait = _wait_s(target.env if target else {}, env)
    if told < wait:
        what = (
            f"{edge.name}: payloads are kept {told:g} s, and stage {edge.target} "
            f"waits {wait:g} s for its input: one that queues longer finds nothing"
        )
        remedy = f"set {WAIT}={told:g}, so that such a request fails sooner" + (
            f", or {key}: {wait + 60:g}" if key else ""
        )
        return [Finding("ttl", "note", where, what, remedy)]
    return []


def _wait_s(*tables: dict[str, str]) -> float:
    """What the first of *tables* that has it says."""
    told = next((table[WAIT] for table in tables if WAIT in table), "")
    try:
        return float(told)
    except ValueError:
        return WAIT_S
