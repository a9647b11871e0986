"""A deployment of three stages to spoil, and a plan of it in one call."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning import Surroundings, assumed, make_plan
from stagelink.adapters.hosts.planning.reading import parse_text

if TYPE_CHECKING:
    from stagelink.adapters.hosts.planning import Machine, Plan

NAME = "deploy.yaml"
THREE = """\
async_chunk: true
connectors:
  chain:
    name: StagelinkConnector
    extra:
      zmq_port: 50051
      memory_pool_size: 536870912
      codec_chunk_frames: 25
      codec_left_context_frames: 25
stages:
  - stage_id: 0
    devices: "0"
    output_connectors:
      to_stage_1: chain
  - stage_id: 1
    devices: "1"
    input_connectors:
      from_stage_0: chain
    output_connectors:
      to_stage_2: chain
  - stage_id: 2
    devices: "2"
    input_connectors:
      from_stage_1: chain
"""


def spoilt(old: str, new: str, text: str = THREE) -> str:
    """*text* with *new* in the place of *old*, which must be there."""
    assert old in text
    return text.replace(old, new)


def with_extra(line: str, text: str = THREE) -> str:
    """*text* with one more line in the connector's configuration."""
    return spoilt("    extra:\n", f"    extra:\n      {line}\n", text)


def plan_of(
    text: str = THREE,
    machine: Machine | str = "none",
    env: dict[str, str] | None = None,
    listening: frozenset[int] = frozenset(),
    shared_free: int | None = None,
) -> Plan:
    """The plan of a file that holds *text*."""
    document = parse_text(NAME, dedent(text))
    where = assumed(machine) if isinstance(machine, str) else machine
    return make_plan(document, where, Surroundings(env or {}, listening, shared_free))


def codes(plan: Plan, *severities: str) -> list[str]:
    """The codes of what was found, of those *severities* (all without any)."""
    wanted = severities or ("error", "warning", "note")
    return [finding.code for finding in plan.findings if finding.severity in wanted]
