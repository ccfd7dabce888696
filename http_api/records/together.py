"""Records of several requests in shared batches, and each request's part of the outcome.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from raftlog.wire import ProducedPartition

from .pack import PackedBatch
from .parse import RecordColumns


class Appended(msgspec.Struct, frozen=True):
    """The batches with the records of a request, and the outcome of each."""

    batches: Sequence[PackedBatch]
    told: Sequence[ProducedPartition]


def join_columns(requests: Sequence[RecordColumns]) -> RecordColumns:
    """Return the records of all requests, in their order."""
    joined = RecordColumns()
    for columns in requests:
        joined.values += columns.values
        joined.keys += columns.keys
        joined.timestamps_ms += columns.timestamps_ms
        joined.headers += columns.headers
        joined.partitions += columns.partitions
    return joined


def part_of(appended: Appended, start: int, count: int) -> Appended:
    """Return the part of the request whose records have these numbers among the joined ones."""
    batches: list[PackedBatch] = []
    outcomes: list[ProducedPartition] = []
    for one, told in zip(appended.batches, appended.told, strict=True):
        # The records of a batch keep their order, so those of a request are neighbours.
        first, end = bisect_left(one.records, start), bisect_left(one.records, start + count)
        if first < end:
            batches.append(PackedBatch(one.partition, [number - start for number in one.records[first:end]], one.batch))
            base_offset = told.base_offset + first if told.base_offset >= 0 else told.base_offset
            outcomes.append(msgspec.structs.replace(told, base_offset=base_offset))
    return Appended(batches, outcomes)
