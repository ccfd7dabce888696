"""The effects of brokers' registrations, fences and reports on the agreed facts.

A registration settles a broker's past: in the same command its previous incarnation loses every leadership (so no epoch
is ever led by two incarnations, S5) and every replica that it cannot vouch for leaves the ISR and is marked (S9). Clean
replicas stay in sync: a restarted follower continues where it was.

When a broker reports a damaged replica (`report_loss`), the replica leaves the ISR and is marked, as if its broker had
registered with a log that it cannot vouch for; its log counts as empty (`RecoveryTicket` of an empty log) until it is
added to the ISR again (S9).

The **leader epoch rises**, even if the leader stays the same. A leader may assume that this replica has everything,
from before the damage was found, and would propose it for the ISR again at once; in the new epoch every follower has to
match its log again before it counts, and this one does so only after it was truncated (S6).

**The last copy is not given up**: if no other live eligible member of ISR or commit set is left, the report is refused.
The partition then continues with its readable data, which is better than no replica at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from metadata.commands.cluster import (
    ROOM_FEATURE_LEVEL,
    FenceBroker,
    RegisterBroker,
    ReplaceRegistration,
    ReportRoom,
    UnfenceBroker,
)
from metadata.commands.fields import Report, decode_report
from metadata.commands.replicas import ReportLoss
from metadata.commands.results import CommandResult, Done, Refused, Registered
from metadata.records.events import INITIAL_FEATURE_LEVEL
from metadata.records.tickets import RecoveryTicket
from metadata.rules.elections import is_live, members
from raftlog.errors import RemoteProtocolError
from raftlog.model import (
    NO_EPOCH,
    NO_INCARNATION,
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    TopicPartition,
)

from .image import ClusterImage, Steps, slices

MAX_BROKERS = 1_000


def register_broker(state: ClusterImage, command: RegisterBroker, index: int) -> Steps:
    """Register a broker. Its incarnation is the index of the entry (as Kafka's broker epoch): unique and rising."""
    current = state.brokers.get(command.broker_id)
    if current is not None and current.directory_id == command.directory_id:
        if command.start_number == current.start_number:
            return Registered(current.incarnation)
        if command.start_number < current.start_number:
            return Refused(
                "stale_incarnation",
                f"start {command.start_number} of broker {command.broker_id} comes after its start "
                f"{current.start_number}",
            )
    standing = NO_INCARNATION if current is None else current.incarnation
    if isinstance(command, ReplaceRegistration) and command.replaces != standing:
        return Refused(
            "stale_incarnation",
            f"broker {command.broker_id} is at {standing}, not at {command.replaces}: another process registered as "
            "this broker, or it was unregistered, after this one had started",
        )
    if current is None and len(state.brokers) >= MAX_BROKERS:
        return Refused("invalid_request", f"the cluster has {MAX_BROKERS} brokers, which is the most")
    if command.feature_level < state.feature_level:
        return Refused(
            "unsupported_version",
            f"broker {command.broker_id} understands feature level {command.feature_level}, the cluster is at "
            f"{state.feature_level}: upgrade it",
        )
    reports: dict[TopicPartition, Report] = {}
    try:
        for some in slices(command.packed_reports):
            read = map(decode_report, some)
            reports.update((report.topic_partition, report) for report in read)
            yield
    except RemoteProtocolError as error:
        return Refused("invalid_request", error.detail)
    broker = BrokerRecord(
        broker_id=command.broker_id,
        incarnation=Incarnation(index),
        directory_id=command.directory_id,
        start_number=command.start_number,
        api=command.api.endpoint,
        data=command.data.endpoint,
        rack=command.rack,
        fenced=True,
        feature_level=command.feature_level,
    )
    if isinstance(command, ReplaceRegistration) and is_unused(state) and command.feature_level > state.feature_level:
        state.put_feature_level(command.feature_level)
    state.put_broker(broker)
    state.starting.add(broker.broker_id)
    if current is not None:
        for topic_partitions in state.slices_of_replicas(broker.broker_id):
            _settle_the_past(state, broker, current.directory_id, topic_partitions, reports)
            yield
    return Registered(broker.incarnation)


def report_room(state: ClusterImage, command: ReportRoom) -> CommandResult:
    """Record whether a broker is short of room. A previous incarnation's report is void: a registration begins with
    room.
    """
    broker = state.brokers.get(command.broker_id)
    if state.feature_level < ROOM_FEATURE_LEVEL:
        return Refused("unsupported_version", f"the feature level is {state.feature_level}, not {ROOM_FEATURE_LEVEL}")
    if broker is None or broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {command.broker_id} is not at {command.incarnation}")
    if broker.short_of_room != command.short:
        state.put_broker(replace(broker, short_of_room=command.short))
    return Done()


def is_unused(state: ClusterImage) -> bool:
    """Return whether the cluster is new: no broker registered and nothing was created."""
    return not state.brokers and not state.topics and state.feature_level == INITIAL_FEATURE_LEVEL


def _settle_the_past(
    state: ClusterImage,
    broker: BrokerRecord,
    former_directory: DirectoryId,
    topic_partitions: Iterable[TopicPartition],
    reports: Mapping[TopicPartition, Report],
) -> None:
    """Remove what the new incarnation must not inherit, partition by partition."""
    broker_id = broker.broker_id
    for topic_partition in topic_partitions:
        record = state.partitions[topic_partition]
        if broker_id not in record.isr and broker_id not in record.commit_set:
            continue
        report = reports.get(topic_partition)
        vouches = former_directory == broker.directory_id and report is not None and not report.cut_or_quarantined
        led: Literal["same"] | None = None if record.leader == broker_id else "same"
        tickets = {ticket.broker_id: ticket for ticket in state.tickets_of(topic_partition)}
        mark = tickets.get(broker_id)
        if mark is not None or not vouches:
            in_sync_with = former_directory if mark is None else mark.directory_id
            tickets[broker_id] = _ticket(broker, in_sync_with, report)
            marked = (tickets[member] for member in sorted(tickets))
            state.revise(record, leader=led, isr=isr_without(record, broker_id), tickets=marked)
        elif led is None:
            state.revise(record, leader=None)


def _ticket(broker: BrokerRecord, in_sync_with: DirectoryId, report: Report | None) -> RecoveryTicket:
    """Return the ticket of a marked replica.

    A replica that is missing from its own directory counts as an empty log: if all nodes lose power right after a topic
    was created, before a folder was made, nothing was lost and no operator should be needed.
    """
    return RecoveryTicket(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        directory_id=in_sync_with,
        has_directory=broker.directory_id == in_sync_with,
        last_epoch=NO_EPOCH if report is None else report.last_epoch,
        stable_end_offset=Offset(0) if report is None else report.stable_end_offset,
    )


def fence_broker(state: ClusterImage, command: FenceBroker) -> Steps:
    """Fence a broker: it loses its leaderships and leaves the ISRs of which it is not the last member."""
    broker = state.brokers.get(command.broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return _other_incarnation(command.broker_id, command.incarnation, broker)
    if broker.fenced and broker.broker_id not in state.starting:
        return Done()
    state.starting.discard(broker.broker_id)
    if not broker.fenced:
        state.put_broker(replace(broker, fenced=True))
    for topic_partitions in state.slices_of_replicas(broker.broker_id):
        for topic_partition in topic_partitions:
            _take_from(state, state.partitions[topic_partition], broker.broker_id)
        yield
    return Done()


def _take_from(state: ClusterImage, record: PartitionRecord, broker_id: BrokerId) -> None:
    """Remove a fenced broker's leadership and ISR membership of one partition."""
    isr = isr_without(record, broker_id)
    if record.leader == broker_id:
        state.revise(record, leader=None, isr=isr)
    elif isr != record.isr:
        state.revise(record, isr=isr)


def unfence_broker(state: ClusterImage, command: UnfenceBroker) -> CommandResult:
    """Unfence a broker: it may be elected and join ISRs again."""
    broker = state.brokers.get(command.broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return _other_incarnation(command.broker_id, command.incarnation, broker)
    if broker.fenced:
        state.starting.discard(broker.broker_id)
        state.put_broker(replace(broker, fenced=False))
    return Done()


def _other_incarnation(broker_id: BrokerId, incarnation: Incarnation, broker: BrokerRecord | None) -> Refused:
    now = "not registered" if broker is None else f"at incarnation {broker.incarnation}"
    return Refused("stale_incarnation", f"broker {broker_id} is {now}, not at {incarnation}")


def isr_without(record: PartitionRecord, broker_id: BrokerId) -> tuple[BrokerId, ...]:
    """Return the ISR without a broker, unless that is its last member: an ISR is never empty."""
    return tuple(member for member in record.isr if member != broker_id) or record.isr


def report_loss(state: ClusterImage, command: ReportLoss) -> CommandResult:
    """Apply a loss report, decided against the record as this entry of the log finds it."""
    tp = command.topic_partition
    broker_id = command.broker_id
    record = state.partitions.get(tp)
    if record is None or broker_id not in record.replicas:
        return Refused("unknown_partition", f"broker {broker_id} has no replica of {tp}")
    broker = state.brokers.get(broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {broker_id} is not at {command.incarnation}")
    if command.leader_epoch != record.leader_epoch:
        return other_leader_epoch(record, command.leader_epoch)
    if not _others(state, record, broker_id):
        return Refused("not_eligible", f"no other live replica of {tp} has what broker {broker_id} lost")
    leader = None if record.leader == broker_id or not record.has_leader else state.brokers[record.leader]
    tickets = {ticket.broker_id: ticket for ticket in state.tickets_of(tp)}
    if broker_id in members(record):
        mark = tickets.get(broker_id)
        # The truncation point is not known yet: the log counts as empty, which promises nothing.
        tickets[broker_id] = _ticket(broker, broker.directory_id if mark is None else mark.directory_id, None)
    marked = (tickets[member] for member in sorted(tickets))
    state.revise(record, leader=leader, isr=isr_without(record, broker_id), tickets=marked)
    return Done()


def other_leader_epoch(record: PartitionRecord, named: LeaderEpoch) -> Refused:
    """Return the refusal of a command that names another leader epoch than the record's."""
    code = "fenced_leader_epoch" if named < record.leader_epoch else "unknown_leader_epoch"
    return Refused(code, f"{record.topic_partition} is at leader epoch {record.leader_epoch}")


def _others(state: ClusterImage, record: PartitionRecord, broker_id: BrokerId) -> list[BrokerId]:
    """Return the other live, eligible members of ISR or commit set: those that hold every acknowledged record."""
    able = [m for m in members(record) if m not in record.not_eligible and is_live(state.brokers, m)]
    return [member for member in able if member != broker_id]
