"""Which ports a deployment binds, and which of them are wanted twice.

The formula is vLLM-Omni's: base + what it is for + 1024 per replica + 16 per rank + the sending
stage. It knows neither data-parallel engines nor other services.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.adapters.hosts.planning.values import (
    MOONCAKE,
    MORI,
    NIXL,
    OURS,
    YUANRONG,
    Finding,
    severity,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagelink.adapters.hosts.planning.values import (
        Deployment,
        Edge,
        Spec,
        Stage,
        Surroundings,
    )

BASE = 50051
PER_REPLICA, PER_RANK, STAGES = 1024, 16, 16
PURPOSES = {"payload": 0, "kv": 100, "orchestrator": 200}
BINDING = frozenset((OURS, MORI, MOONCAKE, NIXL, YUANRONG))
"""Connectors whose senders bind a port."""
LAST = 65535
REPLICAS = LAST // PER_REPLICA + 2
"""More of them have no ports, whatever the base: one too many is enough to tell."""
DIGITS = 9
"""Longer numbers are none of a port's."""
API_PORT = 8000
"""Where ``vllm serve`` listens unless it is told otherwise."""
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class Bind(NamedTuple):
    """One port that one process will listen on.

    Attributes:
        sure: whether it will in any case; False where that depends on the model.
    """

    port: int
    stage: int
    purpose: str
    replica: int
    rank: int
    sure: bool
    where: str

    @property
    def owner(self) -> str:
        """Who that is, in words."""
        more = f", replica {self.replica}" if self.replica else ""
        more += f", rank {self.rank}" if self.rank else ""
        return f"stage {self.stage} ({self.purpose}{more})"


def port_of(base: int, purpose: str, stage: int, rank: int = 0, replica: int = 0) -> int:
    """The port of a sender, as vLLM-Omni computes it."""
    return base + PURPOSES[purpose] + replica * PER_REPLICA + rank * PER_RANK + stage


def base_of(spec: Spec, env: dict[str, str]) -> int | None:
    """The number that ``zmq_port`` stands for; None if it is none."""
    told = spec.extra.get("zmq_port", BASE)
    if isinstance(told, str):
        told = _VARIABLE.sub(lambda m: env.get(m[1] or m[2], m[0]), told)
        return int(told) if _is_number(told) else None
    return told if isinstance(told, int) and not isinstance(told, bool) else None


def _is_number(text: str) -> bool:
    """Whether it is a number that may be a port, or at least is no longer than one."""
    return text.isdecimal() and len(text) <= DIGITS


def binds(deployment: Deployment, env: dict[str, str]) -> list[Bind]:
    """Every port that a sender binds, in order of stages."""
    found: list[Bind] = []
    for stage in deployment.stages:
        for purpose, edge in _sending(deployment, stage):
            base = base_of(edge.spec, env) if edge.spec.name in BINDING else None
            if base is None:
                continue
            sure = purpose == "payload" or stage.sends_kv
            where = edge.spec.at("zmq_port") if "zmq_port" in edge.spec.extra else edge.spec.where
            found += [
                Bind(
                    port_of(base, purpose, stage.number, rank, replica),
                    stage.number, purpose, replica, rank, sure, where,
                )
                for replica in range(min(stage.replicas, REPLICAS))
                for rank in range(stage.ranks)
            ]  # fmt: skip
    return found


def _sending(deployment: Deployment, stage: Stage) -> Iterator[tuple[str, Edge]]:
    """For payloads and for KV caches, the edge whose connector the stage sends with."""
    outgoing = deployment.outgoing(stage.number)
    carried = deployment.carried(stage.number)
    if outgoing and carried is not None:
        yield "payload", carried
        yield "kv", min(outgoing, key=lambda edge: edge.target)


def check_ports(
    deployment: Deployment, data: dict[str, Any], around: Surroundings
) -> list[Finding]:
    """Ports that are no ports, that two want, or that somebody has."""
    found = list(_malformed(deployment, around.env))
    wanted = binds(deployment, around.env)
    found += _high(wanted) + _twice(wanted)
    found += _services(wanted, [*_named(data, ""), (API_PORT, "vllm serve", "")])
    found += _taken(wanted, around.listening)
    found += _engines(deployment, {bind.stage for bind in wanted})
    return found


