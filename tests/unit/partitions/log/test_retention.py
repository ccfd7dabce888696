"""The segments that retention deletes and never deletes, and when it does not believe the clock."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from partitions.log.log import PartitionLog
from partitions.log.retention import SEGMENTS_PER_PASS_MAX
from partitions.log.tail import FetchCache
from raftlog.config import TopicConfig
from raftlog.model import Offset
from tests.support.partitions.storage import PATH, append, read_batches, recover_log, settle


def make(config: TopicConfig, batches: int = 30) -> PartitionLog:
    """One batch of two records per segment of 200 bytes; batch n has the times 1000 n and 1000 n + 1."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log, _ = recover_log(disk, PATH, config, clean_shutdown=False)
    for number in range(batches):
        append(log, count=2, time=1000 * number)
    settle(log)
    assert len(log.segments) == batches
    return log


def test_segments_with_only_old_records_are_deleted() -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=10_000), batches=12)
    assert log.retention(13_001, Offset(24)) == 6, "3001 is not older than 10 s, 2001 is"
    assert log.retention(13_000, Offset(24)) == 6
    assert log.retention(5_000, Offset(24)) == 0


def test_a_young_record_in_an_old_segment_keeps_it_and_all_behind_it() -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    log, _ = recover_log(disk, PATH, TopicConfig(segment_bytes=150, retention_ms=1000), clean_shutdown=False)
    for time in (1000, 1000, 90_000, 1000, 1000):
        append(log, count=2, time=time)
    settle(log)
    assert log.retention(50_000, Offset(10)) == 4


def test_no_limit_deletes_nothing() -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=-1), batches=8)
    assert log.retention(2**50, Offset(16)) == 0


def test_excess_bytes_are_deleted_down_to_the_limit() -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=-1), batches=8)
    one = log.size_bytes // 8
    for limit in (0, 1, one - 1, one, one + 1, 3 * one, 8 * one, 9 * one):
        log.configure(TopicConfig(segment_bytes=150, retention_ms=-1, retention_bytes=limit))
        start = log.retention(None, Offset(16))
        left = log.size_bytes - start // 2 * one
        assert left >= min(limit, log.size_bytes)
        assert left - one < limit or left == 0


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 9, 10])
def test_nothing_is_deleted_beyond_the_bound(bound: int) -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=0, retention_bytes=0), batches=6)
    assert log.retention(2**50, Offset(bound)) == bound // 2 * 2


def test_a_bounded_number_of_segments_per_pass() -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=0), batches=SEGMENTS_PER_PASS_MAX + 5)
    end = log.log_end_offset
    assert log.retention(2**50, end) == 2 * SEGMENTS_PER_PASS_MAX
    log.advance_log_start(log.retention(2**50, end))
    settle(log)
    assert len(log.segments) == 5
    log.advance_log_start(log.retention(2**50, end))
    settle(log)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (end, end, 0), "the last one too"
    append(log)
    settle(log)
    assert len(read_batches(log, end)) == 1


def test_without_a_clock_only_size_counts() -> None:
    log = make(TopicConfig(segment_bytes=150, retention_ms=0), batches=4)
    assert log.retention(None, Offset(8)) == 0


def test_indexes_of_deleted_segments_leave_the_cache() -> None:
    disk, cache = SimDisk(), FetchCache(0)
    disk.make_directory("partitions")
    config = TopicConfig(segment_bytes=500, index_interval_bytes=100, retention_bytes=1000)
    log, _ = recover_log(disk, PATH, config, clean_shutdown=False, cache=cache)
    for number in range(24):
        append(log, count=2, time=1000 * number)
        settle(log)
    read_batches(log, 0)
    first, last = log.segments.all[0], log.segments.all[-2]
    assert cache.index(first) is not None and cache.index(last) is not None
    before = cache.index_bytes
    start = log.retention(0, log.log_end_offset)
    assert first.end_offset <= start < last.end_offset
    log.advance_log_start(start)
    settle(log)
    assert cache.index(first) is None and cache.index(last) is not None
    assert 0 < cache.index_bytes < before
