"""From a document to stages and edges, by vLLM-Omni's own rules; what breaks them is found here.

vLLM-Omni parses connectors inside a ``try``: an error becomes a line in its log, and every stage
is then given shared memory. So what is an error here lets the host run, on another connector than
the file names.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from stagelink.adapters.hosts.planning.stages import read_stages
from stagelink.adapters.hosts.planning.values import (
    OURS,
    SHARED,
    Deployment,
    Document,
    Edge,
    Finding,
    Spec,
    Stage,
)

FALLBACK = "vLLM-Omni logs a warning, drops all connectors and uses shared memory"
_SIDES = (("input_connectors", "from_stage_"), ("output_connectors", "to_stage_"))
_NUMBER = re.compile(r"\d+\Z")


class _Found(NamedTuple):
    """What one side of an edge says."""

    source: int
    target: int
    spec: Spec
    where: str


def parse(document: Document, platform: str) -> tuple[Deployment, list[Finding]]:
    """What vLLM-Omni starts from *document* on *platform* (``cuda``, ``rocm``, …; empty: none)."""
    findings = list(document.findings)
    stages = read_stages(document.data, platform, findings)
    told = _connectors(document.data, findings)
    sides = _sides(document.data, told, findings)
    edges = _edges(sides, stages, findings)
    edges += _auto(document.data, edges, findings)
    lost = any(f.severity == "error" and FALLBACK in f.what for f in findings)
    if lost:
        shared = Spec(SHARED, {}, "")
        edges = [edge._replace(spec=shared) for edge in edges]
    edges += _undeclared(stages, edges)
    connectors = {alias: spec for alias, spec in told.items() if isinstance(spec, Spec)}
    runner = document.data.get("model_runner", "v1")
    deployment = Deployment(tuple(stages), tuple(edges), connectors, str(runner), lost)
    return deployment, findings


def _connectors(data: dict[str, Any], findings: list[Finding]) -> dict[str, Spec | str]:
    """Those that the file defines, or what is wrong with one: that counts if an edge names it."""
    told = data.get("connectors")
    if told is None:
        return {}
    if not isinstance(told, dict):
        what = f"connectors is a {type(told).__name__} and no table of alias: {{name, extra}}"
        findings.append(Finding("parse-error", "error", "connectors", f"{what}; {FALLBACK}"))
        return {}
    return {str(alias): _spec(value, f"connectors.{alias}") for alias, value in told.items()}


def _spec(value: object, where: str) -> Spec | str:
    """The connector that *value* describes, or what is wrong with it."""
    if not isinstance(value, dict):
        return f"a connector is a table with a name, and this is {value!r:.60}"
    name, extra = value.get("name"), value.get("extra", {})
    if not isinstance(name, str) or not name:
        return f"the connector has no name (name is {name!r:.60})"
    if not isinstance(extra, dict):
        return f"extra is {extra!r:.60} and no table"
    return Spec(name, {str(key): item for key, item in extra.items()}, where)


def _sides(
    data: dict[str, Any], connectors: dict[str, Spec | str], findings: list[Finding]
) -> list[_Found]:
    """What each stage says of its edges, in the order in which vLLM-Omni reads it."""
    found = []
    stages = data.get("stages")
    for raw in stages if isinstance(stages, list) else ():
        number = raw.get("stage_id") if isinstance(raw, dict) else None
        if not isinstance(number, int):
            continue  # told already
        for field, prefix in _SIDES:
            told = raw.get(field, {})
            where = f"stages[{number}].{field}"
            if told is None or not isinstance(told, dict):
                what = f"{field} is {told!r:.60} and no table; {FALLBACK}"
                remedy = "leave it out, or write {" + prefix + "N: ALIAS}"
                findings.append(Finding("parse-error", "error", where, what, remedy))
                continue
            for key, value in told.items():
                one = _side(f"{where}.{key}", number, value, connectors, findings)
                if one is not None:
                    found.append(one)
    return found


def _side(
    where: str,
    number: int,
    value: object,
    connectors: dict[str, Spec | str],
    findings: list[Finding],
) -> _Found | None:
    """One entry of one side; None, and a finding, if it says nothing."""
    key = where.rpartition(".")[2]
    prefix = "from_stage_" if ".input_connectors." in where else "to_stage_"
    nobody = f"no connector is called {value!r}"
    spec = connectors.get(value, nobody) if isinstance(value, str) else _spec(value, where)
    if isinstance(spec, str):
        remedy = _remedy(value, connectors)
        findings.append(Finding("parse-error", "error", where, f"{spec}; {FALLBACK}", remedy))
        return None
    other = key[len(prefix) :] if key.startswith(prefix) else ""
    if not _NUMBER.match(other):
        what = f"the key {key!r} names no stage: stage {number} gets shared memory instead"
        findings.append(Finding("edge-key", "error", where, what, f"write {prefix}N"))
        return None
    if prefix == "from_stage_":
        return _Found(int(other), number, spec, where)
    return _Found(number, int(other), spec, where)


def _remedy(value: object, connectors: dict[str, Spec | str]) -> str:
    """What to write in the place of *value*."""
    if not isinstance(value, str) or value in connectors:
        return f"write it as {{name: {OURS}, extra: {{…}}}}"
    near = get_close_matches(value, connectors, 1)
    known = ", ".join(connectors) or "none"
    return f"did you mean {near[0]!r}?" if near else f"connectors that are defined: {known}"


def _edges(sides: list[_Found], stages: list[Stage], findings: list[Finding]) -> list[Edge]:
    """One edge for both sides; the first one wins, as there."""
    known = {stage.number for stage in stages}
    edges: dict[tuple[int, int], Edge] = {}
    for source, target, spec, where in sides:
        first = edges.setdefault((source, target), Edge(source, target, spec, where))
        if first.where != where:
            findings += _differences(first, spec, where)
        for number in {source, target} - known:
            what = f"the edge {source} -> {target} names stage {number}, which is not in the file"
            told = ", ".join(map(str, sorted(known)))
            findings.append(
                Finding("unknown-stage", "error", where, what, f"stages that are: {told}")
            )
    return list(edges.values())


def _differences(first: Edge, spec: Spec, where: str) -> list[Finding]:
    """What the second side of an edge says otherwise than the first."""
    if spec.name != first.spec.name:
        what = (
            f"the edge {first.name} is {first.spec.name} on one side ({first.where}) "
            f"and {spec.name} on this one; {FALLBACK}"
        )
        return [Finding("edge-mismatch", "error", where, what, "name the same one on both sides")]
    keys = sorted(
        key
        for key in first.spec.extra.keys() | spec.extra.keys()
        if first.spec.extra.get(key) != spec.extra.get(key)
    )
    if not keys:
        return []
    what = (
        f"the two sides of {first.name} differ in {', '.join(keys)}; the first one, "
        f"{first.where}, wins, and this one is not looked at"
    )
    return [Finding("edge-differs", "warning", where, what, "name the same alias on both sides")]


def _auto(data: dict[str, Any], edges: list[Edge], findings: list[Finding]) -> list[Edge]:
    """Edges of the list ``edges`` that no connector is named for: they get shared memory."""
    taken = {(edge.source, edge.target) for edge in edges}
    found = []
    told = data.get("edges")
    for index, edge in enumerate(told if isinstance(told, list) else ()):
        where = f"edges[{index}]"
        source, target = (
            (edge.get("from"), edge.get("to")) if isinstance(edge, dict) else (None, None)
        )
        if not isinstance(source, int) or not isinstance(target, int):
            what = f"an edge is {{from: N, to: M}}, and this is {edge!r:.60}; it is passed over"
            findings.append(Finding("edge-key", "warning", where, what))
        elif (source, target) not in taken:
            found.append(Edge(source, target, Spec(SHARED, {}, ""), where))
    return found


def _undeclared(stages: list[Stage], edges: list[Edge]) -> list[Edge]:
    """Stages that nothing is said about, in a row; the model's own code knows better."""
    fed = {edge.target for edge in edges}
    numbers = [stage.number for stage in stages]
    return [
        Edge(before, number, Spec(SHARED, {}, ""), f"stages[{number}]", declared=False)
        for before, number in pairwise(numbers)
        if number not in fed
    ]
