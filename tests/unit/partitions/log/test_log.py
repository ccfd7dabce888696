"""A partition's log on the real disk: its guarantees, one per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitions.log.tail import FetchCache
from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequest, InvariantViolation
from raftlog.model import Offset
from raftlog.system.disk import LocalDisk
from tests.support.partitions.storage import PATH, append, batch, open_log, read_batches, recover_log, settle


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk(str(tmp_path))


def test_a_new_log_is_empty_and_clean(disk: LocalDisk) -> None:
    log, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert recovery.clean and not recovery.cut_or_quarantined
    assert (log.log_start_offset, log.stable_end_offset, log.log_end_offset) == (0, 0, 0)
    assert log.size_bytes == 0
    assert log.take_job() is None
    log.check_invariants()


def test_appended_batches_are_read_at_once_and_stable_after_their_job(disk: LocalDisk) -> None:
    log = open_log(disk)
    made = [append(log, count=3), append(log, count=2)]
    assert (log.stable_end_offset, log.log_end_offset) == (0, 5)
    assert read_batches(log, 0) == [one.data for one in made]
    job = log.take_job()
    assert job is not None and log.take_job() is None, "one at a time"
    job.run()
    assert log.stable_end_offset == 0
    log.job_done(job, None)
    assert log.stable_end_offset == 5
    assert read_batches(log, 4) == [made[1].data]
    log.check_invariants()


def test_a_log_is_unchanged_after_a_clean_close(disk: LocalDisk) -> None:
    log = open_log(disk)
    made = [append(log, epoch=number // 2) for number in range(7)]
    log.close(clean=True)
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=True)
    assert recovery.clean and recovery.notes == ()
    assert (recovery.last_epoch, recovery.stable_end_offset) == (3, 7)
    assert read_batches(again, 0) == [one.data for one in made]
    assert again.epochs == log.epochs


@pytest.mark.parametrize("cache_bytes", [0, 100, 1 << 20])
def test_segments_roll_and_reads_cross_them(disk: LocalDisk, cache_bytes: int) -> None:
    config = TopicConfig(segment_bytes=1024, index_interval_bytes=200)
    log, _ = recover_log(disk, PATH, config, clean_shutdown=False, cache=FetchCache(cache_bytes))
    made = []
    for number in range(60):
        made.append(append(log, count=1 + number % 3))
        if number % 7 == 0:
            settle(log)
    settle(log)
    assert len([name for name in disk.list(PATH) if name.endswith(".log")]) > 5
    for start in range(log.log_end_offset):
        for max_bytes in (1, 500, 5000):
            expected = [one.data for one in made if one.end_offset > start]
            assert read_batches(log, start, max_bytes=max_bytes) == expected
    log.check_invariants()
    log.close(clean=True)
    assert read_batches(open_log(disk, config, clean=True), 0) == [one.data for one in made]


def test_append_refuses_what_does_not_continue_the_log(disk: LocalDisk) -> None:
    log = open_log(disk)
    append(log, epoch=4)
    for wrong in (batch(0, epoch=4), batch(2, epoch=4), batch(1, epoch=3)):
        with pytest.raises(InvariantViolation):
            log.append(wrong.header, wrong.buffers)
    assert log.log_end_offset == 1
    assert log.epochs.latest_epoch == 4
    log.check_invariants()


def test_reads_outside_the_log_are_refused(disk: LocalDisk) -> None:
    log = open_log(disk)
    for _ in range(4):
        append(log)
    log.advance_log_start(Offset(2))
    for offset in (-1, 0, 1, 5, 99):
        with pytest.raises(InvalidRequest) as caught:
            log.read(Offset(offset), Offset(9), 100)
        assert caught.value.code == "offset_out_of_range"
    assert log.read(Offset(4), Offset(9), 100).parts == []
    assert log.failed is None
