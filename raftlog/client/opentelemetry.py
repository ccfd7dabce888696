"""Spans of OpenTelemetry around records that are sent and processed; needs the extra `raftlog[otel]`.

`Producer(..., trace_context=current)` gives each record the span that is current when it is sent. `processing(record)`
is a span whose parent is that one, in whatever process the record is read. Names and attributes follow OpenTelemetry's
semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from raftlog.client.consuming.records import ConsumerRecord
from raftlog.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse
from raftlog.version import __version__

SYSTEM = "raftlog"
_propagator = TraceContextTextMapPropagator()


def current() -> TraceContext | None:
    """Return the context of the current span; None if there is none. For the setting `trace_context`."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return parse(carrier.get(TRACEPARENT, ""), carrier.get(TRACESTATE, ""))


def context_of(record: ConsumerRecord) -> Context:
    """Return the context in which a record was sent; an empty one if the record carries none."""
    found = record.trace_context
    carrier = {} if found is None else {TRACEPARENT: found.traceparent, TRACESTATE: found.tracestate}
    return _propagator.extract(carrier, Context())


@contextmanager
def sending(topic: str, tracer: Tracer | None = None) -> Iterator[Span]:
    """Make a span of a producer current: `with sending("orders"): producer.send("orders", value)`.

    An exception of the block becomes an event of the span and its status. `tracer`: by default that of this library.
    """
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    with _of(tracer).start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
        yield span


@contextmanager
def processing(record: ConsumerRecord, tracer: Tracer | None = None) -> Iterator[Span]:
    """Make a span of a consumer current, as a child of the one in which the record was sent.

    An exception of the block becomes an event of the span and its status. `tracer`: by default that of this library.
    """
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.raftlog.offset": record.offset,
    }
    with _of(tracer).start_as_current_span(
        f"process {record.topic}", context=context_of(record), kind=SpanKind.CONSUMER, attributes=attributes
    ) as span:
        yield span


def _of(tracer: Tracer | None) -> Tracer:
    return get_tracer(SYSTEM, __version__) if tracer is None else tracer
