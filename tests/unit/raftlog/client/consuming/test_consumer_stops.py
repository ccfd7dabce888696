"""The consumer when reading cannot continue, or takes long: nothing is skipped, nothing hangs, the loop continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from raftlog import Consumer
from raftlog.client.consuming import fetcher
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.records.batch import HEADER_BYTES, Codec, encode, encode_control, parse_header, stamp
from raftlog.records.header import seal
from raftlog.wire import FetchRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakePartition, FakeTopic, Fate
from tests.support.client.parts import fetchers

__all__ = ["fetchers"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


def put(partition: FakePartition, batch: bytes) -> None:
    partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, partition.leader_epoch))))


def put_values(partition: FakePartition, values: list[bytes], codec: Codec = Codec.NONE) -> None:
    put(partition, encode(values, base_timestamp_ms=1, codec=codec))


def put_control(partition: FakePartition) -> None:
    put(partition, encode_control(1, [(1, 0, 0)], base_timestamp_ms=1))


def put_unreadable(partition: FakePartition) -> None:
    """Its CRC is correct, its columns are invalid."""
    whole = encode([b"x", b"y"], base_timestamp_ms=1)
    put(partition, seal(parse_header(whole), [b"\x00" * (len(whole) - HEADER_BYTES)]))


async def until_stopped(reading: Fetcher, partition: int = 0) -> None:
    """Wait until the partition's error is known, with earlier records still prefetched."""
    async with asyncio.timeout(5):
        while reading.readers[partition].error is None:
            await reading.changed.wait()


async def test_records_before_an_error_are_handed_out_before_it_is_raised(
    cluster: FakeCluster, fetchers: list[Fetcher]
) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_values(partition, [b"a", b"b"])
    put_values(partition, [b"c"])
    damaged = partition.batches[1]
    partition.batches[1] = damaged[:-1] + bytes([damaged[-1] ^ 1])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        await until_stopped(fetchers[0])
        assert [record.value for record in await consumer.poll()] == [b"a", b"b"]
        for _ in range(2):
            with pytest.raises(CorruptBatch):
                await consumer.poll()


@pytest.mark.parametrize("way", ["poll", "iterate"])
async def test_an_unreadable_batch_is_not_skipped(cluster: FakeCluster, way: str) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_values(partition, [b"a"])
    put_unreadable(partition)
    put_values(partition, [b"d"])
    async with Consumer(cluster.bootstrap, "t") as consumer:

        async def one() -> bytes | None:
            return (await consumer.poll(1))[0].value if way == "poll" else (await anext(consumer)).value

        async with asyncio.timeout(5):
            assert await one() == b"a"
            for _ in range(2):
                with pytest.raises(CorruptBatch, match=r"t/0 \[1, 3\) from broker [0-9]+: "):
                    await one()
            assert consumer.positions == {0: 1}
            await consumer.seek(0, 3)
            assert await one() == b"d"


async def test_the_position_passes_control_batches_without_other_batches(cluster: FakeCluster) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_values(partition, [b"a"])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        assert len(await consumer.poll()) == 1
        put_control(partition)
        cluster.wake()
        await cluster.until(lambda: cluster.nodes[1].fetches[-1].partitions[0].offset == 2)
        assert (consumer.positions, consumer.lag) == ({0: 2}, {0: 0})


async def test_an_error_behind_a_control_batch_is_reported(cluster: FakeCluster) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_control(partition)
    put_values(partition, [b"b"])
    damaged = partition.batches[1]
    partition.batches[1] = damaged[:-1] + bytes([damaged[-1] ^ 1])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        with pytest.raises(CorruptBatch):
            async with asyncio.timeout(3):
                while True:
                    await consumer.poll(timeout=0.1)


