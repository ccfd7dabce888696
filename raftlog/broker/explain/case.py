"""The facts of one case: what the quorum agreed on, and the answers of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from raftlog.api.explain import AccessDecision
from raftlog.config import majority
from raftlog.model import NO_BROKER, UNTHROTTLED, BrokerId, BrokerRecord, PartitionRecord, ReplicationThrottle

from .facts import NodeFacts, ReplicaFacts, Unanswered
from .history import Change


@dataclass(frozen=True, slots=True)
class OpenBy:
    """A producer's transaction, for people."""

    transactional_id: str
    """Empty: the producer has no name."""
    timeout_ms: int | None
    standing: str


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """The nodes of the cluster, as the quorum lists them and as they answer."""

    asker: BrokerId
    """The node that collects the facts."""
    answers: Mapping[int, NodeFacts | Unanswered]
    """The node's own facts are among them."""
    brokers: Mapping[int, BrokerRecord]
    changes: Sequence[Change] = ()
    """The changes that the answering nodes remember, merged, in the order of the log."""
    now_ms: int = 0
    index: int = 0

    def node(self, node: int) -> NodeFacts | None:
        """Return the facts of a node that answered."""
        answer = self.answers.get(node)
        return answer if isinstance(answer, NodeFacts) else None

    def silence(self, node: int) -> Unanswered | None:
        """Return why a node did not answer; None if it did, or was not asked."""
        answer = self.answers.get(node)
        return answer if isinstance(answer, Unanswered) else None

    def answered(self) -> Iterator[NodeFacts]:
        return (answer for answer in self.answers.values() if isinstance(answer, NodeFacts))

    def is_fenced(self, node: int) -> bool:
        """Return whether a node is fenced or not registered, as far as this view shows."""
        record = self.brokers.get(node)
        return record is None or record.fenced

    def fenced_since(self, node: int) -> int | None:
        """Return the cluster time at which the node was fenced last, if a node remembers that."""
        times = [one.time_ms for one in self.changes if one.kind == "broker" and one.about == node]
        kinds = [one.reason for one in self.changes if one.kind == "broker" and one.about == node]
        return times[-1] if kinds and kinds[-1] == "fenced" else None

    # --- The quorum ---

    @property
    def voters(self) -> tuple[int, ...]:
        """The voters, by the answer with the highest term."""
        known = [facts.quorum for facts in self.answered() if facts.quorum.voters]
        newest = max(known, key=lambda one: (one.term, one.commit), default=None)
        return () if newest is None else tuple(newest.voters)

    @property
    def quorum_leader(self) -> int:
        """The leader of the quorum by the answer with the highest term that names one; -1: no answer does."""
        known = [facts.quorum for facts in self.answered() if facts.quorum.leader >= 0]
        return max(known, key=lambda one: one.term).leader if known else NO_BROKER

    @property
    def voters_heard(self) -> list[int]:
        """The voters that answered."""
        return [voter for voter in self.voters if self.node(voter) is not None]

    @property
    def has_majority(self) -> bool:
        """Whether a majority of the voters answers or follows a leader, as far as this node can tell."""
        voters = self.voters
        return not voters or self.quorum_leader >= 0 or len(self.voters_heard) >= majority(len(voters))


@dataclass(frozen=True, slots=True)
class PartitionCase:
    """One partition."""

    cluster: ClusterCase
    topic: str
    record: PartitionRecord
    offline: str | None = None
    """Why it has no leader, by the rules of elections."""
    throttle: ReplicationThrottle = UNTHROTTLED
    flush: str = "fsync"
    lag_max_ms: int = 1_000
    producers: Mapping[int, OpenBy] = field(default_factory=dict)
    """Producer id → its name and timeout, of the transactions that the leader lists as open."""
    access: Sequence[AccessDecision] = ()
    offset: int | None = None
    """A record to locate."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.record.topic_partition.partition}"

    def replica(self, node: int) -> ReplicaFacts | None:
        """Return a replica as its node describes it."""
        facts = self.cluster.node(node)
        return None if facts is None else facts.replica

    @property
    def leading(self) -> ReplicaFacts | None:
        """The leader's replica, if its node answered and leads in the current epoch."""
        found = self.replica(self.record.leader) if self.record.has_leader else None
        leads = found is not None and found.role == "leader" and found.leader_epoch >= self.record.leader_epoch
        return found if leads else None

    def lag(self, node: int) -> int | None:
        """Return the records that the leader has and this replica has not fsynced; None if that is unknown."""
        leading, own = self.leading, self.replica(node)
        if leading is None:
            return None
        if own is not None:
            return max(0, leading.log_end - own.stable_end)
        known = [one for one in leading.followers if one.broker == node and one.matched]
        return max(0, leading.log_end - known[0].stable_end) if known else None
