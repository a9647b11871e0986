"""Spans of both sides make one trace, and without tracing there is nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import stagelink
from stagelink.adapters.msgspec import traced
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.core.errors import ConfigError, DeadlineError, DuplicateKeyError, PayloadError
from stagelink.plugins.conformance.connector import eventually, is_linked, polled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

ROOT = Path(__file__).parents[2]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    own = TracerProvider()
    own.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(own)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    EXPORTER.clear()
    return EXPORTER


def open_pair(backend: str, *, tx: bool = True, rx: bool = True) -> tuple[Connector, Connector]:
    common: dict[str, Any] = {"backend": backend, "pool_bytes": "1MiB"}
    sender = stagelink.open(stage="thinker", role="sender", tracing=tx, **common)
    receiver = stagelink.open(
        stage="talker", role="receiver", sender=sender.endpoint, tracing=rx, **common
    )
    return sender, receiver


@pytest.fixture(params=["memory", "shm-write"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Connector, Connector]]:
    tx, rx = open_pair(request.param)
    yield tx, rx
    rx.close()
    tx.close()


def the(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = (s for s in spans.get_finished_spans() if s.name == name)
    return span


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_get_outside_any_span_is_a_child_of_the_put(
    pair: tuple[Connector, Connector], spans: InMemorySpanExporter, size: int
) -> None:
    tx, rx = pair
    receipt = tx.put("req-7", {"body": bytes(size)}, to="talker")
    with rx.get("req-7", source="thinker") as payload:
        assert payload.value == {"body": bytes(size)}

    put, get = the(spans, "stagelink.put"), the(spans, "stagelink.get")
    assert put.context is not None
    assert get.parent is not None
    assert (get.parent.trace_id, get.parent.span_id) == (put.context.trace_id, put.context.span_id)
    common = {
        "stagelink.key": "req-7", "stagelink.edge": "thinker->talker",
        "stagelink.backend": tx.config.backend, "stagelink.size": receipt.size,
        "stagelink.outcome": "ok",
    }  # fmt: skip
    assert dict(put.attributes or {}) == common
    assert dict(get.attributes or {}) == common
    assert get.start_time is not None
    assert get.end_time is not None
    assert get.start_time <= get.end_time


def test_a_get_within_a_span_stays_there_and_links_to_the_put(
    pair: tuple[Connector, Connector], spans: InMemorySpanExporter
) -> None:
    tx, rx = pair
    tx.put("req-7", 7, to="talker")
    with trace.get_tracer("test").start_as_current_span("request") as request:
        rx.get("req-7", source="thinker").close()

    put, get = the(spans, "stagelink.put"), the(spans, "stagelink.get")
    assert get.parent == request.get_span_context()
    assert put.context is not None
    assert [link.context.span_id for link in get.links] == [put.context.span_id]


def test_a_draft_carries_the_context_too(
    pair: tuple[Connector, Connector], spans: InMemorySpanExporter
) -> None:
    numpy = pytest.importorskip("numpy")
    tx, rx = pair
    with tx.alloc((16, 8), numpy.float32) as draft:
        draft.tensor[:] = 1
        tx.put("req-7", draft, to="talker")
    with rx.get("req-7", source="thinker") as payload:
        assert (payload.value == 1).all()

    put, get = the(spans, "stagelink.put"), the(spans, "stagelink.get")
    assert put.context is not None
    assert get.parent is not None
    assert get.parent.span_id == put.context.span_id


def test_a_poll_is_a_span_only_when_it_finds_something(
    pair: tuple[Connector, Connector], spans: InMemorySpanExporter
) -> None:
    tx, rx = pair
    assert rx.poll("req-7", source="thinker") is None
    tx.put("req-7", 7, to="talker")
    polled(rx, "req-7").close()

    assert [s.name for s in spans.get_finished_spans()] == ["stagelink.put", "stagelink.get"]


def test_a_failure_is_on_its_span_with_its_cause(
    pair: tuple[Connector, Connector], spans: InMemorySpanExporter
) -> None:
    tx, rx = pair
    tx.put("req-7", 7, to="talker")
    spans.clear()
    with pytest.raises(DuplicateKeyError):
        tx.put("req-7", 7, to="talker")
    assert eventually(
        lambda: rx.poll("other", source="thinker") is None and rx.health()["sessions"][0]["synced"]
    )
    with pytest.raises(DeadlineError):
        rx.get("never", source="thinker", timeout=0.0)

    for name, cause in [("stagelink.put", "duplicate"), ("stagelink.get", "deadline")]:
        span = the(spans, name)
        assert span.attributes is not None
        assert span.attributes["stagelink.outcome"] == cause
        assert span.status.status_code is trace.StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(("tx_traces", "rx_traces"), [(True, False), (False, True)])
def test_one_side_may_trace_without_the_other(
    spans: InMemorySpanExporter, tx_traces: bool, rx_traces: bool
) -> None:
    tx, rx = open_pair("memory", tx=tx_traces, rx=rx_traces)
    with tx, rx:
        tx.put("req-7", [1, {"a": None}], to="talker")
        with rx.get("req-7", source="thinker") as payload:
            assert payload.value == [1, {"a": None}]
            assert bool(payload.traceparent) is tx_traces

    name = "stagelink.put" if tx_traces else "stagelink.get"
    assert [s.name for s in spans.get_finished_spans()] == [name]
    assert the(spans, name).parent is None


@pytest.mark.parametrize(
    ("library", "how"),
    [("xxhash", {"integrity": "xxh3"}), ("zstandard", {"compression": {"talker": "zstd"}})],
)
def test_what_is_put_around_a_payload_does_not_hide_the_context(
    spans: InMemorySpanExporter, library: str, how: dict[str, Any]
) -> None:
    pytest.importorskip(library)
    common: dict[str, Any] = {"backend": "memory", "pool_bytes": "1MiB", "tracing": True}
    with (
        stagelink.open(stage="thinker", role="sender", **how, **common) as tx,
        stagelink.open(stage="talker", role="receiver", sender=tx.endpoint, **common) as rx,
    ):
        rx.poll("req-7", source="thinker")
        assert is_linked(rx)
        tx.put("req-7", bytes(100_000), to="talker")
        rx.get("req-7", source="thinker").close()
        assert tx.health()["compression"]["compressed"] == ("compression" in how)

    put, get = the(spans, "stagelink.put"), the(spans, "stagelink.get")
    assert put.context is not None
    assert get.parent is not None
    assert get.parent.span_id == put.context.span_id


def test_without_tracing_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, stagelink\n"
        "stagelink.open(stage='a', role='sender', backend='memory').close()\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry') or m == 'stagelink.tracing'])"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "stagelink.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(ConfigError) as caught:
        stagelink.open(stage="a", role="sender", backend="memory", tracing=True)

    assert "pip install 'stagelink[otel]'" in str(caught.value)


def staged(value: object) -> bytearray:
    ready = PayloadSerializer().stage(value)
    body = bytearray(ready.size)
    ready.write(memoryview(body))
    return body


@pytest.mark.parametrize("value", [7, "text", [b"x" * 300] * 300, {"a": bytes(100_000)}])
def test_a_context_is_found_and_the_value_unchanged(value: object) -> None:
    body = staged(traced.Traced(PARENT, value))

    assert traced.read(body, len(body)) == PARENT
    assert PayloadSerializer().load(body, len(body)) == value


@pytest.mark.parametrize("value", [None, [], "00-0af7", [PARENT, 1], {"a": PARENT}])
def test_a_value_that_only_looks_like_it_has_no_context(value: object) -> None:
    body = staged(value)

    assert traced.read(body, len(body)) == ""


@pytest.mark.parametrize("body", [b"", b"garbage", bytes(200)])
def test_what_is_no_payload_has_no_context(body: bytes) -> None:
    assert traced.read(bytearray(body), len(body)) == ""


def test_a_path_in_an_error_is_that_of_the_value_alone() -> None:
    with pytest.raises(PayloadError, match=r"value\['a'\]\[1\]"):
        staged(traced.Traced(PARENT, {"a": [1, object()]}))


def test_a_context_that_a_peer_made_up_is_ignored(spans: InMemorySpanExporter) -> None:
    from stagelink.tracing import get_span

    get_span({}, 1, "zz" * 27 + "z").end()

    assert the(spans, "stagelink.get").parent is None
