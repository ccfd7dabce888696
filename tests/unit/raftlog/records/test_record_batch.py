"""Packing and unpacking record batches: accepted and refused input, and the errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.records import batch as record_batch
from raftlog.records import columns
from raftlog.records.batch import (
    Codec,
    Control,
    ControlKind,
    Record,
    RecordBatch,
    encode,
    encode_control,
    load_arrow,
    stamp,
    validate,
)
from raftlog.records.control import ControlEntry
from tests.golden import record_batch_reference as reference
from tests.golden.record_batch_reference import NaiveRecord

NOW = 1_700_000_000_000
ROOT = Path(__file__).parents[4]


@pytest.fixture(params=["plain", "arrow"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(record_batch, "ARROW_FROM", 1 << 31 if request.param == "plain" else 0)
    yield


def pack(values: Any, **options: Any) -> bytes:
    return encode(values, **{"base_timestamp_ms": NOW} | options)


# --- Packing ---------------------------------------------------------------------------------------------------------


def test_small_batches_do_not_import_pyarrow() -> None:
    """0.15 s and 44 MB, which a producer of single records never needs."""
    script = """
import sys
import raftlog
from raftlog.records.batch import *
batch = encode([b"v"] * 20, keys=[b"k"] * 20, headers=[[("h", None)]] * 20, codec=Codec.ZSTD, base_timestamp_ms=0)
validate(batch, max_batch_bytes=1 << 20)
RecordBatch(batch).records()
b"".join(stamp(batch, 5, 1, 7))
assert "pyarrow" not in sys.modules
RecordBatch(batch).to_arrow()
assert "pyarrow" in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"], check=True)


def test_the_implementation_is_chosen_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(record_batch, "load_arrow", lambda: chosen.append("arrow") or load_arrow())
    pack([b""] * (record_batch.ARROW_FROM - 1))
    assert chosen == []
    pack([b""] * record_batch.ARROW_FROM)
    assert chosen == ["arrow"]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("length", [0, 255, 256, 65_535, 65_536])
def test_every_length_of_bin(length: int) -> None:
    batch = pack([b"x" * length])
    assert batch == reference.batch([NaiveRecord(0, NOW, None, b"x" * length)])
    assert RecordBatch(batch).values() == [b"x" * length]


