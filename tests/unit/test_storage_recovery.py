"""Recovery: the table is total, and each kind of damage on disk leads to the row that tells of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jepsen_like.simulator.disk import SimDisk, SimFile, SimulatedCrash
from partitions.checkpoint import LogCheckpoint
from partitions.log import PartitionLog, Recovery
from partitions.recovery_table import (
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
from partitions.segment import SegmentIndex
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import Offset
from tests.support.storage import PATH, Batch, append, batch, open_log, read_batches, settle

CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=150)


def all_facts() -> list[Facts]:
    return [Facts(*values) for values in itertools.product(Place, Content, Index, Position, Stop)]


def test_exactly_one_row_fits_each_combination_of_facts() -> None:
    for facts in all_facts():
        assert [row.label for row in SEGMENT_ROWS if row.fits(facts)] == [row_for(facts).label], facts


def test_every_row_fits_something_and_labels_are_unique() -> None:
    used = {row_for(facts).label for facts in all_facts()}
    assert sorted(used) == [row.label for row in SEGMENT_ROWS]


def test_whatever_takes_a_batch_away_is_not_vouched_for() -> None:
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


@dataclass
class Damaged:
    """A log of several segments (and what was in it), to be damaged."""

    disk: SimDisk
    batches: list[Batch]

    def names(self, suffix: str = ".log") -> list[str]:
        return [f"{PATH}/{name}" for name in self.disk.list(PATH) if name.endswith(suffix)]

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        file = self.disk.open(name)
        content = change(file.pread(file.size(), 0))
        file.truncate(0)
        file.pwritev([content], 0)
        file.fsync()
        file.close()

    def base(self, name: str) -> int:
        return int(name.rpartition("/")[2][:20])

    def reopen(self, *, clean: bool = False) -> tuple[PartitionLog, Recovery]:
        return PartitionLog.open(self.disk, PATH, CONFIG, clean_shutdown=clean)

    def before(self, offset: int) -> list[bytes]:
        return [one.data for one in self.batches if one.end_offset <= offset]

    def set_aside(self) -> list[str]:
        return [name for name in self.disk.list(PATH) if name.endswith(".quarantined")]


def make(*, clean: bool) -> Damaged:
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk, CONFIG)
    batches = []
    for number in range(24):
        batches.append(append(log, count=2, epoch=number // 5, size=30))
        settle(log)
    log.close(clean=clean)
    made = Damaged(disk, batches)
    assert len(made.names()) >= 4
    return made


def test_untouched_logs_are_whole_after_any_stop() -> None:
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
    """Rule 8 of the model: page cache that outlived the process is not durable until somebody says so."""
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
        reported = PartitionLog.open(disk, PATH, CONFIG, clean_shutdown=False)[1].stable_end_offset
        disk.power_loss(random.Random(steps))
        after, recovery = PartitionLog.open(disk, PATH, CONFIG, clean_shutdown=False)
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


def test_a_last_batch_that_lost_its_end_is_cut_and_the_missing_is_noticed() -> None:
    damaged = make(clean=False)
    damaged.change(damaged.names()[-1], lambda good: good[:-1])
    log, recovery = damaged.reopen()
    assert recovery.cut_or_quarantined
    assert recovery.stable_end_offset == 46
    assert read_batches(log, 0) == damaged.before(46)


def flip(position: int, mask: int = 1) -> Callable[[bytes], bytes]:
    return lambda good: good[:position] + bytes([good[position] ^ mask]) + good[position + 1 :]


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
def test_a_flipped_bit_in_what_no_index_covers_is_found(what: str, batch_number: int) -> None:
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
    # Nothing is thrown away unless it is the beginning of a batch that reaches beyond the file.
    assert damaged.set_aside() or "@E" in "".join(recovery.notes)


def test_a_corrupt_middle_is_set_aside_with_everything_behind_it() -> None:
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
    # The log goes on from there, and a later recovery leaves what was set aside alone.
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
def test_a_missing_last_segment_is_noticed_by_the_recovery_point(clean: bool) -> None:
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
        lying.add(dataclasses.replace(one.header, batch_length=length - 12))
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


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs"])
@pytest.mark.parametrize("how", ["absent", "flipped", "shorter"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_small_file_loses_no_batch_but_the_replica_does_not_vouch(name: str, how: str, clean: bool) -> None:
    damaged = make(clean=clean)
    epochs = open_log(damaged.disk, CONFIG, clean=clean).epochs if not clean else None
    path = f"{PATH}/{name}"
    if how == "absent":
        damaged.disk.remove(path)
    else:
        damaged.change(path, flip(14) if how == "flipped" else lambda good: good[:-1])
    log, recovery = damaged.reopen(clean=clean)
    assert recovery.cut_or_quarantined and not recovery.clean
    assert read_batches(log, 0) == damaged.before(48)
    assert epochs is None or log.epochs == epochs
    assert [entry.epoch for entry in log.epochs.entries] == [0, 1, 2, 3, 4]


def test_epochs_written_ahead_of_their_first_batch_are_dropped() -> None:
    damaged = make(clean=False)
    log, _ = damaged.reopen()
    append(log, epoch=7)
    job = log.take_job()
    assert job is not None and job.leader_epochs is not None
    damaged.disk.replace(f"{PATH}/leader-epochs", job.leader_epochs)
    again, recovery = damaged.reopen()
    assert not recovery.cut_or_quarantined
    assert recovery.last_epoch == 4
    append(again, epoch=6)
    settle(again)


def test_a_loss_is_not_forgotten_by_the_next_recovery_until_it_was_reported() -> None:
    """1. Recovery cuts an acknowledged batch. 2. The process dies before it could register. 3. The second recovery
    finds nothing wrong any more: if it vouched, the replica would stay in the ISR without that batch."""
    damaged = make(clean=False)
    damaged.change(damaged.names()[-1], lambda good: good[:-1])
    for _ in range(3):
        log, recovery = damaged.reopen()
        assert recovery.cut_or_quarantined
    log.close(clean=True)
    log, recovery = damaged.reopen(clean=True)
    assert recovery.cut_or_quarantined and not recovery.clean
    log.loss_is_reported()
    settle(log)
    log, recovery = damaged.reopen()
    assert not recovery.cut_or_quarantined


@pytest.mark.parametrize("damage", ["corrupt", "torn", "no checkpoint", "no epochs"])
def test_a_crash_anywhere_in_a_lossy_recovery_does_not_make_it_forget(damage: str) -> None:
    """Above the recovery point nothing but the mark remembers: what is cut there looks like it never was."""
    for steps in range(1, 60):
        disk = SimDisk()
        disk.make_directory("partitions")
        log = open_log(disk, CONFIG)
        for _ in range(5):
            append(log, epoch=1)
            settle(log)
        damaged = Damaged(disk, [])
        name = damaged.names()[-1]
        if damage == "corrupt":
            damaged.change(name, flip(3 * log.size_bytes // 5 + 70))
        elif damage == "torn":
            damaged.change(name, lambda good: good[:-1])
        else:
            disk.remove(f"{PATH}/{'checkpoint' if damage == 'no checkpoint' else 'leader-epochs'}")
        disk.crash_countdown = steps
        try:
            damaged.reopen()
        except SimulatedCrash:
            disk.crash_countdown = 0
            _, recovery = damaged.reopen()
            assert recovery.cut_or_quarantined, f"forgotten after {steps} steps"
            continue
        assert steps > 3
        return
    raise AssertionError("recovery has more steps than were tried")


def test_unflushed_topics_are_not_vouched_for_after_an_unclean_stop() -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    config = TopicConfig(flush="os")
    log = open_log(disk, config)
    log.close(clean=True)
    log, recovery = PartitionLog.open(disk, PATH, config, clean_shutdown=False)
    assert not recovery.cut_or_quarantined, "nothing was written since it was closed clean"
    append(log)
    settle(log)
    assert log.stable_end_offset == 1
    log, recovery = PartitionLog.open(disk, PATH, config, clean_shutdown=False)
    assert recovery.cut_or_quarantined


def test_a_full_disk_leaves_nothing_of_what_was_to_be_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again every few seconds: a copy that is left each time would fill whatever room there is."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk)
    made = [append(log, size=100) for _ in range(3)]
    settle(log)
    disk.flip(f"{PATH}/{0:020d}.log", len(made[0].data) + 80, 1)
    real = SimFile.pwritev

    def pwritev(file: SimFile, buffers: Any, position: int) -> int:
        if any(file._inode is disk._names[path] for path in disk.files() if path.endswith(".quarantined")):
            raise DiskFull("no room")
        return real(file, buffers, position)

    monkeypatch.setattr(SimFile, "pwritev", pwritev)
    with pytest.raises(DiskFull):
        open_log(disk)
    assert not any(path.endswith(".quarantined") for path in disk.files())
    monkeypatch.undo()
    again, recovery = PartitionLog.open(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert recovery.cut_or_quarantined
    assert read_batches(again, 0) == [made[0].data]
