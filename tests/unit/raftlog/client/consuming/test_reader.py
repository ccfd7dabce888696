"""The reader of one partition: valid answers, and positions that only rise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.consuming.reader import PartitionReader, parse_start, query_timestamp
from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.records.batch import encode, encode_control, stamp
from raftlog.wire import AbortedRange


def batch(offset: int, count: int = 1, *, control: bool = False) -> bytes:
    made = (
        encode_control(1, [(1, 0, 0)], base_timestamp_ms=1)
        if control
        else encode([b"%d" % (offset + i) for i in range(count)], base_timestamp_ms=1)
    )
    return b"".join(map(bytes, stamp(made, offset, 1)))


def accept(reader: PartitionReader, *batches: bytes, high_watermark: int = 1000) -> None:
    reader.accept(memoryview(b"".join(batches)), high_watermark, 0, high_watermark)


def take_all(reader: PartitionReader) -> list[int]:
    offsets = []
    while (taken := reader.take()) is not None:
        offsets += list(taken.offsets())
        reader.finished(taken)
    return offsets


def transactional(offset: int, count: int, epoch: int, *, producer_id: int = 7) -> bytes:
    made = encode(
        [b"%d" % (offset + i) for i in range(count)],
        base_timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    return b"".join(map(bytes, stamp(made, offset, 1)))


def test_aborted_batches_are_skipped_by_their_transaction_and_positions_move_over_them_s13() -> None:
    """By id and epoch: a later transaction of the same producer, and its plain records, are not affected."""
    reader = PartitionReader("t", 0, 0)
    plain = encode([b"6"], base_timestamp_ms=1, producer_id=7, producer_epoch=3, base_sequence=0)
    answer = [
        transactional(0, 2, 3),  # aborted
        transactional(2, 2, 4),  # the next epoch's
        transactional(4, 2, 3),  # aborted, too
        b"".join(map(bytes, stamp(plain, 6, 1))),
        batch(7, control=True),
        transactional(8, 2, 3, producer_id=8),  # another's
        transactional(10, 2, 3),  # beyond the range: batches after the marker are not affected
        batch(12, control=True),
        transactional(13, 1, 5),  # aborted
    ]
    aborted = [AbortedRange(7, 3, 0, 6), AbortedRange(7, 5, 13, 14), AbortedRange(9, 0, 0, 100)]
    reader.accept(memoryview(b"".join(answer)), 20, 0, 14, aborted)
    assert take_all(reader) == [2, 3, 6, 8, 9, 10, 11]
    assert (reader.position, reader.fetch_offset, reader.lag) == (14, 14, 0)
    assert (reader.high_watermark, reader.readable_end) == (20, 14)


def test_if_everything_is_aborted_the_position_advances_s13() -> None:
    reader = PartitionReader("t", 0, 1)
    reader.accept(memoryview(transactional(0, 5, 0)), 9, 0, 5, [AbortedRange(7, 0, 0, 5)])
    assert (reader.position, reader.fetch_offset, len(reader.buffered), reader.lag) == (5, 5, 0, 0)


def test_starting_positions() -> None:
    assert [parse_start(start) for start in ("earliest", "latest", 7, "7", "@7")] == ["earliest", "latest", 7, 7, "@7"]
    assert [query_timestamp(start) for start in ("earliest", "latest", "@7", "@0")] == [-2, -1, 7, 0]
    for wrong in (-1, True, "", "@", "@-1", "@1.5", "sometime", 2**63):
        with pytest.raises(InvalidRequest):
            parse_start(wrong)


def test_batches_follow_one_another_and_holes_are_valid() -> None:
    reader = PartitionReader("t", 0, 5)
    accept(reader, batch(0, 8), batch(8, 2), batch(20, 3))
    assert (reader.position, reader.fetch_offset) == (5, 23)
    assert take_all(reader) == [5, 6, 7, 8, 9, 20, 21, 22]
    assert (reader.position, reader.fetch_offset, reader.buffered_bytes) == (23, 23, 0)


@pytest.mark.parametrize(
    "answer",
    [
        [batch(0, 5)],
        [batch(5, 5), batch(8, 5)],
        [batch(5, 5), batch(5, 5)],
        [batch(10, 5), batch(5, 5)],
        [batch(5, 5), batch(0, 5)],
    ],
    ids=["below", "overlapping", "twice", "backwards", "from the start"],
)
def test_an_inconsistent_answer_is_dropped_completely(answer: list[bytes]) -> None:
    reader = PartitionReader("t", 0, 5)
    with pytest.raises(CorruptBatch, match="should follow"):
        accept(reader, *answer)
    assert (reader.fetch_offset, list(reader.buffered)) == (5, [])


def test_batches_before_damage_are_kept() -> None:
    damaged = bytearray(batch(10, 5))
    damaged[-1] ^= 1
    reader = PartitionReader("t", 0, 5)
    with pytest.raises(CorruptBatch):
        accept(reader, batch(5, 5), bytes(damaged), batch(15, 5))
    assert (reader.fetch_offset, take_all(reader)) == (10, [5, 6, 7, 8, 9])
    with pytest.raises(CorruptBatch):
        accept(reader, batch(10, 5)[:-3])
    assert reader.fetch_offset == 10


def test_permanent_damage_stops_the_reader_and_a_seek_continues() -> None:
    reader = PartitionReader("t", 0, 0)
    damage = CorruptBatch("bad")
    reader.corrupt(damage)
    reader.corrupt(damage)
    assert not reader.error
    accept(reader, batch(0))
    reader.corrupt(damage)
    reader.corrupt(damage)
    assert not reader.error, "counted from the last sound answer"
    reader.corrupt(damage)
    assert str(reader.error) == str(damage)
    reader.seek(7)
    assert (reader.error, reader.position, list(reader.buffered)) == (None, 7, [])


def test_only_the_answer_to_the_last_request_counts() -> None:
    reader = PartitionReader("t", 0, 0)
    first = reader.ask()
    reader.seek(5)
    second = reader.ask()
    assert not reader.answered(first)
    assert reader.answered(second)
    assert not reader.answered(second)


def test_positions_behind_control_batches() -> None:
    reader = PartitionReader("t", 0, 0)
    accept(reader, batch(0, 2), batch(2, control=True), batch(3), batch(4, control=True), high_watermark=5)
    first = reader.take()
    assert first is not None
    reader.handed_out(1)
    assert (reader.position, reader.lag) == (1, 4)
    reader.finished(first)
    assert reader.position == 2
    last = reader.take()
    assert last is not None
    reader.finished(last)
    assert (reader.position, reader.lag) == (5, 0)


def test_a_start_that_must_be_looked_up_first() -> None:
    reader = PartitionReader("t", 0, "latest")
    assert (reader.looking_for, reader.position, reader.lag) == ("latest", -1, None)
    reader.found(30)
    assert (reader.looking_for, reader.position, reader.fetch_offset) == (None, 30, 30)


@given(st.integers(0, 2**32))
def test_whatever_portions_arrive_every_record_is_handed_out_once(seed: int) -> None:
    dice = random.Random(seed)
    log: list[tuple[int, bytes]] = []
    end = 0
    for _ in range(dice.randrange(1, 15)):
        count = dice.randrange(1, 5)
        control = dice.random() < 0.2
        log.append((end + (1 if control else count), batch(end, count, control=control)))
        end += (1 if control else count) + dice.choice([0, 0, 0, 3])
    expected = [offset for _, made in log for offset in offsets_of(made)]
    start = dice.randrange(end + 1)
    reader = PartitionReader("t", 0, start)
    found: list[int] = []
    for _ in range(200):
        following = [made for stop, made in log if stop > reader.fetch_offset]
        if not following and not reader.buffered:
            break
        accept(reader, *following[: dice.randrange(0, 4)], high_watermark=end)
        while (taken := reader.take()) is not None:
            found += list(taken.offsets())
            reader.finished(taken)
            assert reader.position <= reader.fetch_offset
    assert found == [offset for offset in expected if offset >= start]


def offsets_of(made: bytes) -> list[int]:
    reader = PartitionReader("t", 0, 0)
    accept(reader, made)
    return take_all(reader)
