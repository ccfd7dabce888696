"""Which leader epoch wrote which offsets: the history that truncation and recovery are decided by.

An entry (epoch, start offset) says: from this offset on, until the next entry's, every batch was written in this
epoch. The CRC of a batch does not cover its leader epoch, so this history, which has a CRC of its own on disk, is what
a batch's epoch is checked against. It is written ahead: the file names an epoch before the first batch of it is
written, so that a batch of an unknown epoch is damage, while an entry without a batch is only a crash.

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
    """Entries in order.

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
        """The epoch of the last batch; `NO_EPOCH` where there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch that wrote this offset (or would, in the present epoch); `NO_EPOCH` below the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """A batch of `epoch` begins at `start_offset`. True where that is a new entry.

        Raises `InvariantViolation` where the epoch falls: a leader of an older epoch wrote after a newer one.
        """
        if epoch == self.latest_epoch and self._epochs:
            return False
        if epoch < self.latest_epoch or epoch < 0 or (self._starts and start_offset < self._starts[-1]):
            raise InvariantViolation(f"leader epoch {epoch} at offset {start_offset} does not follow {self}")
        if self._starts and start_offset == self._starts[-1]:
            # The log's start has come up to its end: of the last epoch only its name was left.
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def truncate_end(self, end_offset: Offset) -> bool:
        """The log ends at `end_offset` now: entries that begin there or later go. True where any went."""
        keep = bisect_left(self._starts, end_offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def truncate_start(self, start_offset: Offset) -> bool:
        """The log begins at `start_offset` now: the entry that covers it begins there, earlier ones go."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        """The log is empty, and what comes next need not continue it."""
        self._epochs.clear()
        self._starts.clear()

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch known here that is at most `epoch`, and the offset where it ends.

        An epoch above all known ones gives (`NO_EPOCH`, -1): whoever asks knows more than this log. An epoch below all
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
