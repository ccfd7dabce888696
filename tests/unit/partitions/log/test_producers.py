"""State that is derived from the batches: stored as snapshots, and restored from the newest fitting one and the headers
behind it.
"""

from __future__ import annotations

import contextlib

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.files.checkpoint import ProducerSnapshot
from partitions.files.damage import LogDamaged
from partitions.files.leader_epochs import EpochStart, LeaderEpochHistory
from partitions.files.segment import Segment, SegmentFile
from partitions.log import pending as log_pending
from partitions.log import producer_replay
from partitions.log.log import PartitionLog
from partitions.log.producer_replay import ProducerReplay
from partitions.log.segments import HeaderSource
from partitions.log.tail import BatchTail, FetchCache, TailBatch
from partitions.producers.snapshots import SNAPSHOTS_KEPT, snapshot_name, snapshot_offsets
from raftlog.config import TopicConfig
from raftlog.model import LeaderEpoch, Offset
from raftlog.records.batch import BatchHeader, Control
from tests.support.partitions.damaged_log import CONFIG, flip, make
from tests.support.partitions.storage import PATH, append, batch, read_batches, recover_log, settle

HEADERS = [batch(offset, epoch=offset // 4).header for offset in range(12)]
EPOCHS = LeaderEpochHistory(EpochStart(LeaderEpoch(epoch), Offset(4 * epoch)) for epoch in range(3))


class State:
    def __init__(self) -> None:
        self.restored: bytes | None = b"never"
        self.replayed: list[int] = []
        self.gap = False

    def restore(self, snapshot: bytes | None) -> None:
        self.restored, self.replayed, self.gap = snapshot, [], False

    def lacks_past(self) -> None:
        assert not self.replayed
        self.gap = True

    def replay(self, header: BatchHeader, control: Control | None = None) -> None:
        self.replayed.append(header.base_offset)

    def empty(self) -> State:
        return State()

    def become(self, other: State) -> None:
        self.restored, self.replayed, self.gap = other.restored, other.replayed, other.gap

    def snapshot(self) -> bytes:
        return (self.restored or b"") + b"".join(b" %d" % offset for offset in self.replayed)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(PATH)
    return disk


def put(disk: SimDisk, offset: int, epoch: int) -> None:
    content = ProducerSnapshot(Offset(offset), LeaderEpoch(epoch), b"at %d" % offset).encode()
    disk.replace(f"{PATH}/{snapshot_name(Offset(offset))}", content)


def rebuilt(disk: SimDisk, end: int = 12, start: int = 0, *, snapshots: bool = True) -> tuple[bytes | None, list[int]]:
    state = rebuilt_state(disk, end, start, snapshots=snapshots)
    return state.restored, state.replayed


def rebuilt_state(disk: SimDisk, end: int = 12, start: int = 0, *, snapshots: bool = True) -> State:
    state, tail = State(), BatchTail()
    segment = Segment(Offset(0), SegmentFile(disk, PATH), Offset(0))
    for header in HEADERS[:end]:
        tail.append(TailBatch(header, Offset(header.end_offset), (), 0, segment, 0, tail))
    tail_start = Offset(start)
    in_memory = tail.from_offset(tail_start)
    source = HeaderSource(disk, PATH, EPOCHS, Offset(start), Offset(end), [], tail_start, in_memory)
    ProducerReplay(source, state, None, snapshots, 0).run()
    return state


def test_without_a_snapshot_everything_is_replayed(disk: SimDisk) -> None:
    assert rebuilt(disk) == (None, list(range(12)))
    assert rebuilt(disk, start=5) == (None, list(range(5, 12)))


def test_the_newest_snapshot_and_the_batches_behind_it(disk: SimDisk) -> None:
    put(disk, 3, 0)
    put(disk, 9, 2)
    assert rebuilt(disk) == (b"at 9", [9, 10, 11])


def test_a_snapshot_beyond_the_end_is_not_used(disk: SimDisk) -> None:
    put(disk, 3, 0)
    put(disk, 9, 2)
    assert rebuilt(disk, end=8) == (b"at 3", [3, 4, 5, 6, 7])


def test_a_snapshot_of_another_history_is_not_used(disk: SimDisk) -> None:
    """It was written, then the log was truncated and grew beyond it again, with batches of another epoch."""
    put(disk, 3, 0)
    put(disk, 9, 1)
    assert rebuilt(disk) == (b"at 3", list(range(3, 12)))


@pytest.mark.parametrize("content", [b"", b"rotten", ProducerSnapshot(Offset(8), LeaderEpoch(1), b"other").encode()])
def test_a_damaged_snapshot_is_not_used(disk: SimDisk, content: bytes) -> None:
    put(disk, 3, 0)
    disk.replace(f"{PATH}/{snapshot_name(Offset(9))}", content)
    assert rebuilt(disk) == (b"at 3", list(range(3, 12)))


def test_a_snapshot_of_a_later_version_is_replaced_by_a_replay(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk, 9, 2)
    known = State.restore

    def restore(state: State, snapshot: bytes | None) -> None:
        if snapshot is not None:
            raise ValueError("of a version that nobody knows")
        known(state, snapshot)

    monkeypatch.setattr(State, "restore", restore)
    assert rebuilt(disk) == (None, list(range(12)))


def test_a_snapshot_below_the_first_segment_is_used(disk: SimDisk) -> None:
    put(disk, 3, 0)
    assert rebuilt(disk, start=6) == (b"at 3", [6, 7, 8, 9, 10, 11])


def test_a_state_that_does_not_begin_with_the_log_knows_that_something_is_missing(disk: SimDisk) -> None:
    """S1: otherwise a resend of the missing batches would be taken for new ones."""
    assert not rebuilt_state(disk).gap
    assert rebuilt_state(disk, start=5).gap
    put(disk, 3, 0)
    assert rebuilt_state(disk, start=6).gap, "batches 3 to 5 are nowhere"
    assert not rebuilt_state(disk, start=3).gap
    put(disk, 9, 2)
    assert not rebuilt_state(disk, start=6).gap


def test_a_log_that_continues_elsewhere_lacks_its_past(disk: SimDisk) -> None:
    log, state = truncated(disk)
    log.truncate_fully_and_start_at(Offset(9))
    assert state.gap and not log.producers.stale
    log.truncate_fully_and_start_at(Offset(0))
    assert not state.gap


def test_a_few_are_kept_and_a_log_opens_by_the_last(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pending, "CHECKPOINT_INTERVAL_BYTES", 300)
    disk.remove(PATH)
    state = State()
    log, _ = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, producers=state)
    for _ in range(20):
        state.replay(append(log).header)
        settle(log)
    kept = snapshot_offsets(disk, PATH)
    assert len(kept) == SNAPSHOTS_KEPT
    again = State()
    recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, producers=again)
    assert again.replayed == list(range(kept[-1], 20))
    assert again.snapshot() == state.snapshot()
    log.truncate_to(Offset(kept[1]))
    replay(log)
    assert state.replayed == []
    assert state.restored == b"".join(b" %d" % offset for offset in range(kept[1]))
    settle(log)
    assert snapshot_offsets(disk, PATH)[-1] <= kept[1]


