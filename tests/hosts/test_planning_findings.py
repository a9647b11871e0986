"""Every mistake in a deploy file that a plan finds, each planted alone in a file without any."""

from __future__ import annotations

import pytest
from tests.hosts.plans import NAME, THREE, codes, plan_of, spoilt, with_extra

MORI = spoilt("name: StagelinkConnector", "name: MoriTransferEngineConnector")
SHARED = spoilt("name: StagelinkConnector", "name: SharedMemoryConnector")
MIXED = """\
connectors:
  first: {name: StagelinkConnector, extra: {zmq_port: 50051}}
  second: {name: StagelinkConnector, extra: {zmq_port: 51051}}
  third: {name: SharedMemoryConnector}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: first}}
  - {stage_id: 1, input_connectors: {from_stage_0: first}, output_connectors: {to_stage_2: WHICH}}
  - {stage_id: 2, input_connectors: {from_stage_1: WHICH}}
"""
MANY = "".join(
    f"  - {{stage_id: {n}, tensor_parallel_size: 7, output_connectors: {{to_stage_{n + 1}: c}}}}\n"
    for n in range(5)
)
PORTS_MEET = f"""\
connectors:
  c: {{name: StagelinkConnector}}
stages:
{MANY}  - {{stage_id: 5, input_connectors: {{from_stage_4: c}}}}
"""

ERRORS = [
    # what is wrong, the file, the code, where, the line
    ("an alias that is nobody's", spoilt("to_stage_1: chain", "to_stage_1: chian"),
     "parse-error", "stages[0].output_connectors.to_stage_1", 14),
    ("a connector without a name", spoilt("name: StagelinkConnector", "nmae: StagelinkConnector"),
     "parse-error", "stages[0].output_connectors.to_stage_1", 14),
    ("an extra that is no table", spoilt("    extra:\n", "    extra: 5\n    rest:\n"),
     "parse-error", "stages[0].output_connectors.to_stage_1", 15),
    ("connectors that are a list", "connectors: [a]\nstages:\n  - stage_id: 0\n",
     "parse-error", "connectors", 1),
    ("a side that is empty", spoilt("    output_connectors:\n      to_stage_1: chain\n", "    output_connectors:\n"),
     "parse-error", "stages[0].output_connectors", 13),
    ("a stage without an id", spoilt("  - stage_id: 2\n    dev", "  - dev"),
     "parse-error", "stages[2]", 21),
    ("two names on one edge", spoilt("      from_stage_0: chain", "      from_stage_0: {name: SharedMemoryConnector}"),
     "edge-mismatch", "stages[1].input_connectors.from_stage_0", 18),
    ("a key that names no stage", spoilt("from_stage_1: chain", "from_stage1: chain"),
     "edge-key", "stages[2].input_connectors.from_stage1", 24),
    ("a stage that is not there", spoilt("to_stage_2: chain", "to_stage_7: chain"),
     "unknown-stage", "stages[1].output_connectors.to_stage_7", 20),
    ("stages with a gap", spoilt("stage_id: 2", "stage_id: 3", spoilt("to_stage_2", "to_stage_3")),
     "stage-ids", "stages", 10),
    ("the schema of older releases", THREE + "stage_args: []\n",
     "old-schema", "stage_args", 25),
    ("a key that stands twice", THREE + "async_chunk: false\n",
     "duplicate-key", "async_chunk", 25),
    ("a name that is misspelt", spoilt("name: StagelinkConnector", "name: StageLinkConnector"),
     "unknown-connector", "connectors.chain.name", 4),
    ("a size with a unit", spoilt("memory_pool_size: 536870912", "memory_pool_size: 512MiB"),
     "wrong-type", "connectors.chain.extra.memory_pool_size", 7),
    ("replicas that are no number", spoilt('devices: "1"', 'devices: "1"\n    num_replicas: many'),
     "wrong-type", "stages[1].num_replicas", 17),
    ("more replicas than there are ports", spoilt('devices: "1"', "num_replicas: 100"),
     "port-range", "connectors.chain.extra.zmq_port", 6),
    ("more replicas than anybody has", spoilt('devices: "1"', "num_replicas: 1000000000"),
     "wrong-type", "stages[1].num_replicas", 16),
    ("a pool of nothing", spoilt("memory_pool_size: 536870912", "memory_pool_size: 4096"),
     "pool-size", "connectors.chain.extra.memory_pool_size", 7),
    ("a chunk larger than the pool", spoilt("536870912", "65536", spoilt("codec_chunk_frames: 25", "codec_chunk_frames: 2500")),
     "pool-too-small", "connectors.chain.extra.memory_pool_size", 7),
    ("xgmi with a pool on the cpu", with_extra("backend_type: xgmi"),
     "xgmi-cpu-pool", "connectors.chain.extra.backend_type", 6),
    ("xgmi with a pool on the cpu, theirs", with_extra("backend_type: xgmi", MORI),
     "xgmi-cpu-pool", "connectors.chain.extra.backend_type", 6),
    ("a backend that nobody has", with_extra("backend_type: xmgi"),
     "unknown-backend", "connectors.chain.extra.backend_type", 6),
    ("a pool on a GPU beyond those of a stage", with_extra('memory_pool_device: "cuda:1"'),
     "pool-device", "connectors.chain.extra.memory_pool_device", 6),
    ("a pool on a toaster", with_extra("memory_pool_device: toaster"),
     "pool-device", "connectors.chain.extra.memory_pool_device", 6),
    ("ports beyond the last", spoilt("zmq_port: 50051", "zmq_port: 65535"),
     "port-range", "connectors.chain.extra.zmq_port", 6),
    ("a port from an environment that has none", spoilt("zmq_port: 50051", "zmq_port: ${ZMQ_BASE}"),
     "port-unknown", "connectors.chain.extra.zmq_port", 6),
    ("another service at the port", THREE + "kv_transfer_config: {bootstrap_port: 50052}\n",
     "port-collision", "connectors.chain.extra.zmq_port", 6),
    ("a payload that is gone before its reader gives up",
     with_extra("buffer_ttl_seconds: 20", spoilt('devices: "1"', 'devices: "1"\n    omni_kv_config: {need_recv_cache: true}')),
     "ttl", "connectors.chain.extra.buffer_ttl_seconds", 6),
    ("a time to live below 0", with_extra("buffer_ttl_seconds: -1"),
     "ttl", "connectors.chain.extra.buffer_ttl_seconds", 6),
    ("fewer devices than ranks", spoilt('devices: "1"', 'devices: "1"\n    tensor_parallel_size: 2'),
     "devices", "stages[1].devices", 16),
    ("more devices than ranks", spoilt('devices: "1"', 'devices: "1,0"'),
     "devices", "stages[1].devices", 16),
    ("a middle stage with two ports", spoilt("WHICH", "second", MIXED),
     "mixed-connectors", "stages[1].output_connectors.to_stage_2", 7),
    ("a middle stage with two connectors", spoilt("WHICH", "third", MIXED),
     "mixed-connectors", "stages[1].output_connectors.to_stage_2", 7),
    ("an allow-list in a stage's environment", spoilt('devices: "1"', 'devices: "1"\n    env: {VLLM_PLUGINS: "other"}'),
     "plugin-not-allowed", "stages[1].env.VLLM_PLUGINS", 17),
]  # fmt: skip

