"""A caller over its quota: the client waits as long as the answer says, and loses nothing (KIP-219; S1, S3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer, Producer
from raftlog.client.cluster import transport
from raftlog.client.producing.sender import Sender
from raftlog.errors import RetriableError
from raftlog.wire import FetchRequest, ProduceRequest
from tests.support.client.fake_cluster import OK, FakeCluster, Fate
from tests.support.client.parts import senders

__all__ = ["senders"]

THROTTLE = 0.4
EARLY = 0.02
"""Seconds by which a timer may be early, and times differ between two ends of a connection."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        started.create_topic("t")
        yield started


class Throttling:
    """A node's answers, the first of which have a throttle time, and the loop times of the requests."""

    def __init__(self, answers: int = 1, seconds: float = THROTTLE) -> None:
        self._answers = answers
        self._seconds = seconds
        self.times: list[float] = []

    def __call__(self, request: ProduceRequest | FetchRequest) -> Fate:
        self.times.append(asyncio.get_running_loop().time())
        return Fate(throttle_ms=int(self._seconds * 1000)) if len(self.times) <= self._answers else OK


async def test_a_producer_sends_nothing_while_it_is_throttled_and_loses_nothing_s1(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = throttling = Throttling()
    async with asyncio.timeout(20), Producer(cluster.bootstrap, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"0")
        told_at = asyncio.get_running_loop().time()
        placed = await asyncio.gather(*(producer.send_and_wait("t", b"%d" % i) for i in range(1, 50)))
        assert [place.offset for place in placed] == list(range(1, 50))
    assert throttling.times[1] >= told_at + THROTTLE - EARLY
    assert cluster.topics["t"].partitions[0].values() == [b"%d" % i for i in range(50)]


async def test_a_consumer_asks_nothing_while_it_is_throttled_and_loses_nothing_s3(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"0")
    cluster.nodes[1].on_fetch = throttling = Throttling()
    async with asyncio.timeout(20), Consumer(cluster.bootstrap, "t", max_wait_ms=50) as consumer:
        values = [record.value for record in await consumer.poll(10, timeout=5)]
        told_at = asyncio.get_running_loop().time()
        assert await consumer.poll(10, timeout=THROTTLE / 4) == [], "the caller's own deadline holds"
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
        while len(values) < 2:
            values += [record.value for record in await consumer.poll(10, timeout=5)]
    assert values == [b"0", b"1"]
    assert throttling.times[1] >= told_at + THROTTLE - EARLY


async def test_records_expire_at_their_deadline_also_while_the_producer_is_throttled(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = throttling = Throttling(seconds=30)
    async with asyncio.timeout(20):
        producer = Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=500)
        await producer.send_and_wait("t", b"0")
        with pytest.raises(RetriableError):
            await producer.send_and_wait("t", b"1")
        await producer.close()
    assert len(throttling.times) == 1
    assert cluster.topics["t"].partitions[0].values() == [b"0"]


async def test_the_time_that_a_broker_demands_is_bounded(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_THROTTLE", 0.1)
    cluster.nodes[1].on_produce = Throttling(seconds=1e9)
    async with asyncio.timeout(20), Producer(cluster.bootstrap, linger_ms=0) as producer:
        for _ in range(3):
            await producer.send_and_wait("t", b"v")


async def test_requests_that_wait_at_the_broker_are_neither_late_nor_lost_s1(
    cluster: FakeCluster, senders: list[Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker lets requests in flight wait as long as it says: the time counts from the end of that."""
    monkeypatch.setattr(transport, "DEADLINE_CHECK", 0.02)
    released, held = asyncio.Event(), asyncio.Event()

    def fate(_: ProduceRequest) -> Fate:
        first = len(cluster.nodes[1].produces) == 1
        return Fate(throttle_ms=30_000, hold=released) if first else Fate(hold=held)

    cluster.nodes[1].on_produce = fate
    monkeypatch.setattr("raftlog.client.producing.requests.ANSWER_GRACE", 0.2)
    async with asyncio.timeout(20), Producer(cluster.bootstrap, linger_ms=1, request_timeout_ms=1) as producer:
        first = producer.send("t", b"0")
        await cluster.until(lambda: len(cluster.nodes[1].produces) == 1)
        second = producer.send("t", b"1")
        await cluster.until(lambda: len(cluster.nodes[1].produces) == 2)
        released.set()
        await first
        described = cluster.describes
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):  # five times the deadline, and twice the time of a late answer
                await asyncio.shield(second)
        assert cluster.describes <= described + 1, "a late answer would be looked into five times a second"
        held.set()
        assert (await second).base_offset == 1
    assert len(cluster.nodes[1].produces) == 2, "nothing was sent twice"
