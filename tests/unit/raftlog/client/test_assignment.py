"""A consumer's partitions may change while it reads: they are added, removed and paused, without an effect on the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer
from raftlog.client import ConsumerRecord
from raftlog.records.batch import encode, stamp
from raftlog.wire import FetchRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakePartition, FakeTopic, Fate


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


@pytest.fixture
def topic(cluster: FakeCluster) -> FakeTopic:
    made = cluster.create_topic("t", partitions=3)
    for partition in made.partitions:
        for batch in range(4):
            put(partition, [b"%d" % (10 * batch + row) for row in range(10)])
    return made


def put(partition: FakePartition, values: list[bytes]) -> None:
    batch = encode(values, base_timestamp_ms=1000)
    partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, partition.leader_epoch))))


async def read(consumer: Consumer, count: int, at_once: int = 500) -> list[tuple[int, int]]:
    """(partition, offset) of exactly this number of records."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await consumer.poll(min(at_once, count - len(found)), timeout=0.2)
    return [(record.partition, record.offset) for record in found]


def asked_for(cluster: FakeCluster) -> list[tuple[int, int]]:
    """(partition, fetch offset) of every request from now on."""
    asked: list[tuple[int, int]] = []

    def on_fetch(request: FetchRequest) -> Fate:
        asked.extend((one.partition, one.offset) for one in request.partitions)
        cluster.wake()
        return OK

    cluster.nodes[1].on_fetch = on_fetch
    return asked


async def test_a_kept_partition_is_not_fetched_again(cluster: FakeCluster, topic: FakeTopic) -> None:
    asked = asked_for(cluster)
    async with Consumer(cluster.bootstrap, "t", [0, 1], {0: 5, 1: 0}) as consumer:
        first = await read(consumer, 12, at_once=6)
        consumer.assign({0: 0, 2: 30})
        rest = await read(consumer, 35 + 10 - sum(partition == 0 for partition, _ in first))
        assert [offset for number, offset in [*first, *rest] if number == 0] == list(range(5, 40))
        assert [offset for number, offset in rest if number == 2] == list(range(30, 40))
        assert not [number for number, _ in rest if number == 1]
        assert consumer.positions == {0: 40, 2: 40}
        assert asked.count((0, 5)) == 1, "what was fetched ahead was kept"
        consumer.assign({0: 0, 1: 38})
        assert await read(consumer, 2) == [(1, 38), (1, 39)]


async def test_the_current_batch_is_dropped_with_its_partition(cluster: FakeCluster, topic: FakeTopic) -> None:
    async with Consumer(cluster.bootstrap, "t", [0], {0: 0}) as consumer:
        await read(consumer, 3)
        consumer.assign({1: 7})
        assert await read(consumer, 1) == [(1, 7)]
        consumer.assign({0: 2})
        assert await read(consumer, 2) == [(0, 2), (0, 3)]


async def test_partitions_assigned_before_the_topic_is_known(cluster: FakeCluster, topic: FakeTopic) -> None:
    consumer = Consumer(cluster.bootstrap, "t", [0], {0: 0})
    consumer.assign({1: 3, 2: 4})
    consumer.go_on_at(2, 39)
    assert sorted(await read(consumer, 38)) == [(1, offset) for offset in range(3, 40)] + [(2, 39)]
    await consumer.close()


async def test_a_partition_that_the_node_does_not_know_yet_is_waited_for(
    cluster: FakeCluster, topic: FakeTopic
) -> None:
    """A lagging node must not end the reading of a topic that grew."""
    async with Consumer(cluster.bootstrap, "t", [0], {0: 39}) as consumer:
        assert await read(consumer, 1) == [(0, 39)]
        consumer.assign({0: 0, 3: 0})
        assert await consumer.poll(timeout=0.05) == []
        topic.partitions.append(FakePartition(3, leader=topic.partitions[0].leader))
        put(topic.partitions[3], [b"x"])
        assert await read(consumer, 1) == [(3, 0)]


async def test_paused_partitions_are_neither_fetched_nor_handed_out(cluster: FakeCluster, topic: FakeTopic) -> None:
    async with Consumer(cluster.bootstrap, "t", [0, 1], {0: 0, 1: 0}) as consumer:
        first = await read(consumer, 3)
        paused = first[-1][0]
        consumer.pause([paused])
        other = await read(consumer, 40)
        assert other == [(1 - paused, offset) for offset in range(40)]
        assert await consumer.poll(timeout=0.05) == []
        assert consumer.positions[paused] == 3
        asked = asked_for(cluster)
        put(topic.partitions[1 - paused], [b"more"])
        assert await read(consumer, 1) == [(1 - paused, 40)]
        assert not [number for number, _ in asked if number == paused]
        consumer.resume([paused])
        assert await read(consumer, 37) == [(paused, offset) for offset in range(3, 40)]


async def test_a_waiting_poll_gets_records_of_a_resumed_partition(cluster: FakeCluster, topic: FakeTopic) -> None:
    async with Consumer(cluster.bootstrap, "t", [0], {0: 0}) as consumer:
        consumer.pause([0])
        waiting = asyncio.create_task(consumer.poll(timeout=10.0))
        await asyncio.sleep(0)
        consumer.resume([0])
        assert [record.offset for record in await waiting][:2] == [0, 1]


async def test_assigned_partitions_are_requested_while_the_leader_still_waits(
    cluster: FakeCluster, topic: FakeTopic
) -> None:
    """A long poll of other partitions delays nothing: the new partitions get one of their own, so that their records
    need not wait."""
    async with Consumer(cluster.bootstrap, "t", [0], {0: 40}, max_wait_ms=30_000) as consumer:
        asked = asked_for(cluster)
        waiting = asyncio.create_task(consumer.poll(timeout=30.0))
        await cluster.until(lambda: (0, 40) in asked)
        async with asyncio.timeout(5):
            consumer.assign({0: 40, 2: 39})
            assert [(record.partition, record.offset) for record in await waiting] == [(2, 39)]
