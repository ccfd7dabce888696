"""The nouns that every part of raftlog shares: ids, offsets, epochs and the records that the quorum agrees on.

Different integers are different types here (`Offset` is not a `LeaderEpoch`), so that mypy finds the swap that a
reader would miss. Ranges are half-open: an `..._end_offset` is the next offset to write, never the last one written.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

import msgspec

Offset = NewType("Offset", int)
"""Position of a record in a partition. Dense, assigned by the leader, never reused (S2)."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of one partition. At most one leader, of one incarnation, per epoch (S5)."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Version of a partition's record in the quorum: rises with every accepted change; ISR changes compare-and-set it."""

BrokerId = NewType("BrokerId", int)
"""Number of a node, and of the broker that it registers."""

Incarnation = NewType("Incarnation", int)
"""One life of a broker: the quorum gives a new, greater number at each registration of a started process."""

TopicId = NewType("TopicId", bytes)
"""16 random bytes that name one topic for ever; a topic deleted and created again has another."""

DirectoryId = NewType("DirectoryId", bytes)
"""16 random bytes written when a data folder is prepared: another disk is another directory."""

ProducerId = NewType("ProducerId", int)
"""Number of an idempotent producer, granted in blocks by the quorum."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Generation of a producer id; a lower one is fenced."""

Sequence = NewType("Sequence", int)
"""Number of a record among those of one (producer id, epoch) in one partition; wraps at 2**31."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since 1970-01-01T00:00:00Z."""

FilePosition = NewType("FilePosition", int)
"""Byte position in a segment file."""

NO_BROKER = BrokerId(-1)
NO_INCARNATION = Incarnation(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
EVERY_PRODUCER_ID = ProducerId(2**63 - 1)
"""Nobody's: where a greatest id is asked for, it may be anybody's."""
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = Sequence(-1)

EARLIEST = "earliest"
LATEST = "latest"


class Acks(enum.IntEnum):
    """What a produce request waits for."""

    NONE = 0
    """Nothing: there is no answer."""
    LEADER = 1
    """The leader's fsync (its append, where the topic has `flush=os`)."""
    ALL = -1
    """Fsync on every in-sync replica, of which there are at least `min.insync.replicas` (S1)."""


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One partition of one topic, by id. What travels between brokers and lies on disk is this, never a name.

    A struct, as what a node has a hundred thousand of: compared and hashed in C, and no work for the garbage collector.
    """

    topic_id: TopicId
    partition: int

    @property
    def directory_name(self) -> str:
        """Name of the partition's folder below `partitions/`: no text of a user ever is in a path."""
        return f"{self.topic_id.hex()}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:8]}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A registered broker, as the quorum agreed.

    Invariant: `incarnation` rises with every registration of a new process of this broker.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    start_number: int
    """Count of this data folder's starts, kept on its disk: a late registration of an earlier start is refused."""
    api: Endpoint
    data: Endpoint
    rack: str
    fenced: bool
    feature_level: int
    short_of_room: bool = False
    """It takes no batches from clients: its disk is nearly full."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic, as the quorum agreed. `configs` has Kafka's names; what is not named has its default."""

    topic_id: TopicId
    name: str
    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...] = ()
    created_index: int = 0
    """Index in the metadata log of the command that created it: of two topics of one name, the later has the greater
    (0: created below feature level 5)."""


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """A partition, as the quorum agreed: who leads, in which epoch, and who is in sync.

    Invariant: `adding_replicas` are in `replicas` and in `target_replicas`.
    Invariant: `isr` and `commit_set` are subsets of `replicas`; `isr` is never empty.
    Invariant: `leader` is `NO_BROKER` or an eligible member of `isr`.
    Invariant: `leader_epoch` and `partition_epoch` never fall; `partition_epoch` rises with every change.
    """

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    """In order of preference: the first is the preferred leader."""
    leader: BrokerId
    leader_incarnation: Incarnation
    """A broker leads only if this is the incarnation that it runs as."""
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    """In-sync replicas, sorted."""
    commit_set: tuple[BrokerId, ...]
    """The last ISR of at least `min_insync_replicas` members under an elected leader, sorted."""
    min_insync_replicas: int
    not_eligible: tuple[BrokerId, ...] = ()
    """Members of `isr` or `commit_set` that lost data or cannot vouch for it; they never lead (S9). Sorted."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Those of `replicas` that a reassignment added, while it is under way."""
    target_replicas: tuple[BrokerId, ...] = ()
    """What `replicas` will be when the reassignment is complete; empty where none was asked for."""
    unclean_leader_epochs: tuple[LeaderEpoch, ...] = ()
    """The latest leader epochs that an operator began although records may have been lost, oldest first."""
    let_go: bool = False
    """A replica was let go in this leader epoch, and its leader may remember how far it was."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_BROKER

    @property
    def replica_count(self) -> int:
        """How many replicas it has, those apart that a reassignment is adding."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def removing_replicas(self) -> tuple[BrokerId, ...]:
        """Those of `replicas` that go when the reassignment is complete."""
        target = self.target_replicas
        return tuple(replica for replica in self.replicas if replica not in target) if target else ()

    @property
    def is_moving(self) -> bool:
        """A reassignment is under way: every target replica is a replica. False while one still waits to begin."""
        return bool(self.target_replicas) and set(self.target_replicas).issubset(self.replicas)

    def __str__(self) -> str:
        isr = ",".join(map(str, self.isr))
        return (
            f"{self.topic_partition} leader={self.leader} incarnation={self.leader_incarnation} "
            f"epoch={self.leader_epoch} partition_epoch={self.partition_epoch} isr={isr}"
        )


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """The cluster's time, as the quorum last agreed on it: milliseconds since 1970, 0 where there is none.

    Invariant: `began_ms <= now_ms`, and neither ever goes back.
    """

    now_ms: int = 0
    """By which everything expires. It never passes what the voters' wall clocks or a monotonic clock vouched for."""
    began_ms: int = 0
    """Since when it went on without a leap: a stamp from before counts as this one. What clock made the stamps before
    the first step is not known; and what was stamped just before a leap is not as old as the leap makes it."""
    agreed_ms: int = 0
    """Read by a majority of the voters at that moment; 0 where no majority agreed. `now_ms` follows it."""

    def __bool__(self) -> bool:
        return self.now_ms > 0

    @property
    def stamp_ms(self) -> int:
        """The time for a stamp: while `now_ms` lags behind what is agreed on, what is stamped is not as old as that."""
        return max(self.now_ms, self.agreed_ms)

    def since_ms(self, stamp_ms: int) -> int:
        """A stamp, as far as it can be believed: `began_ms` at the earliest."""
        return max(stamp_ms, self.began_ms)