async def test_a_log_that_ends_below_a_control_batch_is_reported(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_control(partition)
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=50) as consumer:
        await cluster.until(lambda: fetchers[0].readers[0].fetch_offset == 1)
        put_values(partition, [b"b"] * 9)
        partition.batches.clear()
        partition.start_offset = 10
        cluster.wake()
        with pytest.raises(InvalidRequest, match="offset 1 is not between 10 and 10"):
            async with asyncio.timeout(3):
                while True:
                    await consumer.poll(timeout=0.1)


async def test_a_partition_with_large_batches_is_read_beside_a_busy_one(cluster: FakeCluster) -> None:
    """A leader returns a batch above the requested size only if it is the answer's first."""
    busy, large = cluster.create_topic("t", partitions=2).partitions
    put_values(large, [b"x" * 600_000])

    def feed(_: FetchRequest) -> Fate:
        put_values(busy, [b"more"])
        return OK

    cluster.nodes[1].on_fetch = feed
    async with Consumer(cluster.bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        async with asyncio.timeout(5):
            while not any(record.partition == large.number for record in await consumer.poll()):
                pass


async def test_reading_available_records_lets_other_tasks_run(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    (partition,) = cluster.create_topic("t").partitions
    for _ in range(100):
        put_values(partition, [b"x" * 10] * 1000)
    async with Consumer(cluster.bootstrap, "t") as consumer:
        await cluster.until(lambda: fetchers[0].readers[0].fetch_offset == 100_000)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        other = asyncio.create_task(others())
        for _ in range(50):
            await consumer.poll(1000)
        assert turns >= 20
        turns = 0
        for _ in range(45):
            await consumer.next_batch()
        assert turns >= 3, "whole batches cost less, and still let others run"
        other.cancel()


async def test_large_batches_are_decoded_on_a_thread(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_values(partition, [b"%d" % i for i in range(100_000)], Codec.ZSTD)
    put_values(partition, [b"end"])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        await cluster.until(lambda: fetchers[0].readers[0].fetch_offset == 100_001)
        reading = asyncio.create_task(consumer.poll(10))
        await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        got = [record.offset for _ in range(3) for record in await consumer.poll(50_000)]
        assert got == list(range(100_001)), "what was being decoded for somebody who gave up is not lost"


async def test_a_seek_while_a_batch_is_decoded(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    (partition,) = cluster.create_topic("t").partitions
    put_values(partition, [b"%d" % i for i in range(50_000)])
    put_values(partition, [b"end"])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        await cluster.until(lambda: fetchers[0].readers[0].fetch_offset == 50_001)
        reading = asyncio.create_task(consumer.poll(10, timeout=5))
        await asyncio.sleep(0)
        await consumer.seek(0, 50_000)
        assert [record.value for record in await reading] == [b"end"]
        assert consumer.positions == {0: 50_001}


async def test_one_invalid_answer_of_the_api_does_not_end_reading(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "NEW_PARTITIONS_INTERVAL", 0.05)
    (partition,) = cluster.create_topic("t").partitions
    async with Consumer(cluster.bootstrap, "t") as consumer:
        node = cluster.nodes[1]
        describe = node.describe

        def broken(_: FakeTopic) -> dict[str, object]:
            raise web.HTTPInternalServerError(text="oops")

        node.describe = broken  # type: ignore[method-assign,assignment]
        called = len(node.api_calls)
        async with asyncio.timeout(5):
            while len(node.api_calls) < called + 5:
                await consumer.poll(timeout=0.05)
        node.describe = describe  # type: ignore[method-assign]
        put_values(partition, [b"a"])
        cluster.wake()
        assert [record.value for record in await consumer.poll(timeout=5)] == [b"a"]


@pytest.mark.parametrize(
    "arguments", [{"min_bytes": -1}, {"min_bytes": 1 << 40}, {"partitions": ["0"]}, {"partitions": [-1]}], ids=str
)
def test_arguments_that_no_broker_would_accept(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer("localhost:1", "t", **arguments)  # type: ignore[arg-type]
