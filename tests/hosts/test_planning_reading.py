"""Deploy files as vLLM-Omni puts them together, and what is in none."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosts.plans import THREE, codes, plan_of, spoilt

from stagelink.adapters.hosts.planning import (
    Surroundings,
    UnreadableError,
    assumed,
    make_plan,
    read_document,
)
from stagelink.adapters.hosts.planning.reading import lay_over, parse_text
from stagelink.adapters.hosts.planning.values import Document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OVERLAY = """\
base_config: base.yaml
async_chunk: false
connectors:
  chain:
    extra: {codec_chunk_frames: 50}
stages:
  - stage_id: 1
    devices: "4,5"
    num_replicas: 2
  - stage_id: 2
    devices: "2,3"
    engine_extras: {tensor_parallel_size: 2}
platforms:
  rocm:
    stages:
      - {stage_id: 0, devices: "6"}
"""


def test_an_overlay_adds_to_its_base_and_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(THREE)
    (tmp_path / "top.yaml").write_text(OVERLAY)

    document = read_document(tmp_path / "top.yaml")
    plan = make_plan(document, assumed("none"), Surroundings({}))

    chain = document.data["connectors"]["chain"]
    assert (chain["name"], chain["extra"]["codec_chunk_frames"]) == ("StagelinkConnector", 50)
    assert chain["extra"]["zmq_port"] == 50051
    assert [stage.devices for stage in plan.deployment.stages] == [("0",), ("4", "5"), ("2", "3")]
    assert [stage.replicas for stage in plan.deployment.stages] == [1, 2, 1]
    assert [stage.ranks for stage in plan.deployment.stages] == [1, 1, 2]
    assert [stage.seen for stage in plan.deployment.stages] == [1, 1, 2]
    assert not any(stage.async_chunk for stage in plan.deployment.stages)
    assert len(plan.deployment.edges) == 2
    assert [path.rpartition("/")[2] for path in document.files] == ["top.yaml", "base.yaml"]


def test_a_line_is_that_of_the_file_that_said_it_last(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(THREE)
    (tmp_path / "top.yaml").write_text(OVERLAY)

    places = read_document(tmp_path / "top.yaml").places

    def told(path: str) -> tuple[str, int]:
        return places[path].file.rpartition("/")[2], places[path].line

    assert told("connectors.chain.name") == ("base.yaml", 4)
    assert told("connectors.chain.extra.codec_chunk_frames") == ("top.yaml", 5)
    assert told("stages[1].devices") == ("top.yaml", 8)
    assert told("stages[1].input_connectors.from_stage_0") == ("base.yaml", 18)


def test_a_section_of_platforms_counts_on_its_own_platform_only(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(THREE)
    (tmp_path / "top.yaml").write_text(OVERLAY)
    document = read_document(tmp_path / "top.yaml")

    def first(kind: str) -> tuple[str, ...]:
        return make_plan(document, assumed(kind), Surroundings({})).deployment.stages[0].devices

    assert (first("mi300x"), first("nvidia")) == (("6",), ("0",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stages: [", "is no YAML"),
        ("a: *b", "is no YAML"),
        ("&a [*a]", "is no YAML"),
        ("- stages", "holds a list"),
        ("", "is empty"),
        ("# nothing", "is empty"),
        ("a: 1\x00", "is no YAML"),
        ("{[a]: 1}", "is no YAML"),
    ],
)
def test_what_is_no_deployment_is_unreadable(text: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        parse_text("x.yaml", text)


def test_a_file_that_is_missing_or_its_own_base_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base_config: b.yaml")
    (tmp_path / "b.yaml").write_text("base_config: a.yaml")
    (tmp_path / "c.yaml").write_text("base_config: nowhere.yaml")
    (tmp_path / "d.yaml").write_bytes(b"\xff\xfe\xff")

    for name, words in [
        ("a.yaml", "circle"),
        ("c.yaml", "nowhere.yaml cannot be read: No such file"),
        ("d.yaml", "cannot be read"),
        (".", "cannot be read"),
    ]:
        with pytest.raises(UnreadableError, match=words):
            read_document(tmp_path / name)


SHAPES = {
    "one stage, and nothing about connectors": """
        async_chunk: false
        stages: [{stage_id: 0, devices: "0,1", parallel_config: {tensor_parallel_size: 2}}]
    """,
    "a connector without a configuration, on the input alone": """
        stages:
          - {stage_id: 0, devices: "0"}
          - {stage_id: 1, devices: "0", input_connectors: {from_stage_0: shared}}
        connectors:
          shared: {name: SharedMemoryConnector}
          spare: {name: MooncakeTransferEngineConnector, extra: {host: auto, protocol: rdma}}
    """,
    "edges in a list, and KV caches of vLLM's own": """
        pipeline: pictures
        stages:
          - stage_id: 0
            num_replicas: 2
            devices: "0,1,2,3"
            tensor_parallel_size: 2
            env: {SOME_SIZE: "4194304"}
            kv_transfer_config: {kv_connector: MooncakeConnector, kv_connector_extra_config: {bootstrap_port: 8998}}
          - {stage_id: 1, devices: "4,5", parallel_config: {tensor_parallel_size: 2}}
        edges: [{from: 0, to: 1, window_size: -1, max_inflight: 1}]
        platforms: {}
    """,
    "KV caches over RDMA": """
        connectors:
          rdma:
            name: MooncakeTransferEngineConnector
            extra: {host: auto, zmq_port: 50051, protocol: rdma, memory_pool_size: 4294967296, memory_pool_device: cpu}
        stages:
          - {stage_id: 0, omni_kv_config: {need_send_cache: true}, output_connectors: {to_stage_1: rdma}}
          - {stage_id: 1, omni_kv_config: {need_recv_cache: true}, input_connectors: {from_stage_0: rdma}}
    """,
    "a fork": """
        connectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25, codec_chunk_ramp: [1, 2]}}}
        stages:
          - {stage_id: 0, output_connectors: {to_stage_1: c, to_stage_2: c}}
          - {stage_id: 1, input_connectors: {from_stage_0: c}}
          - {stage_id: 2, input_connectors: {from_stage_0: c}}
    """,
    "a part that another file is laid under": """
        forced_aligner: {model: a/b, runner: pooling, dtype: bfloat16}
    """,
    "ours, on every kind of device": THREE,
}  # fmt: skip
"""The shapes of the files that vLLM-Omni ships, in a few lines each."""


@pytest.mark.parametrize("kind", ["mi300x", "nvidia", "cpu", "none"])
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_file_is_planned_and_nothing_wrong_is_found(text: str, kind: str) -> None:
    plan = plan_of(text, kind)

    assert codes(plan, "error", "warning") == []
    assert plan.plain()["ok"]


def test_a_number_may_come_from_a_nested_layout() -> None:
    nested = spoilt(
        '    devices: "1"\n', "    runtime: {devices: [4, 5], num_replicas: 2}\n"
        "    engine_args: {tensor_parallel_size: 1, max_num_seqs: 8}\n",
    )  # fmt: skip

    stage = plan_of(nested).deployment.stages[1]

    assert (stage.devices, stage.replicas, stage.sequences) == (("4", "5"), 2, 8)


JUNK: list[Any] = [
    None, True, 0, -1, 1.5, "", "x", "${A}", [], {}, [1, [2]], {"name": 5}, {"a": {}}, 10**30,
    {"name": "StagelinkConnector", "extra": None}, "9" * 5000, ["0"], {1: 2}, {"stage_id": 0},
]  # fmt: skip
FIELDS = [
    "role",
    "zmq_port",
    "backend_type",
    "edges",
    "platforms",
    "stages",
    "connectors",
    "env",
    5,
]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in *value*."""
    rows: Any = ()
    if isinstance(value, (dict, list)):
        rows = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in rows:
        yield (*path, key)
        yield from places_in(item, (*path, key))


def spoil(chance: Random, data: Any) -> None:
    """Put something else in the place of one thing, or beside it."""
    *path, last = chance.choice(list(places_in(data)))
    for key in path:
        data = data[key]
    key = chance.choice(FIELDS) if isinstance(data, dict) and chance.random() < 0.2 else last
    data[key] = deepcopy(chance.choice(JUNK))


@pytest.mark.parametrize("seed", range(20))
def test_no_file_is_so_wrong_that_planning_fails(seed: int) -> None:
    chance = Random(seed)
    whole, part = (parse_text("base.yaml", text) for text in (THREE, OVERLAY))
    for _ in range(20):
        data = deepcopy(chance.choice([whole, part]).data)
        for _ in range(chance.randint(1, 4)):
            if data:
                spoil(chance, data)
        document = Document(data, {}, ("x.yaml",))
        for one in (document, lay_over(whole, document)):
            kind = chance.choice(["mi300x", "nvidia", "cpu", "none"])
            make_plan(one, assumed(kind), Surroundings({})).plain()
