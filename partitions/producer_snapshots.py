"""Snapshots of what the batches made of the idempotent producers, and how the state is had again from them.

`{offset:020d}.producers` is the state after all batches below `offset`. A few of the newest are kept, so that a log
that loses its end need not be read from its beginning. Any of them may be absent or damaged: the next older one is
taken, and more headers are replayed.

What is *not* here: the state itself, which is opaque (`producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from raftlog.model import Offset
from raftlog.ports import Disk
from raftlog.record_batch import BatchHeader

from .checkpoint import DamagedFile, ProducerSnapshot
from .leader_epochs import LeaderEpochHistory
from .segment import parse_segment_name, segment_name

SNAPSHOT_SUFFIX = ".producers"

SNAPSHOTS_KEPT = 3
"""The newest, and two for the case that it reaches beyond where the log is cut or is damaged."""


class ReplayedState(Protocol):
    """State that a log's batches determine (idempotent producers): storage keeps its snapshots and replays headers.

    Storage calls `restore` and then `replay` for every batch behind the snapshot, in `PartitionLog.open` and again in
    each truncation. Between those the owner tells its state about each batch right *after* it appended it, so that
    `snapshot()` is the state at `log_end_offset`.
    """

    def restore(self, snapshot: bytes | None) -> None:
        """Forget everything, then begin with this snapshot (None: begin empty)."""
        ...

    def replay(self, header: BatchHeader) -> None:
        """The next batch of the log."""
        ...

    def snapshot(self) -> bytes:
        """The state as bytes that `restore` takes; at most some megabytes."""
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


def rebuild(
    state: ReplayedState,
    disk: Disk,
    path: str,
    epochs: LeaderEpochHistory,
    start_offset: Offset,
    end_offset: Offset,
    headers_from: Callable[[Offset], Iterable[BatchHeader]],
) -> None:
    """Bring `state` to the log's end: from the newest snapshot that fits, else from the log's beginning."""
    snapshot = _newest_fitting(disk, path, epochs, start_offset, end_offset)
    state.restore(None if snapshot is None else snapshot.state)
    begin = start_offset if snapshot is None else max(start_offset, snapshot.offset)
    for header in headers_from(begin):
        state.replay(header)


def _newest_fitting(
    disk: Disk, path: str, epochs: LeaderEpochHistory, start_offset: Offset, end_offset: Offset
) -> ProducerSnapshot | None:
    for offset in reversed(snapshot_offsets(disk, path)):
        if offset > end_offset:
            continue
        try:
            snapshot = ProducerSnapshot.decode(disk.read(f"{path}/{snapshot_name(offset)}"))
        except (DamagedFile, FileNotFoundError):
            continue
        same_history = offset <= start_offset or snapshot.epoch == epochs.epoch_at(Offset(offset - 1))
        if snapshot.offset == offset and same_history:
            return snapshot
    return None
