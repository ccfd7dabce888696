"""A range as an executor reads it: exactly its records, in Arrow columns, or an error that names the missing part (S1,
S3, S13).
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.records import ConsumedBatch
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.records.batch import RecordBatch, encode, parse_header, stamp
from raftlog.records.batch_filter import keep_records
from spark_source import connections
from spark_source.reading.columns import TYPES
from spark_source.reading.losses import DataLoss, LossKind
from spark_source.reading.offsets import PartitionRange
from spark_source.tasks import arrow_columns, range_reader
from spark_source.tasks import read as executor
from spark_source.tasks.arrow_columns import ArrowColumns
from spark_source.tasks.range_reader import RangeReader
from tests.support.client.fake_cluster import OK, Fate
from tests.support.spark.cluster import SparkCluster, fill

ALL = tuple(TYPES)
ID = "1" * 32


def consumed(batch: bytes, offset: int = 0, start: int | None = None) -> ConsumedBatch:
    stamped = b"".join(map(bytes, stamp(batch, offset, 1)))  # type: ignore[arg-type]
    header = parse_header(stamped)
    return ConsumedBatch("t", 3, offset if start is None else start, stamped, header, header.end_offset)


def rows(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.to_pylist()]


# --- Columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 1000])
def test_all_columns_are_the_kafka_connectors(count: int) -> None:
    times = [1_000 + number for number in range(count)]
    headers = [[("a", b"b"), ("c", None)] if number == 1 else None for number in range(count)]
    values = [None if number == 2 else b"v%d" % number for number in range(count)]
    batch = encode(values, keys=[b"k"] * count, timestamps_ms=times, headers=headers, base_timestamp_ms=0)
    (found,) = ArrowColumns(PartitionRange("t", ID, 3, 0, 10**6), ALL).batches([consumed(batch, 50)])
    assert found.schema.names == list(ALL)
    assert found.schema.types == [arrow_columns.TYPES[name] for name in ALL]
    second = found.slice(1, 2).to_pylist()
    assert second[0]["headers"] == [{"key": "a", "value": b"b"}, {"key": "c", "value": None}]
    assert [row["value"] for row in second] == [b"v1", None]
    assert {row["topic"] for row in second} == {"t"} and {row["partition"] for row in second} == {3}
    assert [row["offset"] for row in second] == [51, 52]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [1000 * time for time in times]
    assert set(found.column("timestampType").to_pylist()) == {0}
    assert found.validate(full=True) is None


def with_offsets_only(batch: bytes, offset: int) -> Any:
    """A batch of which nothing but the offsets can be decoded."""
    whole = consumed(batch, offset).record_batch
    assert whole.columns is not None
    columns = SimpleNamespace(offset_deltas=whole.columns.offset_deltas)
    return SimpleNamespace(
        record_batch=SimpleNamespace(header=whole.header, columns=columns), start_offset=offset, size_bytes=len(batch)
    )


def test_columns_that_were_not_requested_are_not_decoded() -> None:
    place = PartitionRange("t", ID, 3, 0, 100)
    two = with_offsets_only(encode([b"a", b"b"], base_timestamp_ms=1), 7)
    assert rows(list(ArrowColumns(place, ("offset",)).batches([two]))) == [{"offset": 7}, {"offset": 8}]
    one = with_offsets_only(encode([b"a"], base_timestamp_ms=1), 7)
    assert rows(list(ArrowColumns(place, ("topic", "partition")).batches([one]))) == [{"topic": "t", "partition": 3}]
    for name in ("key", "value", "timestamp", "headers"):
        with pytest.raises(AttributeError):
            list(ArrowColumns(place, (name,)).batches([one]))


def test_values_of_a_large_batch_are_not_copied() -> None:
    batch = consumed(encode([b"x" * 100] * arrow_columns.ROWS, base_timestamp_ms=1))
    (found,) = ArrowColumns(PartitionRange("t", ID, 3, 0, 10**6), ("value",)).batches([batch])
    data = batch.record_batch.columns
    assert data is not None
    assert found.column("value").buffers()[2].address == pa.py_buffer(data.values.data).address


def test_small_batches_are_merged_and_limited_to_the_range() -> None:
    parts = [consumed(encode([b"%d" % n for n in range(10)], base_timestamp_ms=1), first) for first in (0, 10, 20)]
    found = list(ArrowColumns(PartitionRange("t", ID, 3, 4, 23), ("offset", "topic", "value")).batches(parts))
    assert len(found) == 1
    assert [row["offset"] for row in rows(found)] == list(range(4, 23))
    assert [row["value"] for row in rows(found)] == [b"%d" % (n % 10) for n in range(4, 23)]
    many = [consumed(encode([b""] * 1000, base_timestamp_ms=1), first) for first in range(0, 20_000, 1000)]
    whole = list(ArrowColumns(PartitionRange("t", ID, 3, 0, 20_000), ("offset",)).batches(many))
    assert [batch.num_rows for batch in whole] == [8000, 8000, 4000]


def test_holes_of_compaction_are_no_rows() -> None:
    batch = encode([b"%d" % n for n in range(10)], keys=[b"k"] * 10, base_timestamp_ms=1)
    kept = keep_records(RecordBatch(batch), [n in (1, 5, 9) for n in range(10)])
    assert kept is not None
    columns = ArrowColumns(PartitionRange("t", ID, 3, 102, 109), ("offset", "value"))
    assert rows(list(columns.batches([consumed(kept, 100)]))) == [{"offset": 105, "value": b"5"}]
    assert list(ArrowColumns(PartitionRange("t", ID, 3, 102, 104), ALL).batches([consumed(kept, 100)])) == []


def test_a_timestamp_that_spark_cannot_hold_is_reported() -> None:
    batch = consumed(encode([b"a"], timestamps_ms=[2**62], base_timestamp_ms=0), 7)
    with pytest.raises(InvalidRequest, match="offsets 7 to 7 have timestamps"):
        list(ArrowColumns(PartitionRange("t", ID, 3, 0, 100), ("timestamp",)).batches([batch]))
    assert len(list(ArrowColumns(PartitionRange("t", ID, 3, 0, 100), ("value",)).batches([batch]))) == 1


# --- Ranges -----------------------------------------------------------------------------------------------------------


async def read(cluster: SparkCluster, one: PartitionRange, **options: str) -> list[int]:
    """The offsets that a task gives to Spark."""
    chosen = cluster.options(subscribe="t", columns="offset", **options)
    api = HttpApi(chosen.cluster.bootstrap)
    reader = RangeReader(api, chosen, one)
    columns = ArrowColumns(one, chosen.columns)
    found: list[int] = []
    try:
        async with asyncio.timeout(20):
            while batches := await reader.take():
                found += [row["offset"] for row in rows(list(columns.batches(batches)))]
    finally:
        await reader.close()
        await api.close()
    return found


def whole(cluster: SparkCluster, start: int, end: int) -> PartitionRange:
    return PartitionRange("t", cluster.topics["t"].id.hex(), 0, start, end)


async def test_exactly_the_range_is_read() -> None:
    async with SparkCluster() as cluster:
        fill(cluster.create_topic("t").partitions[0], 100)
        assert await read(cluster, whole(cluster, 13, 77)) == list(range(13, 77))
        assert await read(cluster, whole(cluster, 0, 100)) == list(range(100))
        assert await read(cluster, whole(cluster, 5, 5)) == []


async def test_a_range_may_end_in_offsets_without_records() -> None:
    """S13: an aborted transaction, its marker and a committed one; the last offsets are markers."""
    async with SparkCluster() as cluster:
        partition = cluster.create_topic("t").partitions[0]
        fill(partition, 10)
        fill(partition, 5, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        partition.mark((7, 0), 0)
        fill(partition, 5, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
        partition.mark((7, 1), partition.end_offset)
        assert partition.end_offset == 22
        assert await read(cluster, whole(cluster, 0, 22)) == [*range(10), *range(16, 21)]
        assert await read(cluster, whole(cluster, 10, 16)) == []


async def test_a_small_range_is_not_read_far_beyond() -> None:
    async with SparkCluster() as cluster:
        partition = cluster.create_topic("t").partitions[0]
        for _ in range(100):
            partition.append(encode([b"x" * 50_000], base_timestamp_ms=1))
        assert await read(cluster, whole(cluster, 0, 3)) == [0, 1, 2]
        assert sum(one.max_bytes for one in cluster.nodes[1].fetches) < 2_000_000


async def test_a_task_is_read_as_spark_does_it() -> None:
    """In a thread of Spark's, over connections that outlive the task."""
    async with SparkCluster() as cluster:
        fill(cluster.create_topic("t").partitions[0], 100)
        chosen = cluster.options(subscribe="t", columns="offset")
        for start in (0, 40):
            task = executor.Task(whole(cluster, start, 60))
            found = await asyncio.to_thread(lambda task=task: list(executor.read(chosen, task)))  # type: ignore[misc]
            assert [row["offset"] for row in rows(found)] == list(range(start, 60))
        await asyncio.to_thread(connections.shared(chosen.cluster).close)
        with pytest.raises(InvalidRequest, match=r"the driver has 0\.0\.0"):
            next(executor.read(chosen, executor.Task(whole(cluster, 0, 1), "0.0.0")))