def _malformed(deployment: Deployment, env: dict[str, str]) -> Iterator[Finding]:
    for spec in _once(edge.spec for edge in deployment.edges):
        told = spec.extra.get("zmq_port", BASE)
        if spec.name in BINDING and isinstance(told, str) and base_of(spec, env) is None:
            what = f"zmq_port is {told!r}, which is no number after the environment is filled in"
            remedy = "set the variable in the environment of vllm serve, or write the number"
            yield Finding("port-unknown", "error", spec.at("zmq_port"), what, remedy)
    for stage in deployment.stages:
        if stage.number >= STAGES and deployment.outgoing(stage.number):
            what = f"stage {stage.number} sends, and the port formula has room for stages 0 to 15"
            yield Finding("port-range", "error", stage.where, what, "number it below 16")


def _once(specs: Iterable[Spec]) -> list[Spec]:
    return list({spec.where: spec for spec in specs}.values())


def _high(wanted: list[Bind]) -> list[Finding]:
    bad = [bind for bind in wanted if not 1 <= bind.port <= LAST]
    if not bad:
        return []
    first = bad[0]
    what = f"{first.owner} would bind port {first.port}; ports end at {LAST}"
    remedy = "lower zmq_port, or start fewer replicas (each takes 1024 ports)"
    return [Finding("port-range", "error", first.where, what, remedy)]


def _twice(wanted: list[Bind]) -> list[Finding]:
    found: list[Finding] = []
    first: dict[int, Bind] = {}
    told: set[tuple[int, str, int, str]] = set()
    for bind in wanted:
        other = first.setdefault(bind.port, bind)
        pair = (other.stage, other.purpose, bind.stage, bind.purpose)
        if other is bind or pair in told:
            continue
        told.add(pair)
        both = other.sure and bind.sure
        if_so = "" if both else ", if the model hands over KV caches"
        what = f"{other.owner} and {bind.owner} both bind port {bind.port}{if_so}"
        remedy = "give their connectors a zmq_port at least 16 apart from one another"
        if other.where == bind.where:
            remedy = "the stages are too many for this many ranks: use two connectors, 4096 apart"
        grade = severity(bad=both)
        found.append(Finding("port-collision", grade, bind.where, what, remedy))
    return found


def _named(value: object, path: str) -> Iterator[tuple[int, str, str]]:
    """Every other port that the file names, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            if str(key).lower().endswith("port") and _is_number(str(item)):
                if key not in {"zmq_port", "sender_zmq_port"}:
                    yield int(item), f"{key} of {path or 'the file'}", here
            else:
                yield from _named(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            label = item.get("stage_id", index) if isinstance(item, dict) else index
            yield from _named(item, f"{path}[{label}]")


def _services(wanted: list[Bind], others: list[tuple[int, str, str]]) -> list[Finding]:
    mine = {bind.port: bind for bind in wanted if bind.sure}
    found = []
    for port, who, where in others:
        bind = mine.get(port)
        if bind is not None:
            what = f"{bind.owner} binds port {port}, and so does {who}"
            grade = severity(bad=bool(where))
            remedy = "move zmq_port, or the other one"
            found.append(Finding("port-collision", grade, bind.where, what, remedy))
    return found


def _taken(wanted: list[Bind], listening: frozenset[int]) -> list[Finding]:
    return [
        Finding(
            "port-taken", "warning", bind.where,
            f"{bind.owner} binds port {bind.port}, and somebody listens there now",
            "if that is not this deployment, already running: stop it, or move zmq_port",
        )
        for bind in wanted
        if bind.sure and bind.port in listening
    ]  # fmt: skip


def _engines(deployment: Deployment, binding: set[int]) -> list[Finding]:
    return [
        Finding(
            "data-parallel", "warning", f"{stage.where}.data_parallel_size",
            f"stage {stage.number} runs {stage.engines} data-parallel engines, and the port "
            "formula knows no data-parallel rank: on one host they want the same ports",
            "use num_replicas instead, or one engine a host",
        )
        for stage in deployment.stages
        if stage.engines > 1 and stage.number in binding
    ]  # fmt: skip
