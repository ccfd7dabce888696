"""The producer's setting `trace_context`, and a consumer that continues the trace."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer, Producer, TraceContext
from raftlog.sync import Producer as BlockingProducer
from raftlog.trace_context import parse
from tests.support.client.fake_cluster import FakeCluster

FIRST, SECOND = (
    TraceContext(f"00-{digit * 32}-00f067aa0ba902b7-01", state) for digit, state in (("1", "a=b"), ("2", ""))
)
current: contextvars.ContextVar[TraceContext | None] = contextvars.ContextVar("current", default=None)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        started.create_topic("t", partitions=1)
        yield started


async def traces(cluster: FakeCluster, count: int) -> dict[bytes | None, TraceContext | None]:
    """Value → trace of the records."""
    found = {}
    async with Consumer(cluster.bootstrap, "t") as consumer:
        async with asyncio.timeout(10):
            while len(found) < count:
                found |= {one.value: one.trace_context for one in await consumer.poll()}
    return found


async def test_each_record_carries_the_trace_of_the_work_that_sent_it(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, trace_context=current.get) as producer:
        producer.send("t", b"none")
        current.set(FIRST)
        producer.send("t", b"first")
        producer.send("t", b"own", headers={"traceparent": SECOND.traceparent.encode()})
        await producer.send_and_wait("t", b"waited", b"key")
        await producer.send_when_room("t", b"with headers", headers=[("h", b"1")])
        current.set(None)
        producer.send("t", b"none again")
        async with producer.transaction() as transaction:
            current.set(SECOND)
            transaction.send("t", b"in a transaction")
    assert await traces(cluster, 7) == {
        b"none": None,
        b"first": FIRST,
        b"own": SECOND,
        b"waited": FIRST,
        b"with headers": FIRST,
        b"none again": None,
        b"in a transaction": SECOND,
    }


async def test_without_the_setting_nothing_is_added(cluster: FakeCluster) -> None:
    current.set(FIRST)
    async with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"x")
        producer.send("t", b"invalid", headers={"traceparent": b"00-no-trace"})
    assert await traces(cluster, 2) == {b"x": None, b"invalid": None}


async def test_a_blocking_producer_takes_the_trace_of_the_thread_that_sends(cluster: FakeCluster) -> None:
    def program() -> None:
        with BlockingProducer(cluster.bootstrap, trace_context=current.get) as producer:
            producer.send("t", b"none")
            current.set(FIRST)
            producer.send("t", b"first")
            producer.send("t", b"mapping", headers={"h": b"1"})
            with producer.transaction() as transaction:
                transaction.send("t", b"in a transaction")
            wrong = producer.send("t", b"wrong", headers=[("no pair",)])  # type: ignore[list-item]
            with pytest.raises((TypeError, ValueError)):
                wrong.result(10)

    await asyncio.to_thread(program)
    expected = {b"none": None, b"first": FIRST, b"mapping": FIRST, b"in a transaction": FIRST}
    assert await traces(cluster, 4) == expected


def test_a_trace_is_made_of_the_headers_of_http() -> None:
    assert parse(FIRST.traceparent, FIRST.tracestate) == FIRST
