"""What the report of a damaged replica does to the agreed facts.

The replica leaves the ISR and is marked, as if its broker had registered with a log that it cannot vouch for; what it
has counts as nothing (`RecoveryTicket` of an empty log) until it is added to the ISR again (S9).

The **leader epoch rises**, also where the leader stays who it was. A leader may hold that this replica has everything,
from before the damage was found, and would propose it for the ISR again at once; in the new epoch every follower has
to match its log anew before it counts, and this one does so only after it was cut back (S6).

**The last copy is not given up**: where no other live eligible member of ISR or commit set is left, the report is
refused. The partition then goes on with what can be read, which is more than nobody could.
"""

from __future__ import annotations

from raftlog.model import NO_EPOCH, BrokerId, BrokerRecord, Offset, PartitionRecord

from .command_results import CommandResult, Done, Refused
from .commands_moves import ReportLoss
from .image_brokers import isr_without
from .image_elections import RecoveryTicket, is_live, members
from .image_state import ImageState


def report_loss(state: ImageState, command: ReportLoss) -> CommandResult:
    """Decided against the record as this entry of the log finds it."""
    tp, broker_id = command.topic_partition, command.broker_id
    record = state.partitions.get(tp)
    if record is None or broker_id not in record.replicas:
        return Refused("unknown_partition", f"broker {broker_id} has no replica of {tp}")
    broker = state.brokers.get(broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {broker_id} is not at {command.incarnation}")
    if command.leader_epoch != record.leader_epoch:
        older = command.leader_epoch < record.leader_epoch
        code = "fenced_leader_epoch" if older else "unknown_leader_epoch"
        return Refused(code, f"{tp} is at leader epoch {record.leader_epoch}")
    if not _others(state, record, broker_id):
        return Refused("not_eligible", f"no other live replica of {tp} has what broker {broker_id} lost")
    leader = None if record.leader == broker_id or not record.has_leader else state.brokers[record.leader]
    tickets = {ticket.broker_id: ticket for ticket in state.tickets_of(tp)}
    if broker_id in members(record):
        tickets[broker_id] = _ticket(broker, tickets.get(broker_id))
    marked = (tickets[member] for member in sorted(tickets))
    state.revise(record, leader=leader, isr=isr_without(record, broker_id), tickets=marked)
    return Done()


def _others(state: ImageState, record: PartitionRecord, broker_id: BrokerId) -> list[BrokerId]:
    """Who has everything that may have been acknowledged, beside this one. Who is in neither set is not counted on."""
    able = [m for m in members(record) if m not in record.not_eligible and is_live(state.brokers, m)]
    return [member for member in able if member != broker_id]


def _ticket(broker: BrokerRecord, before: RecoveryTicket | None) -> RecoveryTicket:
    """Where it is cut is not known yet: it counts as empty, which promises nothing."""
    in_sync_with = broker.directory_id if before is None else before.directory_id
    return RecoveryTicket(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        directory_id=in_sync_with,
        has_directory=broker.directory_id == in_sync_with,
        last_epoch=NO_EPOCH,
        stable_end_offset=Offset(0),
    )