WARNINGS = [
    ("a name that a plugin may bring", spoilt("name: StagelinkConnector", "name: AcmeConnector"),
     "unknown-connector", "connectors.chain.name"),
    ("a key that is misspelt", with_extra("memory_pol_device: cpu"),
     "misspelt-key", "connectors.chain.extra.memory_pol_device"),
    ("a model's key that is misspelt", with_extra("codec_chunk_frame: 25"),
     "misspelt-key", "connectors.chain.extra.codec_chunk_frame"),
    ("a key of Mooncake's", with_extra("protocol: rdma"),
     "foreign-key", "connectors.chain.extra.protocol"),
    ("a role in the file", with_extra("role: sender"),
     "role-in-file", "connectors.chain.extra.role"),
    ("sides that differ", spoilt("      from_stage_0: chain", "      from_stage_0: {name: StagelinkConnector}"),
     "edge-differs", "stages[1].input_connectors.from_stage_0"),
    ("a stage without a connector", spoilt("    input_connectors:\n      from_stage_1: chain\n", "", spoilt("    output_connectors:\n      to_stage_2: chain\n", "")),
     "no-connector", "stages[2]"),
    ("connectors in a section of platforms", THREE + "platforms:\n  rocm:\n    stages:\n      - {stage_id: 1, input_connectors: {from_stage_0: x}}\n",
     "platform-connectors", "platforms.rocm.stages[1].input_connectors"),
    ("an edge of the list that is none", THREE + "edges:\n  - {from: a, to: 1}\n",
     "edge-key", "edges[0]"),
    ("xgmi between processes that see one GPU each", with_extra("backend_type: xgmi", with_extra("memory_pool_device: cuda")),
     "xgmi-hidden", "connectors.chain.extra.backend_type"),
    ("a NIC for xgmi", with_extra("backend_type: xgmi", with_extra("memory_pool_device: cuda", with_extra("device_name: mlx5_0"))),
     "ignored-key", "connectors.chain.extra.device_name"),
    ("ranks that share one GPU's pool", with_extra('memory_pool_device: "cuda:0"', spoilt('devices: "1"', 'devices: "1,2"\n    tensor_parallel_size: 2')),
     "pool-device", "connectors.chain.extra.memory_pool_device"),
    ("data-parallel engines", spoilt('devices: "0"', 'devices: "0,3"\n    data_parallel_size: 2'),
     "data-parallel", "stages[0].data_parallel_size"),
    ("a batch larger than the pool", spoilt("536870912", "67108864"),
     "pool-too-small", "connectors.chain.extra.memory_pool_size"),
    ("payload and KV ports that meet", PORTS_MEET,
     "port-collision", "connectors.c"),
    ("the port of the server", spoilt("zmq_port: 50051", "zmq_port: 7999"),
     "port-collision", "connectors.chain.extra.zmq_port"),
]  # fmt: skip


