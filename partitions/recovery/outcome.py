"""What opening a log found and did: for who reports it to the quorum, and for the log that goes on from there."""

from __future__ import annotations

from dataclasses import dataclass

from partitions.files.checkpoint import LogCheckpoint
from partitions.files.leader_epochs import LeaderEpochHistory
from raftlog.model import LeaderEpoch, Offset

from .scan import ScannedSegment


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a log found and did."""

    clean: bool
    """The last stop was clean, and nothing was found wrong."""
    cut_or_quarantined: bool
    """Something that may have been acknowledged was removed, set aside or cannot be vouched for (S9). Also true for a
    `flush=os` topic after an unclean stop."""
    last_epoch: LeaderEpoch
    log_start_offset: Offset
    stable_end_offset: Offset
    """The log's end: what was found is fsynced by now."""
    notes: tuple[str, ...] = ()
    """One line for each row of the decision table that was not «keep», and for each finding."""


@dataclass(slots=True)
class Recovered:
    """A log that can be opened: the outcome of `recover`."""

    recovery: Recovery
    checkpoint: LogCheckpoint
    """As it is on disk."""
    epochs: LeaderEpochHistory
    segments: list[ScannedSegment]
    """Never empty; all of them good from their first byte to their last."""
    flush_os_marked: bool = False
    """The marker `flush-os` is there."""
    unindexed_bytes: int = 0
    """Of the last segment, that no index file covers."""
    never_written: bool = False
    """There is nothing but its checkpoint: its first job makes the first segment."""
