"""Puts and gets as OpenTelemetry spans, joined across processes. Needs the extra ``otel``.

The put's span context travels as a W3C ``traceparent`` in the header of the payload. A get is made
a span when it ends: its place in the trace is known only with the payload.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stagelink.adapters.msgspec import traced
from stagelink.core.errors import StagelinkError
from stagelink.gets import Gets
from stagelink.payload import Draft
from stagelink.puts import Puts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import Span

    from stagelink.adapters.msgspec.prepare import Prepared
    from stagelink.adapters.wrap import Wrapping
    from stagelink.calls import Accounted, Calls
    from stagelink.config import Config
    from stagelink.core.events import Result
    from stagelink.payload import Payload
    from stagelink.ports import Serializer
    from stagelink.puts import PutCall, Receipt

PUT, GET = "stagelink.put", "stagelink.get"
PRODUCER, CONSUMER = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER

_tracer = trace.get_tracer("stagelink")
_context = TraceContextTextMapPropagator()


class TracedPuts(Puts):
    """Puts within a span; what they put says which."""

    def __init__(
        self, config: Config, calls: Calls, serializer: Serializer, wrapping: Wrapping
    ) -> None:
        super().__init__(config, calls, serializer, wrapping)
        # With the current span's context: a put's, or the one of a put_async.
        self.stage = lambda value: serializer.stage(marked(value))

    def put(self, value: Any, call: PutCall) -> Receipt:  # noqa: ANN401
        """Put *value* within a span of its own."""
        with put_span(call.name, call, "+".join(self._driver.parts.planes)) as span:
            receipt = super().put(value, call)
            span.set_attribute("stagelink.size", receipt.size)
            return receipt

    def put_draft(self, draft: Draft, call: PutCall) -> Receipt:
        """Publish it with the current span's context."""
        return super().put_draft(marked(draft), call)

    def prepared(self, shape: Sequence[int], dtype: object) -> Prepared:
        """The layout of a payload of one tensor, with room for a span context."""
        from stagelink.adapters.msgspec.prepare import prepare  # noqa: PLC0415 - may load torch

        return prepare(shape, dtype, traced.NOWHERE)  # never on a device: refused with tracing


class TracedGets(Gets):
    """Gets as spans, in the trace of the put unless there is one here already."""

    def payload(
        self, key: str, result: Result, call: Accounted, payload: Payload | None = None,
        *, emptied: list[int] | None = None,
    ) -> Payload:  # fmt: skip
        """What every get, poll and stream goes through with its answer: a span as long as it."""
        start_ns = time_ns() - int(call.elapsed_s * 1e9)
        attributes = _attributes(key, call, "+".join(self._driver.parts.planes))
        try:
            payload = super().payload(key, result, call, payload, emptied=emptied)
        except StagelinkError as error:
            span = get_span(attributes, start_ns, "")
            fail(span, error)
            span.end()
            raise
        attributes |= {"stagelink.size": payload.size, "stagelink.outcome": "ok"}
        get_span(attributes, start_ns, payload.traceparent).end()
        return payload


@contextmanager
def put_span(key: str, call: Accounted, backend: str) -> Iterator[Span]:
    """The current span while the put runs; says how it ended."""
    with _tracer.start_as_current_span(
        PUT, kind=PRODUCER, attributes=_attributes(key, call, backend),
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        try:
            yield span
        except StagelinkError as error:
            fail(span, error)
            raise
        span.set_attribute("stagelink.outcome", "ok")


def get_span(attributes: dict[str, Any], start_ns: int, traceparent: str) -> Span:
    """A get's span that began at *start_ns*: linked to the put's, or its child if none is current.

    *traceparent* comes from a peer; what is not one is ignored.
    """
    remote = _context.extract({"traceparent": traceparent}, Context()) if traceparent else None
    put = trace.get_current_span(remote).get_span_context() if remote is not None else None
    within = trace.get_current_span().get_span_context().is_valid
    links = [trace.Link(put)] if within and put is not None and put.is_valid else []
    return _tracer.start_span(
        GET, None if within else remote, CONSUMER, attributes, links, start_time=start_ns
    )


def marked(value: Any) -> Any:  # noqa: ANN401 - any value a user puts
    """*value* with the current span's context; as it is when nothing records spans."""
    carrier: dict[str, str] = {}
    _context.inject(carrier)
    traceparent = carrier.get("traceparent", "")
    if len(traceparent) != traced.TRACEPARENT_BYTES:
        return value
    if not isinstance(value, Draft):
        return traced.Traced(traceparent, value)
    if value.memory is not None:
        traced.fill(value.memory, traceparent)
        value.head = b""  # it begins otherwise now
    return value


def fail(span: Span, error: StagelinkError) -> None:
    """*span* ended with *error*."""
    span.record_exception(error)
    span.set_attribute("stagelink.outcome", error.cause)
    span.set_status(trace.StatusCode.ERROR, error.message)


def _attributes(key: str, call: Accounted, backend: str) -> dict[str, Any]:
    return {
        "stagelink.key": key,
        "stagelink.edge": call.context.edge or "",
        "stagelink.backend": backend,
    }
