"""Reads: memory, regions of files, cold pages, damage, deletion during a read, timestamps."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.files import batch_walk
from partitions.files.damage import LogDamaged
from partitions.log import reader as log_reader
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, InvariantViolation, RetriableError
from raftlog.model import Offset
from raftlog.ports import FileRegion
from tests.support.partitions.storage import PATH, Batch, append, batch, part_bytes, read_batches, recover_log, settle

SMALL = TopicConfig(segment_bytes=500, index_interval_bytes=100)


def make(
    config: TopicConfig = SMALL, *, cache_bytes: int = 0, batches: int = 24, cache: FetchCache | None = None
) -> tuple[SimDisk, PartitionLog, list[Batch]]:
    disk = SimDisk()
    disk.make_directory("partitions")
    log, _ = recover_log(disk, PATH, config, clean_shutdown=False, cache=cache or FetchCache(cache_bytes))
    made = []
    for number in range(batches):
        made.append(append(log, count=2, epoch=number // 7, time=1_000 + 100 * number))
        settle(log)
    return disk, log, made


def test_recent_batches_come_from_memory_and_older_ones_as_regions() -> None:
    length = len(batch(0, count=2).data)
    _, log, made = make(TopicConfig(), cache_bytes=5 * length)
    slice_ = log.read(Offset(0), Offset(48), 1 << 20)
    assert isinstance(slice_.parts[0], FileRegion)
    assert not any(isinstance(part, FileRegion) for part in slice_.parts[1:])
    assert slice_.parts[0].length == 19 * length
    assert slice_.batch_count == 24
    assert b"".join(map(part_bytes, slice_.parts)) == b"".join(one.data for one in made)


def test_the_cache_is_shared_by_all_logs_and_evicts_the_oldest_writes() -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    length = len(batch(0, count=2).data)
    cache = FetchCache(3 * length)
    logs = [recover_log(disk, f"partitions/{n}", SMALL, clean_shutdown=False, cache=cache)[0] for n in range(2)]
    for number in (0, 0, 1, 0, 1):
        append(logs[number], count=2)
        settle(logs[number])
    assert cache.batch_bytes == 3 * length
    assert logs[0].facts().cached_from == 4
    assert logs[1].facts().cached_from == 0
    append(logs[0], count=2)
    assert cache.batch_bytes == 3 * length, "what no file holds does not count, and does not go"
    logs[1].close(clean=False)
    for _ in range(3):
        append(logs[0], count=2)
        settle(logs[0])
    assert cache.batch_bytes <= 3 * length


def test_a_read_skips_a_bounded_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MAX_BATCHES_PER_READ", 5)
    for cache_bytes in (0, 1 << 20):
        _, log, made = make(TopicConfig(), cache_bytes=cache_bytes)
        slice_ = log.read(Offset(3), Offset(48), 1 << 20)
        assert (slice_.first_offset, slice_.next_offset, slice_.batch_count) == (2, 12, 5)
        assert b"".join(map(part_bytes, slice_.parts)) == b"".join(one.data for one in made[1:6])


def test_nothing_beyond_the_requested_end_is_given() -> None:
    for cache_bytes in (0, 1 << 20):
        _, log, made = make(cache_bytes=cache_bytes)
        for end in range(49):
            expected = [one.data for one in made if one.end_offset <= end]
            assert read_batches(log, 0, end) == expected


def test_without_min_one_batch_the_first_is_bounded_too() -> None:
    for cache_bytes in (0, 1 << 20):
        _, log, made = make(cache_bytes=cache_bytes)
        assert log.read(Offset(0), Offset(48), 10, min_one_batch=False).parts == []
        one = log.read(Offset(0), Offset(48), 10)
        assert one.length == len(made[0].data)
        one.release()


def test_a_region_is_released_once_and_keeps_the_file_until_then() -> None:
    _, log, made = make()
    slice_ = log.read(Offset(0), Offset(4), 1 << 20)
    (region,) = slice_.parts
    assert isinstance(region, FileRegion)
    file = log.segments.all[0].file
    open_before = file.is_open
    slice_.release()
    assert (open_before, file.is_open) == (True, False)
    assert slice_.parts == []
    with pytest.raises(InvariantViolation, match="twice"):
        region.release()
    assert read_batches(log, 0) == [one.data for one in made]


def test_a_segment_is_deleted_during_a_read() -> None:
    disk, log, made = make()
    slices = [log.read(Offset(0), Offset(6), 1 << 20) for _ in range(2)]
    log.advance_log_start(Offset(40))
    settle(log)
    assert f"{0:020d}.log" not in disk.list(PATH)
    for slice_ in slices:
        assert b"".join(map(part_bytes, slice_.parts)) == b"".join(one.data for one in made[:3])


# --- Cold ---


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "pread_cached", lambda *_: None)


def test_cold_pages_are_loaded_by_a_worker(cold: None) -> None:
    _, log, made = make()
    slice_ = log.read(Offset(3), Offset(48), 1 << 20)
    assert slice_.cold and slice_.parts == [] and slice_.load is not None
    loaded = slice_.load()
    assert not loaded.cold
    assert (loaded.first_offset, loaded.parts != []) == (2, True)
    assert read_batches(log, 0) == [one.data for one in made]


def test_a_region_whose_pages_are_missing_between_the_headers_is_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_walk, "PROBE_BYTES", 64)
    _, log, made = make(TopicConfig())
    gap = len(made[0].data) + 70
    real = SimFile.pread
    monkeypatch.setattr(
        SimFile, "pread_cached", lambda f, n, at: real(f, n, at) if n > 1 or not gap - 64 < at <= gap else None
    )
    assert log.read(Offset(0), Offset(2), 1 << 20).parts, "the first batch alone is in memory"
    assert log.read(Offset(0), Offset(4), 1 << 20).cold


def test_a_read_that_meets_cold_pages_returns_the_part_before(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log, _ = make()
    second = log.segments.all[1]
    cold_inode = disk.inode_of(f"{PATH}/{second.base_offset:020d}.log")
    real = SimFile.pread
    monkeypatch.setattr(SimFile, "pread_cached", lambda f, n, at: None if f.inode is cold_inode else real(f, n, at))
    slice_ = log.read(Offset(0), Offset(48), 1 << 20)
    assert not slice_.cold and slice_.next_offset == second.base_offset
    slice_.release()
    assert log.read(second.base_offset, Offset(48), 1 << 20).cold


def test_a_cold_read_of_a_removed_segment_must_be_repeated(cold: None) -> None:
    _, log, _ = make()
    slice_ = log.read(Offset(0), Offset(48), 1 << 20)
    log.advance_log_start(Offset(40))
    settle(log)
    assert slice_.load is not None
    with pytest.raises(RetriableError) as caught:
        slice_.load()
    assert caught.value.code == "offset_not_available"


def test_a_damaged_index_of_a_sealed_segment_is_rebuilt_by_a_worker() -> None:
    cache = FetchCache(0)
    disk, log, made = make(cache=cache)
    cache.forget(log.segments.all[0])
    disk.replace(f"{PATH}/{0:020d}.index", b"rotten")
    slice_ = log.read(Offset(2), Offset(6), 1 << 20)
    assert slice_.load is not None
    assert b"".join(map(part_bytes, slice_.load().parts)) == b"".join(one.data for one in made[1:3])
    again = log.read(Offset(2), Offset(6), 1 << 20)
    assert not again.cold, "the index that the worker made is used from now on"
    again.release()


# --- Damage ---


@pytest.mark.parametrize("position", [7, 11, 15, 16])
@pytest.mark.parametrize("is_cold", [False, True])
def test_damage_outside_the_crc_fails_the_log_and_the_next_recovery_finds_it(
    position: int, is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, log, made = make()
    length = len(made[0].data)
    disk.flip(f"{PATH}/{0:020d}.log", length + position, 1)
    if is_cold:
        monkeypatch.setattr(SimFile, "pread_cached", lambda *_: None)
    before = log.read(Offset(0), Offset(2), 1 << 20)
    assert before.cold or before.length == length, "what lies before the damage is good"
    before.release()
    with pytest.raises(DiskFailed):
        slice_ = log.read(Offset(2), Offset(48), 1 << 20)
        assert slice_.load is not None
        try:
            slice_.load()
        except LogDamaged as error:
            log.damage_found(error)
            raise
    assert isinstance(log.failed, LogDamaged)
    log.close(clean=False)
    again, recovery = recover_log(disk, PATH, SMALL, clean_shutdown=False)
    assert recovery.cut_or_quarantined
    assert read_batches(again, 0) == [made[0].data]


def test_damage_on_a_read_only_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that was remounted read-only: the reader gets the error of the damage, not of the index."""
    disk, log, made = make()
    disk.flip(f"{PATH}/{0:020d}.log", len(made[0].data) + 7, 1)

    def refuse(path: str) -> None:
        raise DiskFailed(f"remove {path}: Read-only file system")

    monkeypatch.setattr(disk, "remove", refuse)
    with pytest.raises(LogDamaged):
        log.read(Offset(2), Offset(48), 1 << 20)
    assert isinstance(log.failed, LogDamaged)


