"""Every record batch survives encoding in either implementation, and every flipped bit in it is detected."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import CorruptBatch
from raftlog.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    RecordBatch,
    check_crc,
    encode,
    parse_header,
    split_batches,
    stamp,
    validate,
)
from tests.golden import record_batch_reference as reference
from tests.golden.record_batch_reference import NaiveRecord
from tests.property.record_batch_strategies import NOW, TWINS, Columns, columns, twin

CODECS = st.sampled_from(Codec)


def naive(batch: bytes, **options: bool) -> list[NaiveRecord]:
    return [
        NaiveRecord(r.offset, r.timestamp_ms, r.key, r.value, list(r.headers))
        for r in RecordBatch(batch, **options).records()
    ]


@given(columns(), CODECS, st.sampled_from(TWINS), st.sampled_from(TWINS))
def test_packed_records_are_unpacked(given_columns: Columns, codec: Codec, writer: str, reader: str) -> None:
    with twin(writer):
        batch = given_columns.encode(codec)
    with twin(reader):
        validate(batch, max_batch_bytes=1 << 20)
        assert naive(batch) == given_columns.naive() == reference.read(batch)


@given(columns())
def test_both_implementations_write_the_bytes_of_the_reference(given_columns: Columns) -> None:
    written = []
    for name in TWINS:
        with twin(name):
            written.append(given_columns.encode())
    assert written[0] == written[1] == reference.batch(given_columns.naive())


@given(columns(), CODECS)
def test_arrow_has_the_same_rows(given_columns: Columns, codec: Codec) -> None:
    batch = RecordBatch(given_columns.encode(codec, base_offset=1000)).to_arrow()
    batch.validate(full=True)
    assert batch.column("offset").to_pylist() == list(range(1000, 1000 + len(given_columns.values)))
    rows = given_columns.naive()
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [row.timestamp for row in rows]
    assert batch.column("key").to_pylist() == [row.key for row in rows]
    assert batch.column("value").to_pylist() == [row.value for row in rows]
    headers = [[(h["key"], h["value"]) for h in of_record] for of_record in batch.column("headers").to_pylist()]
    assert headers == [row.headers for row in rows]


@given(columns(), st.integers(0, 3), st.sampled_from(["binary", "large_binary", "chunked"]))
def test_arrow_columns_give_the_bytes_of_lists(given_columns: Columns, skip: int, kind: str) -> None:
    """Slices, with any content before and behind them, and other layouts of the same values."""

    def column(entries: list[bytes | None]) -> pa.Array | pa.ChunkedArray:
        array = pa.array([b"before"] * skip + entries + [None, b"behind"], pa.binary())[skip : skip + len(entries)]
        if kind == "chunked":
            return pa.chunked_array([array[:1], array[1:]])
        return array.cast(pa.large_binary()) if kind == "large_binary" else array

    times = given_columns.timestamps
    batch = encode(
        column(given_columns.values),
        keys=None if given_columns.keys is None else column(given_columns.keys),
        timestamps_ms=None if times is None else pa.array([0, *times], pa.timestamp("ms"))[1:],
        headers=given_columns.headers,
        base_timestamp_ms=NOW,
    )
    assert batch == given_columns.encode()


@given(columns(), st.integers(0, 2**62), st.integers(0, 2**31 - 1), CODECS)
def test_a_stamp_keeps_everything_else(given_columns: Columns, offset: int, epoch: int, codec: Codec) -> None:
    batch = given_columns.encode(codec, producer_id=3, producer_epoch=1, base_sequence=9)
    stamped = b"".join(stamp(batch, offset, epoch))
    assert stamped[16:] == batch[16:]
    before, after = parse_header(batch), check_crc(stamped)
    assert (after.base_offset, after.leader_epoch) == (offset, epoch)
    before.base_offset, before.leader_epoch = offset, epoch
    assert before == after
    assert [record.offset for record in RecordBatch(stamped).records()] == list(range(offset, after.end_offset))


@given(columns(), st.integers(0, 2**62))
def test_log_append_time_keeps_the_payload(given_columns: Columns, now: int) -> None:
    batch = given_columns.encode()
    stamped = b"".join(stamp(batch, 5, 1, now))
    header = check_crc(stamped)
    assert header.log_append_time and header.max_timestamp == now
    assert header.base_timestamp == parse_header(batch).base_timestamp
    assert stamped[HEADER_BYTES:] == batch[HEADER_BYTES:]
    decoded = RecordBatch(stamped)
    decoded.check()
    assert decoded.timestamps_ms() == [now] * len(given_columns.values)
    assert decoded.to_arrow().column("timestamp").cast(pa.int64()).to_pylist() == decoded.timestamps_ms()
    assert decoded.values() == given_columns.values


@given(columns(max_count=5), CODECS, st.data())
def test_a_truncated_batch_is_refused(given_columns: Columns, codec: Codec, data: st.DataObject) -> None:
    batch = given_columns.encode(codec)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    for read in (RecordBatch, check_crc, lambda b: validate(b, max_batch_bytes=1 << 20)):
        with pytest.raises(CorruptBatch):
            read(cut)
    if cut:
        with pytest.raises(CorruptBatch):
            list(split_batches(batch + cut))
    assert list(split_batches(batch + batch)) == [batch, batch]


@given(columns(max_count=5), CODECS, st.data())
def test_every_flipped_bit_is_detected(given_columns: Columns, codec: Codec, data: st.DataObject) -> None:
    batch = given_columns.encode(codec, base_offset=1000)
    bit = data.draw(st.integers(0, 8 * len(batch) - 1))
    flipped = bytearray(batch)
    flipped[bit // 8] ^= 1 << bit % 8
    if bit // 8 < 8 or 12 <= bit // 8 < 16:
        # Base offset and leader epoch: the CRC does not cover them, so that a leader may stamp them.
        try:
            header = check_crc(flipped)
        except CorruptBatch:
            return
        original = parse_header(batch)
        assert (header.base_offset, header.leader_epoch) != (original.base_offset, original.leader_epoch)
        assert naive(b"".join(stamp(flipped, 1000, -1))) == naive(batch)
        return
    for read in (check_crc, RecordBatch, lambda b: validate(b, max_batch_bytes=1 << 20)):
        with pytest.raises(CorruptBatch):
            read(flipped)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_a_header_that_is_read_packs_to_the_same_bytes(content: bytes) -> None:
    content = content[:16] + b"\x52" + content[17:]
    try:
        header = parse_header(content)
    except CorruptBatch:
        return
    assert header.pack() == content
    assert isinstance(header, BatchHeader) and header.codec in Codec
    assert header.end_offset == header.last_offset + 1 <= 2**63
