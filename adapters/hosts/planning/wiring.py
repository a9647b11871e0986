"""Which connector a stage really gets, and who may load ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.choice import backend_type
from stagelink.adapters.hosts.planning.ports import BINDING, base_of
from stagelink.adapters.hosts.planning.values import OURS, SHARED, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.hosts.planning.values import Deployment, Edge, Surroundings

PLUGIN, MODELS = "stagelink", "vllm_omni_register_models"
"""Our entry point, and vLLM-Omni's own: an allow-list must have both."""
ALLOWED = "VLLM_PLUGINS"
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that only processes of the same machine reach."""


def check_wiring(deployment: Deployment, around: Surroundings) -> list[Finding]:
    """Edges whose two ends get different connectors, and stages that get none of those named."""
    found = [*_ends(deployment, around.env), *_unnamed(deployment), *_unused(deployment)]
    if any(edge.spec.name == OURS for edge in deployment.edges):
        found += [*_allowed(deployment, around.env), *_open(deployment)]
    return found


def _ends(deployment: Deployment, env: dict[str, str]) -> Iterator[Finding]:
    """A stage has one connector for both directions: that of its first incoming edge."""
    for edge in deployment.edges:
        sends, takes = deployment.carried(edge.source), deployment.carried(edge.target)
        if sends is None or takes is None or sends.spec == takes.spec or not edge.declared:
            continue
        put, got = sends.spec, takes.spec
        because = (
            f"a stage has one connector, that of its first incoming edge: "
            f"stage {edge.source} sends on {edge.name} with that of {sends.name}"
        )
        if put.name != got.name:
            what = f"{because}, {put.name}, and stage {edge.target} takes with {got.name}"
            remedy = "name one connector on all edges of a chain"
            yield Finding("mixed-connectors", "error", edge.where, what, remedy)
        elif put.name in BINDING and base_of(put, env) != base_of(got, env):
            what = (
                f"{because}, at port base {base_of(put, env)}, and stage {edge.target} "
                f"looks for it at {base_of(got, env)}"
            )
            remedy = "use one zmq_port on all edges of a chain; the formula keeps stages apart"
            yield Finding("mixed-connectors", "error", edge.where, what, remedy)
        elif put.name == OURS and _disagree(backend_type(put), backend_type(got)):
            what = (
                f"{because}, backend_type {backend_type(put)}, "
                f"and stage {edge.target} has {backend_type(got)}"
            )
            remedy = "name one backend_type on both, or auto"
            yield Finding("mixed-connectors", "error", edge.where, what, remedy)


def _disagree(one: str, other: str) -> bool:
    return one != other and "auto" not in {one, other}


def _unnamed(deployment: Deployment) -> Iterator[Finding]:
    """Stages without a connector where others have one that is no shared memory."""
    if deployment.lost or all(edge.spec.name == SHARED for edge in deployment.edges):
        return
    for edge in deployment.edges:
        if deployment.carried(edge.target) is edge and not edge.declared:
            what = f"no connector is named for stage {edge.target}: it gets {SHARED}"
            remedy = (
                f"write input_connectors: {{from_stage_{edge.source}: ALIAS}}, "
                "if the model has that edge"
            )
            yield Finding("no-connector", "warning", edge.where, what, remedy)


def _unused(deployment: Deployment) -> Iterator[Finding]:
    used = {edge.spec.where for edge in deployment.edges}
    for alias, spec in deployment.connectors.items():
        if spec.where not in used and not deployment.lost and deployment.edges:
            what = f"the connector {alias!r} ({spec.name}) is on no edge"
            yield Finding("unused-connector", "note", spec.where, what)


def _allowed(deployment: Deployment, env: dict[str, str]) -> Iterator[Finding]:
    told = {
        stage.where + ".env": stage.env[ALLOWED]
        for stage in deployment.stages
        if ALLOWED in stage.env
    }
    if ALLOWED in env:
        told["environment"] = env[ALLOWED]
    for where, value in told.items():
        # vLLM takes a space for a part of the name.
        missing = [name for name in (PLUGIN, MODELS) if name not in value.split(",")]
        if missing:
            what = f"{ALLOWED}={value!r} keeps {' and '.join(missing)} out"
            if PLUGIN in missing:
                what += f": the connector {OURS!r} is then unknown"
            names = dict.fromkeys([*map(str.strip, value.split(",")), *missing])
            remedy = f"set {ALLOWED}={','.join(filter(None, names))}, or unset it"
            at = f"{where}.{ALLOWED}" if where != "environment" else where
            yield Finding("plugin-not-allowed", "error", at, what, remedy)


def _open(deployment: Deployment) -> Iterator[Finding]:
    """Ports of ours that other hosts may come in by without a key."""
    for spec in {e.spec.where: e.spec for e in deployment.edges if e.spec.name == OURS}.values():
        host = str(spec.extra.get("host") or LOCAL[0])
        settings = spec.extra.get("stagelink")
        guarded = isinstance(settings, dict) and settings.get("security") == "curve"
        if host not in LOCAL and not guarded:
            what = f"host is {host!r}: whoever reaches the port can get, and nothing is encrypted"
            remedy = (
                f"on one host write {LOCAL[0]}; else stagelink: {{security: curve, keys: DIR}}"
            )
            yield Finding("open-port", "note", spec.at("host"), what, remedy)


def middle(deployment: Deployment, edge: Edge) -> bool:
    """Whether the stage that *edge* leaves also receives."""
    return bool(deployment.incoming(edge.source))
