"""Figures are the same ones everywhere: in health, in Prometheus, on the pages, in Grafana."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import stagelink
from stagelink.core.errors import ConfigError, DeadlineError, DuplicateKeyError, GoneError
from stagelink.plugins.conformance.connector import Waiter, eventually, is_linked, waits
from stagelink.prometheus import COMMON, METRICS, Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]
EDGE = "thinker->talker"


class Pair:
    def __init__(self, backend: str) -> None:
        common: dict[str, Any] = {"backend": backend, "pool_bytes": "1MiB"}
        self.tx = stagelink.open(stage="thinker", role="sender", **common)
        self.rx = stagelink.open(
            stage="talker", role="receiver", sender=self.tx.endpoint, **common
        )
        self.registry = CollectorRegistry()
        self.registry.register(Collector(self.tx, self.rx))

    def sample(self, name: str, **labels: str) -> float | None:
        """The one sample of that name with (at least) those labels."""
        text = generate_latest(self.registry).decode()
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, f"{name} {labels}: {found}"
        return found[0] if found else None

    def failures(self, cause: str) -> float | None:
        return self.sample("stagelink_failures_total", edge=EDGE, cause=cause)


@pytest.fixture(params=["memory", "shm", "shm-write"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(request.param)
    yield pair
    pair.rx.close()
    pair.tx.close()


@pytest.fixture
def memory() -> Iterator[Pair]:
    pair = Pair("memory")
    yield pair
    pair.rx.close()
    pair.tx.close()


def test_every_backend_has_the_same_metrics(pair: Pair) -> None:
    pair.tx.put("key", bytes(100_000), to="talker")
    pair.rx.get("key", source="thinker").close()

    text = generate_latest(pair.registry).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {metric.name for metric in METRICS}
    for call, stage in [("put", "thinker"), ("get", "talker")]:
        labels = {"edge": EDGE, "stage": stage}
        assert pair.sample(f"stagelink_{call}s_total", **labels) == 1
        size = pair.sample(f"stagelink_{call}_bytes_total", **labels)
        assert size is not None
        assert size > 100_000
        assert pair.sample(f"stagelink_{call}_seconds_count", **labels) == 1
        assert pair.sample(f"stagelink_{call}_seconds_bucket", **labels, le="+Inf") == 1


def test_the_session_names_the_backend_that_is_really_used(pair: Pair) -> None:
    pair.rx.poll("key", source="thinker")
    assert is_linked(pair.rx)

    backend = pair.rx.config.backend
    for direction in ("in", "out"):
        labels = {"direction": direction, "plane": backend, "state": "open"}
        assert pair.sample("stagelink_sessions", **labels) == 1


def test_each_way_to_fail_has_a_counter_of_its_own_and_counts_once(pair: Pair) -> None:
    tx, rx = pair.tx, pair.rx
    rx.poll("other", source="thinker")
    assert is_linked(rx)

    tx.put("twice", 1, to="talker")
    with pytest.raises(DuplicateKeyError):
        tx.put("twice", 2, to="talker")
    tx.put("short", 1, to="talker", ttl=0.001)
    assert eventually(lambda: tx.health()["ledger"]["entries"] == 1)
    with pytest.raises(GoneError):
        rx.get("short", source="thinker", timeout=10.0)
    waiter = Waiter(lambda: rx.get("never", source="thinker", timeout=10.0))
    assert waits(rx)
    rx.cancel("never", source="thinker")
    waiter.join()
    with pytest.raises(DeadlineError):
        rx.get("late", source="thinker", timeout=0.0)

    for cause in ("duplicate", "expired", "cancelled", "deadline"):
        assert pair.failures(cause) == 1, cause
    total = sum(row["count"] for c in (tx, rx) for row in c.health()["failures"])
    assert total == 4


def test_a_call_with_a_wrong_argument_counts_by_its_class(memory: Pair) -> None:
    with pytest.raises(stagelink.PayloadError):
        memory.tx.put("key", object(), to="talker")

    assert memory.failures("PayloadError") == 1
    assert memory.tx.health()["errors"] == {"PayloadError": 1}


def test_the_pool_by_state_adds_up_to_its_capacity(memory: Pair) -> None:
    memory.tx.put("key", bytes(500_000), to="talker")

    states = [
        memory.sample("stagelink_pool_bytes", stage="thinker", state=state)
        for state in ("free", "reserved", "held", "quarantined")
    ]
    capacity = memory.sample("stagelink_pool_capacity_bytes", stage="thinker")
    assert sum(value or 0 for value in states) == capacity == 1 << 20
    assert states[2] != 0


def test_a_payload_that_is_held_for_long_is_counted(lines: object) -> None:
    settings: dict[str, Any] = {"backend": "memory", "timeouts": {"lease_warning_s": 0.01}}
    with (
        stagelink.open(stage="thinker", role="sender", **settings) as tx,
        stagelink.open(stage="talker", role="receiver", sender=tx.endpoint, **settings) as rx,
    ):
        tx.put("key", bytes(100_000), to="talker")
        with rx.get("key", source="thinker") as payload:
            assert payload.value is not None
            assert eventually(lambda: rx.health()["leases_held_long"] == 1)
            assert eventually(lambda: tx.health()["leases_held_long"] == 1)
        assert eventually(lambda: rx.health()["leases_held_long"] == 0)


def test_a_closed_connector_still_shows_its_totals(memory: Pair) -> None:
    memory.tx.put("key", 1, to="talker")
    memory.tx.close()

    assert memory.sample("stagelink_open", stage="thinker") == 0
    assert memory.sample("stagelink_puts_total", stage="thinker") == 1


def test_two_connectors_that_no_label_tells_apart_are_refused(memory: Pair) -> None:
    with (
        stagelink.open(stage="thinker", role="sender", backend="memory") as other,
        pytest.raises(ConfigError, match="thinker"),
    ):
        Collector(memory.tx, other)


def test_a_collector_forgets_a_connector_on_request(memory: Pair) -> None:
    collector = Collector(memory.tx)

    collector.remove(memory.tx)
    collector.remove(memory.rx)

    assert all(not family.samples for family in collector.collect())


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigError) as caught:
        Collector()

    assert "pip install 'stagelink[prometheus]'" in str(caught.value)


def full_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(stagelink_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.M)
    on_page = [
        (name, kind, tuple(re.findall(r"`(\w+)`", lb)), text) for name, kind, lb, text in rows
    ]

    assert on_page == [(full_name(m.name, m.kind), m.kind, m.labels, m.help) for m in METRICS]
    assert all(f"`{label}`" in page for label in COMMON)


def test_the_dashboard_asks_only_for_metrics_and_labels_that_there_are() -> None:
    board = json.loads((ROOT / "docs/grafana/stagelink.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    known = {full_name(m.name, m.kind) for m in METRICS}
    known |= {
        f"{m.name}_{end}"
        for m in METRICS
        if m.kind == "histogram"
        for end in ("bucket", "sum", "count")
    }
    labels = {label for m in METRICS for label in m.labels} | set(COMMON) | {"le"}

    assert len(asked) > 10
    for expression in asked:
        names = set(re.findall(r"stagelink_\w+", expression))
        assert names
        assert names <= known, expression
        grouped = re.findall(r"by \(([\w, ]+)\)", expression)
        assert {label for group in grouped for label in group.split(", ")} <= labels, expression
    variables = [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    assert {name for query in variables for name in re.findall(r"stagelink_\w+", query)} <= known
