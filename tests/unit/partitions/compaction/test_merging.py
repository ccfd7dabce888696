"""Empty batches become holes and small segments are merged, without any visible effect (S1, S2, S4)."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.compaction import holes as compaction_holes
from partitions.compaction.cleaned_file import CleanedFile, OldSegment
from partitions.compaction.holes import Hole, NeededBatches
from partitions.compaction.run import CleanedSegment
from partitions.log.log import PartitionLog
from partitions.log.slice import ReadBy
from partitions.log.tail import FetchCache
from partitions.producers.entries import BATCH_BYTES, PRODUCER_BYTES
from partitions.producers.state import IN_SEQUENCE, ProducerBounds, ProducerStates, RefusedSequence
from partitions.upkeep.folder_check import check_folder
from raftlog.config import MIB
from raftlog.errors import RetriableError
from raftlog.model import FIRST_KEYED_ID, NO_PRODUCER_ID, Offset, ProducerId
from raftlog.records.batch import BatchHeader, RecordBatch, encode, parse_header, split_batches, stamp
from raftlog.records.batch_filter import hole, is_hole
from tests.support.clusters.compacted import CompactedCluster
from tests.support.partitions.compaction import COMPACTED, append_records, compact, records, reopen, seal, table
from tests.support.partitions.storage import PATH, open_log, part_bytes, read_batches, recover_log, settle


def empty_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    disk.fsync_directory("")
    return disk


def new_log(cache: FetchCache | None = None) -> tuple[SimDisk, PartitionLog]:
    disk = empty_disk()
    return disk, open_log(disk, COMPACTED, cache=cache)


def headers(log: PartitionLog) -> list[BatchHeader]:
    return [parse_header(data) for data in read_batches(log, log.log_start_offset)]


def spans(log: PartitionLog) -> list[tuple[int, int]]:
    return [(header.base_offset, header.end_offset) for header in headers(log)]


def segment_files(disk: SimDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list(PATH) if name.endswith(".log")]


def header_of(
    base: int, *, producer: int = -1, epoch: int = 0, sequence: int = 0, leader_epoch: int = 0
) -> BatchHeader:
    data = encode(
        [b"v"],
        base_timestamp_ms=base,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
    )
    return parse_header(b"".join(stamp(data, base, leader_epoch)))


class TestAHole:
    def test_a_hole_is_a_batch_like_any_other_without_records(self) -> None:
        batch = RecordBatch(hole(5, 2_000_000_000, 3, 77))
        batch.check()
        assert batch.records() == [] and batch.to_arrow().num_rows == 0
        header = batch.header
        assert (header.base_offset, header.end_offset, header.leader_epoch) == (5, 2_000_000_000, 3)
        assert (header.base_timestamp, header.max_timestamp, header.producer_id) == (77, 77, -1)
        assert is_hole(header) and header.total_bytes < 100

    def test_batches_that_are_no_holes(self) -> None:
        assert not is_hole(header_of(0))
        assert not is_hole(replace(header_of(0, producer=4), record_count=0))

    def test_adjacent_empty_batches_become_one_hole(self) -> None:
        first = header_of(10)
        one = Hole.of(first, b"as it is", changed=False)
        assert one.batch == b"as it is" and not one.joined
        two = one.with_next(header_of(11))
        assert two is not None and two.joined
        header = parse_header(two.batch)
        assert (header.base_offset, header.end_offset, header.max_timestamp) == (10, 12, 11)

    def test_a_hole_does_not_cross_a_leader_epoch_nor_the_limit_of_a_batch(self) -> None:
        """A leader epoch begins with a batch, since histories are compared by that."""
        one = Hole.of(header_of(10), b"", changed=False)
        assert one.with_next(header_of(11, leader_epoch=1)) is None
        far = replace(header_of(11), last_offset_delta=2**31 - 1)
        assert one.with_next(far) is None
        assert one.with_next(replace(far, last_offset_delta=2**31 - 2)) is not None

    def test_a_hole_names_the_greatest_producer_id_without_other_batches(self) -> None:
        """S1: otherwise a resend of such a producer would be taken for a new batch by a replica that copies the log."""
        one = Hole.of(header_of(10, producer=7), b"", changed=False, forgotten=7)
        two = one.with_next(header_of(11, producer=3), 3)
        three = two.with_next(header_of(12)) if two else None
        assert three is not None and parse_header(three.batch).producer_id == 7
        assert is_hole(parse_header(three.batch))

    def test_a_producer_with_other_batches_is_not_named(self) -> None:
        needed = NeededBatches()
        for number in range(8):
            needed.add(header_of(number, producer=7, sequence=number))
        needed.settle()
        assert needed.forgotten_with(header_of(0, producer=7)) == -1
        assert needed.forgotten_with(header_of(0, producer=9)) == 9
        assert needed.forgotten_with(header_of(0)) == -1
        assert needed.forgotten_with(parse_header(hole(0, 5, 1, 77, 12))) == 12


class TestWhatProducersNeed:
    def needed(self, *given: BatchHeader) -> list[int]:
        needed = NeededBatches()
        for header in given:
            needed.add(header)
        needed.settle()
        return [header.base_offset for header in given if header in needed]

    def test_the_last_five_batches_of_each_producer_stay(self) -> None:
        seven = [header_of(n, producer=7, sequence=n) for n in range(8)]
        assert self.needed(*seven, header_of(8, producer=9)) == [3, 4, 5, 6, 7, 8]

    def test_no_batch_of_a_former_epoch_stays(self) -> None:
        old = [header_of(n, producer=7, sequence=n) for n in range(3)]
        assert self.needed(*old, header_of(3, producer=7, epoch=1)) == [3]

    def test_no_batch_without_a_producer_stays(self) -> None:
        assert self.needed(header_of(0), header_of(1)) == []


class TestALog:
    def filled(
        self, count: int = 60, *, epoch_every: int = 1000, cache: FetchCache | None = None
    ) -> tuple[SimDisk, PartitionLog]:
        """Ten keys that stay and many that are superseded."""
        disk, log = new_log(cache)
        for number in range(count):
            key = b"stays%d" % number if number % 6 == 0 else b"k%d" % (number % 2)
            append_records(log, [(key, b"v%d" % number * 4)], epoch=number // epoch_every, time=1_000 + number)
        seal(log)
        return disk, log

    def compacted_twice(self, **options: Any) -> tuple[SimDisk, PartitionLog]:
        disk, log = self.filled(**options)
        assert compact(log)
        append_records(log, [(b"k0", b"new"), (b"k1", b"new")], epoch=log.epochs.latest_epoch, time=3_000)
        seal(log)
        assert compact(log)
        return disk, log

    def test_empty_batches_become_holes_and_everything_else_stays(self) -> None:
        _, log = self.filled()
        before = table(log)
        compact(log)
        assert table(log) == before
        assert len(headers(log)) < 40, "there were sixty"
        for header in headers(log):
            assert header.record_count or is_hole(header)

    def test_a_segment_has_no_two_adjacent_holes(self) -> None:
        _, log = self.compacted_twice()
        empty = [is_hole(header) for header in headers(log)]
        assert sum(one and two for one, two in pairwise(empty)) < len(log.segments)

    def test_small_segments_are_merged(self) -> None:
        disk, log = self.filled()
        many = len(log.segments)
        before = table(log)
        compact(log)
        append_records(log, [(b"k0", b"new"), (b"k1", b"new")], time=3_000)
        seal(log)
        compact(log)
        assert table(log) == before | {b"k0": b"new", b"k1": b"new"}
        assert len(log.segments) <= many // 2
        assert segment_files(disk) == [segment.base_offset for segment in log.segments.all]
        assert all(segment.size <= COMPACTED.segment_bytes for segment in log.segments.all)
        again = reopen(disk)
        assert records(again) == records(log) and again.log_end_offset == log.log_end_offset

    def test_holes_end_with_their_leader_epochs(self) -> None:
        disk, log = self.compacted_twice(epoch_every=7)
        for entry in log.epochs.entries:
            assert entry.start_offset in {begin for begin, _ in spans(log)}
        expected = records(log)
        log.close(clean=False)
        again = reopen(disk)
        assert records(again) == expected and again.epochs == log.epochs

    def test_time_and_offset_indexes_belong_to_the_new_file(self) -> None:
        disk, log = self.compacted_twice(cache=FetchCache(0))
        everything = records(log)
        for start in range(0, log.log_end_offset, 7):
            assert records(log, start) == [entry for entry in everything if entry[0] >= start]
        for offset, key, _ in records(log):
            if key is not None and key.startswith(b"stays"):
                assert log.timestamp_search(1_000 + offset, log.log_end_offset).run() == (offset, 1_000 + offset)
        assert check_folder(disk, PATH).run() == []

    def test_an_unchanged_segment_is_not_rewritten(self) -> None:
        _, log = new_log()
        for number in range(12):
            append_records(log, [(b"once%d" % number, b"x" * 700)])
        seal(log)
        before = list(log.segments.all)
        compact(log)
        assert list(log.segments.all) == before, "the very same objects"

    def test_a_truncation_releases_the_names_of_merged_segments(self) -> None:
        """The job that removes their files must not remove those of the batches that replaced them."""
        disk, log = self.filled()
        compact(log)
        append_records(log, [(b"k0", b"new")], time=3_000)
        seal(log)
        plan = log.compaction_plan(log.stable_end_offset, 10_000)
        assert plan is not None
        run = log.compaction_run(plan, 10_000)
        merged: CleanedSegment | None = None
        while merged is None or len(merged.olds) < 2:
            piece = run.next_piece()
            if isinstance(piece, CleanedSegment):
                assert log.replace_segment(piece)
                merged = piece
        inner = merged.olds[1].base_offset
        log.truncate_to(inner)
        while log.log_end_offset <= inner + 3:
            append_records(log, [(b"after", b"y" * 300)], epoch=1)
            log.segments.roll(log.log_end_offset)
        settle(log)
        run.clear_away()
        log.check_invariants()
        expected = records(log)
        assert sum(key == b"after" for _, key, _ in expected) > 1
        log.close(clean=False)
        again, recovery = recover_log(disk, PATH, COMPACTED, clean_shutdown=False)
        assert not recovery.cut_or_quarantined
        assert records(again) == expected

    def test_a_pass_whose_segment_is_truncated_meanwhile_ends(self) -> None:
        """Otherwise it would read on without end where nothing is left."""
        disk, log = new_log()
        for number in range(4):
            append_records(log, [(b"once%d" % number, b"x" * 100)])
        seal(log)
        segment = log.segments.all[0]
        source = disk.open(f"{PATH}/{0:020d}.log")
        old = OldSegment(segment, segment.base_offset, segment.end_offset, segment.size)
        output = CleanedFile(disk, PATH, old, source, 100)
        for batch in read_batches(log, 0)[:3]:
            assert list(output.add(parse_header(batch), batch, changed=False)) == []
        source.truncate(150)
        with pytest.raises(RetriableError, match="was cut"):
            list(output.add(header_of(3), b"changed", changed=True))


@pytest.mark.parametrize(("here", "next_one", "together"), [(3, 4, True), (5, 6, False), (1, 4, True), (1, 6, False)])
def test_the_choice_of_segments_to_merge(here: int, next_one: int, together: bool) -> None:
    disk, log = new_log()
    append_records(log, [(b"k", b"v")])
    seal(log)
    first = OldSegment(log.segments.all[0], Offset(0), Offset(1), here * MIB)
    output = CleanedFile(disk, PATH, first, disk.open(f"{PATH}/{0:020d}.log"), 100)
    output.index.offsets.size = here * MIB
    after = OldSegment(log.segments.all[0], Offset(1), Offset(2), next_one * MIB)
    assert output.takes(after, 10 * MIB) is together
    assert not output.takes(after._replace(end_offset=Offset(2**33)), 10 * MIB)


class TestACrash:
    def prepared(self) -> tuple[SimDisk, PartitionLog, list[tuple[int, bytes | None, bytes | None]]]:
        disk, log = TestALog().filled(40)
        assert compact(log)
        append_records(log, [(b"k0", b"new"), (b"k1", b"new")], time=3_000)
        seal(log)
        return disk, log, records(log)

    @pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
    @pytest.mark.parametrize("start", [0, 20])
    def test_a_crash_at_any_operation_loses_nothing(self, power: bool, start: int) -> None:
        """S1, S2: a merged segment is complete, as the old files or the new one, wherever the log starts."""
        step, put_together = 0, 0
        while True:
            step += 1
            disk, log, before = self.prepared()
            if start:
                log.advance_log_start(Offset(start))
            disk.crash_countdown = step
            try:
                compact(log)
                finished = True
            except SimulatedCrash:
                finished = False
            disk.crash_countdown = 0
            if finished:
                break
            if power:
                disk.power_loss(random.Random(step))
            assert not [found.file for found in check_folder(disk, PATH).run() if found.file.endswith(".log")], step
            again, recovery = recover_log(disk, PATH, COMPACTED, clean_shutdown=False)
            put_together += "@O" in "".join(recovery.notes)
            assert not recovery.cut_or_quarantined, (step, recovery.notes)
            state = {key: value for _, key, value in before}
            assert {key: value for _, key, value in records(again)}.items() <= state.items()
            assert {key: v for offset, key, v in before if offset >= 40} == {
                key: v for offset, key, v in records(again) if offset >= 40
            }
            if not again.log_start_offset:
                assert table(again) == state
            again.check_invariants()
            assert segment_files(disk) == [segment.base_offset for segment in again.segments.all], step
        assert step > 20 and (power or put_together), "there is much to interrupt"


class TestProducers:
    def test_each_producers_last_batches_stay_and_a_new_copy_knows_them(self) -> None:
        """S1: a resend of any of the last five is recognized by a replica that has only the log."""
        disk, log = new_log()
        live = ProducerStates()
        for number in range(90):
            producer = number % 3
            append_records(log, [(b"k", b"v" * 30)], producer=(producer, 0, number // 3))
            live.append(headers(log)[-1])
        seal(log)
        compact(log)
        append_records(log, [(b"k", b"v")])
        seal(log)
        compact(log)
        assert len(headers(log)) < 30
        for name in disk.list(PATH):
            if name.endswith(".producers"):
                disk.remove(f"{PATH}/{name}")
        log.close(clean=False)
        states = ProducerStates()
        recover_log(disk, PATH, COMPACTED, clean_shutdown=False, producers=states)
        assert states == live and len(states.get(ProducerId(2)).batches) == 5  # type: ignore[union-attr]

    def test_a_copy_knows_that_producers_without_batches_existed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """S1: a replica that begins with the compacted log does not append a resend of a batch that was compacted
        away."""
        little = ProducerBounds(max_bytes=2 * (PRODUCER_BYTES + BATCH_BYTES))
        monkeypatch.setattr(compaction_holes, "ProducerStates", lambda: ProducerStates(little))
        disk, log = new_log()
        for producer in range(40):
            append_records(log, [(b"k", b"v" * 30)], producer=(producer, 0, 0))
        seal(log)
        compact(log)
        append_records(log, [(b"k", b"v")])
        seal(log)
        compact(log)
        for name in disk.list(PATH):
            if name.endswith(".producers"):
                disk.remove(f"{PATH}/{name}")
        log.close(clean=False)
        states = ProducerStates()
        recover_log(disk, PATH, COMPACTED, clean_shutdown=False, producers=states)
        known = set(states)
        assert 0 < len(known) < 40 and max(known) == 39
        for producer in set(range(40)) - known:
            again = states.check(header_of(0, producer=producer), resent=True)
            assert isinstance(again, RefusedSequence) and again.code == "unknown_producer_id"
        assert states.check(header_of(0, producer=41), resent=True) == IN_SEQUENCE

    def test_idempotency_keys_stay_known_and_never_concern_producers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """S1: a new copy of a compacted log finds the retry of a request, and its horizon is that of producers."""
        little = ProducerBounds(max_bytes=10 * (PRODUCER_BYTES + BATCH_BYTES))
        monkeypatch.setattr(compaction_holes, "ProducerStates", lambda: ProducerStates(little))
        disk, log = new_log()
        for number in range(40):
            append_records(log, [(b"k", b"v" * 30)], producer=(FIRST_KEYED_ID + number, 0, 1_000 + number))
        seal(log)
        compact(log)
        append_records(log, [(b"k", b"v")])
        seal(log)
        compact(log)
        for name in disk.list(PATH):
            if name.endswith(".producers"):
                disk.remove(f"{PATH}/{name}")
        log.close(clean=False)
        states = ProducerStates()
        recover_log(disk, PATH, COMPACTED, clean_shutdown=False, producers=states)
        assert states.forgotten_up_to == states.greatest_id == NO_PRODUCER_ID
        known = sorted(producer - FIRST_KEYED_ID for producer in states)
        assert known == list(range(40))[-len(known) :] and len(known) >= 10, "the newest are known"
        entry = states.get(ProducerId(FIRST_KEYED_ID + 39))
        assert entry is not None and entry.batches[0].base_sequence == 1_039

    def test_batches_above_the_pass_may_be_truncated_and_the_rest_is_still_known(self) -> None:
        """The last five are determined as of the pass's end: batches above may be truncated, and then written again."""
        disk, log = new_log()
        for number in range(12):
            append_records(log, [(b"k", b"v" * 30)], producer=(7, 0, number))
        seal(log)
        bound = log.log_end_offset
        for number in range(12, 24):
            append_records(log, [(b"k", b"v" * 30)], producer=(7, 0, number))
        seal(log)
        compact(log, high_watermark=bound)
        log.truncate_to(bound)
        settle(log)
        log.close(clean=False)
        states = ProducerStates()
        recover_log(disk, PATH, COMPACTED, clean_shutdown=False, producers=states)
        entry = states.get(ProducerId(7))
        assert entry is not None and entry.next_sequence == 12 and len(entry.batches) == 5


