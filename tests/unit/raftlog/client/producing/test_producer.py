"""The producer's calls, with a cluster in memory: partitions, columns, bounds, refusals and their times."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from raftlog import Producer
from raftlog.client.producing import accumulator, sender
from raftlog.client.producing.sender import Sender
from raftlog.errors import Applied, ClientClosed, InvalidRequest, RaftlogError, RetriableError
from raftlog.partitioner import partition_for_key
from raftlog.records.batch import RecordBatch, parse_header
from tests.support.client.fake_cluster import FakeCluster, Fate
from tests.support.client.parts import senders

__all__ = ["senders"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


async def test_records_arrive_with_all_their_members(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"plain")
        producer.send("t", b"full", key=b"k", timestamp_ms=77, headers={"a": b"1", "b": None})
        producer.send("t", None, key=b"k", partition=0, headers=[("twice", b"1"), ("twice", b"2")])
    records = [r for batch in topic.partitions[0].batches for r in RecordBatch(batch).records()]
    found = {(r.value, r.key, r.headers) for r in records}
    assert found == {
        (b"plain", None, ()),
        (b"full", b"k", (("a", b"1"), ("b", None))),
        (None, b"k", (("twice", b"1"), ("twice", b"2"))),
    }
    times = {r.value: r.timestamp_ms for r in records}
    assert times[b"full"] == 77
    assert abs(times[b"plain"] - times[None]) < 10_000 and times[b"plain"] > 1_600_000_000_000


@pytest.mark.parametrize("prepared", [True, False], ids=["topic known", "topic not known yet"])
async def test_keys_choose_partitions_as_kafka_does(cluster: FakeCluster, prepared: bool) -> None:
    topic = cluster.create_topic("t", partitions=5)
    keys = [os.urandom(i % 12) for i in range(300)]
    async with Producer(cluster.bootstrap) as producer:
        if prepared:
            await producer.prepare("t")
        deliveries = [producer.send("t", b"v", key=key) for key in keys]
        for key, delivery in zip(keys, deliveries, strict=True):
            assert (await delivery).partition == partition_for_key(key, 5)
    for partition in topic.partitions:
        assert partition.keys() == [key for key in keys if partition_for_key(key, 5) == partition.number]


async def test_send_and_wait_returns_each_records_own_offset(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2)
    async with Producer(cluster.bootstrap, batch_bytes=2000) as producer:
        values = [b"%d" % i for i in range(2000)]
        placed = await asyncio.gather(*(producer.send_and_wait("t", value) for value in values))
    for value, place in zip(values, placed, strict=True):
        assert topic.partitions[place.partition].values()[place.offset] == value


async def test_records_without_key_fill_batches_and_reach_every_partition(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=3)
    async with Producer(cluster.bootstrap, batch_bytes=4096) as producer:
        await producer.prepare("t")
        for i in range(3000):
            producer.send("t", b"%06d" % i)
            if i % 100 == 0:
                await producer.drain()
    counts = [len(partition.values()) for partition in topic.partitions]
    assert sum(counts) == 3000 and min(counts) > 300
    batches = [batch for partition in topic.partitions for batch in partition.batches]
    assert len(batches) < 100


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_keep_their_order(cluster: FakeCluster, codec: str) -> None:
    topic = cluster.create_topic("t")
    values = [b"%08d" % i * 20 for i in range(3000)]
    async with Producer(cluster.bootstrap, compression=codec, batch_bytes=32 * 1024) as producer:
        for value in values:
            await producer.send_when_room("t", value)
    assert topic.partitions[0].values() == values
    codecs = {parse_header(batch).codec.name.lower() for batch in topic.partitions[0].batches}
    assert codecs == {codec}


VALUES = [b"v%d" % (i % 777) for i in range(5000)]
KEYS = [b"k%d" % (i % 50) for i in range(5000)]
TIMES = list(range(1_000_000, 1_005_000))


@pytest.mark.parametrize("arrow", [False, True], ids=["lists", "arrow"])
@pytest.mark.parametrize("place", [None, 1])
async def test_columns(cluster: FakeCluster, arrow: bool, place: int | None) -> None:
    topic = cluster.create_topic("t", partitions=3)
    values: Any = pa.array(VALUES, pa.binary()) if arrow else VALUES
    keys: Any = pa.chunked_array([pa.array(KEYS, pa.string())]) if arrow else KEYS
    times: Any = pa.array(TIMES, pa.timestamp("ms")) if arrow else TIMES
    async with Producer(cluster.bootstrap, batch_bytes=8192) as producer:
        deliveries = await producer.send_many("t", values, keys=keys, partition=place, timestamps=times)
        done = [await delivery for delivery in deliveries]
    assert sum(delivery.count for delivery in done) == 5000
    rows = list(zip(VALUES, KEYS, TIMES, strict=True))
    for partition in topic.partitions:
        records = [r for batch in partition.batches for r in RecordBatch(batch).records()]
        target = {key: partition_for_key(key, 3) if place is None else place for key in set(KEYS)}
        expected = [row for row in rows if target[row[1]] == partition.number]
        assert [(r.value, r.key, r.timestamp_ms) for r in records] == expected


async def test_columns_without_keys_and_nulls(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    values = [b"a", None, b"", b"b"] * 600
    async with Producer(cluster.bootstrap, batch_bytes=2048) as producer:
        await producer.send_many("t", values)
        await producer.send_many("t", pa.chunked_array([pa.array(values, pa.large_binary())] * 2))
        await producer.send_many("t", [b"x", b"y"], keys=[None, None])
        await producer.send_many("t", [])
    assert topic.partitions[0].values() == [*values * 3, b"x", b"y"]


async def test_invalid_records_are_refused_at_once_and_nothing_is_queued(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2, configs={"max.message.bytes": "5000"})
    async with Producer(cluster.bootstrap) as producer:
        await producer.prepare("t")
        refused: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"value": "text"}, TypeError),
            ({"value": 7}, TypeError),
            ({"value": b"", "key": "text"}, TypeError),
            ({"value": b"", "headers": {1: b""}}, TypeError),
            ({"value": b"", "headers": {"a": "b"}}, TypeError),
            ({"value": b"", "partition": 2}, InvalidRequest),
            ({"value": b"", "partition": -1}, InvalidRequest),
            ({"value": b"", "timestamp_ms": -5}, InvalidRequest),
            ({"value": b"x" * 5000}, InvalidRequest),
        ]
        for arguments, kind in refused:
            with pytest.raises(kind):
                producer.send("t", **arguments)
        with pytest.raises(InvalidRequest, match="letters, digits"):
            producer.send("no/name", b"")
        for values, more in (([b"a", "b"], {}), ([b"a"], {"keys": [b"", b""]}), ([b"a"], {"partition": 9})):
            with pytest.raises((TypeError, InvalidRequest)):
                await producer.send_many("t", values, **more)  # type: ignore[arg-type]
        late = [b"fits"] * 20_000
        for values in ([*late, b"x" * 5000], [*late, "text"], pa.array([b"fits", b"x" * 5000])):
            with pytest.raises((TypeError, InvalidRequest), match=r"exceeds the batch|bytes or None, not str"):
                await producer.send_many("t", values)
        for large in ([b"fits", b"x" * 5000], pa.array([b"fits", b"x" * 5000])):
            for keys in ([b"key", None], pa.array([b"key", None], pa.binary())):
                with pytest.raises(InvalidRequest, match="exceeds the batch"):
                    await producer.send_many("t", large, keys=keys)
        assert producer.buffered_bytes == 0
        producer.send("t", bytearray(b"a copy"))
    assert [value for partition in topic.partitions for value in partition.values()] == [b"a copy"]


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": "some"}, {"acks": 2}, {"compression": "best"}, {"batch_bytes": 10}, {"batch_bytes": 1 << 21},
        {"max_in_flight": 0}, {"buffer_bytes": 100}, {"linger_ms": -1}, {"idempotent": True, "acks": 1},
        {"delivery_timeout_ms": 0},
    ],
)  # fmt: skip
def test_invalid_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Producer("localhost:1", **settings)


@pytest.mark.parametrize("bootstrap", ["", "nowhere", "host:port", "host:99999", ":1"])
def test_invalid_addresses(bootstrap: str) -> None:
    with pytest.raises(InvalidRequest):
        Producer(bootstrap)


async def test_batches_respect_the_limit_of_their_topic(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", configs={"max.message.bytes": "3000"})
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many("t", [b"x" * 40] * 1000)
    assert len(topic.partitions[0].values()) == 1000
    assert max(map(len, topic.partitions[0].batches)) <= 3000


async def test_a_full_buffer_raises_and_drain_makes_room(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    held = asyncio.Event()
    cluster.nodes[1].on_produce = lambda _: Fate(hold=held)
    async with Producer(cluster.bootstrap, buffer_bytes=2 << 20, batch_bytes=128 * 1024) as producer:
        await producer.prepare("t")
        sent = 0
        with pytest.raises(RetriableError) as full:
            while True:
                producer.send("t", b"x" * 1000)
                sent += 1
        assert full.value.code == "overloaded" and full.value.applied is Applied.NO
        assert 1000 < sent < 2200
        assert producer.buffered_bytes <= (2 << 20) + 8192
        waiting = asyncio.create_task(producer.send_when_room("t", b"y" * 1000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        held.set()
        await producer.drain()
        assert producer.buffered_bytes <= 1 << 20
        await (await waiting)
    assert len(topic.partitions[0].values()) == sent + 1


async def test_send_many_waits_for_room(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, buffer_bytes=2 << 20) as producer:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, producer.buffered_bytes)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await producer.send_many("t", [b"x" * 1000] * 10_000)
        watching.cancel()
    assert len(topic.partitions[0].values()) == 10_000
    assert most <= (2 << 20) + 8192


async def test_linger_is_kept(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap, linger_ms=20) as producer:
        await producer.prepare("t")
        loop = asyncio.get_running_loop()
        before = loop.time()
        await producer.send("t", b"x")
        assert 0.015 <= loop.time() - before < 1.0
        before = loop.time()
        producer.send("t", b"x")
        await producer.flush()
        assert loop.time() - before < 0.015 + 0.5


async def test_without_linger_records_sent_while_an_answer_is_due_are_batched(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "GATHER_AT_MOST", 50.0)
    monkeypatch.setattr(accumulator, "OPEN_AT_MOST", 60.0)
    topic, node, held = cluster.create_topic("t"), cluster.nodes[1], asyncio.Event()
    async with Producer(cluster.bootstrap, linger_ms=0, batch_bytes=1024) as producer:
        await producer.send("t", b"first")
        node.on_produce = lambda _: Fate(hold=held)
        producer.send("t", b"unanswered")
        await cluster.until(lambda: len(node.produces) == 2)
        full = [b"x" * 400, b"does not fit" * 40]
        for value in full:
            producer.send("t", value)
            await asyncio.sleep(0)
        await cluster.until(lambda: len(node.produces) == 3)  # a full batch waits for nothing
        for value in (b"1", b"2"):
            producer.send("t", value)
            await asyncio.sleep(0)
        assert len(node.produces) == 3
        held.set()
    assert len(node.produces) == 4
    assert topic.partitions[0].values() == [b"first", b"unanswered", *full, b"1", b"2"]


async def test_without_linger_a_batch_waits_for_an_answer_only_for_a_limited_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "OPEN_AT_MOST", 60.0)
    cluster.create_topic("t")
    node, held = cluster.nodes[1], asyncio.Event()
    node.on_produce = lambda _: Fate(hold=held)
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(3):
            producer.send("t", b"x")
            await cluster.until(lambda: len(node.produces) == number + 1)  # noqa: B023
        held.set()


async def test_a_topic_that_appears_late_is_found(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap) as producer:
        first, keyed = producer.send("t", b"early"), producer.send("t", b"keyed", key=b"k")
        await asyncio.sleep(0.1)
        assert not first.done()
        topic = cluster.create_topic("t")
        await first
        assert (await keyed).count == 1
    assert set(topic.partitions[0].values()) == {b"early", b"keyed"}


async def test_a_topic_that_does_not_exist(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "UNKNOWN_TOPIC_GRACE", 0.05)
    producer = Producer(cluster.bootstrap)
    deliveries = [producer.send("t", b"a"), producer.send("t", b"b", key=b"k"), producer.send("t", b"c", partition=3)]
    for delivery in deliveries:
        with pytest.raises(InvalidRequest, match="unknown_topic"):
            await delivery
    with pytest.raises(InvalidRequest, match="unknown_topic"):
        await producer.send_and_wait("t", b"d")
    assert producer.buffered_bytes == 0
    cluster.create_topic("t")
    assert (await producer.send("t", b"now")).base_offset == 0
    await producer.close()


async def test_a_partition_that_the_topic_does_not_have(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=2)
    producer = Producer(cluster.bootstrap)
    delivery = producer.send("t", b"a", partition=5)
    with pytest.raises(InvalidRequest, match="partitions 0 to 1"):
        await delivery
    await producer.close()


async def test_flush_raises_errors_that_were_not_read(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(error="corrupt_batch")
    producer = Producer(cluster.bootstrap)
    seen = producer.send("t", b"a")
    with pytest.raises(InvalidRequest):
        await seen
    await producer.flush()
    producer.send("t", b"b")
    with pytest.raises(InvalidRequest, match="corrupt_batch"):
        await producer.flush()
    await producer.flush()
    producer.send("t", b"c")
    with pytest.raises(InvalidRequest):
        await producer.close()
    await producer.close()


async def test_a_cancelled_waiter_does_not_affect_the_others(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    held = asyncio.Event()
    cluster.nodes[1].on_produce = lambda _: Fate(hold=held)
    async with Producer(cluster.bootstrap) as producer:
        delivery = producer.send("t", b"a")
        patient = asyncio.create_task(producer.send_and_wait("t", b"b"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await delivery
        held.set()
        assert (await patient).offset >= 0
        assert (await delivery).base_offset == 0


async def test_a_closed_producer_sends_nothing(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    producer = Producer(cluster.bootstrap)
    await producer.send("t", b"a")
    await producer.close()
    for call in (lambda: producer.send("t", b"b"), lambda: producer.send("t", b"b", key=b"k")):
        with pytest.raises(ClientClosed, match="shutting_down"):
            call()
    assert topic.partitions[0].values() == [b"a"]


async def test_closing_without_flush_reports_the_known_outcomes(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, linger_ms=0)
    in_flight = producer.send("t", b"a", partition=0)
    await cluster.until(lambda: cluster.nodes[1].produces)
    unsent = producer.send("t", b"b", partition=1)
    await producer.close(flush=False)
    assert in_flight.exception() is not None and unsent.exception() is not None
    errors: list[RaftlogError | None] = [in_flight.exception(), unsent.exception()]
    assert [error.code for error in errors if error] == ["outcome_unknown", "shutting_down"]
    assert [error.applied for error in errors if error] == [Applied.UNKNOWN, Applied.NO]


async def test_without_acknowledgements(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, acks=0) as producer:
        assert (await producer.send("t", b"a")).base_offset == -1
        assert (await producer.send_and_wait("t", b"b")).offset == -1
        await cluster.until(lambda: len(topic.partitions[0].values()) == 2)
    assert {request.acks for request in cluster.nodes[1].produces} == {0}
    assert parse_header(topic.partitions[0].batches[0]).producer_id == -1


async def test_batches_of_an_idempotent_producer_have_sequence_numbers(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=2)
    async with Producer(cluster.bootstrap) as producer:
        for count in (2, 3, 1):
            for partition in (0, 1):
                await producer.send_many("t", [b"x"] * count, partition=partition)
            await producer.flush()
    for written in topic.partitions:
        headers = [parse_header(batch) for batch in written.batches]
        assert [header.base_sequence for header in headers] == [0, 2, 5]
        assert {header.producer_id for header in headers} == {1}
    assert cluster.producer_ids == 1


@pytest.mark.parametrize("known", [True, False])
async def test_nothing_is_done_for_a_batch_before_its_time(
    cluster: FakeCluster, senders: list[Sender], known: bool
) -> None:
    """The timer of an open batch is due when it is to be sealed: an earlier turn would be useless."""
    cluster.create_topic("later", partitions=1)
    async with Producer(cluster.bootstrap, linger_ms=60_000) as producer:
        if known:
            producer.send("later", b"0", partition=0)
            await producer.flush()
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = producer.send("later", b"1", partition=0)
        (inner,) = senders
        due_at = inner.facts().due_at
        assert due_at is not None and began + 59.0 < due_at <= loop.time() + 60.0
        await producer.flush()
        await sent