NO_TIME = ClusterTime()


@dataclass(frozen=True, slots=True)
class ReplicationThrottle:
    """How fast moves may copy, in bytes a second (KIP-73); None: as fast as they can.

    It holds for what replicas fetch that a reassignment is adding, until they are in sync, and for nothing else.
    """

    leader_rate: int | None = None
    """`leader.replication.throttled.rate`: what each broker sends, to all who receive together."""
    follower_rate: int | None = None
    """`follower.replication.throttled.rate`: what each broker receives, from all who send together."""

    def __bool__(self) -> bool:
        return self.leader_rate is not None or self.follower_rate is not None


UNTHROTTLED = ReplicationThrottle()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a broker says of one of its replicas when it registers, after recovery has fsynced what it read.

    `cut_or_quarantined` is true when recovery removed or set aside anything that may have been acknowledged, or when
    the topic has `flush=os` and the last stop was unclean.
    """

    topic_partition: TopicPartition
    clean: bool
    last_epoch: LeaderEpoch
    stable_end_offset: Offset
    cut_or_quarantined: bool


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """What one node knows of the metadata quorum; for people and health checks, never for decisions."""

    node_id: BrokerId
    leader: BrokerId
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: tuple[BrokerId, ...]
    match_index: dict[BrokerId, int] = field(default_factory=dict)
    """On the leader only: how far each voter's and each connected observer's log is known to agree."""
    forgetful: tuple[BrokerId, ...] = ()
    """Nodes that lack what they had acknowledged and take no part any more: as the leader knows, or each of itself."""


@dataclass(frozen=True, slots=True)
class VotersChange:
    """What became of a change of the quorum's voters, or would become of it."""

    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]
    applied: bool
    """It is so now; otherwise it was a plan."""
    index: int
    """Of the metadata log, where the change is; -1: nothing was to be changed."""


@dataclass(frozen=True, slots=True)
class FeatureLevelChange:
    """What became of the cluster's feature level, or would become of it."""

    before: int
    after: int
    applied: bool
    """It is so now; otherwise it was a plan."""
