"""Snapshots of producer and transaction state, and the choice of the one that fits a log.

`{offset:020d}.producers` is the state after all batches below `offset`. A few of the newest are kept, so that a log
that loses its end need not be read from its beginning. If one is absent or damaged, the next older one is used, and
more headers are replayed.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from partitions.files.checkpoint import DamagedFile, ProducerSnapshot
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import parse_segment_name, segment_name
from raftlog.errors import DiskFailed
from raftlog.model import Offset
from raftlog.ports import Disk
from raftlog.records.batch import BatchHeader, Control

SNAPSHOT_SUFFIX = ".producers"

SNAPSHOTS_KEPT = 3
"""The newest, and two for the case that it lies beyond a cut or is damaged."""


class ReplayedState(Protocol):
    """State that a log's batches determine (idempotent producers, transactions).

    The log keeps its snapshots, and replays headers and the content of control batches. It begins with an `empty` one,
    calls `restore`, and then `replay` for every batch behind the snapshot: in `PartitionLog.open_steps`, and on a
    worker after each truncation; then the owner's state `become`s that one. The owner records each batch right *after*
    it appended it: `snapshot()` is the state at `log_end_offset`.
    """

    def restore(self, snapshot: bytes | None) -> None:
        """Replace the state by this snapshot's (None: an empty one). Raises `ValueError` for an unknown version."""
        ...

    def replay(self, header: BatchHeader, control: Control | None) -> None:
        """Record the next batch of the log; `control` is a control batch's content."""
        ...

    def lacks_past(self) -> None:
        """Note, right after `restore`, that batches between the snapshot and the next batch no longer exist."""
        ...

    def empty(self) -> Self:
        """Return a new, empty state."""
        ...

    def become(self, other: Any) -> None:
        """Take over the state of one that `empty` made, which must not be used afterwards."""
        ...

    def snapshot(self) -> bytes:
        """Encode the state for `restore`: some megabytes, 50 at most. Takes milliseconds of copying."""
        ...


def snapshot_name(offset: Offset) -> str:
    return segment_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offsets(disk: Disk, path: str) -> list[Offset]:
    """Return the offsets of the snapshots in this folder, rising."""
    found = (parse_segment_name(name, SNAPSHOT_SUFFIX) for name in disk.list(path))
    return [offset for offset in found if offset is not None]


def prune_snapshots(disk: Disk, path: str, *, end_offset: Offset | None = None) -> None:
    """Remove all but the newest few, and those beyond `end_offset`."""
    offsets = snapshot_offsets(disk, path)
    kept = [offset for offset in offsets if end_offset is None or offset <= end_offset][-SNAPSHOTS_KEPT:]
    for offset in offsets:
        if offset not in kept:
            disk.remove(f"{path}/{snapshot_name(offset)}")


def newest_fitting(
    disk: Disk, path: str, epochs: LeaderEpochHistory, start_offset: Offset, end_offset: Offset
) -> ProducerSnapshot | None:
    """Return the newest snapshot from the history of a log with these bounds and epochs. Blocks."""
    for offset in reversed(snapshot_offsets(disk, path)):
        if offset > end_offset:
            continue
        try:
            snapshot = ProducerSnapshot.decode(disk.read(f"{path}/{snapshot_name(offset)}"))
        except (DamagedFile, DiskFailed, FileNotFoundError):
            continue
        same_history = offset <= start_offset or snapshot.epoch == epochs.epoch_at(Offset(offset - 1))
        if snapshot.offset == offset and same_history:
            return snapshot
    return None
