"""Spans of OpenTelemetry: from a producer's over the record to a consumer's, in one trace."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from raftlog import Consumer, ConsumerRecord, Producer
from raftlog.client.opentelemetry import context_of, current, processing, sending
from tests.support.client.fake_cluster import FakeCluster


async def test_a_trace_goes_from_the_producer_to_the_consumer() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    assert current() is None
    async with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        async with Producer(cluster.bootstrap, trace_context=current) as producer:
            with sending("t", tracer):
                producer.send("t", b"traced")
            producer.send("t", b"untraced")
        async with Consumer(cluster.bootstrap, "t") as consumer, asyncio.timeout(10):
            records: list[ConsumerRecord] = []
            while len(records) < 2:
                records += await consumer.poll()
    for record in records:
        with processing(record, tracer):
            pass
    sent, processed, alone = exporter.get_finished_spans()
    assert (sent.name, sent.kind, processed.name, processed.kind) == (
        "send t", SpanKind.PRODUCER, "process t", SpanKind.CONSUMER
    )  # fmt: skip
    assert sent.context is not None and processed.context is not None and processed.parent is not None
    assert processed.context.trace_id == sent.context.trace_id and processed.parent.span_id == sent.context.span_id
    assert alone.parent is None
    assert processed.attributes is not None and dict(processed.attributes) == {
        "messaging.system": "raftlog",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.raftlog.offset": 0,
    }
    provider.shutdown()


def test_an_exception_is_told_by_the_span() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    record = ConsumerRecord("t", 0, 7, 0, None, b"", (("traceparent", b"nonsense"),))
    with pytest.raises(ValueError, match="wrong"), processing(record, provider.get_tracer("test")):
        raise ValueError("wrong")
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR and span.parent is None
    assert not get_current_span(context_of(record)).get_span_context().is_valid
    provider.shutdown()
