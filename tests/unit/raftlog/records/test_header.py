"""The header: its fields, its ranges, and the operations on a batch without its payload."""

from __future__ import annotations

import pytest

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    check_crc,
    encode,
    parse_header,
    split_batches,
    stamp,
)
from raftlog.records.header import seal
from tests.golden import record_batch_reference as reference

BATCH = encode([b"value"], base_timestamp_ms=1000, producer_id=4, producer_epoch=5, base_sequence=6)


def test_a_header_survives_packing() -> None:
    assert parse_header(BATCH) == BatchHeader(
        base_offset=0,
        batch_length=len(BATCH) - 12,
        leader_epoch=-1,
        magic=82,
        crc=reference.crc32c(BATCH[21:]),
        attributes=0,
        last_offset_delta=0,
        base_timestamp=1000,
        max_timestamp=1000,
        producer_id=4,
        producer_epoch=5,
        base_sequence=6,
        record_count=1,
    )
    assert parse_header(b"before" + BATCH[:HEADER_BYTES], 6).pack() == BATCH[:HEADER_BYTES]


def test_derived_values_of_a_header() -> None:
    content = reference.seal(b"", 3, base_offset=100, last_offset_delta=9, attributes=0x7B)
    header = parse_header(content)
    assert (header.total_bytes, header.last_offset, header.end_offset) == (61, 109, 110)
    assert header.codec is Codec.LZ4
    assert header.log_append_time and header.is_transactional and header.is_control and header.has_delete_horizon
    plain = parse_header(BATCH)
    assert not (plain.log_append_time or plain.is_transactional or plain.is_control or plain.has_delete_horizon)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"magic": 2}, "magic 2 of the batch is not 82"),
        ({"magic": 0}, "magic 0"),
        ({"batch_length": 48}, "batch_length 48 of the batch is too small"),
        ({"batch_length": -1}, "batch_length -1"),
        ({"base_offset": -1}, "base_offset -1 of the batch is negative"),
        ({"base_offset": 2**63 - 1, "last_offset_delta": 1}, "too great for the offsets after it"),
        ({"last_offset_delta": -1}, "last_offset_delta -1 of the batch is negative"),
        ({"last_offset_delta": 1}, "record_count 3 of the batch is more than last_offset_delta 1 has offsets for"),
        ({"leader_epoch": -2}, "leader_epoch -2 of the batch is below -1"),
        ({"base_timestamp": -2}, "base_timestamp -2"),
        ({"max_timestamp": -2}, "max_timestamp -2"),
        ({"producer_id": -2}, "producer_id -2"),
        ({"producer_epoch": -2}, "producer_epoch -2"),
        ({"base_sequence": -2}, "base_sequence -2"),
        ({"attributes": 5}, "codec 5 of the batch is not a codec"),
        ({"attributes": 7}, "codec 7"),
        ({"attributes": 0x80}, "attributes 128 of the batch is more bits than are known"),
        ({"attributes": -(2**15)}, "attributes -32768"),
    ],
)
def test_a_field_out_of_range_is_refused(fields: dict[str, int], text: str) -> None:
    with pytest.raises(CorruptBatch, match=text) as caught:
        parse_header(reference.seal(b"", 3, **fields))
    assert caught.value.code == "corrupt_batch" and caught.value.status == 400


def test_a_negative_record_count_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="record_count -1 of the batch is negative"):
        parse_header(reference.seal(b"", -1, last_offset_delta=0))


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_truncated_header_is_refused(length: int) -> None:
    with pytest.raises(CorruptBatch, match=f"has 61 bytes, but the buffer holds only {length}"):
        parse_header(BATCH[:length])
    with pytest.raises(CorruptBatch, match="holds only 0"):
        parse_header(BATCH, len(BATCH) + 5)


def test_the_crc_is_checked_over_the_whole_batch() -> None:
    assert check_crc(BATCH) == check_crc(memoryview(bytearray(BATCH))) == parse_header(BATCH)
    with pytest.raises(CorruptBatch, match=r"CRC-32C of the batch is 0x[0-9a-f]{8}, its header says 0x[0-9a-f]{8}"):
        check_crc(BATCH[:-1] + b"?")
    with pytest.raises(CorruptBatch, match="bytes in all"):
        check_crc(BATCH + b"?")


def test_a_stamp_shares_the_batch() -> None:
    first, rest = stamp(BATCH, 2**40, 17)
    assert len(first) == 16
    assert isinstance(rest, memoryview) and rest.obj is BATCH
    header = check_crc(bytes(first) + rest)
    assert (header.base_offset, header.leader_epoch, header.crc) == (2**40, 17, parse_header(BATCH).crc)


def test_a_stamp_of_time_is_covered_by_the_crc() -> None:
    first, rest = stamp(BATCH, 9, 1, 5000)
    assert isinstance(rest, memoryview) and rest.obj is BATCH
    header = check_crc(bytes(first) + rest)
    assert (header.max_timestamp, header.base_timestamp, header.log_append_time) == (5000, 1000, True)
    assert header.crc != parse_header(BATCH).crc


def test_batches_are_split_without_a_copy() -> None:
    two = BATCH + encode([b"other"] * 9, base_timestamp_ms=0)
    pieces = list(split_batches(two))
    assert [bytes(piece) for piece in pieces] == [BATCH, two[len(BATCH) :]]
    assert all(piece.obj is two for piece in pieces)
    assert list(split_batches(b"")) == []


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (BATCH[:5], "5 bytes are left over after the last whole batch"),
        (BATCH[:-1], f"a batch of {len(BATCH)} bytes is cut: {len(BATCH) - 1} bytes are left"),
        (reference.seal(b"", 1, batch_length=48), "batch_length 48 is too small"),
        (reference.seal(b"", 1, batch_length=-(2**31)), "is too small"),
        (reference.seal(b"", 1, batch_length=2**31 - 1), "is cut"),
    ],
)
def test_a_partial_batch_is_not_split_off(tail: bytes, text: str) -> None:
    pieces = split_batches(BATCH + tail)
    assert next(pieces) == BATCH
    with pytest.raises(CorruptBatch, match=text):
        next(pieces)


def test_a_batch_of_2_gib_is_too_large() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31 - 49

    with pytest.raises(InvalidRequest, match="smaller than 2 GiB") as caught:
        seal(parse_header(BATCH), [Huge()])
    assert caught.value.code == "batch_too_large"
