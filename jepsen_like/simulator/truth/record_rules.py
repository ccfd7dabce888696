"""Rules for the quorum's records of brokers and partitions, written independently of the code that makes them.

The events of each entry of the metadata log are checked once, at the first node that applies it; records that a node
has only from a snapshot are not checked. Names as everywhere: S5 one leader per epoch; S6 electable replicas are
complete; S9 a replica that lost data neither leads nor counts.

* S6 leader, ISR and commit set are consistent; while the ISR is full, the commit set equals the ISR.
* S5 a partition's epochs only rise, one by one; another leader or incarnation means another leader epoch.
* S6 an elected leader was in the ISR or the commit set. A recovery election has `min.insync.replicas` participants, and
  the greatest of their logs wins.
* S9 a broker that registers with a replica for which it cannot vouch is not an eligible member, from that very command
  on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jepsen_like.simulator.world.violation import Violation
from metadata.commands.cluster import RegisterBroker
from metadata.commands.fields import Report
from metadata.records.tickets import RecoveryTicket
from metadata.view import BrokerChanged, MetadataEvent, PartitionChanged, TopicChanged, TopicRemoved
from raftlog.model import BrokerId, BrokerRecord, PartitionRecord, TopicId, TopicPartition, TopicRecord


@dataclass(frozen=True, slots=True)
class Recovered:
    """A decided recovery election: its winner and leader epoch."""

    record: PartitionRecord


class RecordRules:
    """Checks the quorum's decisions; raises `Violation`."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionRecord] = {}
        self.topics: dict[TopicId, TopicRecord] = {}
        self.removed: set[TopicId] = set()
        self.bounded: set[TopicId] = set()
        """Topics that ever had `retention.bytes`."""
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self._reports: dict[tuple[BrokerId, int], dict[TopicPartition, Report]] = {}
        """(broker, start) → its reports."""
        self._tickets: dict[TopicPartition, tuple[RecoveryTicket, ...]] = {}
        self._index = 0
        self.losses_reported = 0
        """Losses of replicas, reported by registering brokers."""

    def registering(self, command: RegisterBroker) -> None:
        """Record what a process found on its disk."""
        reports = {TopicPartition(report.topic_id, report.partition): report for report in command.reports}
        self._reports[command.broker_id, command.start_number] = reports

    def applied(self, index: int, events: Sequence[MetadataEvent]) -> list[Recovered]:
        """Check an entry of the log when the first node applies it."""
        if index <= self._index:
            return []
        if index != self._index + 1:
            # Entries that no node applied one by one are unknown here: start over.
            self.partitions.clear()
            self._tickets.clear()
        self._index = index
        recovered: list[Recovered] = []
        registered: list[BrokerRecord] = []
        for event in events:
            match event:
                case BrokerChanged(broker):
                    known = self.brokers.get(broker.broker_id)
                    if known is None or known.incarnation != broker.incarnation:
                        registered.append(broker)
                    self.brokers[broker.broker_id] = broker
                case TopicChanged(topic):
                    self.topics[topic.topic_id] = topic
                    if dict(topic.configs).get("retention.bytes", "-1") != "-1":
                        self.bounded.add(topic.topic_id)
                case TopicRemoved(topic_id, _):
                    self.topics.pop(topic_id, None)
                    self.removed.add(topic_id)
                    self.partitions = {tp: record for tp, record in self.partitions.items() if tp.topic_id != topic_id}
                case PartitionChanged(record, tickets):
                    recovered += self._changed(record)
                    self._tickets[record.topic_partition] = tickets
                case _:
                    pass
        for broker in registered:
            self._check_past_is_settled(broker)
        return recovered

    def _changed(self, record: PartitionRecord) -> list[Recovered]:
        self._check_alone(record)
        before = self.partitions.get(record.topic_partition)
        self.partitions[record.topic_partition] = record
        if before is None or record.partition_epoch != before.partition_epoch + 1:
            if before is not None and record.partition_epoch <= before.partition_epoch:
                raise Violation(f"S5: the partition epoch does not rise from {before} to {record}")
            return []
        self._check_step(before, record)
        elected = record.has_leader and record.leader_epoch > before.leader_epoch
        if not elected or record.leader_epoch in record.unclean_leader_epochs:
            return []
        if record.leader not in {*before.isr, *before.commit_set}:
            raise Violation(f"S6: elected from outside of ISR and commit set {before.commit_set}: {record}")
        if record.leader not in before.not_eligible:
            return []
        self._check_recovery(before, record)
        return [Recovered(record)]

    def _check_alone(self, record: PartitionRecord) -> None:
        replicas, isr = set(record.replicas), set(record.isr)
        full = record.has_leader and len(isr) >= record.min_insync_replicas
        wrong = (
            ("the ISR is empty", not isr),
            ("a member is not a replica", not (isr | set(record.commit_set)) <= replicas),
            ("the leader is not in the ISR", record.has_leader and record.leader not in isr),
            ("the leader may not lead", record.has_leader and record.leader in record.not_eligible),
            ("the commit set is not the full ISR", full and set(record.commit_set) != isr),
        )
        for text, holds in wrong:
            if holds:
                raise Violation(f"S6: {text}: {record}, commit set {record.commit_set}")

    def _check_step(self, before: PartitionRecord, record: PartitionRecord) -> None:
        led = (before.leader, before.leader_incarnation)
        leads = (record.leader, record.leader_incarnation)
        if record.leader_epoch < before.leader_epoch or (led != leads and record.leader_epoch == before.leader_epoch):
            raise Violation(f"S5: two leaders of one epoch, or a fallen one: {before}, then {record}")
        in_force = record.has_leader and len(record.isr) >= record.min_insync_replicas
        if not in_force and record.commit_set != before.commit_set and record.replicas == before.replicas:
            raise Violation(f"S6: the commit set changed while no leader could commit: {before}, then {record}")

    def _check_recovery(self, before: PartitionRecord, record: PartitionRecord) -> None:
        tickets = self._tickets.get(record.topic_partition, ())
        ends = {ticket.broker_id: self._end_of(ticket, record) for ticket in tickets if self._live(ticket.broker_id)}
        if len(ends) < before.min_insync_replicas:
            raise Violation(f"S6: a recovery election among {sorted(ends)} only: {before}, then {record}")
        known = {member: end for member, end in ends.items() if end is not None}
        if record.leader in known and known[record.leader] < max(known.values()):
            raise Violation(f"S6: a recovery election chose a smaller log, {known}: {record}")

    def _live(self, broker_id: BrokerId) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def _end_of(self, ticket: RecoveryTicket, record: PartitionRecord) -> tuple[int, int] | None:
        """Return (last epoch, end) from the registration of this life, or None if the world did not see it.

        Damage that was reported since counts as an empty log.
        """
        if not ticket.stable_end_offset:
            return ticket.last_epoch, 0
        broker = self.brokers[ticket.broker_id]
        report = self._reports.get((ticket.broker_id, broker.start_number), {}).get(record.topic_partition)
        return None if report is None else (report.last_epoch, report.stable_end_offset)

    def _check_past_is_settled(self, broker: BrokerRecord) -> None:
        for tp, report in self._reports.get((broker.broker_id, broker.start_number), {}).items():
            record = self.partitions.get(tp)
            if record is None or not report.cut_or_quarantined:
                continue
            self.losses_reported += 1
            if broker.broker_id in {*record.isr, *record.commit_set} - set(record.not_eligible):
                raise Violation(f"S9: broker {broker.broker_id} cannot vouch for {tp}, and counts: {record}")