@pytest.mark.usefixtures("twin")
def test_text_and_views_are_accepted_as_bytes() -> None:
    batch = pack(
        ["größe", memoryview(b"view"), bytearray(b"array"), None, b"bytes"], headers=[[(b"k", "v")]] + [None] * 4
    )
    assert RecordBatch(batch).values() == ["größe".encode(), b"view", b"array", None, b"bytes"]
    assert RecordBatch(batch).headers()[0] == (("k", b"v"),)
    wide = memoryview(b"abcdefgh").cast("i")
    assert RecordBatch(pack([wide, b""])).values() == [b"abcdefgh", b""]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    "options",
    [
        {"values": [1]},
        {"values": [b"", 1.5]},
        {"values": [[b"a"]]},
        {"values": [b""], "keys": [7]},
        {"values": [b""], "timestamps_ms": [None]},
        {"values": [b""], "timestamps_ms": [1.5]},
        {"values": [b"", b""], "timestamps_ms": [1.5, 1.5]},
        {"values": [b"", b""], "timestamps_ms": [1.5, 2.5]},
        {"values": [b""], "headers": [[(None, b"")]]},
        {"values": [b""], "headers": [[(1, b"")]]},
        {"values": [b""], "headers": [[("k", 1)]]},
    ],
)
def test_other_types_than_bytes_are_a_type_error(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        pack(**options)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"values": []}, "invalid_request", "a batch needs at least one record"),
        ({"values": [b"", b""], "keys": [b""]}, "invalid_request", "1 keys for 2 values"),
        ({"values": [b""], "timestamps_ms": [1, 2]}, "invalid_request", "2 timestamps for 1 values"),
        ({"values": [b""], "headers": []}, "invalid_request", "0 headers for 1 values"),
        ({"values": [b""], "headers": [[(b"\xff", b"")]]}, "invalid_request", "a header's key is not UTF-8"),
        ({"values": ["\ud800"]}, "invalid_request", "text cannot be encoded as UTF-8"),
        ({"values": [b""], "keys": ["\ud800"]}, "invalid_request", "text cannot be encoded as UTF-8"),
        ({"values": [b""], "headers": [[("\ud800", b"")]]}, "invalid_request", "text cannot be encoded as UTF-8"),
        ({"values": [b""], "headers": [[("k", "\ud800")]]}, "invalid_request", "text cannot be encoded as UTF-8"),
        ({"values": [b""], "timestamps_ms": [-2]}, "timestamp_out_of_range", "between -1"),
        ({"values": [b"", b""], "timestamps_ms": [5, 2**63]}, "timestamp_out_of_range", "between -1"),
        ({"values": [b"", b""], "timestamps_ms": [-1, 2**63 - 1]}, "timestamp_out_of_range", "between -1"),
        ({"values": [b""], "timestamps_ms": [2**63]}, "timestamp_out_of_range", "between -1"),
        ({"values": [b""], "base_timestamp_ms": -2}, "timestamp_out_of_range", "between -1"),
        ({"values": [b""], "base_timestamp_ms": 2**63}, "timestamp_out_of_range", "between -1"),
    ],
)
def test_invalid_records_are_refused(options: dict[str, Any], code: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        pack(**options)
    assert caught.value.code == code


@pytest.mark.usefixtures("twin")
def test_the_greatest_timestamps_fit() -> None:
    times = [0, 2**63 - 1, -1]
    batch = pack([b""] * 3, timestamps_ms=times)
    validate(batch, max_batch_bytes=1000)
    assert RecordBatch(batch).timestamps_ms() == times


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "c"]),
        pa.array([b"a", None, b"c"], pa.large_binary()),
        pa.array([b"a", None, b"c"], pa.binary(1)),
        pa.array(["a", None, "c"]).dictionary_encode(),
        pa.chunked_array([["a"], [None, "c"]]),
    ],
)
def test_arrow_columns_are_accepted_as_they_are(column: Any) -> None:
    expected = pack([b"a", None, b"c"], keys=[b"x", None, b"x"], timestamps_ms=[1000, 2000, 3000])
    times = pa.array([1_000_999, 2_000_000, 3_000_000], pa.timestamp("us", "UTC"))
    assert pack(column, keys=[b"x", None, b"x"], timestamps_ms=times) == expected
    assert pack([b"a", None, b"c"], keys=pa.array(["x", None, "x"]), timestamps_ms=[1000, 2000, 3000]) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"values": pa.array([1])},
        {"values": pa.array(["a"]), "timestamps_ms": pa.array([None], pa.int64())},
        {"values": [b""], "timestamps_ms": pa.array(["5"])},
        {"values": [b""], "timestamps_ms": pa.array([1.5])},
        {"values": [b""], "timestamps_ms": pa.array([1], pa.date32())},
    ],
)
def test_arrow_columns_of_another_type_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        pack(**options)


@pytest.mark.parametrize(
    "times", [pa.array([2**63], pa.uint64()), pa.array([2**62], pa.timestamp("s")), pa.array([-2], pa.int32())]
)
def test_arrow_columns_of_invalid_times_are_refused(times: Any) -> None:
    with pytest.raises(InvalidRequest, match="a timestamp must be between") as caught:
        pack([b""], timestamps_ms=times)
    assert caught.value.code == "timestamp_out_of_range"


# --- Unpacking -------------------------------------------------------------------------------------------------------


def test_arrow_shares_the_batchs_memory() -> None:
    batch = pack([b"x" * 100] * 50, keys=[b"key"] * 50)
    whole = pa.py_buffer(batch)
    arrow = RecordBatch(batch).to_arrow()
    for name in ("key", "value"):
        data = arrow.column(name).buffers()[2]
        assert whole.address <= data.address < whole.address + whole.size
    assert arrow.schema.names == ["offset", "timestamp", "key", "value", "headers"]


def test_buffers_are_aligned_if_arrow_requires_it() -> None:
    for shift in range(8):
        raw = b"\0" * shift + pack([b"x", b"yz"], timestamps_ms=[1, 2], headers=[[("k", b"v")], None])
        arrow = RecordBatch(memoryview(raw)[shift:]).to_arrow()
        for name in ("offset", "timestamp"):
            assert arrow.column(name).buffers()[1].address % 8 == 0
        assert arrow.column("value").buffers()[1].address % 4 == 0
        assert arrow.column("headers").buffers()[1].address % 4 == 0


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_may_be_any_buffer(kind: Any) -> None:
    batch = kind(pack([b"v"], keys=[b"k"]))
    assert RecordBatch(batch).records() == [Record(0, NOW, b"k", b"v", ())]
    assert validate(batch, max_batch_bytes=1000).record_count == 1
    assert b"".join(stamp(batch, 0, -1)) == bytes(batch)


