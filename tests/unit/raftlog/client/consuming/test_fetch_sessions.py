"""A consumer names only changed partitions, and all of them after a broker has dropped the session (the idea of
KIP-227, S1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer
from raftlog.client.consuming import channels as fetch_channel
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.records.batch import encode, stamp
from tests.support.client.fake_cluster import FakeCluster, FakePartition
from tests.support.client.parts import fetchers

__all__ = ["fetchers"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


def put(cluster: FakeCluster, partition: FakePartition, count: int = 1) -> None:
    values = [b"%d/%d" % (partition.number, partition.end_offset + number) for number in range(count)]
    batch = encode(values, base_timestamp_ms=1000)
    partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, partition.leader_epoch))))
    cluster.wake()


async def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [(record.partition, record.offset) for record in await consumer.poll(timeout=0.2)]
    return found


async def test_idle_partitions_are_named_once(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=300)
    node = cluster.nodes[1]
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=20) as consumer:
        await cluster.until(lambda: len(node.fetching.asked) >= 5)
        busy = topic.partitions[17]
        for number in range(20):
            put(cluster, busy)
            assert await read(consumer, 1) == [(17, number)]
        assert consumer.high_watermarks == {number: 20 * (number == 17) for number in range(300)}
    named = [slot.partition for request in node.fetching.asked for slot in request.added]
    assert sorted(named) == sorted([*range(300), *[17] * 20])
    assert [request.begins for request in node.fetching.asked].count(True) == 1
    assert not any(request.dropped for request in node.fetching.asked)


async def test_a_session_that_the_broker_dropped_begins_again(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=3)
    node = cluster.nodes[1]
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=20) as consumer:
        for round_number in range(3):
            for partition in topic.partitions:
                put(cluster, partition, 2)
            found = await read(consumer, 6)
            assert sorted(found) == [(p, 2 * round_number + n) for p in range(3) for n in range(2)]
            node.fetching.sessions.clear()
        assert sum(request.begins for request in node.fetching.asked) >= 3


async def test_without_room_for_a_session_every_fetch_names_all(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_channel, "SESSION_AGAIN", 0.2)
    topic = cluster.create_topic("t", partitions=3)
    node = cluster.nodes[1]
    node.fetching.refuse_sessions = True
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=20) as consumer:
        for partition in topic.partitions:
            put(cluster, partition)
        assert sorted(await read(consumer, 3)) == [(0, 0), (1, 0), (2, 0)]
        refused = len(node.fetching.asked)
        assert len(node.fetches) > refused
        node.fetching.refuse_sessions = False
        await cluster.until(lambda: len(node.fetching.asked) > refused + 2)
        for partition in topic.partitions:
            put(cluster, partition)
        assert sorted(await read(consumer, 3)) == [(0, 1), (1, 1), (2, 1)]


async def test_data_before_a_seek_is_dropped_and_never_handed_out(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2)
    for partition in topic.partitions:
        put(cluster, partition, 10)
    node = cluster.nodes[1]
    async with Consumer(cluster.bootstrap, "t", start=10, max_wait_ms=2000) as consumer:
        await cluster.until(lambda: node.fetching.asked)
        await consumer.seek(0, 4)
        assert await read(consumer, 6) == [(0, offset) for offset in range(4, 10)]
        assert any(request.dropped for request in node.fetching.asked)
        put(cluster, topic.partitions[1])
        assert await read(consumer, 1) == [(1, 10)]


async def test_a_partition_that_is_no_longer_read_is_dropped_at_its_leader(cluster: FakeCluster) -> None:
    """An unused slot would occupy room at the broker, and be answered for nothing."""
    cluster.create_topic("t", partitions=2)
    node = cluster.nodes[1]
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=20) as consumer:
        await cluster.until(lambda: node.fetching.asked)
        (slot,) = (slot.slot for request in node.fetching.asked for slot in request.added if slot.partition == 1)
        consumer.assign({0: 0})
        await cluster.until(lambda: any(request.dropped for request in node.fetching.asked))
        assert [number for request in node.fetching.asked for number in request.dropped] == [slot]


async def test_partitions_move_with_their_leader(cluster: FakeCluster) -> None:
    async with FakeCluster(nodes=2) as two:
        topic = two.create_topic("t", partitions=4)
        async with Consumer(two.bootstrap, "t", max_wait_ms=100) as consumer:
            for round_number in range(4):
                for partition in topic.partitions:
                    two.move_leader("t", partition.number, 1 + (partition.number + round_number) % 2)
                    put(two, partition)
                found = await read(consumer, 4)
                assert sorted(found) == [(number, round_number) for number in range(4)]


async def test_a_broker_that_sends_goaway_loses_its_session(cluster: FakeCluster) -> None:
    """GOAWAY: waiting partitions are requested elsewhere, though they were not answered."""
    async with FakeCluster(nodes=2) as two:
        topic = two.create_topic("t", partitions=2)
        async with Consumer(two.bootstrap, "t", max_wait_ms=100) as consumer:
            for partition in topic.partitions:
                put(two, partition)
            assert sorted(await read(consumer, 2)) == [(0, 0), (1, 0)]
            two.move_leader("t", 0, 2)
            await two.nodes[1].stop_gracefully()
            put(two, topic.partitions[0])
            assert await read(consumer, 1) == [(0, 1)]


async def test_idle_partitions_do_not_block_requests(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    """Every partition at the end of its log may have a long poll open; a request for another partition waits for
    none."""
    topic = cluster.create_topic("t", partitions=12)
    put(cluster, topic.partitions[11], 5)
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=20_000) as consumer:
        assert len(await read(consumer, 5)) == 5
        for idle in range(11):
            await consumer.seek(idle, 0)
        await consumer.seek(11, 2)
        async with asyncio.timeout(10):
            assert await read(consumer, 3) == [(11, 2), (11, 3), (11, 4)]
        (fetcher,) = fetchers
        async with asyncio.timeout(10):
            while fetcher.facts().open_polls > fetch_channel.MAX_POLLS:
                await consumer.poll(timeout=0.01)
    waits = [request.max_wait_ms for request in cluster.nodes[1].fetching.asked]
    assert set(waits) == {20_000, 0} and waits.count(0) <= 10
