"""Columns → batches: the right partition, the right order, never above the topic's bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from http_api.records import pack as batching
from http_api.records.pack import Target, pack
from http_api.records.parse import RecordColumns
from raftlog.errors import InvalidRequest
from raftlog.model import TopicId, TopicRecord
from raftlog.partitioner import partition_for_key
from raftlog.records.batch import RecordBatch, validate

NOW = 1_700_000_000_000
TOPIC = TopicRecord(TopicId(bytes(16)), "t", 5, 1)


def columns(count: int, **given_columns: Any) -> RecordColumns:
    made = RecordColumns(
        [b"v%d" % number for number in range(count)], [None] * count, [None] * count, [()] * count, [None] * count
    )
    for name, column in given_columns.items():
        setattr(made, name, column)
    return made


def target(partition: int | None = None, sticky: int = 2, max_batch_bytes: int = 4096) -> Target:
    return Target(TOPIC, max_batch_bytes, partition, sticky)


def test_without_key_all_go_to_the_sticky_partition() -> None:
    (batch,) = pack(columns(3), target(sticky=4), NOW)
    assert (batch.partition, list(batch.records)) == (4, [0, 1, 2])


def test_a_key_goes_where_kafka_puts_it_and_a_named_partition_goes_before_that() -> None:
    keys = [b"a", None, b"foobar", b"a", None]
    packed = pack(columns(5, keys=keys, partitions=[None, None, None, 0, 1]), target(sticky=3), NOW)
    went = {index: batch.partition for batch in packed for index in batch.records}
    assert went == {0: partition_for_key(b"a", 5), 1: 3, 2: partition_for_key(b"foobar", 5), 3: 0, 4: 1}


def test_the_requests_partition_goes_before_keys_and_after_the_records_own() -> None:
    packed = pack(columns(2, keys=[b"a", b"b"], partitions=[None, 4]), target(partition=0), NOW)
    assert {batch.partition: list(batch.records) for batch in packed} == {0: [0], 4: [1]}


@pytest.mark.parametrize("partition", [-1, 5, 2**31])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pack(columns(2, partitions=[0, partition]), target(), NOW)
    assert caught.value.code == "unknown_partition"


def test_records_keep_all_they_have() -> None:
    headers = [(("h", b"1"), ("h", None)), ()]
    (batch,) = pack(columns(2, keys=[b"k", None], timestamps_ms=[5, None], headers=headers), target(0), NOW)
    first, second = RecordBatch(batch.batch).records()
    assert (first.key, first.value, first.timestamp_ms, list(first.headers)) == (b"k", b"v0", 5, list(headers[0]))
    assert (second.key, second.value, second.timestamp_ms, list(second.headers)) == (None, b"v1", NOW, [])


def test_one_record_that_fits_no_batch_is_named() -> None:
    big = columns(2, values=[b"", b"x" * 5000])
    with pytest.raises(InvalidRequest, match="record 1 ") as caught:
        pack(big, target(), NOW)
    assert caught.value.code == "batch_too_large"


def test_batches_together_fit_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_REQUEST_BYTES", 1000)
    with pytest.raises(InvalidRequest) as caught:
        pack(columns(2, values=[b"x" * 900, b"y" * 900]), target(), NOW)
    assert caught.value.code == "body_too_large"
    monkeypatch.setattr(batching, "MAX_PARTITIONS_PER_REQUEST", 1)
    with pytest.raises(InvalidRequest, match="2 batches"):
        pack(columns(2, values=[b"x" * 3000, b"y" * 3000]), target(), NOW)


octets = st.binary(max_size=200)
record = st.tuples(
    st.none() | octets,
    st.none() | octets,
    st.none() | st.integers(0, 2**62),
    st.lists(st.tuples(st.text(max_size=10), st.none() | octets), max_size=3),
    st.none() | st.integers(0, 4),
)


@settings(max_examples=60)
@given(st.lists(record, min_size=1, max_size=60), st.integers(1600, 6000))
def test_no_batch_is_too_large_and_every_record_arrives_once_and_in_order(
    records: list[tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes | None]], int | None]], most: int
) -> None:
    values, keys, timestamps, headers, partitions = (list(column) for column in zip(*records, strict=True))
    given_columns = RecordColumns(values, keys, timestamps, headers, partitions)
    packed = pack(given_columns, target(max_batch_bytes=most), NOW)
    seen: dict[int, list[int]] = {}
    for batch in packed:
        validate(batch.batch, max_batch_bytes=most)
        seen.setdefault(batch.partition, []).extend(batch.records)
        stored = RecordBatch(batch.batch).records()
        assert [each.value for each in stored] == [values[index] for index in batch.records]
        assert [each.key for each in stored] == [keys[index] for index in batch.records]
        assert [list(each.headers) for each in stored] == [headers[index] for index in batch.records]
    assert sorted(index for indexes in seen.values() for index in indexes) == list(range(len(records)))
    assert all(indexes == sorted(indexes) for indexes in seen.values())


def test_a_timestamp_too_far_ahead_refuses_all_partitions() -> None:
    """S11: each leader would refuse only its own batch, and the others would be appended."""
    ahead = columns(3, timestamps_ms=[None, NOW + 1000, NOW + 1001], partitions=[0, 1, 2])
    assert len(pack(ahead, target(), NOW)) == 3
    with pytest.raises(InvalidRequest, match="record 2 is 1001 ms ahead") as caught:
        pack(ahead, Target(TOPIC, 4096, None, 0, max_ahead_ms=1000), NOW)
    assert caught.value.code == "timestamp_out_of_range"
    assert len(pack(ahead, Target(TOPIC, 4096, None, 0, max_ahead_ms=1001), NOW)) == 3
