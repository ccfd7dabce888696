"""The types that every part of raftlog shares: ids, offsets, epochs, and the records that the quorum agrees on.

Different integers have different types (`Offset` is not a `LeaderEpoch`), so that mypy finds swapped arguments. Ranges
are half-open: an `..._end_offset` is the next offset to write, never the last one written.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

import msgspec

Offset = NewType("Offset", int)
"""Position of a record in a partition: dense, assigned by the leader, never reused (S2)."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of one partition. An epoch has at most one leader, of one incarnation (S5)."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Version of a partition's record in the quorum. It rises with every accepted change; ISR changes compare-and-set it.
"""

BrokerId = NewType("BrokerId", int)
"""Number of a node and of the broker that it registers."""

Incarnation = NewType("Incarnation", int)
"""One life of a broker: the quorum assigns a new, greater number when a started process registers."""

TopicId = NewType("TopicId", bytes)
"""16 random bytes that identify a topic permanently. A topic that is deleted and created again has another id."""

DirectoryId = NewType("DirectoryId", bytes)
"""16 random bytes that are written when a data folder is prepared. A different disk is a different directory."""

ProducerId = NewType("ProducerId", int)
"""Number of an idempotent producer; the quorum grants them in blocks."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Generation of a producer id; lower ones are fenced."""

Sequence = NewType("Sequence", int)
"""Number of a record among those of one (producer id, epoch) in one partition. It wraps at 2**31."""

FilePosition = NewType("FilePosition", int)
"""Byte position in a segment file."""

