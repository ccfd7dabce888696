"""The leader epochs of a log: which epoch wrote which offsets, the basis of truncation and recovery.

An entry (epoch, start offset) says: from this offset on, until the next entry's, every batch was written in this epoch.
The CRC of a batch does not cover its leader epoch, so a batch's epoch is checked against this history, which has a CRC
of its own on disk. It is written ahead: the file names an epoch before the first batch of it is written, so that a
batch of an unknown epoch is damage, while an entry without a batch is only a crash.

Sources: KIP-101 and KIP-279 (truncation by epoch), KIP-320 (`end_offset_for`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from raftlog.errors import InvariantViolation
from raftlog.model import NO_EPOCH, LeaderEpoch, Offset

NO_OFFSET = Offset(-1)


class EpochStart(NamedTuple):
    """An epoch and the offset of its first batch."""

    epoch: LeaderEpoch
    start_offset: Offset


class LeaderEpochHistory:
    """The epochs of a log with their start offsets, in order.

    Invariant: both epochs and start offsets rise strictly from entry to entry.
    """

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        for entry in entries:
            if self._epochs and not (entry.epoch > self._epochs[-1] and entry.start_offset > self._starts[-1]):
                raise ValueError(f"leader epoch history does not rise at {entry}")
            self._epochs.append(entry.epoch)
            self._starts.append(entry.start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(EpochStart(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True))

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch; `NO_EPOCH` if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote this offset (or would write it now); `NO_EPOCH` below the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Record that a batch of `epoch` begins at `start_offset`; return whether that made a new entry.

        Raises `InvariantViolation` if the epoch falls: a leader of an older epoch wrote after a newer one.
        """
        if epoch == self.latest_epoch and self._epochs:
            return False
        if epoch < self.latest_epoch or epoch < 0 or (self._starts and start_offset < self._starts[-1]):
            raise InvariantViolation(f"leader epoch {epoch} at offset {start_offset} does not follow {self}")
        if self._starts and start_offset == self._starts[-1]:
            # The log's start has reached its end: the last epoch has no batch left.
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def truncate_end(self, end_offset: Offset) -> bool:
        """Drop the entries that begin at `end_offset`, the log's new end, or later; return whether any were dropped."""
        keep = bisect_left(self._starts, end_offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def truncate_start(self, start_offset: Offset) -> bool:
        """Begin the entries at the log's new start, and drop those wholly below; return whether any changed."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        """Drop all entries: the log is empty, and the next batch need not continue it."""
        self._epochs.clear()
        self._starts.clear()

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return the largest epoch known here that is at most `epoch`, and the offset where it ends.

        An epoch above all known ones gives (`NO_EPOCH`, -1): the caller knows more than this log. An epoch below all
        known ones gives itself and the first start: nothing of it is here. (KIP-320, `OffsetsForLeaderEpoch`.)
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        index = bisect_right(self._epochs, epoch)
        if index == len(self._epochs):
            return epoch, log_end_offset
        return (self._epochs[index - 1] if index else epoch), self._starts[index]

    def copy(self) -> LeaderEpochHistory:
        return LeaderEpochHistory(self.entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeaderEpochHistory):
            return NotImplemented
        return self._epochs == other._epochs and self._starts == other._starts

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return " ".join(f"{entry.epoch}@{entry.start_offset}" for entry in self.entries) or "no epochs"
