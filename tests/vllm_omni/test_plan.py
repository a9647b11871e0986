"""A plan says of a deploy file what the released vLLM-Omni makes of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.plans import THREE, codes, plan_of, spoilt

from stagelink import ConfigError
from stagelink.adapters.hosts.planning import Surroundings, assumed, make_plan, read_document
from stagelink.adapters.hosts.planning.choice import MORIS, ON_GPU
from stagelink.adapters.hosts.planning.keys import KEYS
from stagelink.adapters.hosts.planning.ports import PURPOSES, port_of
from stagelink.adapters.hosts.planning.values import OURS

pytest.importorskip("vllm_omni", reason="vllm-omni is not installed: make test-vllm-omni")

SPEC = find_spec("vllm_omni")
assert SPEC is not None
assert SPEC.origin is not None
SHIPPED = sorted((Path(SPEC.origin).parent / "deploy").glob("*.yaml"))
OURS_TOO = sorted((Path(__file__).parents[2] / "docs" / "deploy").glob("*.yaml"))
KINDS = ("mi300x", "nvidia", "cpu", "none")
BROKEN = [
    spoilt("to_stage_1: chain", "to_stage_1: chian"),
    spoilt("name: StagelinkConnector", "nmae: StagelinkConnector"),
    spoilt("      from_stage_0: chain", "      from_stage_0: {name: SharedMemoryConnector}"),
    spoilt("    extra:\n", "    extra: 5\n    rest:\n"),
]


def theirs(path: Path) -> Any:
    """What vLLM-Omni makes of the file: None where it falls back to shared memory.

    As ``load_omni_transfer_config_for_model`` does it, whose module needs more than is installed.
    """
    from vllm_omni.config.stage_config import resolve_deploy_yaml
    from vllm_omni.distributed.omni_connectors import load_omni_transfer_config

    try:
        return load_omni_transfer_config(config_dict=resolve_deploy_yaml(path))
    except Exception:
        return None


def given(read: Any, number: int) -> str | None:
    """The connector that a stage is given: that of an incoming edge, else of an outgoing one."""
    from vllm_omni.distributed.omni_connectors import get_stage_connector_config

    for told in get_stage_connector_config(read, number).values():
        return str(told["spec"]["name"])
    ways = read.connectors.items()
    return next((c.name for (source, _), c in ways if source == str(number)), None)


def test_vllm_omni_has_deploy_files() -> None:
    assert len(SHIPPED) > 50


@pytest.mark.parametrize("path", [*SHIPPED, *OURS_TOO], ids=lambda path: path.stem)
def test_a_plan_reads_the_edges_and_gives_the_connectors_as_vllm_omni_does(path: Path) -> None:
    document, read = read_document(path), theirs(path)
    plans = [make_plan(document, assumed(kind), Surroundings({})) for kind in KINDS]

    for plan in plans:
        assert plan.plain()["falls_back_to_shared_memory"] is False
        assert {f.code for f in plan.findings if f.severity == "error"} <= {"pool-device"}
    deployment = plans[-1].deployment
    declared = {
        (str(edge.source), str(edge.target)): (edge.spec.name, edge.spec.extra)
        for edge in deployment.edges
        if edge.declared
    }
    assert declared == {ends: (c.name, c.extra) for ends, c in read.connectors.items()}
    for stage in deployment.stages:
        edge = deployment.carried(stage.number)
        ours = edge.spec.name if edge is not None and edge.declared else None
        assert given(read, stage.number) == ours


@pytest.mark.parametrize("text", BROKEN)
def test_where_a_plan_says_so_vllm_omni_drops_every_connector(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(text)

    assert make_plan(read_document(path), assumed("none"), Surroundings({})).deployment.lost
    assert theirs(path) is None


def test_a_file_without_a_mistake_is_read_by_both(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(THREE)

    assert codes(plan_of(THREE)) == []
    assert len(theirs(path).connectors) == 2


@pytest.mark.parametrize("purpose", ["request_forwarding", "kv_transfer", "orchestrator"])
def test_the_formula_of_the_ports_is_theirs(purpose: Any) -> None:
    from vllm_omni.distributed.omni_connectors.utils.initialization import (
        compute_connector_zmq_port,
    )

    ours = dict(zip(["request_forwarding", "kv_transfer", "orchestrator"], PURPOSES, strict=True))
    for stage, rank, replica in [(0, 0, 0), (3, 0, 0), (1, 5, 0), (2, 3, 4)]:
        assert port_of(50051, ours[purpose], stage, rank, replica) == compute_connector_zmq_port(
            50051, purpose=purpose, from_stage=stage, local_rank=rank, replica_id=replica
        )


def test_the_connectors_that_a_plan_knows_are_those_that_are_registered() -> None:
    from vllm_omni.distributed.omni_connectors.factory import OmniConnectorFactory

    there = set(OmniConnectorFactory.list_registered_connectors())

    assert there - {OURS} == set(KEYS) - {OURS}


def test_a_plan_decides_as_the_connector_does() -> None:
    from stagelink.adapters.hosts.vllm_omni import options, shared

    assert MORIS == options.BACKENDS
    assert ON_GPU == shared.ON_DEVICES


@pytest.mark.parametrize("key", sorted(set(KEYS[OURS]) - {"stage_id", "from_stage", "to_stage"}))
def test_the_keys_that_a_plan_knows_are_those_that_the_connector_checks(key: str) -> None:
    from stagelink.adapters.hosts.vllm_omni.options import Options

    with pytest.raises(ConfigError, match=key):
        Options.of(
            {key: object(), "memory_pool_device": "cuda"}
            if key != "memory_pool_device"
            else {key: object()}
        )
