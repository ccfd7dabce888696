"""The plan of a check: the files of a log that can be checked, and how far; `plan_of_log` makes one for a running log.

For a log in service these are whole sealed segments, and the settled part of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import Segment
from partitions.log.log import PartitionLog
from raftlog.model import Offset
from raftlog.ports import Disk


class PlannedSegment(msgspec.Struct, frozen=True):
    """The part of a segment that can be checked."""

    base_offset: Offset
    end_offset: Offset | None
    """The settled end. None: unknown, the check goes to the end of the file (the last segment of a stopped node)."""
    size: int | None
    """Bytes of the file if it is sealed; None if it may grow: then only the batches up to `end_offset` count."""
    indexed: bool
    """Whether its index files exist, and are complete."""
    owner: object = None
    """The segment's object, for the log's owner to compare; opaque to all others."""


class ScrubPlan(msgspec.Struct, frozen=True):
    """A log at one moment, for any thread: names, numbers and copies."""

    disk: Disk
    path: str
    epochs: LeaderEpochHistory
    segments: Sequence[PlannedSegment]
    torn_from: Offset | None = None
    """The offset from which on the log may end inside a batch: a stopped node's log after a crash, without damage."""

    never_written: bool = False
    """No batch is in a file yet: leader epochs may be absent."""

    @property
    def total_bytes(self) -> int:
        """The approximate number of bytes to read: for a progress bar."""
        return sum(segment.size or 0 for segment in self.segments)


def plan_of_log(log: PartitionLog) -> ScrubPlan:
    """Return the plan of what can be checked now, for a worker: the batches below `settled_end_offset`."""
    settled = log.settled_end_offset
    planned = []
    for segment in log.segments.all:
        if not segment.on_disk or segment.base_offset >= settled:
            continue
        sealed = segment.index is None and segment.end_offset <= settled
        planned.append(
            PlannedSegment(
                base_offset=segment.base_offset,
                end_offset=min(segment.end_offset, settled),
                size=segment.size if sealed else None,
                indexed=sealed,
                owner=segment,
            )
        )
    return ScrubPlan(
        disk=log.segments.disk,
        path=log.path,
        epochs=log.epochs.copy(),
        segments=planned,
        never_written=not planned,
    )


def still_stands(plan: ScrubPlan, base_offset: Offset, log: PartitionLog) -> bool:
    """Whether a finding is about the log as it is now.

    `base_offset` is that of the finding's segment; -1 if it concerns none, and then the finding always stands.

    The log's memory is ahead of its files: the plan describes the bytes read as long as the segment still belongs to
    the log and still reaches as far. A segment never grows again after a cut, and compaction replaces it by another
    object. *Other* segments do not matter: if they did, a log whose retention removes one now and then would never have
    a valid finding.
    """
    for planned in plan.segments:
        if planned.base_offset == base_offset:
            return any(segment is planned.owner and _reaches(segment, planned) for segment in log.segments.all)
    return True


def _reaches(segment: Segment, planned: PlannedSegment) -> bool:
    if planned.size is not None and segment.size != planned.size:
        return False
    return planned.end_offset is None or segment.end_offset >= planned.end_offset
