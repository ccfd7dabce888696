"""Requests that share batches: each gets the partitions and offsets of its own records, in its own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from http_api.records.pack import Target, pack
from http_api.records.parse import NO_HEADERS, RecordColumns
from http_api.records.together import Appended, join_columns, part_of
from raftlog.model import TopicId, TopicRecord
from raftlog.records.batch import RecordBatch
from raftlog.wire import ProducedPartition

RECORDS = st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=3)), min_size=1, max_size=5)


def columns_of(records: list[tuple[bytes, bytes | None]]) -> RecordColumns:
    count = len(records)
    return RecordColumns(
        [value for value, _ in records],
        [key for _, key in records],
        [None] * count,
        [NO_HEADERS] * count,
        [None] * count,
    )


@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(100, 400))
def test_each_request_finds_its_records(requests: list[list[tuple[bytes, bytes | None]]], most: int) -> None:
    columns = [columns_of(records) for records in requests]
    packed = pack(join_columns(columns), Target(TopicRecord(TopicId(bytes(16)), "t", 3, 1), 256 + most, None, 1), 1_000)
    ends = dict.fromkeys(range(3), 100)
    told = []
    log: dict[tuple[int, int], bytes | None] = {}
    for one in packed:
        told.append(ProducedPartition(bytes(16), one.partition, base_offset=ends[one.partition]))
        for value in RecordBatch(one.batch).values():
            log[one.partition, ends[one.partition]] = value
            ends[one.partition] += 1
    start = 0
    for records, own in zip(requests, columns, strict=True):
        part = part_of(Appended(packed, told), start, len(own))
        start += len(own)
        found: dict[int, bytes | None] = {}
        for one, outcome in zip(part.batches, part.told, strict=True):
            assert outcome.partition == one.partition
            for offset, number in enumerate(one.records, outcome.base_offset):
                found[number] = log[one.partition, offset]
        assert [found[number] for number in range(len(own))] == [value for value, _ in records]
