"""The other replicas of a partition as its leader knows them: their progress, and whether they are heard at all.

Progress belongs to one (leader epoch, follower incarnation), the incarnation that the view shows: a new leader knows
nothing, and a follower that registered again is another follower. A follower is heard in that incarnation, and in this
leader's epoch, only. Two numbers of the follower matter. `fetch_offset` says where it reads on and decides nothing.
`stable_end_offset` says what it has fsynced; it counts for the high watermark, for lag and for joining the ISR, and
only once `matched`: once the follower compared its log with this leader's in this epoch and incarnation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, BrokerRecord, Incarnation, LeaderEpoch, Offset, PartitionRecord

from .log_view import LogView

NOTHING = Offset(-1)
FIRST = Offset(0)


@dataclass(slots=True)
class FollowerProgress:
    """One follower of one leader.

    Invariant: where `matched`, `0 <= stable_end_offset <= fetch_offset`; the stable end never falls.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    caught_up_at: float
    """The last time (monotonic seconds) at which it is known to have had everything stable; at first, when this
    progress began."""
    matched: bool = False
    fetch_offset: Offset = NOTHING
    stable_end_offset: Offset = NOTHING
    stable_start_offset: Offset = FIRST
    """Where its log begins, as far as its disk knows."""
    _mark: Offset = NOTHING
    """The leader's log end at some earlier report, not stable here by then; `NOTHING` where there is no such mark."""
    _marked_at: float = 0.0

    @property
    def counted_end_offset(self) -> Offset | None:
        """Up to where this follower certainly has the leader's log on disk; None while nothing is known."""
        return self.stable_end_offset if self.matched else None

    def on_report(self, fetch_offset: Offset, stable_end_offset: Offset, log_end_offset: Offset, now: float) -> None:
        """The follower, matched, says how far it is. Raises `RemoteProtocolError` for what cannot be."""
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
        # Under steady load a follower is never at the very end. Having now what was all there was at the mark means
        # that it was caught up then. The mark stays until it is reached: reports overtake what they report on.
        if stable_end_offset >= log_end_offset:
            self.caught_up_at, self._mark = now, NOTHING
        elif stable_end_offset >= self._mark:
            if self._mark != NOTHING:
                self.caught_up_at = max(self.caught_up_at, self._marked_at)
            self._mark, self._marked_at = log_end_offset, now

    def on_append(self, old_log_end_offset: Offset, now: float) -> None:
        """The leader's log grows: a follower that had all of it until now was caught up until now."""
        if self.matched and self.stable_end_offset >= old_log_end_offset:
            self.caught_up_at = now

    def grant_time(self, now: float) -> None:
        """It joined the ISR: its lag counts from here."""
        self.caught_up_at = now

    def is_behind(self, log_end_offset: Offset) -> bool:
        """Whether anything of the leader's log is not known to be on its disk."""
        return not self.matched or self.stable_end_offset < log_end_offset

    def lags(self, log_end_offset: Offset, now: float, lag_max: float) -> bool:
        """Whether it was not caught up for longer than `lag_max` seconds. On an idle partition nobody lags; who follows
        a growing log always `d` seconds behind was caught up `2 * d` seconds ago at most."""
        return self.is_behind(log_end_offset) and now - self.caught_up_at > lag_max

    def __str__(self) -> str:
        if not self.matched:
            return f"{self.broker_id}@{self.incarnation} unmatched"
        return f"{self.broker_id}@{self.incarnation} stable={self.stable_end_offset} fetch={self.fetch_offset}"


class Followers:
    """Invariant: one `FollowerProgress` for each replica but this one, in the incarnation that the view shows."""

    def __init__(self, node_id: BrokerId, log: LogView, brokers: Mapping[BrokerId, BrokerRecord]) -> None:
        self._node_id = node_id
        self._log = log
        self._brokers = brokers
        self._progress: dict[BrokerId, FollowerProgress] = {}

    def know(self, record: PartitionRecord, now: float) -> None:
        """Whom the record and the view name now."""
        known, self._progress = self._progress, {}
        for broker in record.replicas:
            incarnation = self.incarnation_of(broker)
            progress = known.get(broker)
            if progress is None or progress.incarnation != incarnation:
                progress = FollowerProgress(broker, incarnation, now)
            if broker != self._node_id:
                self._progress[broker] = progress

    def fence(self, follower: BrokerId, incarnation: Incarnation, epoch: LeaderEpoch, leader_epoch: LeaderEpoch) -> str:
        """Why this follower, in this `epoch` of its, is not heard by a leader of `leader_epoch`; empty where it is."""
        if epoch != leader_epoch:
            return "fenced_leader_epoch" if epoch < leader_epoch else "unknown_leader_epoch"
        if follower not in self._progress:
            return "unknown_partition"
        return "" if self._progress[follower].incarnation == incarnation else "stale_incarnation"

    def incarnation_of(self, broker: BrokerId) -> Incarnation:
        record = self._brokers.get(broker)
        return record.incarnation if record else Incarnation(-1)

    def stable_end_of(self, broker: BrokerId) -> Offset | None:
        """Up to where a replica, this one included, certainly has the leader's log on disk."""
        if broker == self._node_id:
            return self._log.stable_end_offset
        progress = self._progress.get(broker)
        return progress.counted_end_offset if progress else None

    def start_of(self, broker: BrokerId) -> Offset | None:
        """Where the log of a replica, this one included, begins on its disk."""
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
