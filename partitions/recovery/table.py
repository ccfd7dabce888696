"""The decision table of recovery: facts about a segment on disk, and the action for them.

Four facts about a segment select the one row that fits. The rows say which crash, or which damage, leaves such a
segment; a test enumerates all combinations and proves that exactly one row fits each.

A second, smaller table says which findings forbid the replica to vouch for its log (S9): it then reports
`cut_or_quarantined`, and neither leads nor counts until it has caught up with a replica that can vouch.
"""

from __future__ import annotations

import enum

import msgspec


class Place(enum.Enum):
    """The segment's base offset relative to the end of the segment before it (for the first one: to the log start)."""

    BELOW_START = "below the log start"
    """The segment ends at or below the log start."""
    NEXT = "next"
    """It begins where the one before it ends; the first one: at or below the log start."""
    GAP = "behind a gap"
    """It begins beyond that: something between is missing."""
    OVERLAP = "overlapping"
    """It begins before that: names and contents contradict each other."""
    WITHIN = "within the one before it"
    """It begins before that and ends no later: everything in it is in the one before it as well."""
    BEHIND_DAMAGE = "behind damage"
    """A segment before it was cut, quarantined or missing."""


class Content(enum.Enum):
    """The result of reading a segment."""

    EMPTY = "empty"
    WHOLE = "whole"
    """Valid batches up to the end of the file."""
    TORN = "torn"
    """The last bytes are the beginning of an incomplete batch, or zeros."""
    BAD_CRC = "bad CRC"
    """A batch at its place with other content than was written; or bytes that are not a batch."""
    MISPLACED = "misplaced"
    """A batch whose base offset or leader epoch contradicts its neighbours or the leader epoch history."""


class Index(enum.Enum):
    """The state of a segment's index files."""

    GOOD = "good"
    """They cover the file, or the beginning of it that a checkpoint covered.

    Before its first checkpoint the last segment has none, which is good as well.
    """
    BAD = "bad"
    """Otherwise absent, torn, or an index of other bytes."""


class Position(enum.Enum):
    LAST = "last"
    MIDDLE = "middle"


class Stop(enum.Enum):
    """How the log was last closed."""

    CLEAN = "clean"
    """It was closed clean, and not written to since."""
    UNCLEAN = "unclean"


class Action(enum.Enum):
    KEEP = "keep"
    REINDEX = "rebuild the index"
    CUT = "cut the tail"
    """Drop the bytes from the torn batch on."""
    QUARANTINE = "quarantine"
    """Set everything aside from the first bad byte on, in this segment and all later ones."""
    REMOVE = "remove"


class Facts(msgspec.Struct, frozen=True):
    place: Place
    content: Content
    index: Index
    position: Position
    stop: Stop


class Row(msgspec.Struct, frozen=True):
    """A row of the table; a fact that is None matches any value."""

    label: str
    place: Place | None
    content: tuple[Content, ...] | None
    index: Index | None
    position: Position | None
    stop: Stop | None
    action: Action
    vouched: bool
    """Whether the action loses nothing that may have been acknowledged."""

    def fits(self, facts: Facts) -> bool:
        return (
            self.place in (None, facts.place)
            and (self.content is None or facts.content in self.content)
            and self.index in (None, facts.index)
            and self.position in (None, facts.position)
            and self.stop in (None, facts.stop)
        )


_EMPTY = (Content.EMPTY,)
_WHOLE = (Content.WHOLE,)
_TORN = (Content.TORN,)
_CORRUPT = (Content.BAD_CRC, Content.MISPLACED)
_NOT_EMPTY = (Content.WHOLE, Content.TORN, Content.BAD_CRC, Content.MISPLACED)