class TestFollowers:
    @pytest.mark.parametrize("cold", [False, True], ids=["memory", "disk"])
    def test_a_follower_that_ends_within_a_hole_gets_the_rest_of_it(self, cold: bool) -> None:
        """S4, S10."""
        cluster = CompactedCluster()
        cluster.fill(7)
        cluster.send_away(2)
        for number in range(7, 60):
            cluster.put(b"k%d" % (number % 4), b"v%d" % number * 6)
        assert cluster.compact(0)
        assert any(begin < 7 < end for begin, end in spans(cluster.log(0)))
        cluster.members[0].disk.cold = cold
        cluster.bring_back(2)
        cluster.members[0].disk.cold = False
        assert cluster.log(2).log_end_offset == cluster.log(0).log_end_offset
        assert table(cluster.log(2)) == table(cluster.log(0))
        assert not cluster.members[2].offline and not cluster.members[0].offline
        proposal, _ = cluster.members[0].proposals[-1]
        assert 2 in {member for member, _ in proposal.isr}, "it may join the ISR"

    def test_only_a_hole_is_sent_in_part(self) -> None:
        cluster = CompactedCluster(cache_bytes=0)
        cluster.fill(9)
        cluster.send_away(2)
        for number in range(9, 60):
            cluster.put(b"k%d" % (number % 4), b"v%d" % number * 6)
        log = cluster.log(0)
        cluster.compact(0)
        piece = log.read(Offset(9), log.log_end_offset, 1 << 20, by=ReadBy.FOLLOWER)
        data = b"".join(map(part_bytes, piece.parts))
        assert next(map(parse_header, split_batches(data))).base_offset == 9 == piece.first_offset
        plain = log.read(Offset(9), log.log_end_offset, 1 << 20)
        assert plain.first_offset < 9, "a consumer skips what it has"
        plain.release()

    def test_a_copied_hole_is_sent_in_part_from_memory(self) -> None:
        cluster = CompactedCluster()
        cluster.fill(60)
        cluster.compact(0)
        source = cluster.log(0)
        target = open_log(empty_disk(), COMPACTED)
        for data in read_batches(source, 0):
            target.append(parse_header(data), [data])
        begin, end = next(span for span in spans(target) if span[1] - span[0] > 3)
        piece = target.read(Offset(begin + 2), target.log_end_offset, 1 << 20, by=ReadBy.FOLLOWER)
        first = parse_header(b"".join(bytes(part) for part in piece.parts))  # type: ignore[arg-type]
        assert (piece.first_offset, first.base_offset, first.end_offset) == (begin + 2, begin + 2, end)
