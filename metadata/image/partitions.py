"""Elections and ISR changes, decided where they are applied.

The proposer (controller or leader) may be behind. So it names what it assumed, and everything is compared with the
state at this entry of the log: a proposal that arrives late, twice or from a deposed leader changes nothing.
"""

from __future__ import annotations

from metadata.commands.cluster import AlterIsr, ElectLeaders
from metadata.commands.fields import Election
from metadata.commands.replicas import RenewLeadership
from metadata.commands.results import CommandResult, Done, Elected, IsrAltered, Refused
from metadata.rules.elections import electable, recovery_winners
from raftlog.model import Incarnation, PartitionRecord

from .brokers import other_leader_epoch
from .image import ClusterImage, Steps, slices
from .reassignments import settle, stale_epoch


def elect_leaders(state: ClusterImage, command: ElectLeaders) -> Steps:
    """Each election is decided on its own, in order."""
    refusals: list[Refused | None] = []
    for elections in slices(command.elections):
        refusals += [_elect(state, election) for election in elections]
        yield
    return Elected(tuple(refusals))


def _elect(state: ClusterImage, election: Election) -> Refused | None:
    record = state.partitions.get(election.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {election.topic_partition}")
    if record.partition_epoch != election.partition_epoch:
        return stale_epoch(record, election.partition_epoch)
    broker = state.brokers.get(election.candidate)
    if broker is None or broker.incarnation != election.incarnation:
        return Refused("stale_incarnation", f"broker {election.candidate} is not at {election.incarnation}")
    tickets = state.tickets_of(record.topic_partition)
    allowed = (
        recovery_winners(record, tickets, state.brokers, state.feature_level)
        if election.recovery
        else electable(record, state.brokers)
    )
    if election.candidate not in allowed:
        kind = "recovery" if election.recovery else "an ordinary"
        able = ", ".join(map(str, allowed)) or "no replica"
        return Refused("not_eligible", f"by {kind} election {able} may lead {record.topic_partition} now")
    if election.candidate == record.leader:
        return None
    stays = election.candidate in record.isr and not election.recovery
    revised = state.revise(
        record,
        leader=broker,
        isr=record.isr if stays else (election.candidate,),
        tickets=(ticket for ticket in tickets if ticket.broker_id != election.candidate),
    )
    settle(state, revised)
    return None


def renew_leadership(state: ClusterImage, command: RenewLeadership) -> CommandResult:
    """Renew the leadership in the next leader epoch.

    The leader's disk holds everything acknowledged, since its own fsync counted for that (S1).
    """
    record = state.partitions.get(command.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {command.topic_partition}")
    broker = state.brokers.get(command.broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {command.broker_id} is not at {command.incarnation}")
    if command.leader_epoch != record.leader_epoch:
        return other_leader_epoch(record, command.leader_epoch)
    if (record.leader, record.leader_incarnation) != (broker.broker_id, broker.incarnation):
        return Refused("not_leader", f"{record.topic_partition} is led by {record.leader}")
    settle(state, state.revise(record, leader=broker))
    return Done()


def alter_isr(state: ClusterImage, command: AlterIsr) -> CommandResult:
    """Apply a leader's new ISR. Added members become eligible; kept members stay as they were.

    A refusal is permanent: no later copy of the proposal is accepted. Leaders retry proposals whose outcome is unknown.
    All reasons but one last by themselves (epochs and incarnations do not return). A fenced broker may be unfenced
    again, so that refusal raises the partition epoch: otherwise the leader would count without a member whom a late
    copy still adds.
    """
    record = state.partitions.get(command.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {command.topic_partition}")
    refused = _not_its_leader(record, command) or _no_isr(state, record, command)
    if refused is not None:
        return refused
    isr = tuple(sorted(member.broker_id for member in command.isr))
    added = set(isr) - set(record.isr)
    fenced = [broker_id for broker_id in sorted(added) if state.brokers[broker_id].fenced]
    if fenced:
        state.revise(record)
        return Refused("not_eligible", f"broker {fenced[0]} is fenced")
    marked = (ticket for ticket in state.tickets_of(record.topic_partition) if ticket.broker_id not in added)
    revised = settle(state, state.revise(record, isr=isr, tickets=marked))
    return IsrAltered(revised.partition_epoch)


def _not_its_leader(record: PartitionRecord, command: AlterIsr) -> Refused | None:
    """Return the refusal unless the proposal is from the leader of this epoch, about this version of the record."""
    if command.leader_epoch != record.leader_epoch:
        return other_leader_epoch(record, command.leader_epoch)
    if command.leader != record.leader:
        return Refused("not_leader", f"{record.topic_partition} is led by {record.leader}")
    if command.leader_incarnation != record.leader_incarnation:
        return Refused(
            "stale_incarnation", f"{record.topic_partition} is led by incarnation {record.leader_incarnation}"
        )
    if command.partition_epoch != record.partition_epoch:
        return stale_epoch(record, command.partition_epoch)
    return None


def _no_isr(state: ClusterImage, record: PartitionRecord, command: AlterIsr) -> Refused | None:
    """Return the refusal unless these members can be the ISR (KIP-903: each in exactly the incarnation that the leader
    knows).
    """
    members = {member.broker_id for member in command.isr}
    if len(members) != len(command.isr) or not members.issubset(record.replicas) or record.leader not in members:
        return Refused("invalid_request", "an ISR has replicas of the partition, each once, and its leader")
    for member in command.isr:
        broker = state.brokers.get(member.broker_id)
        if broker is None or broker.incarnation != member.incarnation:
            now = Incarnation(-1) if broker is None else broker.incarnation
            return Refused("stale_incarnation", f"broker {member.broker_id} is at {now}, not at {member.incarnation}")
    return None