NO_BROKER = BrokerId(-1)
NO_INCARNATION = Incarnation(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
FIRST_KEYED_ID = ProducerId(2**62)
"""From here on producer ids stand for idempotency keys (`raftlog/idempotency.py`); the quorum grants none of them."""
EVERY_PRODUCER_ID = ProducerId(2**63 - 1)
"""A bound on producer ids that excludes none, for state that may be missing for any producer. It is never granted."""

EARLIEST = "earliest"
LATEST = "latest"


class Acks(enum.IntEnum):
    """The acknowledgement that a produce request waits for."""

    NONE = 0
    """None: there is no answer."""
    LEADER = 1
    """The leader's fsync, or only its append if the topic has `flush=os`."""
    ALL = -1
    """An fsync on every in-sync replica, of which there are at least `min.insync.replicas` (S1)."""


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    """One partition of one topic, by topic id. Brokers and disks use this, never a topic name.

    It is a struct because a node has a hundred thousand of them: they are compared and hashed in C, and cost the
    garbage collector nothing.
    """

    topic_id: TopicId
    partition: int

    @property
    def directory_name(self) -> str:
        """Name of the partition's folder below `partitions/`. No text from a user appears in a path."""
        return f"{self.topic_id.hex()}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:8]}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a service listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A registered broker in the quorum's state.

    Invariant: `incarnation` rises with every registration of a new process of this broker.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    start_number: int
    """Number of starts of this data folder, kept on its disk. A late registration of an earlier start is refused."""
    api: Endpoint
    data: Endpoint
    rack: str
    fenced: bool
    feature_level: int
    short_of_room: bool = False
    """Whether the broker refuses batches from clients because its disk is nearly full."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic in the quorum's state. `configs` has Kafka's names; a missing setting has its default."""

    topic_id: TopicId
    name: str
    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...] = ()
    created_index: int = 0
    """Index in the metadata log of the command that created the topic. Of two topics of one name, the later has the
    greater index (0: created below feature level 5)."""


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """A partition in the quorum's state: its leader, the leader's epoch, and the in-sync replicas.

    Invariant: `adding_replicas` are in `replicas` and in `target_replicas`.

    Invariant: `isr` and `commit_set` are subsets of `replicas`; `isr` is never empty.

    Invariant: `leader` is `NO_BROKER` or an eligible member of `isr`.

    Invariant: `leader_epoch` and `partition_epoch` never fall; `partition_epoch` rises with every change.
    """

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    """Replicas in order of preference: the first is the preferred leader."""
    leader: BrokerId
    leader_incarnation: Incarnation
    """The incarnation of the leader. A broker leads only while it runs as this one."""
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    """In-sync replicas, sorted."""
    commit_set: tuple[BrokerId, ...]
    """The last ISR of at least `min_insync_replicas` members under an elected leader, sorted."""
    min_insync_replicas: int
    not_eligible: tuple[BrokerId, ...] = ()
    """Members of `isr` or `commit_set` that lost data or cannot vouch for it. They never lead (S9). Sorted."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment in progress has added."""
    target_replicas: tuple[BrokerId, ...] = ()
    """The value of `replicas` after the reassignment; empty if there is none."""
    unclean_leader_epochs: tuple[LeaderEpoch, ...] = ()
    """The most recent leader epochs that began by an unclean election, oldest first."""
    let_go: bool = False
    """Whether a replica was released in this leader epoch, so that the leader may remember its position."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_BROKER

    @property
    def replica_count(self) -> int:
        """Number of replicas, without those that a reassignment is adding."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def removing_replicas(self) -> tuple[BrokerId, ...]:
        """Replicas that are removed when the reassignment is complete."""
        target = self.target_replicas
        return tuple(replica for replica in self.replicas if replica not in target) if target else ()

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is in progress: every target replica is a replica. False while one waits to begin."""
        return bool(self.target_replicas) and set(self.target_replicas).issubset(self.replicas)

    def __str__(self) -> str:
        isr = ",".join(map(str, self.isr))
        return (
            f"{self.topic_partition} leader={self.leader} incarnation={self.leader_incarnation} "
            f"epoch={self.leader_epoch} partition_epoch={self.partition_epoch} isr={isr}"
        )


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """The time that the quorum last agreed on: milliseconds since 1970, 0 if there is none.

    Invariant: `began_ms <= now_ms`, and neither goes backwards.
    """

    now_ms: int = 0
    """The time by which everything expires. It never exceeds what the voters' wall clocks or a monotonic clock vouched
    for."""
    began_ms: int = 0
    """The start of the current span without a leap. An earlier stamp counts as this one.

    The clock behind stamps from before the first step is unknown, and something stamped just before a leap is not as
    old as the leap makes it look.
    """
    agreed_ms: int = 0
    """The time that a majority of the voters read at that moment; 0 if no majority agreed. `now_ms` follows it."""

    def __bool__(self) -> bool:
        return self.now_ms > 0

    @property
    def stamp_ms(self) -> int:
        """Time for a new stamp. It is the agreed time while `now_ms` lags behind it, so that the stamp does not look
        older than it is."""
        return max(self.now_ms, self.agreed_ms)

    def since_ms(self, stamp_ms: int) -> int:
        """Return a stamp as far as it can be trusted: not before `began_ms`."""
        return max(stamp_ms, self.began_ms)


NO_TIME = ClusterTime()


@dataclass(frozen=True, slots=True)
class ReplicationThrottle:
    """Maximum rates of reassignments, in bytes a second (KIP-73). None: unlimited.

    The limits apply to fetches of replicas that a reassignment adds, until they are in sync, and to nothing else.
    """

    leader_rate: int | None = None
    """`leader.replication.throttled.rate`: what each broker sends, to all receivers together."""
    follower_rate: int | None = None
    """`follower.replication.throttled.rate`: what each broker receives, from all senders together."""

    def __bool__(self) -> bool:
        return self.leader_rate is not None or self.follower_rate is not None


UNTHROTTLED = ReplicationThrottle()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A broker's report about one of its replicas at registration, after recovery has fsynced what it read.

    `cut_or_quarantined` is true if recovery removed or set aside anything that may have been acknowledged, or if the
    topic has `flush=os` and the last stop was unclean.
    """

    topic_partition: TopicPartition
    clean: bool
    last_epoch: LeaderEpoch
    stable_end_offset: Offset
    cut_or_quarantined: bool


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """One node's view of the metadata quorum; for people and health checks, never for decisions."""

    node_id: BrokerId
    leader: BrokerId
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: tuple[BrokerId, ...]
    match_index: dict[BrokerId, int] = field(default_factory=dict)
    """On the leader only: the index up to which the log of each voter and connected observer is known to match."""
    forgetful: tuple[BrokerId, ...] = ()
    """Nodes that lost what they had acknowledged and no longer take part: all that the leader knows, or on any other
    node itself."""
