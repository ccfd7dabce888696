"""The other replicas of a partition as its leader knows them: their progress, and whether they are heard at all.

Progress belongs to a follower's incarnation as the view shows it; another life begins anew. A follower is heard in
that incarnation, and in this leader's epoch, only.

What is *not* here: what progress means for the ISR and the high watermark (`leader.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raftlog.model import BrokerId, BrokerRecord, Incarnation, LeaderEpoch, Offset, PartitionRecord

from .log_view import LogView
from .progress import FollowerProgress


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