# --- After a truncation ---


def truncated(disk: SimDisk, batches: int = 6) -> tuple[PartitionLog, State]:
    """A log whose batches are all in files and no longer in memory, without its last one."""
    disk.remove(PATH)
    state = State()
    log, _ = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, producers=state, cache=FetchCache(0))
    for _ in range(batches):
        state.replay(append(log).header)
    settle(log)
    log.truncate_to(Offset(batches - 1))
    return log, state


def replay(log: PartitionLog) -> int:
    """Run until nothing is due; returns the number of replays."""
    count = 0
    while (work := log.producer_replay()) is not None:
        work.run()
        log.producers.replayed(work)
        count += 1
    return count


def test_the_state_is_stale_until_a_worker_has_read_it_again(disk: SimDisk) -> None:
    log, state = truncated(disk)
    assert log.producers.stale
    work = log.producer_replay()
    assert work is not None and log.producer_replay() is None, "one at a time"
    state.replay(append(log, epoch=1).header)
    work.run()
    state.replay(append(log, epoch=1).header)
    log.producers.replayed(work)
    assert not log.producers.stale
    assert state.replayed == list(range(7)), "what came meanwhile too, each once"


def test_no_snapshot_is_written_of_a_stale_state(disk: SimDisk) -> None:
    log, _ = truncated(disk)
    settle(log)
    log.close(clean=True)
    assert [offset for offset in snapshot_offsets(disk, PATH) if offset > 0] == []
    again = State()
    recover_log(disk, PATH, TopicConfig(), clean_shutdown=True, producers=again)
    assert again.replayed == list(range(5))


def test_a_truncation_makes_the_replay_in_progress_worthless(disk: SimDisk) -> None:
    log, state = truncated(disk)
    work = log.producer_replay()
    assert work is not None
    work.run()
    log.truncate_to(Offset(2))
    log.producers.replayed(work)
    assert log.producers.stale
    assert replay(log) == 1
    assert state.replayed == [0, 1]


def test_a_log_that_grew_far_is_read_by_the_worker(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_replay, "CATCH_UP_MAX", 2)
    log, state = truncated(disk)
    work = log.producer_replay()
    assert work is not None
    for _ in range(3):
        state.replay(append(log, epoch=1).header)
    work.run()
    log.producers.replayed(work)
    assert log.producers.stale
    settle(log)
    assert replay(log) == 1
    assert state.replayed == list(range(8))


