"""The blocking producer against a cluster in memory: the log holds exactly what the program's thread sent."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.errors import InvalidRequest
from raftlog.records.batch import RecordBatch, parse_header
from raftlog.sync import Producer
from tests.support.client.fake_cluster import FakeCluster, FakePartition


def records_of(partition: FakePartition) -> list[tuple[bytes | None, bytes | None, int, object]]:
    """Return (key, value, time, headers) of all records, in order."""
    found = []
    for data in partition.batches:
        batch = RecordBatch(data)
        first = parse_header(data).base_offset
        assert first == len(found)
        found += [(record.key, record.value, record.timestamp_ms, record.headers) for record in batch.records()]
    return found


async def test_a_record_arrives_with_all_that_it_was_given() -> None:
    def program(bootstrap: str) -> list[tuple[int, int]]:
        with Producer(bootstrap) as producer:
            sent = [
                producer.send("t", b"value", b"key", 1, 1_234, [("h", b"1")]),
                producer.send("t", None, b"key", partition=1, timestamp_ms=1_235),
                producer.send("t", b"value", partition=1, timestamp_ms=1_236, headers=[("h", b""), ("h", b"2")]),
            ]
            producer.send_many("t", [b"a", None], keys=[None, b"k"], partition=1, timestamps=[7, 8])
            producer.flush(10)
            return [(place.partition, place.offset) for place in (one.result(10) for one in sent)]

    async with FakeCluster() as cluster:
        topic = cluster.create_topic("t", partitions=2)
        assert await asyncio.to_thread(program, cluster.bootstrap) == [(1, 0), (1, 1), (1, 2)]
        assert [(key, value, time) for key, value, time, _ in records_of(topic.partitions[1])] == [
            (b"key", b"value", 1_234),
            (b"key", None, 1_235),
            (None, b"value", 1_236),
            (None, b"a", 7),
            (b"k", None, 8),
        ]
        headers = [list(one or ()) for _, _, _, one in records_of(topic.partitions[1])]  # type: ignore[call-overload]
        assert headers == [[("h", b"1")], [], [("h", b""), ("h", b"2")], [], []]
        assert not topic.partitions[0].batches


async def test_what_is_wrong_with_a_record_is_told_by_its_result_and_by_the_flush() -> None:
    def program(bootstrap: str) -> None:
        producer = Producer(bootstrap)
        wrong = producer.send("t", b"x", partition=9)
        right = producer.send("t", b"y", partition=0)
        with pytest.raises(InvalidRequest):
            wrong.result(10)
        assert right.result(10).offset == 0
        producer.send("t", b"z", partition=9)
        with pytest.raises(InvalidRequest):
            producer.flush(10)
        producer.flush(10)  # the callback has seen the error
        producer.close()

    async with FakeCluster() as cluster:
        topic = cluster.create_topic("t", partitions=1)
        await asyncio.to_thread(program, cluster.bootstrap)
        assert [value for _, value, _, _ in records_of(topic.partitions[0])] == [b"y"]
