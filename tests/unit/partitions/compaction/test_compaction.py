"""The records that compaction keeps and removes, and that it changes nothing else (S2, S4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.compaction import run as compaction_run
from partitions.compaction.plan import OffsetMap, SegmentFacts, key_of_map, plan_compaction
from partitions.compaction.run import CleanedSegment, Finished
from partitions.files.checkpoint import DamagedFile, decode_cleaner_checkpoint, encode_cleaner_checkpoint
from partitions.files.damage import LogDamaged
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from partitions.log.writer import LogWriter
from partitions.producers.state import ProducerStates
from raftlog.config import TopicConfig
from raftlog.model import Offset
from raftlog.ports import File
from raftlog.records.batch import ARROW_FROM, Codec, RecordBatch, encode, encode_control, stamp
from raftlog.records.batch_filter import keep_records
from tests.support.partitions.compaction import COMPACTED, append_records, compact, records, reopen, seal, table
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.partitions.storage import PATH, open_log, read_batches, recover_log, settle


def new_log(config: TopicConfig = COMPACTED, cache: FetchCache | None = None) -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    disk.make_directory("partitions")
    return disk, open_log(disk, config, cache=cache)


def headers(log: PartitionLog) -> list[Any]:
    return [RecordBatch(data).header for data in read_batches(log, log.log_start_offset)]


class TestThePlan:
    SEALED = (
        SegmentFacts(Offset(0), Offset(10), 100, 1_000, 500),
        SegmentFacts(Offset(10), Offset(20), 100, 2_000, 1_500),
        SegmentFacts(Offset(20), Offset(30), 200, 3_000, 2_500),
    )

    def plan(self, first_dirty: int = 0, high_watermark: int = 30, now_ms: int = 9_000, **settings: Any) -> Any:
        config = replace(COMPACTED, **settings)
        return plan_compaction(config, self.SEALED, Offset(first_dirty), Offset(high_watermark), now_ms)

    def test_only_segments_wholly_below_the_high_watermark(self) -> None:
        assert self.plan(high_watermark=30).end == 30
        assert self.plan(high_watermark=29).end == 20
        assert self.plan(high_watermark=9) is None

    def test_only_segments_older_than_the_least_lag(self) -> None:
        assert self.plan(min_compaction_lag_ms=6_500).end == 20
        assert self.plan(min_compaction_lag_ms=8_001) is None

    def test_without_a_least_lag_a_clock_that_is_ahead_holds_up_nothing(self) -> None:
        assert self.plan(now_ms=1_500).end == 30
        assert self.plan(now_ms=1_500, min_compaction_lag_ms=1).end == 10

    def test_overdue_is_determined_by_the_first_record(self) -> None:
        """KIP-354: it is the oldest one that may not wait longer."""
        assert self.plan(20, min_cleanable_dirty_ratio=0.51, max_compaction_lag_ms=6_499) is not None
        assert self.plan(20, min_cleanable_dirty_ratio=0.51, max_compaction_lag_ms=6_500) is None

    def test_only_logs_that_are_dirty_enough_unless_they_are_overdue(self) -> None:
        assert self.plan(20).dirty_ratio == 0.5
        assert self.plan(20, min_cleanable_dirty_ratio=0.5) is not None
        assert self.plan(20, min_cleanable_dirty_ratio=0.51) is None
        assert self.plan(30) is None, "nothing is dirty"

    def test_a_topic_with_the_delete_policy_is_left_alone(self) -> None:
        assert self.plan(cleanup_policy="delete") is None
        assert self.plan(cleanup_policy="compact,delete") is not None


class TestTheMap:
    def test_later_records_win_and_records_without_key_are_not_entered(self) -> None:
        latest = OffsetMap()
        latest.put([b"a", None, b"a", b"long" * 10], [1, 2, 3, 4])
        assert latest.latest([b"a", b"b", b"long" * 10, b""]) == [3, -1, 4, -1]
        assert len(latest) == 2

    def test_the_map_is_bounded_but_takes_one_batch(self) -> None:
        latest = OffsetMap(3)
        assert latest.has_room(100)
        latest.put([b"a", b"b"], [0, 1])
        assert latest.has_room(1) and not latest.has_room(2)

    def test_no_key_is_confused_with_another_ones_hash(self) -> None:
        long = b"x" * 100
        assert key_of_map(key_of_map(long)) != key_of_map(long)
        assert key_of_map(b"x" * 15) == b"x" * 15


class TestOneBatch:
    @pytest.mark.parametrize("count", [5, ARROW_FROM + 50])
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
    def test_kept_records_are_unchanged(self, count: int, codec: Codec) -> None:
        """Both implementations: the plain one for small batches, Arrow's for large ones."""
        values = [None if n % 3 == 0 else b"v%d" % n for n in range(count)]
        keys = [None if n % 4 == 0 else b"k%d" % n for n in range(count)]
        given = [[("h", b"%d" % n)] if n % 2 else None for n in range(count)]
        times = [5_000 + 7 * n for n in range(count)]
        batch = RecordBatch(
            encode(values, keys=keys, headers=given, timestamps_ms=times, base_timestamp_ms=0, codec=codec)
        )
        keep = [n % 5 in (1, 2) for n in range(count)]
        for horizon in (-1, 123_456):
            data = keep_records(batch, keep, delete_horizon_ms=horizon)
            assert data is not None
            after = RecordBatch(data)
            after.check()
            assert after.records() == [record for record, kept in zip(batch.records(), keep, strict=True) if kept]
            assert (after.header.end_offset, after.header.codec) == (batch.header.end_offset, codec)
            assert after.header.has_delete_horizon is (horizon >= 0)
            assert after.header.base_timestamp == (horizon if horizon >= 0 else times[1])
            assert after.header.max_timestamp == max(record.timestamp_ms for record in after.records())
            assert after.to_arrow().num_rows == sum(keep)

    def test_an_empty_batch_keeps_its_offsets_and_its_producer(self) -> None:
        data = encode([b"a", b"b"], base_timestamp_ms=9, producer_id=7, producer_epoch=1, base_sequence=5)
        batch = RecordBatch(b"".join(stamp(data, 40, 3)))
        empty = keep_records(batch, [False, False])
        assert empty is not None
        after = RecordBatch(empty)
        after.check()
        assert after.records() == [] and after.to_arrow().num_rows == 0
        for name in ("base_offset", "end_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
            assert getattr(after.header, name) == getattr(batch.header, name), name

    def test_log_append_time_stays(self) -> None:
        stamped = b"".join(stamp(encode([b"a", b"b"], keys=[b"x", b"y"], base_timestamp_ms=9), 0, 0, 77))
        data = keep_records(RecordBatch(stamped), [False, True], delete_horizon_ms=500)
        assert data is not None
        assert RecordBatch(data).timestamps_ms() == [77]

    def test_a_batch_that_would_become_too_large_is_left(self) -> None:
        count = 100_000
        batch = RecordBatch(encode([None] * count, keys=[b"%08d" % n for n in range(count)], base_timestamp_ms=1))
        grown = keep_records(batch, [True] * count, delete_horizon_ms=5)
        assert grown is not None and RecordBatch(grown).header.codec == Codec.ZSTD, "compression makes it fit"


class TestALog:
    def test_of_each_key_the_last_record_stays_at_its_offset(self) -> None:
        disk, log = new_log()
        for number in range(40):
            append_records(log, [(b"k%d" % (number % 3), b"v%d" % number), (b"once%d" % number, b"x" * 30)])
        seal(log)
        before, size = records(log), log.size_bytes
        assert compact(log)
        after = records(log)
        last = {key: offset for offset, key, _ in before}
        assert after == [entry for entry in before if last[entry[1]] == entry[0]]
        assert log.size_bytes < size
        assert not compact(log), "it is clean now"
        log.close(clean=False)
        again = reopen(disk)
        assert records(again) == after and again.first_dirty_offset == 80
        assert not compact(again)

    def test_the_active_segment_and_uncommitted_records_are_not_touched(self) -> None:
        _, log = new_log()
        for number in range(30):
            append_records(log, [(b"k", b"v%d" % number * 10)])
        settle(log)
        before = records(log)
        active = log.segments.active.base_offset
        bound = log.segments.all[2].end_offset - 1
        compact(log, high_watermark=bound)
        kept = records(log)
        assert [entry for entry in kept if entry[0] >= log.segments.all[2].base_offset] == [
            entry for entry in before if entry[0] >= log.segments.all[2].base_offset
        ]
        compact(log)
        assert [entry for entry in records(log) if entry[0] >= active] == [
            entry for entry in before if entry[0] >= active
        ]

    def test_more_keys_than_fit_take_more_passes(self) -> None:
        _, log = new_log()
        for number in range(120):
            append_records(log, [(b"k%d" % (number % 30), b"v%d" % number)])
        seal(log)
        before, passes = table(log), 0
        while compact(log, entries_max=10):
            passes += 1
            assert table(log) == before
        assert passes > 5
        assert len(records(log)) == 30

    def test_records_without_key_are_removed(self) -> None:
        _, log = new_log()
        append_records(log, [(None, b"a"), (b"k", b"b")])
        seal(log)
        compact(log)
        assert records(log) == [(1, b"k", b"b")]

    def test_a_marker_that_ends_nothing_becomes_part_of_a_hole(self) -> None:
        """Markers that end a batch stay: `test_transactions.py`."""
        _, log = new_log()
        append_records(log, [(b"k", b"a")])
        marker = stamp(encode_control(1, [(5, 0, 1)], base_timestamp_ms=1_000), log.log_end_offset, 0)
        log.append(RecordBatch(b"".join(marker)).header, marker)
        append_records(log, [(b"k", b"b")])
        seal(log)
        compact(log)
        assert [(header.record_count, header.end_offset) for header in headers(log)] == [(0, 2), (1, 3)]

    def test_the_producer_state_is_the_same_without_a_snapshot(self) -> None:
        """Every batch's header stays, so a resend of any of the last five is recognized (S1)."""
        disk, log = new_log()
        for number in range(20):
            append_records(log, [(b"k", b"v" * 60)], producer=(7, 0, number))
        seal(log)
        compact(log)
        assert len(records(log)) == 1
        log.close(clean=False)
        states = ProducerStates()
        again, _ = recover_log(disk, PATH, COMPACTED, clean_shutdown=False, producers=states)
        entry = states.get(7)  # type: ignore[arg-type]
        assert entry is not None and entry.next_sequence == 20 and len(entry.batches) == 5
        assert records(again)[0][0] == 19

    def test_leader_epochs_stay(self) -> None:
        disk, log = new_log()
        for number in range(20):
            append_records(log, [(b"k", b"v" * 60)], epoch=number // 5)
        seal(log)
        compact(log)
        entries = log.epochs.entries
        log.close(clean=False)
        again = reopen(disk)
        assert again.epochs.entries == entries
        assert not again.failed and len(records(again)) == 1

    def test_time_search_finds_the_remaining_records(self) -> None:
        _, log = new_log()
        for number in range(40):
            append_records(log, [(b"k%d" % (number % 2), b"v" * 40)], time=1_000 * number)
        seal(log)
        compact(log, now_ms=100_000)
        assert log.timestamp_search(0, log.log_end_offset).run() == (38, 38_000)
        assert log.timestamp_search(38_500, log.log_end_offset).run() == (39, 39_000)


class TestTombstones:
    """KIP-534."""

    CONFIG = replace(COMPACTED, delete_retention_ms=1_000)

    def compacted(self) -> tuple[SimDisk, PartitionLog]:
        disk, log = new_log(self.CONFIG)
        append_records(log, [(b"a", b"1"), (b"b", b"1")])
        append_records(log, [(b"a", None), (b"c", b"1")], time=2_000)
        seal(log)
        assert compact(log, now_ms=10_000)
        return disk, log

    def another_pass(self, log: PartitionLog, now_ms: int) -> None:
        append_records(log, [(b"d%d" % now_ms, b"1")], time=3_000)
        seal(log)
        assert compact(log, now_ms=now_ms)

    def test_the_first_pass_records_the_horizon_and_keeps_the_times(self) -> None:
        _, log = self.compacted()
        _, with_tombstone = (RecordBatch(data) for data in read_batches(log, 0))
        assert with_tombstone.header.has_delete_horizon
        assert with_tombstone.header.base_timestamp == 11_000
        assert with_tombstone.timestamps_ms() == [2_000, 2_001]
        assert records(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]

    def test_a_tombstone_is_kept_until_its_horizon_and_then_removed(self) -> None:
        disk, log = self.compacted()
        self.another_pass(log, 10_999)
        assert (2, b"a", None) in records(log)
        log.close(clean=False)
        log = reopen(disk, self.CONFIG)
        self.another_pass(log, 11_000)
        assert [entry[0] for entry in records(log)] == [1, 3, 4, 5]
        header = headers(log)[1]
        assert not header.has_delete_horizon and header.base_timestamp == 2_001

    def test_a_superseded_tombstone_is_removed_at_once(self) -> None:
        _, log = self.compacted()
        append_records(log, [(b"a", b"2")], time=3_000)
        seal(log)
        compact(log, now_ms=10_001)
        assert table(log) == {b"a": b"2", b"b": b"1", b"c": b"1"}
        assert [entry[0] for entry in records(log)] == [1, 3, 4]

    def test_a_tombstone_beyond_the_passs_range_gets_no_horizon(self) -> None:
        _, log = new_log(replace(self.CONFIG, segment_bytes=1 << 20))
        append_records(log, [(b"a", b"1"), (b"b", b"1")])
        append_records(log, [(b"a", None)], time=2_000)
        seal(log)
        compact(log, now_ms=10_000, entries_max=2)
        assert [header.has_delete_horizon for header in headers(log)] == [False, False]
        compact(log, now_ms=10_000, entries_max=2)
        assert [header.has_delete_horizon for header in headers(log)] == [False, True]

    def test_no_tombstone_is_removed_while_its_records_could_not_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch that would become too large without some of its records is left whole: its records must not
        return."""
        _, log = new_log(self.CONFIG)
        append_records(log, [(b"a", b"whole"), (b"b", b"1")])
        append_records(log, [(b"a", None)], time=2_000)
        seal(log)

        def refuse(batch: RecordBatch, keep: list[bool], *, delete_horizon_ms: int = -1) -> bytes | None:
            written = keep_records(batch, keep, delete_horizon_ms=delete_horizon_ms)
            return None if b"whole" in batch.values() and not all(keep) else written

        with monkeypatch.context() as patch:
            patch.setattr(compaction_run, "keep_records", refuse)
            assert compact(log, now_ms=10_000)
            self.another_pass(log, 20_000)
            assert (2, b"a", None) in records(log) and b"a" not in table(log)
        assert compact(log, now_ms=30_000)
        assert b"a" not in {key for _, key, _ in records(log)}


class TestBesideOthers:
    def filled(self, count: int = 40, cache: FetchCache | None = None) -> tuple[SimDisk, PartitionLog]:
        disk, log = new_log(cache=cache)
        for number in range(count):
            append_records(log, [(b"k%d" % (number % 2), b"v%d" % number * 8)])
        seal(log)
        return disk, log

    def first_cleaned(self, log: PartitionLog) -> CleanedSegment:
        plan = log.compaction_plan(log.stable_end_offset, 10_000)
        assert plan is not None
        run = log.compaction_run(plan, 10_000)
        while not isinstance(piece := run.next_piece(), CleanedSegment):
            pass
        self.run = run
        return piece

    def test_a_region_in_flight_is_of_the_old_file(self) -> None:
        _, log = self.filled(cache=FetchCache(0))
        region = log.read(Offset(0), log.log_end_offset, 300).parts[0]
        before = region.file.pread(region.length, region.position)  # type: ignore[union-attr]
        assert compact(log)
        assert region.file.pread(region.length, region.position) == before  # type: ignore[union-attr]
        region.release()  # type: ignore[union-attr]

    def test_a_workers_read_of_old_positions_must_be_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, log = self.filled(cache=FetchCache(0))
        with monkeypatch.context() as cold:
            cold.setattr(SimFile, "pread_cached", lambda *_: None)
            piece = log.read(Offset(8), log.log_end_offset, 300)
        assert piece.load is not None
        assert compact(log)
        with pytest.raises(LogDamaged) as caught:
            piece.load()
        log.damage_found(caught.value)
        assert log.failed is None
        assert len(records(log)) == 2

    def test_a_segment_removed_meanwhile_is_not_replaced(self) -> None:
        _, log = self.filled()
        cleaned = self.first_cleaned(log)
        log.advance_log_start(log.segments.all[1].base_offset)
        settle(log)
        assert not log.replace_segment(cleaned)
        self.run.clear_away()
        assert records(log)

    def test_a_segment_truncated_meanwhile_is_not_replaced(self) -> None:
        disk, log = self.filled()
        cleaned = self.first_cleaned(log)
        log.truncate_to(Offset(2))
        assert not log.replace_segment(cleaned)
        settle(log)
        self.run.clear_away()
        assert not [name for name in disk.list(PATH) if name.endswith(".cleaned")]
        assert [offset for offset, _, _ in records(log)] == [0, 1]

    def test_truncation_through_a_compacted_segment(self) -> None:
        """A replica that truncates below the high watermark (no member of ISR or commit set does) may lose a hole as a
        whole, and fetches from its start."""
        disk, log = self.filled()
        compact(log)
        log.truncate_to(Offset(25))
        end = log.log_end_offset
        assert end <= 25
        append_records(log, [(b"k1", b"new")], epoch=1)
        settle(log)
        expected = records(log)
        log.close(clean=False)
        assert records(reopen(disk)) == expected == [(end, b"k1", b"new")]

    def test_a_truncation_makes_compaction_start_there_again(self) -> None:
        """The batches that replace the truncated ones are not compacted: no tombstone may be removed before the records
        that it deletes."""
        disk, log = self.filled()
        compact(log)
        assert log.first_dirty_offset == 40
        log.truncate_to(Offset(10))
        assert log.first_dirty_offset == log.log_end_offset <= 10
        append_records(log, [(b"k", b"1")], epoch=1)
        settle(log)
        log.close(clean=False)
        assert reopen(disk).first_dirty_offset == 0

    def test_a_pass_overtaken_by_a_truncation_reports_nothing(self) -> None:
        _, log = self.filled()
        plan = log.compaction_plan(log.stable_end_offset, 10_000)
        assert plan is not None
        run = log.compaction_run(plan, 10_000)
        log.truncate_to(Offset(39))
        log.compacted(run, Offset(40))
        assert log.first_dirty_offset == 0

    def test_a_pass_in_a_folder_is_waited_for_before_it_moves(self) -> None:
        """The folder is moved only when no work in it is left."""
        _, log = self.filled()
        scheduler = ManualScheduler()
        writer = LogWriter(ManualWorker(scheduler), scheduler)
        told: list[str] = []
        assert writer.hold(log)
        writer.forget(log, lambda: told.append("free"))
        scheduler.run()
        assert told == [] and not writer.hold(log)
        writer.give_back(log)
        assert told == ["free"]
        writer.give_back(log)
        assert told == ["free"]

    def test_damage_is_found_and_nothing_is_replaced(self) -> None:
        disk, log = self.filled()
        disk.flip(f"{PATH}/{0:020d}.log", 100, 1)
        with pytest.raises(LogDamaged):
            compact(log)


def test_the_cleaner_checkpoint_is_kept() -> None:
    assert decode_cleaner_checkpoint(encode_cleaner_checkpoint(Offset(7))) == 7
    with pytest.raises(DamagedFile):
        decode_cleaner_checkpoint(encode_cleaner_checkpoint(Offset(7))[:-1])
    with pytest.raises(DamagedFile):
        decode_cleaner_checkpoint(encode_cleaner_checkpoint(Offset(-1)))


@pytest.mark.parametrize("whole", [True, False], ids=["done", "given up"])
def test_a_finished_pass_holds_no_file_open(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = TestBesideOthers().filled()
    opened: list[tuple[str, File]] = []
    plain = disk.open

    def noted(path: str, **options: Any) -> File:
        file = plain(path, **options)
        opened.append((path, file))
        return file

    plan = log.compaction_plan(log.stable_end_offset, 10_000)
    assert plan is not None
    monkeypatch.setattr(disk, "open", noted)
    run = log.compaction_run(plan, 10_000)
    while not isinstance(piece := run.next_piece(), Finished):
        if isinstance(piece, CleanedSegment) and not whole:
            break
    run.clear_away()
    monkeypatch.undo()
    assert opened
    for path, file in opened:
        with pytest.raises(AssertionError, match="use after close"):
            file.pread(1, 0)
        assert path.startswith(PATH)
