"""The check of a stopped node's replica: a plan like that which a running log makes of itself.

The check changes and decides nothing: recovery does that at the next start, by its own table. It finds at least the
same damage, since it reads every segment whose index it cannot trust.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from partitions.files.checkpoint import (
    CHECKPOINT_NAME,
    LEADER_EPOCHS_NAME,
    DamagedFile,
    LogCheckpoint,
    decode_leader_epochs,
    read_file,
)
from partitions.files.index_files import read_index, rebuild_index
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import parse_segment_name, segment_name
from raftlog.errors import CorruptBatch, InvariantViolation
from raftlog.model import LeaderEpoch, Offset
from raftlog.ports import Disk
from raftlog.records.batch import HEADER_BYTES, parse_header

from .scrub_check import Finding, FolderCheck, What
from .scrub_plan import PlannedSegment, ScrubPlan


def check_folder(disk: Disk, path: str) -> FolderCheck:
    """Return a check of the stopped replica in folder `path`, not yet run, with the findings of the folder as a whole.

    Raises `DiskFailed`, and `FileNotFoundError` if a file disappears meanwhile.
    """
    checkpoint = _checkpoint(disk, path)
    start = Offset(0) if checkpoint is None else checkpoint.log_start_offset
    bases = [base for name in disk.list(path) if (base := parse_segment_name(name)) is not None]
    epochs = _epochs(disk, path, bases)
    bases = _without_leftovers(disk, path, bases, start, epochs)
    findings = _gaps(bases, start, checkpoint)
    closed_clean = checkpoint is not None and checkpoint.closed_clean
    recovery_point = start if checkpoint is None else checkpoint.recovery_point
    segments = []
    for number, base in enumerate(bases):
        last = number + 1 == len(bases)
        end = bases[number + 1] if not last else recovery_point if closed_clean else None
        # After a crash the indexes of segments behind the recovery point may not have been written. Those of the last
        # segment may cover any beginning of it, and are rebuilt if they are damaged.
        indexed = not last and end is not None and (closed_clean or end <= recovery_point)
        size = None if end is None else _size(disk, path, base)
        segments.append(PlannedSegment(base_offset=base, end_offset=end, size=size, indexed=indexed))
    torn_from = None if closed_clean else recovery_point
    empty = recovery_point == 0 and not any(_size(disk, path, base) for base in bases)
    plan = ScrubPlan(disk, path, epochs, segments, torn_from=torn_from, never_written=empty)
    return FolderCheck(plan, findings=findings)


def _without_leftovers(
    disk: Disk, path: str, bases: Sequence[Offset], start: Offset, epochs: LeaderEpochHistory
) -> list[Offset]:
    """Return the bases without segments that the next start removes.

    A crash leaves segments below the start, and segments that compaction has merged into the one before them.
    """
    kept: list[Offset] = []
    reached = Offset(0)
    for base, successor in pairwise([*bases, None]):
        assert base is not None
        end = None if successor is None else max(successor, _end(disk, path, base, epochs))
        if base >= reached and (end is None or end > start):
            kept.append(base)
            reached = end or base
    return kept


def _end(disk: Disk, path: str, base: Offset, epochs: LeaderEpochHistory) -> Offset:
    """Return a segment's end by its index, else by its batches; its base if those are damaged."""
    index = read_index(disk, path, base, interval_bytes=0)
    if index is None:
        with contextlib.closing(disk.open(f"{path}/{segment_name(base)}")) as file:
            try:
                index = rebuild_index(file, base, file.size(), epochs, interval_bytes=0)
            except CorruptBatch:
                return base
    return index.end_offset


def _gaps(bases: Sequence[Offset], start: Offset, checkpoint: LogCheckpoint | None) -> list[Finding]:
    """Check that the log begins where it should. A segment that ends too early is reported by its own check."""
    if not bases:
        if checkpoint is not None and (
            checkpoint.emptying or (checkpoint.closed_clean and not checkpoint.recovery_point)
        ):
            return []
        return [Finding(What.SEGMENT, segment_name(start), "there is no segment", start, start)]
    if bases[0] > start:
        detail = f"the log begins at offset {start}, its first segment at {bases[0]}"
        return [Finding(What.SEGMENT, segment_name(bases[0]), detail, bases[0], start)]
    return []


def _checkpoint(disk: Disk, path: str) -> LogCheckpoint | None:
    content = read_file(disk, f"{path}/{CHECKPOINT_NAME}")
    with contextlib.suppress(DamagedFile):  # The check of that file reports the damage.
        return None if content is None else LogCheckpoint.decode(content)
    return None


def _epochs(disk: Disk, path: str, bases: Sequence[Offset]) -> LeaderEpochHistory:
    content = read_file(disk, f"{path}/{LEADER_EPOCHS_NAME}")
    with contextlib.suppress(DamagedFile):
        if content is not None:
            return decode_leader_epochs(content)
    return _learned_epochs(disk, path, bases)


def _learned_epochs(disk: Disk, path: str, bases: Sequence[Offset]) -> LeaderEpochHistory:
    """Learn the epochs from the batches: without a history, the only rule is that they must not fall."""
    epochs = LeaderEpochHistory()
    for base in bases:
        with contextlib.closing(disk.open(f"{path}/{segment_name(base)}")) as file:
            position = 0
            size = file.size()
            while position < size:
                try:
                    header = parse_header(file.pread(HEADER_BYTES, position))
                    epochs.assign(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
                except (CorruptBatch, InvariantViolation):
                    return epochs
                position += header.total_bytes
    return epochs


def _size(disk: Disk, path: str, base: Offset) -> int:
    with contextlib.closing(disk.open(f"{path}/{segment_name(base)}")) as file:
        return file.size()
