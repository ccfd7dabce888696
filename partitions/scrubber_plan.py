"""What of a log in service can be checked now: whole sealed segments, and of the last one what is settled.

What is *not* here: the check (`scrubber_check.py`), stopped logs (`scrubber_folder.py`).
"""

from __future__ import annotations

from raftlog.model import Offset

from .log_segments import LogSegments
from .scrubber_check import PlannedSegment, ScrubPlan


def plan_of_log(segments: LogSegments, settled: Offset, generation: int) -> ScrubPlan:
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
    return ScrubPlan(segments.disk, segments.path, segments.epochs.copy(), planned, generation)


def still_stands(plan: ScrubPlan, base_offset: Offset, segments: LogSegments, generation: int) -> bool:
    """Whether the log still has what the plan was made of: otherwise a finding says nothing about it. `base_offset` is
    that of the finding's segment; -1 where it is about none."""
    if plan.generation != generation:
        return False
    owners = [segment.owner for segment in plan.segments if segment.base_offset == base_offset]
    return not owners or any(segment is owners[0] for segment in segments.all)
