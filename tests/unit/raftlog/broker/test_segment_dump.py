"""Dumps of segments and indexes: what is whole, torn or damaged, on copies of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitions.files.segment import SegmentIndex
from raftlog.broker.segment_dump import DumpedBatch, DumpedEntry, Problem, dump_file
from raftlog.errors import InvalidRequest
from raftlog.model import Offset
from raftlog.records.batch import encode, parse_header, stamp
from raftlog.records.control import ControlKind, encode_control

BASE = Offset(40)
T0 = 1_700_000_000_000
NAME = "00000000000000000040"


def batches() -> list[bytes]:
    """Three batches of two records, then a control batch, as a leader stamped them."""
    made = [
        encode(
            [b"a%d" % n, None],
            keys=[b"k", None],
            base_timestamp_ms=T0 + n,
            producer_id=7,
            producer_epoch=1,
            base_sequence=2 * n,
        )
        for n in range(3)
    ]
    made.append(encode_control(ControlKind.COMMIT, [(7, 1, 46)], base_timestamp_ms=T0 + 3))
    offsets = (40, 42, 44, 46)
    return [b"".join(map(bytes, stamp(batch, offset, 5))) for batch, offset in zip(made, offsets, strict=True)]  # type: ignore[arg-type]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A sealed segment with its indexes."""
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(b"".join(batches()))
    write_indexes(path)
    return path


def write_indexes(path: Path) -> None:
    index = SegmentIndex.empty(BASE, 1)
    for batch in batches():
        header = parse_header(batch)
        entered = index.offsets.add(Offset(header.end_offset), header.total_bytes)
        index.times.add(Offset(header.end_offset), header.max_timestamp, enter=entered)
    offsets, times = index.encode()
    path.with_suffix(".index").write_bytes(offsets)
    path.with_suffix(".timeindex").write_bytes(times)


def dump(path: Path, *, with_records: bool = False) -> tuple[list[DumpedBatch], list[Problem]]:
    found = list(dump_file(str(path), with_records=with_records))
    return [one for one in found if isinstance(one, DumpedBatch)], [one for one in found if isinstance(one, Problem)]


def position(number: int) -> int:
    return sum(map(len, batches()[:number]))


def test_a_whole_segment(segment: Path) -> None:
    shown, problems = dump(segment, with_records=True)
    assert problems == []
    assert [(one.base_offset, one.last_offset, one.position) for one in shown] == [
        (40, 41, 0), (42, 43, position(1)), (44, 45, position(2)), (46, 46, position(3)),
    ]  # fmt: skip
    first, control = shown[0], shown[3]
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.leader_epoch) == (7, 1, 0, 5)
    assert first.records is not None
    assert [(one.offset, one.key, one.value) for one in first.records] == [(40, b"k", b"a0"), (41, None, None)]
    assert control.is_control and control.control == "commit: producer 7 epoch 1" and control.records == []
    assert dump(segment)[0][0].records is None, "only if they are wanted"


@pytest.mark.parametrize("kept", [1, 60, 61, 90])
def test_a_torn_tail_is_told_from_damage(segment: Path, kept: int) -> None:
    content = segment.read_bytes()
    segment.write_bytes(content[: position(2) + kept])
    for index in (".index", ".timeindex"):
        segment.with_suffix(index).unlink()
    shown, problems = dump(segment)
    assert len(shown) == 2
    (torn,) = problems
    assert torn.is_torn_tail and torn.position == position(2) and "torn tail" in str(torn)
    assert segment.read_bytes() == content[: position(2) + kept], "nothing is changed"


def test_a_changed_payload_is_found_by_its_crc_and_the_rest_is_shown(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[position(2) - 1] ^= 1
    segment.write_bytes(content)
    shown, problems = dump(segment, with_records=True)
    assert [one.is_valid for one in shown] == [True, False, True, True]
    assert [(one.position, one.is_torn_tail) for one in problems] == [(position(1), False)]


def test_behind_a_damaged_header_nothing_can_be_read(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[position(1) + 16] = 3  # the magic
    segment.write_bytes(content)
    shown, problems = dump(segment)
    assert len(shown) == 1 and [one.position for one in problems] == [position(1)]


def test_zeros_are_named(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + bytes(100))
    _, problems = dump(segment)
    assert "the last 100 bytes are zeros" in problems[0].detail


def test_a_batch_in_the_wrong_place_is_damage(segment: Path) -> None:
    first, second, *_ = batches()
    segment.write_bytes(second + first)
    shown, problems = dump(segment)
    assert [one.base_offset for one in shown] == [42]
    assert "begins at offset 40, but the one before it ends at 44" in problems[0].detail


class TestIndexes:
    def test_entries_are_shown(self, segment: Path) -> None:
        offsets = list(dump_file(str(segment.with_suffix(".index"))))
        assert offsets == [DumpedEntry(42 + 2 * n, position=position(n + 1)) for n in range(3)]
        times = list(dump_file(str(segment.with_suffix(".timeindex"))))
        assert times == [DumpedEntry(42 + 2 * n, timestamp_ms=T0 + n) for n in range(3)]

    def test_an_entry_that_names_no_batch_is_a_mismatch(self, segment: Path) -> None:
        index = SegmentIndex.empty(BASE, 1)
        for length in (100, 100):
            index.offsets.add(Offset(index.offsets.end_offset + 2), length)
        segment.with_suffix(".index").write_bytes(index.offsets.encode())
        _, problems = dump(segment)
        assert [one.file for one in problems] == [str(segment.with_suffix(".index"))]
        assert f"offset 42 begins at byte 100: that batch begins at byte {position(1)}" in problems[0].detail

    def test_an_index_that_goes_too_far_or_says_another_time_is_a_mismatch(self, segment: Path) -> None:
        whole = segment.read_bytes()
        segment.write_bytes(whole[: position(3)])
        _, problems = dump(segment)
        assert {Path(one.file).suffix for one in problems} == {".index", ".timeindex"}
        assert "the batch at offset 46 begins" in problems[0].detail and "no batch begins there" in problems[0].detail
        assert problems[1].detail == "it covers offsets up to 47, and the segment ends at 46"
        segment.write_bytes(whole)
        index = SegmentIndex.empty(BASE, 1)
        index.times.add(Offset(42), T0 + 99, enter=False)
        segment.with_suffix(".timeindex").write_bytes(index.times.encode())
        (problem,) = dump(segment)[1]
        assert f"no record before offset 42 is later than {T0 + 99}: one is of {T0}" in problem.detail

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    def test_a_damaged_one_is_a_problem_of_its_own(self, segment: Path, suffix: str) -> None:
        path = segment.with_suffix(suffix)
        path.write_bytes(path.read_bytes()[:-1])
        assert [one.file for one in dump(segment)[1]] == [str(path)]
        assert [type(one) for one in dump_file(str(path))] == [Problem]

    def test_that_of_another_segment(self, segment: Path, tmp_path: Path) -> None:
        moved = tmp_path / "00000000000000000099.index"
        segment.with_suffix(".index").rename(moved)
        (problem,) = dump_file(str(moved))
        assert isinstance(problem, Problem) and "it is the index of segment 40" in problem.detail


@pytest.mark.parametrize("name", ["checkpoint", "40.log", f"{NAME}.txt"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="is no segment and no index"):
        list(dump_file(str(tmp_path / name)))


def test_an_empty_segment_and_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.log"
    with pytest.raises(InvalidRequest, match="No such file"):
        list(dump_file(str(path)))
    path.write_bytes(b"")
    assert list(dump_file(str(path))) == []
