"""Parts of a restore that need no cluster: what is sent together, and what stands for deleted offsets."""

from __future__ import annotations

import pytest

from raftlog.backup.restore import LONGEST_HOLE, REQUEST_BATCHES, REQUEST_BYTES, holes_up_to, in_requests
from raftlog.records.batch import check_crc, parse_header
from raftlog.records.batch_filter import is_hole
from tests.support.backups import LOG, batch


@pytest.mark.parametrize("end", [0, 1, LONGEST_HOLE, LONGEST_HOLE + 1, 2**33 + 7])
def test_holes_cover_every_offset_below_the_first_batch(end: int) -> None:
    expected = 0
    for header, data in holes_up_to(end, 99):
        assert check_crc(data) == header and is_hole(header)
        assert (header.base_offset, header.producer_id) == (expected, 99)
        expected = header.end_offset
    assert expected == end


def test_requests_are_bounded_and_keep_the_order() -> None:
    batches = [(parse_header(one), memoryview(one)) for one in LOG] * 300
    parts = list(in_requests(batches))
    assert [one for part in parts for one in part] == batches
    assert max(map(len, parts)) == REQUEST_BATCHES
    large = batch(0, 100_000)
    parts = list(in_requests([(parse_header(large), memoryview(large))] * 5))
    assert all(sum(len(data) for _, data in part) <= REQUEST_BYTES for part in parts) and len(parts) > 1
    assert list(in_requests([])) == []