SEGMENT_ROWS: tuple[Row, ...] = (
    # Retention moved the start, and the process died before the file was removed (or the removal was not durable).
    Row("@A", Place.BELOW_START, None, None, None, None, Action.REMOVE, vouched=True),
    # The ordinary case, after any stop.
    Row("@B", Place.NEXT, _WHOLE, Index.GOOD, None, None, Action.KEEP, vouched=True),
    # A crash between the batches and the index files of a finished segment, or a torn or rotten index. Never trusted.
    Row("@C", Place.NEXT, _WHOLE, Index.BAD, None, None, Action.REINDEX, vouched=True),
    # A new log, a log that was just rolled, or a crash between the creation of a segment and its first batch. In the
    # middle: power failed, and a later segment's name survived, but this one's batches did not; see @I for that one.
    Row("@D", Place.NEXT, _EMPTY, None, None, None, Action.KEEP, vouched=True),
    # The process was killed inside a write, or power failed before an fsync. Almost certainly the batch was never
    # acknowledged; but a file that was shortened by hand looks the same, so the replica does not vouch.
    Row("@E", Place.NEXT, _TORN, None, Position.LAST, Stop.UNCLEAN, Action.CUT, vouched=False),
    # A clean close wrote whole batches only: the file was shortened or zeroed afterwards.
    Row("@F", Place.NEXT, _TORN, None, Position.LAST, Stop.CLEAN, Action.QUARANTINE, vouched=False),
    # Segments are fsynced before the next one begins: damage. Or power failed in a job that filled several segments.
    Row("@G", Place.NEXT, _TORN, None, Position.MIDDLE, None, Action.QUARANTINE, vouched=False),
    # Bits rotted, a sector was lost, or power failed and kept a later write but not an earlier one.
    Row("@H", Place.NEXT, _CORRUPT, None, None, None, Action.QUARANTINE, vouched=False),
    # A segment before this one is missing, or lost its end.
    Row("@I", Place.GAP, _NOT_EMPTY, None, None, None, Action.QUARANTINE, vouched=False),
    Row("@J", Place.GAP, _EMPTY, None, None, None, Action.REMOVE, vouched=False),
    # No crash does this: two files claim the same offsets. The earlier one is kept.
    Row("@K", Place.OVERLAP, _NOT_EMPTY, None, None, None, Action.QUARANTINE, vouched=False),
    Row("@L", Place.OVERLAP, _EMPTY, None, None, None, Action.REMOVE, vouched=False),
    # The log ends at the damage before it; offsets beyond will be used again, so these batches must go.
    Row("@M", Place.BEHIND_DAMAGE, _NOT_EMPTY, None, None, None, Action.QUARANTINE, vouched=False),
    Row("@N", Place.BEHIND_DAMAGE, _EMPTY, None, None, None, Action.REMOVE, vouched=True),
    # Compaction merged it into the one before it, and the process died before its file was removed.
    Row("@O", Place.WITHIN, None, None, None, None, Action.REMOVE, vouched=True),
)


def row_for(facts: Facts) -> Row:
    """Return the one row that fits."""
    return next(row for row in SEGMENT_ROWS if row.fits(facts))


class Finding(enum.Enum):
    """A finding about a log as a whole; the value is its text in the notes."""

    CREATED = "the log did not exist, and was created"
    NEVER_WRITTEN = "the log was created, and never written to"
    NO_CHECKPOINT = "the checkpoint is absent or damaged: the start is where the first segment begins"
    NO_LEADER_EPOCHS = "the leader epoch history is absent or damaged: rebuilt from the batches"
    EPOCHS_BEYOND_END = "leader epochs without a batch are dropped"
    ENDS_BEFORE_RECOVERY_POINT = "the log ends before its recovery point: fsynced batches are missing"
    NOT_AS_CLOSED = "the log was closed clean, but does not end where it was closed"
    ENDS_BEFORE_START = "the log ends before its start: it begins where it ends"
    NO_SEGMENT = "there is no segment where the log should be"
    WAS_EMPTIED = "the log was being emptied when it stopped: it starts empty"
    UNREPORTED_LOSS = "an earlier recovery could not vouch for the log, and the quorum may not know"
    UNSYNCED_TOPIC = "the topic has flush=os and the last stop was unclean"
    STRAY_FILE = "a file that is not part of a log is left in place"
    UNFINISHED_COMPACTION = "a cleaned segment that had not replaced the old one is removed"
    TEMPORARY_FILE = "an unfinished file is removed"
    STRAY_INDEX = "an index or snapshot without its segment is removed"


VOUCHED: dict[Finding, bool] = {
    Finding.CREATED: True,
    # The checkpoint says «closed clean, and empty», which falls back before the first batch is written, and no segment
    # has a byte. A log that lost those has another checkpoint, or none.
    Finding.NEVER_WRITTEN: True,
    # The checkpoint is the first file, and replaced as a whole: only damage (or a crash during the creation of the
    # log, which then has nothing to vouch for) leaves a log without one.
    Finding.NO_CHECKPOINT: False,
    Finding.NO_LEADER_EPOCHS: False,
    # Epochs are written ahead of their first batch.
    Finding.EPOCHS_BEYOND_END: True,
    Finding.ENDS_BEFORE_RECOVERY_POINT: False,
    Finding.NOT_AS_CLOSED: False,
    Finding.ENDS_BEFORE_START: False,
    Finding.NO_SEGMENT: False,
    # Instead of the two above: a truncation of everything, or a restart at another offset, had announced this.
    Finding.WAS_EMPTIED: True,
    Finding.UNREPORTED_LOSS: False,
    Finding.UNSYNCED_TOPIC: False,
    Finding.STRAY_FILE: True,
    # The old segment exists until the cleaned one has its name, by one rename of a file that is fsynced.
    Finding.UNFINISHED_COMPACTION: True,
    Finding.TEMPORARY_FILE: True,
    Finding.STRAY_INDEX: True,
}
