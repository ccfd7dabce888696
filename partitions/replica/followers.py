"""The other replicas of a partition as its leader knows them: their progress, and the fencing of their requests.

Progress belongs to one (leader epoch, follower incarnation), with the incarnation that the view shows: a new leader
knows nothing, and a follower that registered again is another follower. Requests in another incarnation or leader epoch
are fenced. Two numbers of the follower matter. `fetch_offset` is where it reads on, and decides nothing.
`stable_end_offset` is what it has fsynced; it counts for the high watermark, for lag and for joining the ISR, and only
once `matched`: once the follower has compared its log with this leader's in this epoch and incarnation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, BrokerRecord, Incarnation, LeaderEpoch, Offset, PartitionRecord

from .log_view import LogView

NOTHING = Offset(-1)
FIRST = Offset(0)


class FollowerProgress(msgspec.Struct):
    """The progress of one follower of one leader.

    Invariant: if `matched`, `0 <= stable_end_offset <= fetch_offset`; the stable end never falls.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    caught_up_at: float
    """The last time (monotonic seconds) at which the follower is known to have had everything stable.

    At first, the time at which this progress began.
    """
    matched: bool = False
    fetch_offset: Offset = NOTHING
    stable_end_offset: Offset = NOTHING
    stable_start_offset: Offset = FIRST
    """The start of the follower's log on its disk."""
    _mark: Offset = NOTHING
    """The leader's log end at an earlier report, not stable at the follower then; `NOTHING` without a mark."""
    _marked_at: float = 0.0

    @property
    def counted_end_offset(self) -> Offset | None:
        """The offset up to which this follower certainly has the leader's log on disk; None while that is unknown."""
        return self.stable_end_offset if self.matched else None

    def on_report(self, fetch_offset: Offset, stable_end_offset: Offset, log_end_offset: Offset, now: float) -> None:
        """Apply a report of a matched follower. Raises `RemoteProtocolError` for impossible numbers."""
        if not 0 <= stable_end_offset <= fetch_offset <= log_end_offset:
            raise RemoteProtocolError(
                f"follower {self.broker_id} reports stable end {stable_end_offset} and fetch offset {fetch_offset} "
                f"of a log that ends at {log_end_offset}"
            )
        if self.matched and stable_end_offset < self.stable_end_offset:
            raise RemoteProtocolError(
                f"follower {self.broker_id} had {self.stable_end_offset} stable and now has {stable_end_offset}"
            )
        self.matched = True
        self.fetch_offset = fetch_offset
        self.stable_end_offset = stable_end_offset
        # Under steady load a follower is never at the very end. If it now has everything that existed at the mark, it
        # was caught up at the time of the mark. The mark stays until it is reached: reports overtake what they report
        # on.
        if stable_end_offset >= log_end_offset:
            self.caught_up_at, self._mark = now, NOTHING
        elif stable_end_offset >= self._mark:
            if self._mark != NOTHING:
                self.caught_up_at = max(self.caught_up_at, self._marked_at)
            self._mark, self._marked_at = log_end_offset, now

    def on_append(self, old_log_end_offset: Offset, now: float) -> None:
        """Record that the leader's log grows: a follower that had all of it was caught up until now."""
        if self.matched and self.stable_end_offset >= old_log_end_offset:
            self.caught_up_at = now

    def grant_time(self, now: float) -> None:
        """Start measuring the lag now: the follower joined the ISR."""
        self.caught_up_at = now

    def is_behind(self, log_end_offset: Offset) -> bool:
        """Whether part of the leader's log is not known to be on the follower's disk."""
        return not self.matched or self.stable_end_offset < log_end_offset

    def lags(self, log_end_offset: Offset, now: float, lag_max: float) -> bool:
        """Whether the follower has not been caught up for more than `lag_max` seconds.

        On an idle partition no follower lags. A follower that is always `d` seconds behind a growing log was caught up
        at most `2 * d` seconds ago.
        """
        return self.is_behind(log_end_offset) and now - self.caught_up_at > lag_max

    def __str__(self) -> str:
        if not self.matched:
            return f"{self.broker_id}@{self.incarnation} unmatched"
        return f"{self.broker_id}@{self.incarnation} stable={self.stable_end_offset} fetch={self.fetch_offset}"


class Followers:
    """The followers of a partition.

    Invariant: one `FollowerProgress` for each replica but this one, in the incarnation that the view shows.
    """

    def __init__(self, node_id: BrokerId, log: LogView, brokers: Mapping[BrokerId, BrokerRecord]) -> None:
        self._node_id = node_id
        self._log = log
        self._brokers = brokers
        self._progress: dict[BrokerId, FollowerProgress] = {}

    def know(self, record: PartitionRecord, now: float) -> None:
        """Keep the progress of the replicas that the record names, each in the incarnation that the view shows."""
        known, self._progress = self._progress, {}
        for broker in record.replicas:
            incarnation = self.incarnation_of(broker)
            progress = known.get(broker)
            if progress is None or progress.incarnation != incarnation:
                progress = FollowerProgress(broker, incarnation, now)
            if broker != self._node_id:
                self._progress[broker] = progress

    def fence(self, follower: BrokerId, incarnation: Incarnation, epoch: LeaderEpoch, leader_epoch: LeaderEpoch) -> str:
        """Return the error code if a request of this follower, in its `epoch`, is fenced; else an empty string."""
        if epoch != leader_epoch:
            return "fenced_leader_epoch" if epoch < leader_epoch else "unknown_leader_epoch"
        if follower not in self._progress:
            return "unknown_partition"
        return "" if self._progress[follower].incarnation == incarnation else "stale_incarnation"

    def incarnation_of(self, broker: BrokerId) -> Incarnation:
        record = self._brokers.get(broker)
        return record.incarnation if record else Incarnation(-1)

    def stable_end_of(self, broker: BrokerId) -> Offset | None:
        """Return the offset up to which a replica, this one included, certainly has the leader's log on disk."""
        if broker == self._node_id:
            return self._log.stable_end_offset
        progress = self._progress.get(broker)
        return progress.counted_end_offset if progress else None

    def start_of(self, broker: BrokerId) -> Offset | None:
        """Return the start of a replica's log, this one included, on its disk."""
        if broker == self._node_id:
            return self._log.stable_start_offset
        progress = self._progress.get(broker)
        return progress.stable_start_offset if progress else None

    def items(self) -> Iterator[tuple[BrokerId, FollowerProgress]]:
        return iter(self._progress.items())

    def __iter__(self) -> Iterator[FollowerProgress]:
        return iter(self._progress.values())

    def __getitem__(self, broker: BrokerId) -> FollowerProgress:
        return self._progress[broker]

    def __contains__(self, broker: object) -> bool:
        return broker in self._progress
