"""Recovery: the table is total, and each kind of damage on disk leads to its row."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.files.checkpoint import LogCheckpoint
from partitions.files.segment import SegmentIndex
from partitions.recovery.table import (
    SEGMENT_ROWS,
    VOUCHED,
    Action,
    Content,
    Facts,
    Finding,
    Index,
    Place,
    Position,
    Stop,
    row_for,
)
from raftlog.model import Offset
from tests.support.partitions.damaged_log import CONFIG, flip, make
from tests.support.partitions.storage import PATH, append, batch, open_log, read_batches, recover_log, settle


def all_facts() -> list[Facts]:
    return [Facts(*values) for values in itertools.product(Place, Content, Index, Position, Stop)]


def test_exactly_one_row_matches_each_combination_of_facts() -> None:
    for facts in all_facts():
        assert [row.label for row in SEGMENT_ROWS if row.fits(facts)] == [row_for(facts).label], facts


def test_every_row_matches_something_and_labels_are_unique() -> None:
    used = {row_for(facts).label for facts in all_facts()}
    assert sorted(used) == [row.label for row in SEGMENT_ROWS]


def test_every_row_that_removes_a_batch_is_not_vouched_for() -> None:
    for facts in all_facts():
        row = row_for(facts)
        takes = row.action in (Action.CUT, Action.QUARANTINE)
        assert not (takes and row.vouched), row
        if row.action is Action.REMOVE:
            assert facts.content is Content.EMPTY or facts.place in (Place.BELOW_START, Place.WITHIN), row
        if facts.content in (Content.TORN, Content.BAD_CRC, Content.MISPLACED):
            assert row.action not in (Action.KEEP, Action.REINDEX), "nothing bad is ever served"


def test_every_finding_says_whether_the_replica_may_vouch() -> None:
    assert set(VOUCHED) == set(Finding)


# --- On disk ---


def test_undamaged_logs_are_complete_after_any_stop() -> None:
    for clean in (True, False):
        damaged = make(clean=clean)
        log, recovery = damaged.reopen(clean=clean)
        assert recovery.clean == clean
        assert not recovery.cut_or_quarantined
        assert read_batches(log, 0) == damaged.before(48)
        assert recovery.stable_end_offset == 48 and recovery.last_epoch == 4


def test_a_clean_open_writes_nothing() -> None:
    damaged = make(clean=True)
    fsyncs = damaged.disk.fsyncs
    damaged.reopen(clean=True)
    assert damaged.disk.fsyncs == fsyncs


def test_recovery_fsyncs_what_it_read_before_it_reports() -> None:
    """Rule 8 of the model: a page cache that outlived its process is not durable until it is fsynced."""
    found_unsynced = False
    for steps in range(1, 30):
        disk = SimDisk()
        disk.make_directory("partitions")
        disk.fsync_directory("")
        log = open_log(disk, CONFIG)
        made = append(log)
        job = log.take_job()
        assert job is not None
        disk.crash_countdown = steps
        with contextlib.suppress(SimulatedCrash):
            job.run()
        disk.crash_countdown = 0
        reported = recover_log(disk, PATH, CONFIG, clean_shutdown=False)[1].stable_end_offset
        disk.power_loss(random.Random(steps))
        after, recovery = recover_log(disk, PATH, CONFIG, clean_shutdown=False)
        assert recovery.stable_end_offset >= reported
        assert read_batches(after, 0) == [made.data][: after.log_end_offset]
        found_unsynced |= reported == 1
    assert found_unsynced


TORN_TAILS: dict[str, Callable[[bytes], bytes]] = {
    "a piece of a header": lambda good: good + batch(48, epoch=4).data[:40],
    "a piece of a batch": lambda good: good + batch(48, epoch=4).data[:-1],
    "zeros": lambda good: good + bytes(5000),
}


@pytest.mark.parametrize("tail", TORN_TAILS)
def test_a_torn_tail_is_cut_after_an_unclean_stop(tail: str) -> None:
    damaged = make(clean=False)
    damaged.change(damaged.names()[-1], TORN_TAILS[tail])
    log, recovery = damaged.reopen()
    assert recovery.cut_or_quarantined and "@E" in "".join(recovery.notes)
    assert recovery.stable_end_offset == 48
    assert read_batches(log, 0) == damaged.before(48)
    assert damaged.set_aside() == []
    append(log, epoch=9)
    settle(log)
    assert len(read_batches(damaged.reopen()[0], 0)) == 25


@pytest.mark.parametrize("tail", TORN_TAILS)
def test_a_torn_tail_after_a_clean_stop_is_damage(tail: str) -> None:
    damaged = make(clean=True)
    damaged.change(damaged.names()[-1], TORN_TAILS[tail])
    _, recovery = damaged.reopen(clean=True)
    assert recovery.cut_or_quarantined and not recovery.clean and "@F" in "".join(recovery.notes)
    assert len(damaged.set_aside()) == 1


def test_a_last_batch_without_its_end_is_cut_and_the_loss_detected() -> None:
    damaged = make(clean=False)
    damaged.change(damaged.names()[-1], lambda good: good[:-1])
    log, recovery = damaged.reopen()
    assert recovery.cut_or_quarantined
    assert recovery.stable_end_offset == 46
    assert read_batches(log, 0) == damaged.before(46)


FLIPS = {
    "value": 70,  # under the CRC
    "CRC": 18,
    "base offset": 7,  # not under the CRC, as the next three
    "length": 11,
    "leader epoch": 15,
    "magic": 16,
}


@pytest.mark.parametrize("what", FLIPS)
@pytest.mark.parametrize("batch_number", [0, 1, 2])
def test_a_flipped_bit_in_a_part_without_index_is_found(what: str, batch_number: int) -> None:
    damaged = make(clean=False)
    name = damaged.names()[-1]
    base = damaged.base(name)
    length = len(damaged.batches[0].data)
    for suffix in (".index", ".timeindex"):
        damaged.disk.remove(name.replace(".log", suffix))
    damaged.change(name, flip(length * batch_number + FLIPS[what]))
    log, recovery = damaged.reopen()
    good_end = base + 2 * batch_number
    assert recovery.cut_or_quarantined
    assert recovery.stable_end_offset == good_end
    assert read_batches(log, 0) == damaged.before(good_end)
    # Nothing is discarded unless it is the beginning of a batch that reaches beyond the file.
    assert damaged.set_aside() or "@E" in "".join(recovery.notes)


def test_a_corrupt_middle_is_quarantined_with_everything_behind_it() -> None:
    damaged = make(clean=False)
    segments = damaged.names()
    second = segments[1]
    content = damaged.disk.read(second)
    for suffix in (".index", ".timeindex"):
        damaged.disk.remove(second.replace(".log", suffix))
    length = len(damaged.batches[0].data)
    damaged.change(second, flip(length + 75))
    log, recovery = damaged.reopen()
    end = damaged.base(second) + 2
    assert recovery.stable_end_offset == log.log_end_offset == end
    assert recovery.cut_or_quarantined
    assert read_batches(log, 0) == damaged.before(end)
    aside = damaged.set_aside()
    assert len(aside) == len(segments) - 1, "the rest of the second, and all later segments whole"
    rest = next(name for name in aside if damaged.base(name) == damaged.base(second))
    assert len(damaged.disk.read(f"{PATH}/{rest}")) == len(content) - length
    # The log continues from there, and a later recovery leaves the quarantined file alone.
    log.loss_is_reported()
    new = append(log, epoch=9)
    settle(log)
    again, recovery = damaged.reopen()
    assert read_batches(again, 0) == [*damaged.before(end), new.data]
    assert not recovery.cut_or_quarantined
    assert damaged.set_aside() == aside


def test_a_missing_segment_in_the_middle() -> None:
    damaged = make(clean=True)
    segments = damaged.names()
    damaged.disk.remove(segments[1])
    log, recovery = damaged.reopen(clean=True)
    end = damaged.base(segments[1])
    assert recovery.stable_end_offset == end and recovery.cut_or_quarantined and not recovery.clean
    assert "@I" in "".join(recovery.notes)
    assert read_batches(log, 0) == damaged.before(end)
    assert len(damaged.set_aside()) == len(segments) - 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_first_segment(clean: bool) -> None:
    damaged = make(clean=clean)
    damaged.disk.remove(damaged.names()[0])
    log, recovery = damaged.reopen(clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert recovery.cut_or_quarantined


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_last_segment_is_detected_by_the_recovery_point(clean: bool) -> None:
    damaged = make(clean=clean)
    last = damaged.names()[-1]
    damaged.disk.remove(last)
    log, recovery = damaged.reopen(clean=clean)
    assert recovery.cut_or_quarantined
    assert recovery.stable_end_offset == damaged.base(last)
    assert not recovery.clean
    assert read_batches(log, 0) == damaged.before(damaged.base(last))


def test_all_segments_missing() -> None:
    damaged = make(clean=True)
    for name in damaged.names():
        damaged.disk.remove(name)
    log, recovery = damaged.reopen(clean=True)
    assert recovery.cut_or_quarantined
    assert log.log_end_offset == 0
    append(log)
    settle(log)


def test_overlapping_segments() -> None:
    damaged = make(clean=True)
    middle = damaged.base(damaged.names()[1])
    damaged.disk.replace(f"{PATH}/{middle + 1:020d}.log", b"x" * 100)
    log, recovery = damaged.reopen(clean=True)
    assert recovery.cut_or_quarantined and "@K" in "".join(recovery.notes)
    assert log.log_end_offset > middle, "the segment that came first is kept"
    assert read_batches(log, 0) == damaged.before(log.log_end_offset)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["absent", "torn", "flipped", "of another segment"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_bad_index_is_rebuilt(suffix: str, how: str, clean: bool) -> None:
    damaged = make(clean=clean)
    first, second = damaged.names(suffix)[:2]
    good = damaged.disk.read(first)
    if how == "absent":
        damaged.disk.remove(first)
    else:
        changes = {
            "torn": lambda content: content[: len(content) // 2],
            "flipped": flip(30),
            "of another segment": lambda _: damaged.disk.read(second),
        }
        damaged.change(first, changes[how])
    log, recovery = damaged.reopen(clean=clean)
    assert not recovery.cut_or_quarantined
    assert "@C" in "".join(recovery.notes)
    assert damaged.disk.read(first) == good
    for offset in range(48):
        assert read_batches(log, offset, offset // 2 * 2 + 2) == [damaged.batches[offset // 2].data]


def test_an_index_that_lies_within_its_crc_is_not_believed() -> None:
    """Right size, right ends, entries that point into the middle of batches."""
    damaged = make(clean=True)
    name = damaged.names(".index")[0]
    first_end = damaged.base(damaged.names()[1])
    lengths = [len(one.data) for one in damaged.batches if one.end_offset <= first_end]
    lengths[0], lengths[-1] = lengths[0] - 9, lengths[-1] + 9
    lying = SegmentIndex.empty(Offset(0), CONFIG.index_interval_bytes)
    for length, one in zip(lengths, damaged.batches, strict=False):
        lying.add(msgspec.structs.replace(one.header, batch_length=length - 12))
    good = damaged.disk.read(name)
    damaged.disk.replace(name, lying.offsets.encode())
    assert len(damaged.disk.read(name)) == len(good)
    again, recovery = damaged.reopen(clean=True)
    assert "@C" in "".join(recovery.notes)
    assert damaged.disk.read(name) == good
    assert read_batches(again, 0) == damaged.before(48)


def test_stray_files_are_left_and_leftovers_removed() -> None:
    damaged = make(clean=True)
    damaged.disk.replace(f"{PATH}/notes.txt", b"by a person")
    damaged.disk.replace(f"{PATH}/leader-epochs.tmp", b"half of i")
    damaged.disk.replace(f"{PATH}/{777:020d}.index", b"of a segment that is gone")
    log, recovery = damaged.reopen(clean=True)
    assert not recovery.cut_or_quarantined
    names = damaged.disk.list(PATH)
    assert "notes.txt" in names
    assert "leader-epochs.tmp" not in names
    assert f"{777:020d}.index" not in names
    assert read_batches(log, 0) == damaged.before(48)


def test_an_empty_last_segment_is_kept() -> None:
    damaged = make(clean=False)
    damaged.disk.replace(f"{PATH}/{48:020d}.log", b"")
    log, recovery = damaged.reopen()
    assert not recovery.cut_or_quarantined
    new = append(log, epoch=9)
    settle(log)
    assert read_batches(log, 46) == [damaged.batches[-1].data, new.data]


def test_an_empty_segment_in_the_middle_ends_the_log() -> None:
    damaged = make(clean=False)
    segments = damaged.names()
    damaged.change(segments[1], lambda _: b"")
    log, recovery = damaged.reopen()
    assert recovery.cut_or_quarantined
    assert log.log_end_offset == damaged.base(segments[1])


def test_segments_below_the_start_are_removed() -> None:
    damaged = make(clean=True)
    segments = damaged.names()
    start = damaged.base(segments[2]) + 2
    damaged.disk.replace(f"{PATH}/checkpoint", LogCheckpoint(start, 48, True).encode())  # type: ignore[arg-type]
    log, recovery = damaged.reopen(clean=True)
    assert not recovery.cut_or_quarantined
    assert damaged.names() == segments[2:]
    assert log.log_start_offset == start
    assert read_batches(log, start) == [one.data for one in damaged.batches if one.end_offset > start]
    assert log.epochs.entries[0].start_offset == damaged.base(segments[2])
