"""The accumulator compared with a list, its memory, and its estimate of batch sizes."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.client.producing.accumulator import GRANT_BYTES, Accumulator
from raftlog.client.producing.batch import ROWS_A_LOOK, UNASSIGNED, Batch, Columns, ParkedRecord, rows_that_fit
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.records.batch import Codec, RecordBatch, encode

BATCH_BYTES = 4096
BUFFER_BYTES = 64 * 1024

Record = tuple[bytes | None, bytes | None, int, int | None, list[tuple[str, bytes | None]] | None]

contents = st.one_of(st.none(), st.binary(max_size=60), st.binary(min_size=900, max_size=1200))
headers = st.lists(st.tuples(st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
keys_or_none = st.one_of(st.none(), st.binary(max_size=20))
times_or_none = st.one_of(st.none(), st.integers(0, 99))
records = st.tuples(contents, keys_or_none, st.integers(-1, 2), times_or_none, st.one_of(st.none(), headers))


def new(buffer_bytes: int = BUFFER_BYTES, linger: float = 0.005) -> Accumulator[int]:
    numbers = count()
    accumulator = Accumulator(
        batch_bytes=BATCH_BYTES,
        max_batch_bytes=16 * 1024,
        buffer_bytes=buffer_bytes,
        linger=linger,
        new_delivery=lambda: next(numbers),
    )
    accumulator.topic_known("t", 3, 1 << 20)
    return accumulator


def first_partition(topic: str, partition_count: int) -> int:
    return 0


def append(accumulator: Accumulator[int], record: Record, now: float = 0.0) -> Batch[int]:
    value, key, partition, timestamp_ms, pairs = record
    return accumulator.append("t", value, key, partition, timestamp_ms, pairs, now, 1000)


def encoded(batch: Batch[int]) -> bytes:
    values, keys, timestamps, pairs = batch.columns()
    return encode(
        values,
        keys=keys,
        timestamps_ms=timestamps,
        headers=pairs,
        codec=Codec.NONE,
        base_timestamp_ms=batch.timestamp_ms,
    )


def contents_of(batches: list[Batch[int]]) -> list[Record]:
    found: list[Record] = []
    for batch in batches:
        for record in RecordBatch(encoded(batch)).records():
            found.append((record.value, record.key, batch.partition, record.timestamp_ms, list(record.headers)))
    return found


def expected_of(sent: list[Record], partition: int) -> list[Record]:
    return [
        (value, key, partition, 1000 if time is None else time, list(pairs or []))
        for value, key, place, time, pairs in sent
        if place == partition
    ]


@settings(deadline=None)
@given(st.lists(records, max_size=60))
def test_records_come_out_in_order_and_no_batch_is_larger_than_estimated(sent: list[Record]) -> None:
    accumulator = new(buffer_bytes=1 << 22)
    for record in sent:
        append(accumulator, record)
    accumulator.seal_all()
    # The open batch of a batch is no longer known when it gets its partition, so it is determined before.
    unassigned = [batch for batch in accumulator.waiting() if batch.partition == UNASSIGNED]
    placed = [batch for batch in accumulator.waiting() if batch.partition != UNASSIGNED]
    assert [(v, k, -1, t, h) for v, k, _, t, h in contents_of(unassigned)] == expected_of(sent, UNASSIGNED)
    for partition in range(3):
        mine = [batch for batch in placed if batch.partition == partition]
        assert contents_of(mine) == expected_of(sent, partition)
    for batch in (*unassigned, *placed):
        assert len(encoded(batch)) <= batch.size_bytes <= BATCH_BYTES
    taken = accumulator.take_sealed(first_partition)
    assert len(taken) == len(unassigned) + len(placed)
    for batch in taken:
        accumulator.release(batch)
    assert accumulator.buffered_bytes == 0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 120), st.booleans(), st.booleans()), max_size=20),
    st.integers(0, 2**32),
)
def test_columns_and_single_records_share_batches(portions: list[tuple[int, int, bool, bool]], seed: int) -> None:
    dice = random.Random(seed)
    accumulator = new(buffer_bytes=1 << 22)
    sent: list[Record] = []
    for rows, longest, with_keys, with_times in portions:
        values = [dice.randbytes(dice.randint(0, longest)) for _ in range(rows)]
        keys = [dice.randbytes(dice.randint(0, 9)) for _ in range(rows)] if with_keys else None
        times = [dice.randrange(100) for _ in range(rows)] if with_times else None
        start = 0
        while start < rows:
            _, taken = accumulator.extend("t", Columns(UNASSIGNED, values, keys, times), start, 0.0, 1000)
            start += taken
        sent += [(values[i], keys[i] if keys else None, -1, times[i] if times else None, None) for i in range(rows)]
        single: Record = (b"one", None, -1, None, [("h", b"x")])
        append(accumulator, single)
        sent.append(single)
    accumulator.seal_all()
    batches = list(accumulator.waiting())
    assert contents_of(batches) == expected_of(sent, UNASSIGNED)
    for batch in batches:
        assert len(encoded(batch)) <= batch.size_bytes <= BATCH_BYTES
    for batch in accumulator.take_sealed(first_partition):
        accumulator.release(batch)
    assert accumulator.buffered_bytes == 0


@settings(deadline=None)
@given(st.integers(1, 3 * ROWS_A_LOOK), st.booleans(), st.integers(0, 2**32))
def test_batches_contain_as_many_records_as_fit(rows: int, with_keys: bool, seed: int) -> None:
    dice = random.Random(seed)
    contents = [None if size < 0 else bytes(size) for size in dice.choices(range(-1, 12), k=rows)]
    values: tuple[bytes | None, ...] = tuple(contents)
    keys = list(reversed(contents)) if with_keys else None
    start, row_bytes = dice.randrange(rows), dice.randrange(1, 20)
    room = dice.randrange(10 + 30 * rows)
    expected = payload = 0
    for row in range(start, rows):
        size = len(values[row] or b"") + (len(keys[row] or b"") if keys else 0)
        if payload + size + (expected + 1) * row_bytes > room:
            break
        expected, payload = expected + 1, payload + size
    columns = Columns(UNASSIGNED, values, keys, None)
    assert rows_that_fit(columns, start, room, row_bytes) == (expected, payload)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_memory_is_bounded_and_released(seed: int) -> None:
    dice = random.Random(seed)
    accumulator = new()
    handed_out: list[Batch[int]] = []
    for _ in range(dice.randrange(400)):
        size = dice.choice([0, 40, 1000])
        key = dice.choice([None, b"key"])
        try:
            append(accumulator, (b"x" * size, key, dice.randrange(-1, 3), dice.choice([None, 7]), None))
        except RetriableError as error:
            assert error.code == "overloaded"
            accumulator.seal_all()
        handed_out += accumulator.take_sealed(first_partition)
        if dice.random() < 0.05 and handed_out:
            accumulator.release(handed_out.pop(dice.randrange(len(handed_out))))
        assert 0 <= accumulator.buffered_bytes <= BUFFER_BYTES + GRANT_BYTES
        reserved = sum(batch.reserved for batch in (*handed_out, *accumulator.waiting()))
        assert accumulator.buffered_bytes == reserved
    accumulator.seal_all()
    for batch in (*handed_out, *accumulator.take_sealed(first_partition)):
        accumulator.release(batch)
    assert accumulator.buffered_bytes == 0


def test_a_full_buffer_refuses_and_changes_nothing() -> None:
    accumulator = new()
    taken = 0
    with pytest.raises(RetriableError, match="full"):
        while True:
            append(accumulator, (b"x" * 500, None, -1, None, None))
            taken += 1
    accumulator.seal_all()
    assert sum(batch.count for batch in accumulator.waiting()) == taken


def test_a_record_larger_than_a_batch_goes_alone_and_one_larger_than_the_topic_allows_is_refused() -> None:
    accumulator = new()
    small = append(accumulator, (b"small", None, 0, None, None))
    large = append(accumulator, (b"x" * 9000, None, 0, None, None))
    assert (small is large, large.count) == (False, 1)
    assert append(accumulator, (b"next", None, 0, None, None)) is not large
    assert len(encoded(large)) <= large.size_bytes
    with pytest.raises(InvalidRequest) as refused:
        append(accumulator, (b"x" * 20_000, None, 0, None, None))
    assert refused.value.code == "batch_too_large"
    accumulator.topic_known("t", 3, 1024)
    with pytest.raises(InvalidRequest):
        append(accumulator, (b"x" * 1000, None, 1, None, None))


def test_batches_are_sealed_when_due_and_stay_open_while_they_cannot_be_sent() -> None:
    accumulator = new(linger=0.005)
    append(accumulator, (b"a", None, 0, None, None), now=10.0)
    append(accumulator, (b"b", None, 1, None, None), now=10.002)
    assert accumulator.next_due(10.0) == pytest.approx(10.005)
    accumulator.seal_due(10.004, lambda topic, partition, patient: True)
    assert not accumulator.has_sealed
    accumulator.seal_due(10.006, lambda topic, partition, patient: True)
    assert [batch.partition for batch in accumulator.take_sealed(first_partition)] == [0]
    accumulator.seal_due(10.05, lambda topic, partition, patient: False)
    assert not accumulator.has_sealed, "it could not be sent, so it may go on filling"
    due = accumulator.next_due(10.05)
    assert due is not None and due > 10.05
    accumulator.seal_due(due, lambda topic, partition, patient: False)
    assert [batch.partition for batch in accumulator.take_sealed(first_partition)] == [1]
    assert accumulator.next_due(11.0) is None


def test_records_wait_for_their_topic() -> None:
    numbers = count()
    accumulator: Accumulator[int] = Accumulator(
        batch_bytes=BATCH_BYTES,
        max_batch_bytes=BATCH_BYTES,
        buffer_bytes=BUFFER_BYTES,
        linger=0.0,
        new_delivery=lambda: next(numbers),
    )
    accumulator.append("later", b"a", None, UNASSIGNED, None, None, 0.0, 0)
    parked = accumulator.park("later", b"b", b"key", UNASSIGNED, None, None)
    assert accumulator.topics_wanted() == ["later"]
    accumulator.seal_all()
    assert accumulator.take_sealed(first_partition) == []
    assert accumulator.topic_known("later", 4, BATCH_BYTES) == [parked]
    assert accumulator.topics_wanted() == []
    (batch,) = accumulator.take_sealed(lambda topic, partition_count: partition_count - 1)
    assert (batch.partition, batch.values) == (3, [b"a"])
    accumulator.release(batch)
    assert accumulator.buffered_bytes == 0


def test_records_for_a_topic_that_does_not_exist_are_handed_back() -> None:
    accumulator = new()
    accumulator.append("gone", b"a", None, UNASSIGNED, None, None, 0.0, 0)
    accumulator.park("gone", b"b", b"key", UNASSIGNED, None, None)
    append(accumulator, (b"stays", None, 0, None, None))
    batches, parked = accumulator.topic_gone("gone")
    assert [batch.values for batch in batches] == [[b"a"]]
    assert [type(record) for record in parked] == [ParkedRecord]
    for batch in batches:
        accumulator.release(batch)
    assert [batch.topic for batch in accumulator.waiting()] == ["t"]
    assert accumulator.topics_wanted() == []
