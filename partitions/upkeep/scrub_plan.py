"""A plan of a check: which files of a log can be checked, and how far; `plan_of_log` makes one of a log in service.

Of a log in service it is whole sealed segments, and of the last one what is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import Segment
from partitions.log.log import PartitionLog
from raftlog.model import Offset
from raftlog.ports import Disk


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """What of a segment can be checked."""

    base_offset: Offset
    end_offset: Offset | None
    """Settled up to here. None: nobody knows, it goes to the end of the file (the last segment of a stopped node)."""
    size: int | None
    """Bytes of the file when it is sealed; None while it grows (or may: only the batches up to `end_offset` count)."""
    indexed: bool
    """Its index files are there, and complete."""
    owner: object = None
    """Whose it is, for the log's owner to compare; nobody else looks."""


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """A log as it was when this was made, for any thread: names, numbers and copies."""

    disk: Disk
    path: str
    epochs: LeaderEpochHistory
    segments: Sequence[PlannedSegment]
    torn_from: Offset | None = None
    """A stopped node's log that was not closed clean may end inside a batch from here on: a crash, no damage."""

    never_written: bool = False
    """No batch is in a file, so far: there need be no leader epochs."""

    @property
    def total_bytes(self) -> int:
        """About how much there is to read: for a progress bar."""
        return sum(segment.size or 0 for segment in self.segments)


def plan_of_log(log: PartitionLog) -> ScrubPlan:
    """What of this log can be checked now, for a worker: the batches below `settled_end_offset`."""
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
    """Whether a finding is about the log as it is now. `base_offset` is that of the finding's segment; -1 where it is
    about none, and always true.

    The log's memory is ahead of its files: what was read is what the plan says as long as the segment, by then, still
    is the log's and still reaches as far. What was cut off it never grows again, and what compaction put in its place
    is another. What became of *other* segments says nothing: where retention removes one now and then, no finding would
    ever count.
    """
    for planned in plan.segments:
        if planned.base_offset == base_offset:
            return any(segment is planned.owner and _reaches(segment, planned) for segment in log.segments.all)
    return True


def _reaches(segment: Segment, planned: PlannedSegment) -> bool:
    if planned.size is not None and segment.size != planned.size:
        return False
    return planned.end_offset is None or segment.end_offset >= planned.end_offset
