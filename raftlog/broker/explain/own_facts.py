"""The facts that this node gives about itself, read from its parts when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from metadata.view import ClusterView
from partitions.driver.driver import PartitionDriver
from partitions.files.disk_room import DiskRoom
from partitions.manager import PartitionManager
from partitions.replica.transactions import LeftOpen
from raftlog.model import NO_BROKER, BrokerId, Offset, QuorumStatus, TopicId, TopicPartition
from raftlog.ports import Clock
from raftlog.system.cluster_clock import ClusterClock
from raftlog.transactions import TransactionKey
from raftlog.version import __version__

from .facts import (
    MAX_CHANGES,
    MAX_EPOCHS,
    MAX_OPEN,
    MAX_PROBLEMS,
    FollowerFacts,
    NodeFacts,
    OpenFacts,
    QuorumFacts,
    ReplicaFacts,
    WriterFacts,
)
from .history import ChangeHistory

OPEN_LOOKED_AT = 2_500
"""The most open transactions of a node among which those of one producer are sought."""


class FactsQuery(msgspec.Struct, frozen=True, array_like=True, tag="facts.1"):
    """A question to a node about itself, and about a partition or a producer if they are named."""

    topic_id: bytes = b""
    partition: int = -1
    offset: int = -1
    """A record whose leader epoch is wanted; -1: none."""
    producer_id: int = -1
    producer_epoch: int = -1


class OwnFacts:
    """One node's facts. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        manager: PartitionManager,
        cluster_clock: ClusterClock,
        clock: Clock,
        history: ChangeHistory,
        quorum: Callable[[], QuorumStatus],
        problems: Callable[[], Sequence[str]],
        expired: Callable[[], Sequence[str]],
    ) -> None:
        """`problems` returns the node's own problems, `expired` a line for each expired certificate."""
        self._node_id = node_id
        self._view = view
        self._manager = manager
        self._cluster_clock = cluster_clock
        self._clock = clock
        self._history = history
        self._quorum = quorum
        self._problems = problems
        self._expired = expired

    def answer(self, query: FactsQuery) -> NodeFacts:
        """Return the facts that the query asks for: some milliseconds of work at most."""
        room: DiskRoom = self._manager.room
        writer = self._manager.writer.facts()
        replica, changes = None, []
        if query.topic_id:
            tp = TopicPartition(TopicId(query.topic_id), query.partition)
            driver = self._manager.driver(tp)
            replica = ReplicaFacts() if driver is None else self._replica(driver, query.offset)
            record = self._view.partition(tp)
            brokers = set() if record is None else {*record.replicas, *record.target_replicas}
            changes = self._history.of(tp.topic_id, tp.partition, brokers, MAX_CHANGES)
        return NodeFacts(
            node=self._node_id,
            incarnation=self._manager.incarnation,
            version=__version__,
            view_index=self._view.index,
            time_ms=self._cluster_clock.stamp_ms(),
            quorum=_quorum_facts(self._quorum()),
            disk_free=room.free,
            disk_reserved=room.reserved,
            short_of_room=room.short,
            writer=WriterFacts(writer.running, writer.median, writer.longest, writer.count),
            problems=list(self._problems())[:MAX_PROBLEMS],
            expired=list(self._expired())[:MAX_PROBLEMS],
            replica=replica,
            changes=changes,
            open=self._open_of(query),
        )

    def _replica(self, driver: PartitionDriver, offset: int) -> ReplicaFacts:
        replica, log = driver.replica, driver.log
        leader, follower = replica.leader, replica.follower
        role = "offline" if replica.offline else "leader" if leader else "follower" if follower else "idle"
        now = self._clock.monotonic()
        repairs = [line for line in self._manager.repairs.status() if line.startswith(f"{driver.name} ")]
        left_open = [] if leader is None else leader.transactions.left_open(MAX_OPEN)
        has_it = log.log_start_offset <= offset < log.log_end_offset
        return ReplicaFacts(
            role=role,
            offline=replica.offline,
            leader_epoch=replica.leader_epoch,
            log_start=log.log_start_offset,
            stable_end=log.stable_end_offset,
            log_end=log.log_end_offset,
            high_watermark=replica.high_watermark,
            last_stable=-1 if leader is None or leader.exposed_high_watermark is None else driver.reads.settled_end,
            size_bytes=log.size_bytes,
            epochs=[(entry.epoch, entry.start_offset) for entry in log.epochs.entries[-MAX_EPOCHS:]],
            epoch_at=log.epochs.epoch_at(Offset(offset)) if has_it else -1,
            hindered=str(log.hindered) if log.hindered is not None else "",
            link="" if follower is None else follower.state.value,
            followers=[] if leader is None else [
                FollowerFacts(
                    one.broker_id, one.matched, one.stable_end_offset, one.fetch_offset, now - one.caught_up_at
                )
                for one in leader.followers
            ],
            maximal_isr=[] if leader is None else list(leader.maximal_isr),
            open=[self._open(one) for one in left_open],
            open_count=len(driver.facts().open_transactions),
            repair=repairs[0] if repairs else "",
        )  # fmt: skip

    def _open_of(self, query: FactsQuery) -> list[OpenFacts]:
        if query.producer_id < 0:
            return []
        found = self._manager.transactions.open_transactions(OPEN_LOOKED_AT)
        wanted = (query.producer_id, query.producer_epoch)
        return [self._open(one) for one in found if _key(one.key) == wanted][:MAX_OPEN]

    def _open(self, one: LeftOpen) -> OpenFacts:
        age = -1.0 if one.since is None else max(0.0, self._clock.monotonic() - one.since)
        tp = one.topic_partition
        return OpenFacts(tp.topic_id, tp.partition, one.key.producer_id, one.key.producer_epoch, one.first_offset, age)


def _key(key: TransactionKey) -> tuple[int, int]:
    return key.producer_id, key.producer_epoch


def _quorum_facts(status: QuorumStatus) -> QuorumFacts:
    leads = status.leader == status.node_id != NO_BROKER
    return QuorumFacts(
        leader=status.leader,
        term=status.term,
        commit=status.commit_index,
        applied=status.applied_index,
        last=status.last_index,
        voters=list(status.voters),
        matched={int(node): index for node, index in status.match_index.items()} if leads else {},
        forgetful=list(status.forgetful),
    )