def found(text: str, severity: str) -> set[tuple[str, str]]:
    return {(f.code, f.where) for f in plan_of(text).findings if f.severity == severity}


def test_nothing_is_wrong_with_the_file_that_the_others_are_made_of() -> None:
    plan = plan_of()

    assert codes(plan) == []
    assert plan.ok


@pytest.mark.parametrize(
    ("text", "code", "where", "line"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS]
)
def test_an_error_is_told_with_its_place_and_fails_the_plan(
    text: str, code: str, where: str, line: int
) -> None:
    plan = plan_of(text)

    told = [f for f in plan.findings if (f.code, f.where) == (code, where)]
    assert [f.severity for f in told[:1]] == ["error"], plan.findings
    assert told[0].place == (NAME, line)
    assert not plan.ok


@pytest.mark.parametrize(
    ("text", "code", "where"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS]
)
def test_a_warning_is_told_and_does_not_fail_the_plan(text: str, code: str, where: str) -> None:
    plan = plan_of(text)

    assert (code, where) in found(text, "warning"), plan.findings
    assert plan.ok


def test_after_a_parse_error_every_edge_is_shared_memory() -> None:
    plan = plan_of(spoilt("to_stage_1: chain", "to_stage_1: chian"))

    assert plan.deployment.lost
    assert {served.connector for served in plan.served} == {"SharedMemoryConnector"}
    (error,) = (f for f in plan.findings if f.severity == "error")
    assert "did you mean 'chain'?" in error.remedy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MORI, "mori-built-twice"),
        (MORI, "mori-endpoint-only"),
        (MORI, "mori-middle-stage"),
        (MORI, "mori-dead-sender"),
        (spoilt("async_chunk: true", "async_chunk: false", MORI), "mori-deadline"),
        (spoilt('devices: "1"', "tensor_parallel_size: 2", MORI), "mori-many-ranks"),
        (spoilt("StagelinkConnector", "MooncakeTransferEngineConnector"), "mooncake-middle-stage"),
    ],
)
def test_what_a_shipped_connector_cannot_do_is_told_with_the_way_out(text: str, code: str) -> None:
    (finding,) = (f for f in plan_of(text).findings if f.code == code)

    assert finding.severity == "warning"
    assert finding.remedy == "name: StagelinkConnector keeps the other keys"


def test_the_second_model_runner_builds_no_connector_twice() -> None:
    assert "mori-built-twice" not in codes(plan_of("model_runner: v2\n" + MORI))


def test_the_allow_list_of_the_environment_must_have_us_and_their_own_plugin() -> None:
    (alone,) = plan_of(env={"VLLM_PLUGINS": "stagelink"}).findings
    both = plan_of(env={"VLLM_PLUGINS": "vllm_omni_register_models,stagelink"})
    spaced = plan_of(env={"VLLM_PLUGINS": "stagelink, vllm_omni_register_models"})
    others = plan_of(SHARED, env={"VLLM_PLUGINS": ""})

    assert (alone.code, alone.where, alone.place) == ("plugin-not-allowed", "environment", None)
    assert "VLLM_PLUGINS=stagelink,vllm_omni_register_models" in alone.remedy
    assert codes(both) == []
    assert codes(spaced) == ["plugin-not-allowed"], "vLLM takes the space for a part of the name"
    assert codes(others, "error", "warning") == []


def test_how_long_a_stage_waits_may_come_from_its_environment() -> None:
    shorter = with_extra("buffer_ttl_seconds: 100")
    env = {"VLLM_OMNI_INPUT_WAIT_TIMEOUT_S": "60"}

    assert codes(plan_of(shorter)) == ["ttl"]
    assert codes(plan_of(shorter), "error", "warning") == []
    assert codes(plan_of(shorter, env=env)) == []


def test_connectors_and_keys_that_no_edge_uses_are_no_error() -> None:
    spare = spoilt("stages:\n", "  spare: {name: SharedMemoryConnector}\n  bad: 5\nstages:\n")

    assert codes(plan_of(spare)) == ["unused-connector"]
    assert codes(plan_of("stages: []\n")) == []
    assert codes(plan_of("async_chunk: true\n")) == ["no-stages"]
    assert codes(plan_of("stages: 5\n")) == ["no-stages"]
