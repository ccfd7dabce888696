"""A quorum with a single image, for tests: commands are applied at once, and every invariant is checked after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metadata.commands.cluster import (
    TIME_FEATURE_LEVEL,
    AdvanceTime,
    AlterIsr,
    CreateTopic,
    ElectLeaders,
    FenceBroker,
    RegisterBroker,
    SetFeatureLevel,
    UnfenceBroker,
)
from metadata.commands.envelope import ClientSession, Command, decode, encode
from metadata.commands.fields import Election, IsrMember
from metadata.commands.results import CommandResult, Elected, Refused, Registered
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.events import MetadataEvent
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import (
    BrokerId,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    ReplicaReport,
    TopicId,
    TopicPartition,
)
from tests.support.metadata.at_once import apply, decode_snapshot

TOPIC = TopicId(b"topic-number-001")
TP = TopicPartition(TOPIC, 0)


def directory(number: int) -> DirectoryId:
    return DirectoryId(number.to_bytes(16, "big"))


def report(
    last_epoch: int = 0, end: int = 0, *, cut: bool = False, tp: TopicPartition = TP, clean: bool = True
) -> ReplicaReport:
    return ReplicaReport(tp, clean and not cut, LeaderEpoch(last_epoch), Offset(end), cut)


def check_step(before: PartitionRecord, after: PartitionRecord) -> None:
    """Check that epochs never fall and rise with their subject, and that a leader epoch has one leader of one
    incarnation (S5).
    """
    name = f"{before} -> {after}"
    assert after.partition_epoch >= before.partition_epoch, f"{name}: the partition epoch fell"
    assert after == before or after.partition_epoch > before.partition_epoch, f"{name}: a change without an epoch"
    assert after.leader_epoch >= before.leader_epoch, f"{name}: the leader epoch fell"
    led_before, led_after = (before.leader, before.leader_incarnation), (after.leader, after.leader_incarnation)
    assert led_before == led_after or after.leader_epoch > before.leader_epoch, f"{name}: two leaders in one epoch"
    again = before.let_go and not set(after.replicas).issubset(before.replicas) and after.has_leader
    assert not again or after.leader_epoch > before.leader_epoch, f"{name}: added to what its leader may remember"
    if not after.has_leader or len(after.isr) < after.min_insync_replicas:
        assert after.commit_set == before.commit_set, f"{name}: the commit set changed when nobody could commit"


class Cluster:
    """An image, the view that follows it, and short names for common test steps."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        min_insync_replicas: int | None = None,
        partitions: int = 1,
        replicas: Sequence[int] | None = None,
        configs: Mapping[str, str] | None = None,
        feature_level: int = 1,
    ) -> None:
        """`brokers` are registered and unfenced, and have one topic with a replica on each (or on `replicas`). They
        support `feature_level`; the cluster is at the first."""
        self._feature_level = feature_level
        self.image = ClusterImage()
        self.view = ClusterView()
        self.term = 1
        self.events: list[MetadataEvent] = []
        self._starts: dict[int, int] = {}
        for broker in range(brokers):
            self.start(broker)
            self.unfence(broker)
        if brokers:
            given = dict(configs or {})
            if min_insync_replicas is not None:
                given["min.insync.replicas"] = str(min_insync_replicas)
            placed = tuple(BrokerId(broker) for broker in replicas or range(brokers))
            self.do(CreateTopic("orders", TOPIC, (placed,) * partitions, tuple(sorted(given.items()))))

    # --- Applying ----------------------------------------------------------------------------------------------------

    def apply(
        self, command: Command, *, term: int | None = None, session: ClientSession | None = None
    ) -> CommandResult:
        """Apply a command and return its answer, whatever it is. A node that was restored from a snapshot gives the
        same (S7)."""
        before = dict(self.image.partitions)
        snapshot = encode_snapshot(self.image)
        other_node, unchanged = decode_snapshot(snapshot), decode_snapshot(snapshot)
        unchanged.index = index = self.image.index + 1
        envelope = decode(encode(command, term=term, session=session))
        result, self.events = apply(self.image, index, self.term, envelope)
        assert apply(other_node, index, self.term, envelope) == (result, self.events)
        check(self.image)
        for topic_partition, record in self.image.partitions.items():
            if topic_partition in before:
                check_step(before[topic_partition], record)
        if isinstance(result, Refused) and session is None and not isinstance(command, AlterIsr):
            assert self.events == []
            assert encode_snapshot(self.image) == encode_snapshot(unchanged)
        self.view.on_events(index, self.events)
        return result

    def do(self, command: Command) -> CommandResult:
        """Apply a command that must not be refused."""
        result = self.apply(command)
        assert not isinstance(result, Refused), result
        return result

    def tell_time(self, now_ms: int) -> None:
        """Set the cluster's time: by a first step, or as after very many."""
        if not self.image.time:
            self.do(SetFeatureLevel(TIME_FEATURE_LEVEL))
            self.do(AdvanceTime(self.term, 0, now_ms, now_ms))
        else:
            assert now_ms >= self.image.time.now_ms
            self.image.put_time(replace(self.image.time, now_ms=now_ms, agreed_ms=now_ms))
            self.view.on_events(self.image.index, self.image.take_events())

    def refusal(self, command: Command) -> str:
        """Apply a command that must be refused; return the code."""
        result = self.apply(command)
        assert isinstance(result, Refused), result
        return result.code

    # --- Brokers -----------------------------------------------------------------------------------------------------

    def registration(
        self,
        broker: int,
        reports: Sequence[ReplicaReport] | None = None,
        *,
        disk: int | None = None,
        start_number: int | None = None,
        rack: str = "",
        feature_level: int | None = None,
    ) -> RegisterBroker:
        """By default each start finds the replicas of TP there, clean and empty."""
        self._starts[broker] = self._starts.get(broker, 0) + 1
        return RegisterBroker.of(
            BrokerId(broker),
            directory(broker if disk is None else disk),
            self._starts[broker] if start_number is None else start_number,
            api=Endpoint("127.0.0.1", 9640 + 10 * broker),
            data=Endpoint("127.0.0.1", 9641 + 10 * broker),
            rack=rack,
            feature_level=self._feature_level if feature_level is None else feature_level,
            reports=[report()] if reports is None else reports,
        )

    def start(self, broker: int, *reports: ReplicaReport, disk: int | None = None) -> Incarnation:
        """A new process of the broker registers with these reports."""
        result = self.do(self.registration(broker, reports or None, disk=disk))
        assert isinstance(result, Registered)
        return result.incarnation

    def restart(self, broker: int, *reports: ReplicaReport, disk: int | None = None) -> Incarnation:
        """Call `start`, then unfence the broker."""
        incarnation = self.start(broker, *reports, disk=disk)
        self.unfence(broker)
        return incarnation

    def incarnation(self, broker: int) -> Incarnation:
        return self.image.brokers[BrokerId(broker)].incarnation

    def fence(self, *brokers: int) -> None:
        for broker in brokers:
            self.do(FenceBroker(BrokerId(broker), self.incarnation(broker)))

    def unfence(self, *brokers: int) -> None:
        for broker in brokers:
            self.do(UnfenceBroker(BrokerId(broker), self.incarnation(broker)))

    # --- Partitions --------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionRecord:
        return self.image.partitions[TP]

    def elect(self, candidate: int, *, recovery: bool = False) -> str:
        """Try to elect; returns the code of the refusal, or "" if it leads now."""
        election = Election(
            TOPIC, 0, BrokerId(candidate), self.incarnation(candidate), self.partition.partition_epoch, recovery
        )
        result = self.apply(ElectLeaders((election,)))
        assert isinstance(result, Elected)
        (refused,) = result.refusals
        if refused is None:
            assert self.partition.leader == candidate
            assert self.partition.leader_incarnation == self.incarnation(candidate)
        return "" if refused is None else refused.code

    def isr_proposal(self, *isr: int) -> AlterIsr:
        """A proposal of the current leader, with its current knowledge."""
        record = self.partition
        return AlterIsr(
            TOPIC,
            0,
            record.leader,
            record.leader_incarnation,
            record.leader_epoch,
            record.partition_epoch,
            tuple(IsrMember(BrokerId(member), self.incarnation(member)) for member in isr),
        )

    def set_isr(self, *isr: int) -> None:
        self.do(self.isr_proposal(*isr))
        assert self.partition.isr == isr
