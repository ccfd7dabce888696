"""Retention: which segments are old enough, or beyond the size limit, to be deleted.

A segment's age is that of its latest record, by the record's own timestamp (as in Kafka: a producer with wrong
timestamps decides how long the segments that it shares are kept) and by the cluster time, which no single wall clock
determines. If that time is unknown, only the size rule applies: it needs no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitions.files.segment import Segment
from raftlog.config import TopicConfig
from raftlog.model import Offset

SEGMENTS_PER_PASS_MAX = 16
"""Bound for one pass over one log: a wrong setting that is noticed soon has not deleted everything."""


def retained_start(
    config: TopicConfig, segments: Sequence[Segment], log_start: Offset, end_bound: Offset, now_ms: int | None
) -> Offset:
    """Return the start that the topic's settings give a log: a segment's end, or the present start.

    The oldest segments go while they are wholly below `end_bound` and either every record is older than `retention.ms`
    or the rest still has `retention.bytes`. If `now_ms` is None, only size counts.
    """
    start = log_start
    if not config.deletes:
        return start
    size = sum(segment.size for segment in segments)
    for segment in segments[:SEGMENTS_PER_PASS_MAX]:
        if not segment.size or segment.end_offset > end_bound:
            break
        too_old = (
            now_ms is not None
            and config.retention_ms >= 0
            and segment.max_timestamp >= 0
            and segment.max_timestamp < now_ms - config.retention_ms
        )
        size -= segment.size
        too_many = 0 <= config.retention_bytes <= size
        if not too_old and not too_many:
            break
        start = max(start, segment.end_offset)
    return start