def test_damage_under_the_crc_is_found_by_a_cold_read(cold: None) -> None:
    disk, log, _ = make()
    disk.flip(f"{PATH}/{0:020d}.log", 80, 1)
    slice_ = log.read(Offset(0), Offset(48), 1 << 20)
    assert slice_.load is not None
    with pytest.raises(LogDamaged):
        slice_.load()


def test_a_cold_read_overtaken_by_a_truncation_is_no_damage(cold: None) -> None:
    _, log, made = make(TopicConfig())
    slice_ = log.read(Offset(2), Offset(48), 1 << 20)
    log.truncate_to(Offset(0))
    for _ in range(24):
        append(log, count=1, epoch=9)
    settle(log)
    assert slice_.load is not None
    with pytest.raises(LogDamaged) as caught:
        slice_.load()
    log.damage_found(caught.value)
    assert log.failed is None
    assert made[0].data not in read_batches(log, 0)


# --- Timestamps ---


def expected_time(made: list[Batch], start: int, end: int, timestamp: int) -> tuple[int, int] | None:
    for one in made:
        for number in range(one.header.record_count):
            offset, time = one.header.base_offset + number, one.header.base_timestamp + number
            if time >= timestamp and start <= offset < end:
                return offset, time
    return None


@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 20])
def test_the_first_record_at_or_after_a_time_is_found(cache_bytes: int) -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    log, _ = recover_log(disk, PATH, SMALL, clean_shutdown=False, cache=FetchCache(cache_bytes))
    # Timestamps that do not rise along the log.
    times = [100, 120, 90, 300, 310, 305, 200, 500, 400, 450, 501, 480, 700, 650, 600, 710, 720, 600]
    made = []
    for number, time in enumerate(times):
        made.append(append(log, count=3, time=time))
        if number % 4 == 0:
            settle(log)
    for start in (0, 7, 20):
        log.advance_log_start(Offset(start))
        for end in (54, 30, 21):
            for timestamp in range(80, 740, 7):
                expected = expected_time(made, start, 54, timestamp)
                if expected is not None and expected[0] >= end:
                    expected = None
                assert log.timestamp_search(timestamp, Offset(end)).run() == expected, (start, end, timestamp)


def test_a_time_search_works_without_good_index_files() -> None:
    disk, log, made = make()
    for segment in log.segments.all[:-1]:
        disk.replace(f"{PATH}/{segment.base_offset:020d}.timeindex", b"rotten")
    for one in made:
        time = one.header.base_timestamp + 1
        assert log.timestamp_search(time, Offset(48)).run() == (one.header.base_offset + 1, time)
