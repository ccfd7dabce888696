"""The part of a log that a core may read, and how the logs of a leader and a follower are compared.

`LogView` is a few numbers and the epoch history. All of it results from the core's own effects: every effect of one
event is performed before the next event, so the core keeps no copy that could differ.

A follower may hold batches that its leader does not have: batches that it appended as leader or follower of an older
epoch and that were never replicated. Offsets alone cannot tell these apart; (epoch, end) can:

    1. The follower reports (last epoch, end) of its log. The leader finds the greatest epoch of its own log that is not
       above that epoch, and where it ends.
    2. Same epoch, and the follower ends no later: the follower's log is a prefix of the leader's, because one leader
       wrote that epoch in one order.
    3. Otherwise the leader answers with the epoch and end that it found. The follower keeps no more of that epoch than
       the leader has, and nothing of later epochs (the leader's log has none of those), and reports its new end. The
       follower's log becomes shorter in each round.

Sources: KIP-101 (truncate by epoch, never to the high watermark), KIP-279 (several epochs), KIP-320 (the same epoch).
"""

from __future__ import annotations

from typing import Protocol

from partitions.files.leader_epochs import LeaderEpochHistory
from raftlog.errors import RemoteProtocolError
from raftlog.model import LeaderEpoch, Offset

from .effects import Answer, Diverged, Matched, StartAt


class LogView(Protocol):
    """The numbers and the epoch history of a log that a core reads.

    Invariant: `log_start_offset <= log_end_offset` and `stable_end_offset <= log_end_offset`.
    """

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def stable_end_offset(self) -> Offset: ...

    @property
    def stable_start_offset(self) -> Offset:
        """The log start that is on disk: after a restart the log begins here or later."""
        ...

    @property
    def first_batch_offset(self) -> Offset:
        """The base offset of the first batch that is kept, at or below the log start.

        `delete-records` may put the log start into the middle of a batch, and a log is copied in whole batches.
        """
        ...

    @property
    def epochs(self) -> LeaderEpochHistory: ...


def common_epoch_end(log: LogView, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
    """Return the greatest epoch of this log that is at most `epoch`, and its end in this log; None if there is none."""
    latest = log.epochs.latest_epoch
    if latest < 0 or epoch < log.epochs.entries[0].epoch:
        return None
    return log.epochs.end_offset_for(min(epoch, latest), log.log_end_offset)


def compare_follower(
    log: LogView, high_watermark: Offset, last_epoch: LeaderEpoch, end_offset: Offset, *, counted: bool
) -> Answer:
    """Compare a follower's log that ends with (epoch, end) with this one, at the leader.

    `counted`: committed records may rest on this follower.
    """
    matched = Matched(high_watermark, log.log_start_offset)
    first = log.first_batch_offset
    must_start = StartAt(first)
    if last_epoch < 0:
        # The follower's log is empty. If the follower counts, everything below its end was deleted. Any other follower
        # may begin where a log began that all replicas have lost since (`flush=os`): this log may have new records
        # below that offset, and need not have a batch that begins there.
        greatest = log.log_end_offset if counted else log.log_start_offset
        return matched if first <= end_offset <= greatest else must_start
    common = common_epoch_end(log, last_epoch) if end_offset >= first else None
    if common is None:
        return must_start
    epoch, epoch_end = common
    return matched if epoch == last_epoch and end_offset <= epoch_end else Diverged(epoch, epoch_end)


def truncation_for(log: LogView, diverged: Diverged) -> Offset:
    """Return the offset to which a follower truncates so that it keeps nothing that the leader is known to lack.

    Raises `RemoteProtocolError` if that would drop nothing: the leader contradicts itself.
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
