"""The outcome of opening a log: for the report to the quorum, and for the log that continues from there."""

from __future__ import annotations

import msgspec

from partitions.files.checkpoint import LogCheckpoint
from partitions.files.leader_epochs import LeaderEpochHistory
from raftlog.model import LeaderEpoch, Offset

from .scan import ScannedSegment


class Recovery(msgspec.Struct, frozen=True):
    """The findings and actions of a recovery."""

    clean: bool
    """Whether the last stop was clean, and no fault was found."""
    cut_or_quarantined: bool
    """Whether data that may have been acknowledged was removed, set aside or cannot be vouched for (S9).

    Also true for a `flush=os` topic after an unclean stop of another process.
    """
    last_epoch: LeaderEpoch
    log_start_offset: Offset
    stable_end_offset: Offset
    """The log's end: recovery has fsynced everything below."""
    notes: tuple[str, ...] = ()
    """One line for each row of the decision table other than «keep», and for each finding."""


class Recovered(msgspec.Struct):
    """A log that can be opened: the outcome of `recover`."""

    recovery: Recovery
    checkpoint: LogCheckpoint
    """The checkpoint on disk."""
    epochs: LeaderEpochHistory
    segments: list[ScannedSegment]
    """Never empty; all of them are good from their first byte to their last."""
    flush_os_marked: bool = False
    """Whether the marker `flush-os` exists."""
    unindexed_bytes: int = 0
    """Bytes of the last segment that no index file covers."""
    never_written: bool = False
    """Whether the log has nothing but its checkpoint: its first job makes the first segment."""