def test_a_crc_that_was_checked_is_not_checked_again() -> None:
    batch = bytearray(pack([b"abc"]))
    batch[-2] ^= 1  # the value's last byte; after it come nil headers
    with pytest.raises(CorruptBatch, match="CRC-32C"):
        RecordBatch(batch)
    assert RecordBatch(batch, crc_checked=True).values() == [b"abb"]


def test_two_batches_are_not_one() -> None:
    batch = pack([b"v"])
    with pytest.raises(CorruptBatch, match="bytes in all"):
        RecordBatch(batch + batch, crc_checked=True)


# --- The leader's check ----------------------------------------------------------------------------------------------


def records(count: int = 3) -> list[NaiveRecord]:
    return [NaiveRecord(i, NOW + i, b"k%d" % i, b"v%d" % i, [("h", b"x")]) for i in range(count)]


HEADER_LIES: list[tuple[dict[str, int], str]] = [
    ({"last_offset_delta": 5}, "must be dense: 3 records cannot end at offset delta 5"),
    ({"max_timestamp": NOW + 1}, f"timestamps begin with {NOW} and reach {NOW + 2}, the header says base"),
    ({"max_timestamp": NOW + 9}, "timestamps begin with"),
    ({"base_timestamp": NOW - 1}, "timestamps begin with"),
    ({"producer_id": 5}, "with a producer id must have an epoch and a sequence"),
    ({"producer_id": 5, "producer_epoch": 0}, "with a producer id must have an epoch and a sequence"),
    ({"producer_id": 5, "base_sequence": 0}, "with a producer id must have an epoch and a sequence"),
    ({"producer_epoch": 0}, "without a producer id must not have an epoch, a sequence"),
    ({"base_sequence": 0}, "without a producer id must not have an epoch, a sequence"),
    ({"attributes": 0x10}, "without a producer id must not have an epoch, a sequence or a transaction"),
    ({"attributes": 0x08}, "must not set the log append time or delete horizon"),
    ({"attributes": 0x40}, "must not set the log append time or delete horizon"),
]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(("fields", "text"), HEADER_LIES)
def test_a_header_that_lies_is_refused(fields: dict[str, int], text: str) -> None:
    packed = reference.batch(records(), **fields)
    if "base_timestamp" in fields:
        # The reference counts deltas from the given base, so the first record's is not 0: also invalid.
        assert reference.read(packed)[0].timestamp == NOW
    with pytest.raises(CorruptBatch, match=text):
        validate(packed, max_batch_bytes=1 << 20)


@pytest.mark.usefixtures("twin")
def test_a_base_timestamp_without_deltas_is_the_greatest_too() -> None:
    same = [NaiveRecord(i, NOW, None, b"v") for i in range(3)]
    validate(reference.batch(same), max_batch_bytes=1 << 20)
    with pytest.raises(CorruptBatch, match="timestamps begin with"):
        validate(reference.batch(same, max_timestamp=NOW + 1), max_batch_bytes=1 << 20)


