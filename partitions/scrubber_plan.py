"""What of a log in service can be checked now: whole sealed segments, and of the last one what is settled.

What is *not* here: the check (`scrubber_check.py`), stopped logs (`scrubber_folder.py`).
"""

from __future__ import annotations

from raftlog.model import Offset

from .log_segments import LogSegments
from .scrubber_check import PlannedSegment, ScrubPlan
from .segment import Segment


def plan_of_log(segments: LogSegments, settled: Offset) -> ScrubPlan:
    """Of the batches below `settled`, which are in files and will stay as they are."""
    planned = []
    for segment in segments.all:
        if not segment.on_disk or segment.base_offset >= settled:
            continue
        sealed = segment.index is None and segment.end_offset <= settled
        planned.append(
            PlannedSegment(
                segment.base_offset,
                min(segment.end_offset, settled),
                segment.size if sealed else None,
                indexed=sealed,
                owner=segment,
            )
        )
    return ScrubPlan(segments.disk, segments.path, segments.epochs.copy(), planned, never_written=not planned)


def still_stands(plan: ScrubPlan, base_offset: Offset, segments: LogSegments) -> bool:
    """Whether a finding is about the log as it is now. `base_offset` is that of the finding's segment; -1 where it is
    about none, and always true.

    The log's memory is ahead of its files: what was read is what the plan says as long as the segment, by then, still
    is the log's and still reaches as far. What was cut off it never grows again, and what compaction put in its place
    is another. What became of *other* segments says nothing: where retention removes one now and then, no finding would
    ever count.
    """
    for planned in plan.segments:
        if planned.base_offset == base_offset:
            return any(segment is planned.owner and _reaches(segment, planned) for segment in segments.all)
    return True


def _reaches(segment: Segment, planned: PlannedSegment) -> bool:
    if planned.size is not None and segment.size != planned.size:
        return False
    return planned.end_offset is None or segment.end_offset >= planned.end_offset