async def test_reading_continues_with_the_next_leader() -> None:
    async with SparkCluster(nodes=2) as cluster:
        partition = cluster.create_topic("t").partitions[0]
        fill(partition, 100)

        def die(_: object) -> Fate:
            cluster.move_leader("t", 0, 2)
            cluster.nodes[1].on_fetch = lambda _: OK
            return Fate(drop_before=True)

        cluster.nodes[1].on_fetch = die
        assert await read(cluster, whole(cluster, 0, 100)) == list(range(100))
        assert cluster.nodes[2].fetches


async def lost(cluster: SparkCluster, one: PartitionRange) -> LossKind:
    with pytest.raises(DataLoss) as raised:
        await read(cluster, one)
    (loss,) = raised.value.losses
    assert str(one.end) in str(loss) or loss.kind is LossKind.RETENTION
    return loss.kind


async def test_losses_are_distinguished_on_the_executor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(range_reader, "END_GRACE_S", 0.2)
    monkeypatch.setattr("spark_source.driver.subscription.STALE_NODE_S", 0.3)
    caplog.set_level(logging.WARNING, "raftlog.spark")
    async with SparkCluster() as cluster:
        partition = cluster.create_topic("t").partitions[0]
        fill(partition, 100)
        partition.start_offset = 40
        planned = whole(cluster, 20, 60)
        assert await lost(cluster, planned) is LossKind.RETENTION
        assert await read(cluster, planned, failOnDataLoss="false") == list(range(40, 60))
        assert "t/0 [20, 40): retention overtook the query" in caplog.text
        beyond = whole(cluster, 90, 120)
        assert await lost(cluster, beyond) is LossKind.BEYOND_END
        assert await read(cluster, beyond, failOnDataLoss="false") == list(range(90, 100))
        far = whole(cluster, 110, 120)
        assert await lost(cluster, far) is LossKind.BEYOND_END
        old = whole(cluster, 40, 60)
        fill(cluster.create_topic("t").partitions[0], 100)
        assert await lost(cluster, old) is LossKind.RECREATED
        assert await read(cluster, old, failOnDataLoss="false") == []
        del cluster.topics["t"]
        assert await lost(cluster, old) is LossKind.DELETED


async def test_a_silent_cluster_is_an_error_that_names_the_range() -> None:
    async with SparkCluster() as cluster:
        fill(cluster.create_topic("t").partitions[0], 10)
        cluster.nodes[1].on_fetch = lambda _: Fate(error="leader_not_available")
        with pytest.raises(RaftlogError, match=r"t/0 \[0, 10\): no record for 0\.3 s .*leader_not_available") as raised:
            await read(cluster, whole(cluster, 0, 10), fetchTimeoutMs="300")
        assert raised.value.code == "request_timed_out"