def int32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def int64(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


SOUND = [None, int32(0, 1, 2), b"ab"]
PAYLOAD_LIES: list[tuple[list[Any], str]] = [
    ([None, None, None, None, None], "not an array of columns"),
    ([None, None, None, SOUND], "not an array of columns"),
    ([None, None, None, SOUND, None, None], "not an array of columns"),
    ([None, None, None, ["", int32(0, 1, 2), b"ab"], None], "not an array of columns"),
    ([None, None, None, [None, int32(0, 1), b"ab"], None], "the offsets of values have 8 bytes; 3 of them need 12"),
    ([None, None, None, [None, int32(0, 1, 2, 2), b"ab"], None], "the offsets of values have 16 bytes"),
    ([None, None, None, [None, int32(0, 1, 2), b"abc"], None], "offsets of values do not rise from 0 to 3"),
    ([None, None, None, [None, int32(0, 1, 3), b"ab"], None], "offsets of values do not rise from 0 to 2"),
    ([None, None, None, [None, int32(1, 1, 2), b"ab"], None], "offsets of values do not rise from 0 to 2"),
    ([None, None, None, [None, int32(0, 3, 2), b"ab"], None], "values"),
    ([None, None, None, [None, int32(0, -1, 2), b"ab"], None], "values"),
    ([None, None, None, [b"", int32(0, 1, 2), b"ab"], None], "the validity bits of values have 0 bytes"),
    ([None, None, None, [b"\x03\0", int32(0, 1, 2), b"ab"], None], "the validity bits of values have 2 bytes"),
    ([None, None, [None, int32(0, 0), b""], SOUND, None], "the offsets of keys have 8 bytes"),
    ([None, None, [None, int32(0, 5, 0), b""], SOUND, None], "keys"),
    ([None, int64(0), None, SOUND, None], "timestamp deltas have 8 bytes; 2 of them need 16"),
    ([None, int64(0, -(10**15)), None, SOUND, None], "a timestamp delta leads below -1"),
    ([None, int64(0, 2**63 - 1), None, SOUND, None], "out of 64 bits"),
    ([int32(0), None, None, SOUND, None], "offset deltas have 4 bytes"),
    ([int32(0, 0), None, None, SOUND, None], "offset deltas do not rise, one by one, within 0 to 1"),
    ([int32(1, 0), None, None, SOUND, None], "offset deltas do not rise"),
    ([int32(-1, 1), None, None, SOUND, None], "offset deltas do not rise"),
    ([int32(0, 2), None, None, SOUND, None], "offset deltas do not rise"),
    ([None, None, None, SOUND, [int32(0, 1), SOUND, SOUND]], "the offsets of headers have 8 bytes"),
    ([None, None, None, SOUND, [int32(0, 1, 1), SOUND, SOUND]], "the offsets of headers do not rise from 0 to 2"),
    ([None, None, None, SOUND, [int32(0, 3, 2), SOUND, SOUND]], "headers"),
    ([None, None, None, SOUND, [int32(0, 1, 2), SOUND, [None, int32(0, 1), b"a"]]], "the offsets of header values"),
    ([None, None, None, SOUND, [int32(0, 1, 2), [b"\x01", *SOUND[1:]], SOUND]], "a header has no key"),
    ([None, None, None, SOUND, [int32(0, 1, 2), [None, int32(0, 1, 2), b"a\xff"], SOUND]], "(?i)utf-?8"),
    ([None, None, None, SOUND, [int32(0, 1, 2), [None, int32(0, 1, 2), "ß".encode()], SOUND]], "(?i)utf-?8"),
    ([None, None, None, SOUND, [int32(), [None, b"", b""], SOUND]], "of headers? "),
]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(("payload", "text"), PAYLOAD_LIES)
def test_an_invalid_payload_is_refused(payload: list[Any], text: str) -> None:
    packed = reference.seal(reference.msgpack.packb(payload), 2, base_timestamp=NOW, max_timestamp=NOW)
    with pytest.raises(CorruptBatch, match=text):
        validate(packed, max_batch_bytes=1 << 20)
    with pytest.raises(CorruptBatch):
        RecordBatch(packed).records()
    with pytest.raises(CorruptBatch):
        RecordBatch(packed).to_arrow()


@pytest.mark.usefixtures("twin")
def test_redundant_offset_deltas_are_accepted() -> None:
    payload = reference.msgpack.packb(
        [int32(0, 1), None, None, [b"\xff", *SOUND[1:]], [int32(0, 0, 0), *[[None, int32(0), b""]] * 2]]
    )
    packed = reference.seal(payload, 2, base_timestamp=NOW, max_timestamp=NOW)
    assert validate(packed, max_batch_bytes=1 << 20).record_count == 2
    assert RecordBatch(packed).records() == [Record(0, NOW, None, b"a", ()), Record(1, NOW, None, b"b", ())]


def bin_32(content: bytes) -> bytes:
    return b"\xc6" + len(content).to_bytes(4, "big") + content


@pytest.mark.usefixtures("twin")
def test_longer_forms_of_msgpack_and_data_behind_nulls_are_accepted() -> None:
    """As `docs/record-batch.md` says of readers: not all libraries of other writers use the shortest form."""
    values = b"\xdc\x00\x03" + bin_32(b"\xfd") + bin_32(int32(0, 1, 5, 6)) + bin_32(b"anullc")
    payload = b"\xdd\x00\x00\x00\x05\xc0" + bin_32(int64(0, 0, 0)) + b"\xc0" + values + b"\xc0"
    packed = reference.seal(payload, 3, base_timestamp=NOW, max_timestamp=NOW)
    assert validate(packed, max_batch_bytes=1 << 20).record_count == 3
    assert RecordBatch(packed).values() == [b"a", None, b"c"]
    assert RecordBatch(packed).to_arrow().column("value").to_pylist() == [b"a", None, b"c"]
    assert RecordBatch(packed).timestamps_ms() == [NOW] * 3


def test_a_producers_batch_has_records() -> None:
    packed = reference.batch([], last_offset_delta=3, base_offset=7)
    RecordBatch(packed).check()
    assert RecordBatch(packed).records() == []
    with pytest.raises(CorruptBatch, match="must have at least one record"):
        validate(packed, max_batch_bytes=1 << 20)


def test_a_batch_without_records_has_no_timestamps() -> None:
    """A batch that passes the check can be read."""
    payload = reference.msgpack.packb([None, int64(5), None, [None, int32(0), b""], None])
    packed = reference.seal(payload, 0, last_offset_delta=3)
    with pytest.raises(CorruptBatch, match="timestamp deltas have 8 bytes; 0 of them need 0"):
        RecordBatch(packed).check()


def test_many_headers_of_few_records_are_checked_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a kilobyte of zstd is two million headers: a second and 300 MB as objects, not as columns."""
    monkeypatch.setattr(columns, "check_headers", lambda *_: pytest.fail("headers became objects"))
    for count in (record_batch.ARROW_FROM, 100_000):
        no_bytes = [None, bytes(4 * (count + 1)), b""]
        payload = [None, None, None, [None, int32(0, 0), b""], [int32(0, count), no_bytes, no_bytes]]
        body = reference.compress(Codec.ZSTD, reference.msgpack.packb(payload))
        assert validate(reference.seal(body, 1, attributes=Codec.ZSTD), max_batch_bytes=5000).record_count == 1


def test_the_bound_on_decompressed_bytes_is_the_callers() -> None:
    packed = pack([b"x" * 5000], codec=Codec.LZ4)
    assert validate(packed, max_batch_bytes=1000).record_count == 1
    with pytest.raises(CorruptBatch, match="for at most 5000 bytes"):
        validate(packed, max_batch_bytes=1000, max_decompressed_bytes=5000)


# --- Control batches -------------------------------------------------------------------------------------------------


def test_a_control_batch_survives_encoding() -> None:
    packed = encode_control(ControlKind.COMMIT, [(7, 1, 2**40), (8, 0, -1)], base_timestamp_ms=NOW, base_offset=3)
    decoded = RecordBatch(packed)
    assert decoded.header.is_control and decoded.header.is_transactional
    assert (decoded.header.record_count, decoded.header.end_offset) == (1, 4)
    assert decoded.control == Control(1, ControlKind.COMMIT, [ControlEntry(7, 1, 2**40), ControlEntry(8, 0, -1)])
    assert packed[61:] == reference.msgpack.packb([1, 1, [[7, 1, 2**40], [8, 0, -1]]])


def test_a_control_batch_gives_readers_nothing() -> None:
    decoded = RecordBatch(encode_control(ControlKind.ABORT, [(7, 1, 5)], base_timestamp_ms=NOW))
    decoded.check()
    columns = (decoded.values(), decoded.keys(), decoded.timestamps_ms(), decoded.offsets(), decoded.headers())
    assert [list(column) for column in columns] == [[]] * 5
    assert decoded.records() == [] and decoded.to_arrow().num_rows == 0
    assert decoded.to_arrow().schema.equals(RecordBatch(pack([b""])).to_arrow().schema)


def test_a_producer_sends_no_control_batch() -> None:
    with pytest.raises(CorruptBatch, match="a producer's batch must not be a control batch"):
        validate(encode_control(1, [], base_timestamp_ms=NOW), max_batch_bytes=1 << 20)


def test_batches_with_broker_only_fields_are_refused_before_their_payload_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_batch, "RecordBatch", lambda *_, **__: pytest.fail("the payload was looked at"))
    for attributes in (0x20, 0x34, 0x08, 0x44):
        with pytest.raises(CorruptBatch, match="a producer's batch"):
            validate(reference.seal(b"?", 1, attributes=attributes), max_batch_bytes=1 << 20)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec != Codec.NONE])
def test_a_control_batch_is_not_compressed(codec: Codec) -> None:
    body = reference.compress(codec, reference.msgpack.packb([1, 1, [[7, 1, 5]]]))
    with pytest.raises(CorruptBatch, match="a control batch must not be compressed"):
        RecordBatch(reference.seal(body, 1, attributes=0x30 | codec))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ([2, 1, []], "version 2; supported is 1"),
        ([1, 1], "not that of a control batch"),
        ([1, 1, [[1, 2]]], "not that of a control batch"),
        ([1, 1, [[-1, 2, 3]]], "not that of a control batch"),
        ([1, 1, [[1, 2**15, 3]]], "not that of a control batch"),
        ([1, 1, [[1, 2, 2**63]]], "not that of a control batch"),
        ({}, "not that of a control batch"),
    ],
)
def test_an_invalid_control_batch_is_refused(payload: Any, text: str) -> None:
    with pytest.raises(CorruptBatch, match=text):
        RecordBatch(reference.seal(reference.msgpack.packb(payload), 1, attributes=0x30))
