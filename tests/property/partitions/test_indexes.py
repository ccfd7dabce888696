"""Indexes compared with a list of all batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partitions.files.segment import SegmentIndex
from raftlog.model import Offset
from raftlog.records.batch import BatchHeader

BATCHES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(61, 400), st.integers(-1, 50)), max_size=40
)  # records, bytes, largest timestamp


def header(base_offset: int, count: int, length: int, timestamp: int) -> BatchHeader:
    return BatchHeader(base_offset, length - 12, 0, 82, 0, 0, count - 1, timestamp, timestamp, -1, -1, -1, count)


def check(index: SegmentIndex, headers: list[BatchHeader], base: int) -> None:
    """Both indexes point to the start of a batch, at or before the target, and not further back than necessary."""
    positions = [sum(one.total_bytes for one in headers[:number]) for number in range(len(headers) + 1)]
    starts = {one.base_offset: position for one, position in zip(headers, positions, strict=False)} | {base: 0}
    end = headers[-1].end_offset if headers else base
    assert (index.end_offset, index.size) == (end, positions[-1])
    assert index.times.max_timestamp == max([-1, *(one.max_timestamp for one in headers)])
    for offset in range(base - 2, end + 3):
        found, position = index.offsets.floor(Offset(offset))
        assert starts[found] == position
        assert found <= max(offset, base)
    for timestamp in range(-1, 53):
        floor = index.times.floor(timestamp)
        assert floor in starts
        assert all(one.max_timestamp < timestamp for one in headers if one.base_offset < floor)


@given(BATCHES, st.integers(0, 500), st.integers(0, 2**40), st.data())
def test_indexes_are_correct_after_growth_truncation_and_reading_their_files(
    batches: list[tuple[int, int, int]], interval: int, base: int, data: st.DataObject
) -> None:
    index = SegmentIndex.empty(Offset(base), interval)
    headers: list[BatchHeader] = []

    def grow(more: list[tuple[int, int, int]]) -> None:
        for count, length, timestamp in more:
            one = header(headers[-1].end_offset if headers else base, count, length, timestamp)
            index.add(one)
            headers.append(one)

    grow(batches)
    check(index, headers, base)
    entries = len(index.offsets)
    if interval:
        assert entries <= index.size // interval
    keep = data.draw(st.integers(0, len(headers)), "batches kept")
    del headers[keep:]
    end = headers[-1].end_offset if headers else base
    begin = index.truncate(Offset(end), sum(one.total_bytes for one in headers))
    for one in headers:
        if one.base_offset >= begin:
            index.add_time(one)
    check(index, headers, base)
    grow(data.draw(BATCHES, "appended again"))
    again = SegmentIndex.decode(Offset(base), index.offsets.encode(), index.times.encode(), interval)
    check(again, headers, base)
    check(index.copy(), headers, base)
