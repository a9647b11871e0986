"""Which backend serves an edge, on which port, and with how much at once."""

from __future__ import annotations

import pytest
from tests.hosts.plans import THREE, codes, plan_of, spoilt, with_extra

from stagelink.adapters.hosts.planning import Machine

GPU = with_extra("memory_pool_device: cuda")


def backends(text: str, machine: Machine | str) -> set[str]:
    return {served.backend for served in plan_of(text, machine).served}


@pytest.mark.parametrize(
    ("text", "machine", "backend"),
    [
        (THREE, "mi300x", "shm"),
        (THREE, "nvidia", "shm"),
        (THREE, "cpu", "shm"),
        (GPU, "mi300x", "device_ipc"),
        (GPU, "nvidia", "device_ipc"),
        (GPU, "cpu", "shm"),
        (with_extra("backend_type: xgmi", GPU), "mi300x", "mori-xgmi"),
        (with_extra("backend_type: RDMA"), "mi300x", "mori-rdma"),
        (with_extra("backend_type: shm-write"), "cpu", "shm-write"),
        (THREE, "none", ""),
        (with_extra("backend_type: rdma"), "none", "mori-rdma"),
    ],
)
def test_the_backend_follows_from_the_machine_and_from_where_the_pool_is(
    text: str, machine: str, backend: str
) -> None:
    assert backends(text, machine) == {backend}


def test_a_backend_that_cannot_work_there_is_an_error_with_the_reason() -> None:
    plan = plan_of(with_extra("backend_type: rdma"), "nvidia")

    (finding,) = plan.findings
    assert (finding.code, finding.severity) == ("no-backend", "error")
    assert "AMD's Mori needs ROCm" in finding.what
    assert {served.backend for served in plan.served} == {""}


def test_a_pool_on_a_gpu_that_is_not_there_is_on_the_host_and_that_is_said() -> None:
    plan = plan_of(GPU, "cpu")

    (finding,) = plan.findings
    assert (finding.code, finding.severity) == ("pool-device", "warning")
    assert "there is no GPU" in finding.what


def test_a_backend_that_somebody_else_plugs_in_may_be_named() -> None:
    machine = Machine("ours", "", {"shm": "", "acme": "", "idle": "its card is not here"})

    assert backends(with_extra("backend_type: acme"), machine) == {"acme"}
    assert codes(plan_of(with_extra("backend_type: idle"), machine)) == ["no-backend"]
    assert codes(plan_of(with_extra("backend_type: acmee"), machine)) == ["unknown-backend"]


def test_ports_follow_the_formula_for_each_purpose_replica_and_rank() -> None:
    text = spoilt(
        'devices: "1"', 'devices: "1,2,3,4"\n    num_replicas: 2\n    tensor_parallel_size: 2'
    )

    binds = {(b.stage, b.purpose, b.replica, b.rank): b.port for b in plan_of(text).binds}

    assert binds == {
        (0, "payload", 0, 0): 50051, (0, "kv", 0, 0): 50151,
        (1, "payload", 0, 0): 50052, (1, "payload", 0, 1): 50068,
        (1, "payload", 1, 0): 51076, (1, "payload", 1, 1): 51092,
        (1, "kv", 0, 0): 50152, (1, "kv", 0, 1): 50168,
        (1, "kv", 1, 0): 51176, (1, "kv", 1, 1): 51192,
    }  # fmt: skip


def test_a_port_may_come_from_the_environment() -> None:
    text = spoilt("zmq_port: 50051", "zmq_port: ${BASE}")

    plan = plan_of(text, env={"BASE": "40000"})

    assert codes(plan) == []
    assert {bind.port for bind in plan.binds if bind.purpose == "payload"} == {40000, 40001}


def test_a_port_that_somebody_listens_on_is_told() -> None:
    (finding,) = plan_of(listening=frozenset({50052, 50151})).findings

    assert (finding.code, finding.severity) == ("port-taken", "warning")
    assert "stage 1 (payload) binds port 50052" in finding.what


def test_shared_memory_binds_nothing() -> None:
    assert plan_of(spoilt("StagelinkConnector", "SharedMemoryConnector")).binds == ()


def test_codec_frames_go_to_the_last_stage_and_hidden_states_before_it() -> None:
    hidden, codec = plan_of().loads

    assert "hidden states of up to 32768 tokens" in hidden.what
    assert hidden.single == 32768 * 8192
    assert codec.what == "chunks of 25 codec frames and 25 before"
    assert codec.single == 50 * 32 * 8


def test_a_stage_that_sends_on_another_connector_than_its_edge_names_is_planned_by_that() -> None:
    """vLLM-Omni gives a middle stage the connector of its incoming edge for both directions."""
    text = spoilt(
        "  chain:\n", "  other: {name: SharedMemoryConnector}\n  chain:\n",
        spoilt("to_stage_2: chain", "to_stage_2: other", spoilt("from_stage_1: chain", "from_stage_1: other")),
    )  # fmt: skip

    plan = plan_of(text)

    assert [served.connector for served in plan.served] == ["StagelinkConnector"] * 2
    assert codes(plan, "error") == ["mixed-connectors"]


def test_every_process_that_sends_reserves_a_pool_and_who_maps_it_none() -> None:
    """Stage 0 sends, stage 1 does both in two replicas, stage 2 receives."""
    text = spoilt('devices: "1"', 'devices: "1,3"\n    num_replicas: 2')
    write = with_extra("backend_type: shm-write", text)

    assert plan_of(text, "cpu").shared_bytes == (1 + 2) * (512 << 20)
    assert plan_of(write, "cpu").shared_bytes == (1 + 2 * 2 + 1) * (512 << 20)
    assert plan_of(GPU, "nvidia").shared_bytes == 0
    assert plan_of(text, "none").shared_bytes == 0
    assert codes(plan_of(text, "cpu", shared_free=3 << 29)) == []
    assert codes(plan_of(text, "cpu", shared_free=(3 << 29) - 1)) == ["shared-memory"]


def test_less_shared_memory_than_the_pools_take_is_an_error() -> None:
    (finding,) = plan_of(THREE, "cpu", shared_free=64 << 20).findings

    assert (finding.code, finding.severity, finding.where) == (
        "shared-memory", "error", "connectors.chain",
    )  # fmt: skip
    assert "take 1,024 MiB of /dev/shm, and 64 MiB are available" in finding.what
    assert "--shm-size" in finding.remedy


def test_a_port_that_others_reach_without_a_key_is_noted() -> None:
    guarded = with_extra("stagelink: {security: curve, keys: k}", with_extra("host: auto"))

    assert codes(plan_of(with_extra("host: auto"))) == ["open-port"]
    assert codes(plan_of(with_extra("host: localhost"))) == []
    assert codes(plan_of(guarded)) == []


def test_a_stage_that_nobody_is_said_to_feed_takes_the_connector_that_it_sends_with() -> None:
    text = spoilt(
        "    input_connectors:\n      from_stage_0: chain\n",
        "",
        spoilt("    output_connectors:\n      to_stage_1: chain\n", ""),
    )

    plan = plan_of(text)

    assert [(s.edge.name, s.edge.declared, s.connector) for s in plan.served] == [
        ("1 -> 2", True, "StagelinkConnector"),
        ("0 -> 1", False, "SharedMemoryConnector"),
    ]
    assert {bind.stage for bind in plan.binds} == {1}
    assert codes(plan) == []
