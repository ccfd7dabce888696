"""Snapshots of what the batches made of producers and transactions, and which of them a log may begin with.

`{offset:020d}.producers` is the state after all batches below `offset`. A few of the newest are kept, so that a log
that loses its end need not be read from its beginning. Any of them may be absent or damaged: the next older one is
taken, and more headers are replayed.
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
"""The newest, and two for the case that it reaches beyond where the log is cut or is damaged."""


class ReplayedState(Protocol):
    """State that a log's batches determine (idempotent producers, transactions): storage keeps its snapshots and
    replays headers, and what control batches say.

    Storage begins with an `empty` one, calls `restore` and then `replay` for every batch behind the snapshot, in
    `PartitionLog.open` and again, on a worker, after each truncation; then the owner's `become`s that one. The owner
    tells its state about each batch right *after* it appended it: `snapshot()` is the state at `log_end_offset`.
    """

    def restore(self, snapshot: bytes | None) -> None:
        """Forget everything, then begin with this snapshot (None: begin empty). Raises `ValueError` where it is none of
        a known version."""
        ...

    def replay(self, header: BatchHeader, control: Control | None) -> None:
        """The next batch of the log; `control` is what a control batch says."""
        ...

    def lacks_past(self) -> None:
        """Right after `restore`: batches between the snapshot and the next one are not there any more."""
        ...

    def empty(self) -> Self:
        """Another one, of nothing yet."""
        ...

    def become(self, other: Any) -> None:
        """Take over the state of one that `empty` made; nobody uses that one any more."""
        ...

    def snapshot(self) -> bytes:
        """The state as bytes that `restore` takes: some megabytes, 50 at most. Milliseconds of copying."""
        ...


def snapshot_name(offset: Offset) -> str:
    return segment_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offsets(disk: Disk, path: str) -> list[Offset]:
    """Of the snapshots in this folder, rising."""
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
    """The newest that is of the history of a log with these bounds and epochs. Blocks."""
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
