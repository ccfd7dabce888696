"""What a core may look at of its log, and how two logs of one partition are compared by it.

`LogView` is a few numbers and a history; all of it is the outcome of the core's own effects: between two events every
effect of the first one was performed, so a core keeps no copy that could differ.

A follower may hold batches that its leader does not: those it had appended, as leader or follower of an older epoch,
that were never replicated. Offsets cannot tell them apart, (epoch, end) can:

    1. F says (last epoch, end) of its log. L looks for the greatest epoch of its own log up to that one, and its end.
    2. Same epoch, and F ends no later: F's log is a prefix of L's, because one leader wrote that epoch in one order.
    3. Otherwise L answers with what it found. F keeps no more of that epoch than L has, and nothing of later epochs
       (none of those is in L's log), and says again how far it goes. Each round F's log is shorter.

Sources: KIP-101 (truncate by epoch, never to the high watermark), KIP-279 (several epochs), KIP-320 (the same epoch).
"""

from __future__ import annotations

from typing import Protocol

from partitions.files.leader_epochs import LeaderEpochHistory
from raftlog.errors import RemoteProtocolError
from raftlog.model import LeaderEpoch, Offset

from .effects import Answer, Diverged, Matched, StartAt


class LogView(Protocol):
    """Invariant: `log_start_offset <= log_end_offset` and `stable_end_offset <= log_end_offset`."""

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def stable_end_offset(self) -> Offset: ...

    @property
    def stable_start_offset(self) -> Offset:
        """The log start that the disk knows: a restart begins here or later."""
        ...

    @property
    def first_batch_offset(self) -> Offset:
        """Where a batch begins that is still there, at or below the log start: `delete-records` may put that into the
        middle of a batch, and a log is copied by whole batches."""
        ...

    @property
    def epochs(self) -> LeaderEpochHistory: ...


def common_epoch_end(log: LogView, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
    """The greatest epoch of this log that is at most `epoch`, and where it ends here; None where it has none."""
    latest = log.epochs.latest_epoch
    if latest < 0 or epoch < log.epochs.entries[0].epoch:
        return None
    return log.epochs.end_offset_for(min(epoch, latest), log.log_end_offset)


def compare_follower(
    log: LogView, high_watermark: Offset, last_epoch: LeaderEpoch, end_offset: Offset, *, counted: bool
) -> Answer:
    """The leader's side: a follower's log that ends with (epoch, end) against this one. `counted`: what is committed
    may rest on it."""
    matched = Matched(high_watermark, log.log_start_offset)
    first = log.first_batch_offset
    must_start = StartAt(first)
    if last_epoch < 0:
        # Empty. Of one that counts, what lies below was deleted. Any other may begin where a log did that all have lost
        # since (`flush=os`): this one may have new records below, and need not have a batch that begins there.
        greatest = log.log_end_offset if counted else log.log_start_offset
        return matched if first <= end_offset <= greatest else must_start
    common = common_epoch_end(log, last_epoch) if end_offset >= first else None
    if common is None:
        return must_start
    epoch, epoch_end = common
    return matched if epoch == last_epoch and end_offset <= epoch_end else Diverged(epoch, epoch_end)


def truncation_for(log: LogView, diverged: Diverged) -> Offset:
    """The follower's side: where this log must end to have nothing that the leader lacks, as far as it is known.

    Raises `RemoteProtocolError` where that would drop nothing: the leader contradicts itself.
    """
    common = common_epoch_end(log, diverged.epoch)
    if common is None:
        end_offset = log.log_start_offset
    else:
        epoch, epoch_end = common
        end_offset = min(diverged.end_offset, epoch_end) if epoch == diverged.epoch else epoch_end
    if end_offset >= log.log_end_offset:
        raise RemoteProtocolError(f"leader says {diverged}, this log is {log.epochs} to {log.log_end_offset}")
    return end_offset
