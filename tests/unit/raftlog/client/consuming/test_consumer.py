"""The consumer with a cluster in memory: every record once and in order, whatever happens to brokers (S3)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog import Consumer, Producer
from raftlog.client import ConsumerRecord
from raftlog.client.consuming import fetcher, topic_readers
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.errors import ClientClosed, CorruptBatch, InvalidRequest, RetriableError
from raftlog.records.batch import Codec, encode, encode_control, parse_header, stamp
from raftlog.wire import FetchRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakePartition, Fate
from tests.support.client.parts import fetchers
from tests.support.clusters.held_port import HeldPort

__all__ = ["fetchers"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as started:
        yield started


def put(partition: FakePartition, values: list[bytes], *, codec: Codec = Codec.NONE, time_ms: int = 1000) -> None:
    """Append a batch to the log."""
    batch = encode(values, codec=codec, base_timestamp_ms=time_ms)
    partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, partition.leader_epoch))))


def fill(partition: FakePartition, batches: int, rows: int = 10) -> list[bytes]:
    values = [b"%d/%d" % (partition.number, i) for i in range(batches * rows)]
    for start in range(0, len(values), rows):
        put(partition, values[start : start + rows])
    return values


async def read(consumer: Consumer, count: int, at_once: int = 500) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(10):
        while len(records) < count:
            records += await consumer.poll(min(at_once, count - len(records)))
    return records


def by_partition(records: list[ConsumerRecord]) -> dict[int, list[ConsumerRecord]]:
    found: dict[int, list[ConsumerRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


async def test_all_partitions_are_read_in_order(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=4)
    written = {partition.number: fill(partition, 20) for partition in topic.partitions}
    async with Consumer(cluster.bootstrap, "t") as consumer:
        found = by_partition(await read(consumer, 800, at_once=7))
        assert {number: [r.value for r in records] for number, records in found.items()} == written
        assert all([r.offset for r in records] == list(range(200)) for records in found.values())
        assert consumer.positions == consumer.high_watermarks == dict.fromkeys(range(4), 200)
        assert consumer.lag == dict.fromkeys(range(4), 0)
        assert consumer.caught_up
        assert await consumer.poll(timeout=0.05) == []


async def test_records_of_a_producer_with_all_their_members(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap, "t", start="latest") as consumer:
        producer.send("t", b"v", key=b"k", timestamp_ms=77, headers={"h": b"1"})
        assert await read(consumer, 1) == [ConsumerRecord("t", 0, 0, 77, b"k", b"v", (("h", b"1"),))]


async def test_chosen_partitions_and_starting_positions(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=4)
    for partition in topic.partitions:
        for time_ms in (1000, 2000, 3000):
            put(partition, [b"%d" % time_ms] * 10, time_ms=time_ms)
    starts: dict[int, Any] = {0: 25, 1: "@1500", 2: "latest"}
    async with Consumer(cluster.bootstrap, "t", partitions=[0, 1, 2], start=starts) as consumer:
        assert consumer.positions == {0: 25, 1: 10, 2: 30}
        found = by_partition(await read(consumer, 25))
        assert {number: len(records) for number, records in found.items()} == {0: 5, 1: 20}
        put(topic.partitions[2], [b"new"])
        assert [(r.partition, r.value) for r in await read(consumer, 1)] == [(2, b"new")]
    async with Consumer(cluster.bootstrap, "t", start="@9999") as consumer:
        assert set(consumer.positions.values()) == {30, 31}, "a time after the last record is the end"


async def test_a_batch_that_begins_below_the_position_is_shown_from_there(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    put(topic.partitions[0], [b"%d" % i for i in range(10)])
    async with Consumer(cluster.bootstrap, "t", start=7) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None
        assert (batch.start_offset, batch.end_offset, len(batch)) == (7, 10, 3)
        assert batch.values() == [b"7", b"8", b"9"]
        assert list(batch.offsets()) == [7, 8, 9]
        assert batch.to_arrow().column("value").to_pylist() == [b"7", b"8", b"9"]
        assert [record.offset for record in batch.records()] == [7, 8, 9]
        assert len(batch.keys()) == len(batch.timestamps_ms()) == len(batch.headers()) == 3
        assert consumer.positions == {0: 10}


async def test_the_ways_to_read_can_be_mixed(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    values = fill(topic.partitions[0], 5, rows=100)
    async with Consumer(cluster.bootstrap, "t") as consumer:
        got = [record.value for record in await consumer.poll(30)]
        assert consumer.positions == {0: 30}
        async for record in consumer:
            got.append(record.value)
            assert consumer.positions == {0: record.offset + 1}
            if len(got) == 60:
                break
        batch = await consumer.next_batch()
        assert batch is not None and (batch.start_offset, batch.end_offset) == (60, 100)
        got += batch.values()
        async for batch in consumer.batches():
            got += batch.values()
            if len(got) == 300:
                break
        got += [record.value for record in await read(consumer, 200)]
    assert got == values


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
async def test_codecs(cluster: FakeCluster, codec: Codec) -> None:
    topic = cluster.create_topic("t")
    put(topic.partitions[0], [b"x" * 1000] * 50, codec=codec)
    async with Consumer(cluster.bootstrap, "t") as consumer:
        assert [record.value for record in await read(consumer, 50)] == [b"x" * 1000] * 50


async def test_control_batches_are_skipped(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    (partition,) = topic.partitions

    def control() -> None:
        batch = encode_control(1, [(1, 0, 0)], base_timestamp_ms=1)
        partition.put(b"".join(map(bytes, stamp(batch, partition.end_offset, 1))))

    put(partition, [b"a"])
    control()
    put(partition, [b"b"])
    control()
    control()
    async with Consumer(cluster.bootstrap, "t") as consumer:
        assert [(record.offset, record.value) for record in await read(consumer, 2)] == [(0, b"a"), (2, b"b")]
        assert await consumer.poll(timeout=0.05) == []
        assert (consumer.positions, consumer.lag) == ({0: 5}, {0: 0})
        put(partition, [b"c"])
        cluster.wake()
        assert [record.offset for record in await read(consumer, 1)] == [5]


async def test_a_long_poll_is_answered_when_a_record_arrives(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=30_000) as consumer:
        waiting = asyncio.create_task(consumer.poll(timeout=10))
        await cluster.until(lambda: cluster.nodes[1].fetches)
        await asyncio.sleep(0.02)
        assert not waiting.done() and len(cluster.nodes[1].fetches) == 1
        put(topic.partitions[0], [b"x"])
        cluster.wake()
        async with asyncio.timeout(1):
            assert [record.value for record in await waiting] == [b"x"]


async def test_prefetched_data_is_bounded(cluster: FakeCluster, fetchers: list[Fetcher]) -> None:
    topic = cluster.create_topic("t", partitions=4)
    for partition in topic.partitions:
        fill(partition, 40, rows=1)
        for _ in range(100):
            put(partition, [b"x" * 10_000] * 10)
    async with Consumer(cluster.bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        await read(consumer, 1)
        await asyncio.sleep(0.2)
        (inner,) = fetchers
        ahead = [reader.buffered_bytes for reader in inner.readers.values()]
        assert sum(ahead) <= (1 << 20) + 4 * 110_000
        assert min(ahead) > 0, "no partition takes it all"
        found = by_partition(await read(consumer, 4 * 1040 - 1))
        assert sum(map(len, found.values())) == 4 * 1040 - 1


async def test_seek(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2)
    for partition in topic.partitions:
        fill(partition, 10)
    async with Consumer(cluster.bootstrap, "t") as consumer:
        await consumer.poll(33)
        await consumer.seek(0, 95)
        await consumer.seek(1, "latest")
        assert [(r.partition, r.offset) for r in await read(consumer, 5)] == [(0, o) for o in range(95, 100)]
        assert await consumer.poll(timeout=0.05) == []
        await consumer.seek(0, "earliest")
        assert [r.offset for r in await read(consumer, 100)] == list(range(100))
        for wrong in (-1, "somewhere", "@x", True):
            with pytest.raises(InvalidRequest):
                await consumer.seek(0, wrong)
        with pytest.raises(InvalidRequest):
            await consumer.seek(7, 0)


async def test_an_offset_that_is_out_of_range(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    (partition,) = topic.partitions
    fill(partition, 10)
    del partition.batches[:5]
    partition.start_offset = 50
    async with Consumer(cluster.bootstrap, "t", start=10) as consumer:
        with pytest.raises(InvalidRequest, match="offset 10 is not between 50 and 100"):
            await consumer.poll()
        with pytest.raises(InvalidRequest):
            await consumer.next_batch()
        await consumer.seek(0, "earliest")
        assert (await read(consumer, 1))[0].offset == 50
    async with Consumer(cluster.bootstrap, "t", start=10, on_out_of_range="earliest") as consumer:
        assert (await read(consumer, 1))[0].offset == 50
    async with Consumer(cluster.bootstrap, "t", start=500, on_out_of_range="latest") as consumer:
        assert await consumer.poll(timeout=0.3) == []
        put(partition, [b"new"])
        cluster.wake()
        assert (await read(consumer, 1))[0].offset == 100


async def test_damage_in_transit_is_fetched_again_and_permanent_damage_is_reported(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2)
    (damaged, sound) = topic.partitions
    fill(damaged, 3)
    fill(sound, 1)
    good = damaged.batches[1]
    damaged.batches[1] = good[:-1] + bytes([good[-1] ^ 1])
    async with Consumer(cluster.bootstrap, "t") as consumer:
        got = await read(consumer, 20)
        assert len(by_partition(got)[0]) == 10, "what came before the damage is handed out"
        with pytest.raises(CorruptBatch):
            async with asyncio.timeout(5):
                while True:
                    await consumer.poll()
        assert len(cluster.nodes[1].fetches) >= 3
        damaged.batches[1] = good
        await consumer.seek(0, 10)
        assert [record.offset for record in await read(consumer, 20)] == list(range(10, 30))


async def test_an_answer_that_was_not_requested(cluster: FakeCluster) -> None:
    """Batches out of order, as a broker with a bug might send them, are never handed out."""
    topic = cluster.create_topic("t")
    (partition,) = topic.partitions
    fill(partition, 4)
    partition.batches[2], partition.batches[1] = partition.batches[1], partition.batches[2]
    async with Consumer(cluster.bootstrap, "t") as consumer:
        got: list[int] = []
        with pytest.raises(CorruptBatch, match=r"t/0 at offset [0-9]+ from broker [0-9]+: .*should follow"):
            async with asyncio.timeout(5):
                while True:
                    got += [record.offset for record in await consumer.poll()]
        assert got == []


@pytest.mark.parametrize(
    "fate",
    [Fate(drop_before=True), Fate(error="not_leader"), Fate(error="fenced_leader_epoch"), Fate(error="overloaded")],
    ids=str,
)
async def test_one_failing_fetch(cluster: FakeCluster, fate: Fate) -> None:
    topic = cluster.create_topic("t")
    values = fill(topic.partitions[0], 2000)
    seen = 0

    def second(_: FetchRequest) -> Fate:
        nonlocal seen
        seen += 1
        return fate if seen == 2 else OK

    cluster.nodes[1].on_fetch = second
    async with Consumer(cluster.bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        assert [record.value for record in await read(consumer, 20_000)] == values


async def test_the_leader_dies(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    (partition,) = topic.partitions
    fill(partition, 10)
    async with Consumer(cluster.bootstrap, "t") as consumer:
        assert len(await read(consumer, 100)) == 100
        await cluster.nodes[1].kill()
        cluster.move_leader("t", 0, 2)
        put(partition, [b"after"])
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert [(r.offset, r.value) for r in await read(consumer, 1)] == [(100, b"after")]
        assert loop.time() - before < 2.5


async def test_the_leader_is_stopped_without_dying(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    (partition,) = topic.partitions
    fill(partition, 10)
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=100) as consumer:
        assert len(await read(consumer, 100)) == 100
        cluster.nodes[1].on_fetch = lambda _: Fate(ignore=True)
        cluster.nodes[1].api_hangs = True
        cluster.move_leader("t", 0, 2)
        put(partition, [b"after"])
        assert [r.value for r in await read(consumer, 1)] == [b"after"]


async def test_added_partitions_are_read_from_their_beginning(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "NEW_PARTITIONS_INTERVAL", 0.05)
    topic = cluster.create_topic("t")
    async with Consumer(cluster.bootstrap, "t", start="latest") as consumer:
        added = FakePartition(1, leader=2)
        topic.partitions.append(added)
        put(added, [b"x"])
        assert [(r.partition, r.value) for r in await read(consumer, 1)] == [(1, b"x")]


async def test_a_topic_that_does_not_exist(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetcher, topic_readers):
        monkeypatch.setattr(module, "UNKNOWN_TOPIC_GRACE", 0.05)
    with pytest.raises(InvalidRequest, match="unknown_topic"):
        async with Consumer(cluster.bootstrap, "t"):
            pass
    cluster.create_topic("t", partitions=2)
    with pytest.raises(InvalidRequest, match="partitions 0 to 1, not 5"):
        async with Consumer(cluster.bootstrap, "t", partitions=[0, 5]):
            pass
    consumer = Consumer(cluster.bootstrap, "t")
    await consumer.start()
    cluster.create_topic("t")
    with pytest.raises(InvalidRequest, match="created again"):
        async with asyncio.timeout(5):
            while True:
                await consumer.poll(timeout=0.1)
    await consumer.close()
    with pytest.raises(ClientClosed, match="shutting_down"):
        await consumer.poll()


async def test_an_unreachable_cluster(held: HeldPort) -> None:
    consumer = Consumer(str(held), "t")
    with pytest.raises(RetriableError, match="cannot connect"):
        await consumer.start(timeout=0.3)
    assert await consumer.poll(timeout=0.05) == []
    await consumer.close()


@pytest.mark.parametrize(
    "arguments",
    [{"start": "now"}, {"start": -1}, {"start": {0: "x"}}, {"partitions": []}, {"on_out_of_range": "hope"},
     {"max_wait_ms": 0}, {"prefetch_bytes": 10}],
)  # fmt: skip
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer("localhost:1", "t", **arguments)


@pytest.mark.parametrize("seed", range(3))
async def test_everything_fails_now_and_then(cluster: FakeCluster, seed: int) -> None:
    dice = random.Random(seed)
    topic = cluster.create_topic("t", partitions=3)
    fates = [Fate(drop_before=True), Fate(error="not_leader"), Fate(error="overloaded")]
    for node in cluster.nodes.values():
        node.on_fetch = lambda _: dice.choice(fates) if dice.random() < 0.1 else OK
    written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    async def write() -> None:
        for number in range(300):
            partition = dice.choice(topic.partitions)
            values = [b"%d.%d" % (number, i) for i in range(dice.randrange(1, 20))]
            written[partition.number] += values
            put(partition, values)
            cluster.wake()
            if dice.random() < 0.1:
                cluster.move_leader("t", dice.randrange(3), dice.choice([1, 2, 3]))
            await asyncio.sleep(0.002)

    writing = asyncio.create_task(write())
    got: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    async with Consumer(cluster.bootstrap, "t", max_wait_ms=50) as consumer:
        async with asyncio.timeout(20):
            while not writing.done() or sum(map(len, got.values())) < sum(map(len, written.values())):
                for record in await consumer.poll(50, timeout=0.1):
                    assert record.offset == len(got[record.partition])
                    got[record.partition].append(record.value)
    assert got == written
    assert parse_header(topic.partitions[0].batches[0]).leader_epoch == 1
