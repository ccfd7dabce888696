"""The bytes of the record batch format never change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.records import batch as record_batch
from raftlog.records.batch import (
    Codec,
    Control,
    ControlKind,
    Record,
    RecordBatch,
    check_crc,
    encode,
    encode_control,
    stamp,
    validate,
)
from raftlog.records.control import ControlEntry

from . import record_batch_reference as reference
from .record_batch_cases import CASES, Case, golden

GOLDEN = golden()
DOCUMENT = Path(__file__).parents[2] / "docs" / "record-batch.md"
OWN_TO_PRODUCERS = {"producer_id", "producer_epoch", "base_sequence", "base_offset"}


@pytest.fixture(params=["plain", "arrow"], autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(record_batch, "ARROW_FROM", 1 << 31 if request.param == "plain" else 0)
    yield


def expected(case: Case) -> list[Record]:
    base = case.fields.get("base_offset", 0)
    appended = case.fields["max_timestamp"] if case.fields.get("attributes", 0) & 8 else None
    return [
        Record(base + r.delta, r.timestamp if appended is None else appended, r.key, r.value, tuple(r.headers))
        for r in case.records
    ]


def test_every_case_has_its_bytes() -> None:
    assert list(GOLDEN) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_are_read(name: str) -> None:
    check_crc(GOLDEN[name])
    decoded = RecordBatch(GOLDEN[name])
    decoded.check()
    assert decoded.records() == expected(CASES[name])
    rows = decoded.to_arrow().to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (r.offset, r.key, r.value) for r in expected(CASES[name])
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_reference_reads_golden_bytes(name: str) -> None:
    found = [Record(r.delta, r.timestamp, r.key, r.value, tuple(r.headers)) for r in reference.read(GOLDEN[name])]
    assert found == expected(CASES[name])


def written_by_encode(case: Case) -> bytes:
    """Return the batch that a producer and, if the case has a leader's stamp, a leader write for it."""
    records, fields = case.records, case.fields
    packed = encode(
        [r.value for r in records],
        keys=[r.key for r in records],
        timestamps_ms=[r.timestamp for r in records],
        headers=[r.headers for r in records],
        base_timestamp_ms=0,
        codec=Codec(case.codec),
        transactional=bool(fields.get("attributes", 0) & 0x10),
        **{name: value for name, value in fields.items() if name in OWN_TO_PRODUCERS},
    )
    validate(packed, max_batch_bytes=1 << 20)
    time = fields["max_timestamp"] if fields.get("attributes", 0) & 8 else None
    return b"".join(stamp(packed, fields.get("base_offset", 0), fields.get("leader_epoch", -1), time))


@pytest.mark.parametrize("name", [name for name in CASES if "compacted" not in name])
def test_golden_bytes_are_written(name: str) -> None:
    """The bytes are identical without compression; another version of a library may compress differently."""
    case = CASES[name]
    packed = written_by_encode(case)
    if case.codec == Codec.NONE:
        assert packed == GOLDEN[name]
    else:
        assert reference.read(packed) == reference.read(GOLDEN[name])
        assert RecordBatch(packed).header.codec == case.codec


CONTROL = (
    "00000000000000090000004d0000000252114b04100030000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffff"
    "ff0000000193010192930701cf000001000000000093cf000001000000000000ff"
)


def test_a_control_batch_keeps_its_bytes() -> None:
    entries = [(7, 1, 2**40), (2**40, 0, -1)]
    packed = encode_control(ControlKind.COMMIT, entries, base_timestamp_ms=1700000000000)
    assert b"".join(stamp(packed, 9, 2)).hex() == CONTROL
    control = RecordBatch(bytes.fromhex(CONTROL)).control
    assert control == Control(1, ControlKind.COMMIT, [ControlEntry(*entry) for entry in entries])


def test_further_fields_of_a_control_batch_are_ignored() -> None:
    packed = reference.seal(reference.msgpack.packb([1, 7, [[5, 0, -1]], "new", [1]]), 1, attributes=0x30)
    assert RecordBatch(packed).control == Control(1, 7, [ControlEntry(5, 0, -1)])


def test_the_documents_example_is_correct() -> None:
    block = DOCUMENT.read_text().split("```hex\n")[1].split("```")[0]
    example = bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines()))
    assert len(example) == 172
    values: dict[str, list[object]] = {
        "values": [b"hello", None],
        "keys": [None, b"k"],
        "timestamps_ms": [1700000000000, 1700000000005],
        "headers": [[("h", b"x")], None],
    }
    packed = encode(**values, base_timestamp_ms=0, producer_id=7, producer_epoch=0, base_sequence=42)  # type: ignore[arg-type]
    assert b"".join(stamp(packed, 1000, 3)) == example
    assert RecordBatch(example).records() == [
        Record(1000, 1700000000000, None, b"hello", (("h", b"x"),)),
        Record(1001, 1700000000005, b"k", None, ()),
    ]
