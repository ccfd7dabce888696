"""State that the batches determine: kept as snapshots, had again by the newest one that fits and the headers behind."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.disk import SimDisk
from partitions import log_pending
from partitions.checkpoint import ProducerSnapshot
from partitions.leader_epochs import EpochStart, LeaderEpochHistory
from partitions.log import PartitionLog
from partitions.producer_snapshots import SNAPSHOTS_KEPT, rebuild, snapshot_name, snapshot_offsets
from raftlog.config import TopicConfig
from raftlog.model import LeaderEpoch, Offset
from raftlog.record_batch import BatchHeader
from tests.support.storage import PATH, append, batch, settle

HEADERS = [batch(offset, epoch=offset // 4).header for offset in range(12)]
EPOCHS = LeaderEpochHistory(EpochStart(LeaderEpoch(epoch), Offset(4 * epoch)) for epoch in range(3))


class State:
    def __init__(self) -> None:
        self.restored: bytes | None = b"never"
        self.replayed: list[int] = []

    def restore(self, snapshot: bytes | None) -> None:
        self.restored, self.replayed = snapshot, []

    def replay(self, header: BatchHeader) -> None:
        self.replayed.append(header.base_offset)

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


def rebuilt(disk: SimDisk, end: int = 12, start: int = 0) -> tuple[bytes | None, list[int]]:
    state = State()
    rebuild(
        state,
        disk,
        PATH,
        EPOCHS,
        Offset(start),
        Offset(end),
        lambda begin: [header for header in HEADERS if begin <= header.base_offset < end],
    )
    return state.restored, state.replayed


def test_without_a_snapshot_everything_is_replayed(disk: SimDisk) -> None:
    assert rebuilt(disk) == (None, list(range(12)))
    assert rebuilt(disk, start=5) == (None, list(range(5, 12)))


def test_the_newest_snapshot_and_what_is_behind_it(disk: SimDisk) -> None:
    put(disk, 3, 0)
    put(disk, 9, 2)
    assert rebuilt(disk) == (b"at 9", [9, 10, 11])


def test_a_snapshot_beyond_the_end_is_not_taken(disk: SimDisk) -> None:
    put(disk, 3, 0)
    put(disk, 9, 2)
    assert rebuilt(disk, end=8) == (b"at 3", [3, 4, 5, 6, 7])


def test_a_snapshot_of_another_history_is_not_taken(disk: SimDisk) -> None:
    """It was written, then the log was truncated and grew beyond it again, by batches of another epoch."""
    put(disk, 3, 0)
    put(disk, 9, 1)
    assert rebuilt(disk) == (b"at 3", list(range(3, 12)))


@pytest.mark.parametrize("content", [b"", b"rotten", ProducerSnapshot(Offset(8), LeaderEpoch(1), b"other").encode()])
def test_a_damaged_snapshot_is_not_taken(disk: SimDisk, content: bytes) -> None:
    put(disk, 3, 0)
    disk.replace(f"{PATH}/{snapshot_name(Offset(9))}", content)
    assert rebuilt(disk) == (b"at 3", list(range(3, 12)))


def test_a_snapshot_below_the_first_segment_serves(disk: SimDisk) -> None:
    put(disk, 3, 0)
    assert rebuilt(disk, start=6) == (b"at 3", [6, 7, 8, 9, 10, 11])


def test_a_few_are_kept_and_a_log_opens_by_the_last(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pending, "CHECKPOINT_INTERVAL_BYTES", 300)
    disk.remove(PATH)
    state = State()
    log, _ = PartitionLog.open(disk, PATH, TopicConfig(), clean_shutdown=False, producers=state)
    for _ in range(20):
        state.replay(append(log).header)
        settle(log)
    kept = snapshot_offsets(disk, PATH)
    assert len(kept) == SNAPSHOTS_KEPT
    again = State()
    PartitionLog.open(disk, PATH, TopicConfig(), clean_shutdown=False, producers=again)
    assert again.replayed == list(range(kept[-1], 20))
    assert again.snapshot() == state.snapshot()
    log.truncate_to(Offset(kept[1]))
    assert state.replayed == []
    assert state.restored == b"".join(b" %d" % offset for offset in range(kept[1]))
    settle(log)
    assert snapshot_offsets(disk, PATH)[-1] <= kept[1]