def test_a_segment_removed_during_the_replay_is_no_damage(disk: SimDisk) -> None:
    log, state = truncated(disk)
    assert replay(log) == 1
    log.advance_log_start(Offset(1))
    settle(log)
    append(log)
    log.truncate_to(Offset(5))
    work = log.producer_replay()
    assert work is not None
    log.advance_log_start(Offset(5))
    settle(log)
    for offset in snapshot_offsets(disk, PATH):
        disk.remove(f"{PATH}/{snapshot_name(offset)}")
    with pytest.raises(LogDamaged) as caught:
        work.run()
    log.damage_found(caught.value)
    assert log.failed is None
    log.producers.replayed(work, good=False)
    assert replay(log) == 1
    assert state.replayed == []


def test_a_snapshot_from_before_the_log_was_emptied_is_not_used(disk: SimDisk) -> None:
    put(disk, 3, 0)
    assert rebuilt(disk, start=6, snapshots=False) == (None, [6, 7, 8, 9, 10, 11])
    log, _ = truncated(disk)
    log.truncate_fully_and_start_at(Offset(9))
    assert not log.producers.stale, "there is nothing to know"
    append(log, epoch=1)
    append(log, epoch=1)
    log.truncate_to(Offset(10))
    work = log.producer_replay()
    assert work is not None and not work.snapshots


@pytest.mark.parametrize("where", [0, 75], ids=["header", "payload"])
def test_damage_found_by_the_replay_at_a_start_is_handled_by_recovery(where: int) -> None:
    """S9, S10: an index covers the segment, so recovery does not read it; the replay of producers does, and without
    this rule the replica could never be opened again."""
    damaged = make(clean=False)
    for name in damaged.names(".producers"):
        damaged.disk.remove(name)
    second = damaged.names()[1]
    damaged.change(second, flip(len(damaged.batches[0].data) + where))
    state = State()
    log, recovery = recover_log(damaged.disk, PATH, CONFIG, clean_shutdown=False, producers=state)
    if where:
        assert not recovery.cut_or_quarantined, "the replay looks at headers: the scrubber finds it"
        return
    end = damaged.base(second) + 2
    assert recovery.cut_or_quarantined and recovery.stable_end_offset == log.log_end_offset == end
    assert read_batches(log, 0) == damaged.before(end) and damaged.set_aside()
    assert state.replayed == list(range(0, end, 2)) and not log.producers.stale
    log.close(clean=False)
    again, recovery = recover_log(damaged.disk, PATH, CONFIG, clean_shutdown=False, producers=State())
    assert again.log_end_offset == end and recovery.cut_or_quarantined, "nobody was told of the loss yet"


def test_a_segment_that_stays_damaged_after_recovery_ends_the_start(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(replay: ProducerReplay) -> None:
        raise LogDamaged("again", Offset(0), 0)

    monkeypatch.setattr(ProducerReplay, "run", damaged)
    with pytest.raises(LogDamaged, match="again"):
        recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, producers=State())


def opened(disk: SimDisk) -> tuple[PartitionLog, State]:
    state = State()
    log, _ = recover_log(disk, PATH, SMALL, clean_shutdown=False, producers=state, cache=FetchCache(0))
    return log, state


SMALL = TopicConfig(segment_bytes=300)


@pytest.mark.parametrize("crash_after", [*range(1, 12), None])
def test_no_start_is_on_disk_before_the_removed_batches_are_in_a_snapshot(
    disk: SimDisk, crash_after: int | None
) -> None:
    """S1, S13: everything is deleted, including the growing segment, and the process dies at any point."""
    log, state = opened(disk)
    for _ in range(7):
        state.replay(append(log).header)
        settle(log)
    log.advance_log_start(log.log_end_offset)
    state.replay(append(log).header)
    disk.crash_countdown = crash_after or 0
    with contextlib.suppress(SimulatedCrash):
        settle(log)
        log.advance_log_start(log.log_end_offset)
        settle(log)
    disk.crash_countdown = 0
    again, known = opened(disk)
    seen = [int(offset) for offset in (known.restored or b"").split()] + known.replayed
    assert seen == list(range(again.log_end_offset)), "nothing is missing in the middle"


def test_the_start_waits_while_the_state_is_unknown(disk: SimDisk) -> None:
    log, state = opened(disk)
    for _ in range(7):
        state.replay(append(log).header)
    settle(log)
    log.truncate_to(Offset(6))
    assert log.producers.stale
    log.advance_log_start(Offset(6))
    settle(log)
    assert log.stable_start_offset == 0 and not log.needs_job, "there is nothing to do until it is known"
    assert replay(log) == 1 and log.needs_job
    settle(log)
    assert log.stable_start_offset == 6
