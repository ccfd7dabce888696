"""The election rules, as functions of the agreed records. Nothing here changes anything.

The controller applies them to propose a leader, the image to validate the proposal, and the view to explain what is
missing. A *live* broker is one that is registered and not fenced.

1. **Eligible** is a member of ISR or commit set that is not marked. The mark is set when its broker registers with a
   cut or quarantined log, with another directory or without the replica. It is removed only when the replica is *added*
   to the ISR in the broker's current incarnation, or wins a recovery election (S9).
2. **An ordinary election** takes a live eligible member of the ISR. A partition without a leader may also be given to a
   live eligible member of the commit set (KIP-966's ELR), if the ISR is below `min.insync.replicas` or has no live
   eligible member; the ISR is then that member alone. This loses nothing: while the ISR is below the minimum, and while
   there is no leader, nothing is acknowledged that the whole commit set does not have.
3. **A recovery election** happens if rule 2 finds no candidate, for example after a power failure of all nodes. Live
   members of ISR and commit set that kept their directory take part, at least `min.insync.replicas` of them: as long as
   fewer than that lost data, one of them has every acknowledged record, and so has the one with the greatest (last
   epoch, fsynced end). That is the winner. Absent members do not block it. A commit set smaller than the minimum means
   that the minimum was raised after the last acknowledgement; then as many as the commit set has are enough (S10),
   since nothing was ever acknowledged under the higher one.

Rule 2 considers only live members, so every participant in rule 3 is marked, hence restarted, and its registration
reported its log. Only the reports of marked members are kept (`RecoveryTicket`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from metadata.records.tickets import RecoveryTicket
from raftlog.model import BrokerId, BrokerRecord, PartitionRecord

Brokers: TypeAlias = Mapping[BrokerId, BrokerRecord]

RAISED_MINIMUM_FEATURE_LEVEL = 5
"""The level from which a minimum above the size of the commit set requires no more members than the commit set has."""


def is_live(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Return whether the broker is registered and not fenced."""
    broker = brokers.get(broker_id)
    return broker is not None and not broker.fenced


def is_below_minimum(record: PartitionRecord) -> bool:
    """Return whether the ISR cannot acknowledge. Marked members do not count: they cannot vouch for anything."""
    return sum(1 for member in record.isr if member not in record.not_eligible) < record.min_insync_replicas


def members(record: PartitionRecord) -> tuple[BrokerId, ...]:
    """Return the members of ISR and commit set, in the order of preference."""
    return tuple(replica for replica in record.replicas if replica in record.isr or replica in record.commit_set)


def electable(record: PartitionRecord, brokers: Brokers) -> tuple[BrokerId, ...]:
    """Return the candidates of rule 2, the best first: ISR before commit set, then the order of the replicas."""
    able = [m for m in members(record) if m not in record.not_eligible and is_live(brokers, m)]
    in_sync = tuple(member for member in able if member in record.isr)
    if record.has_leader or (in_sync and not is_below_minimum(record)):
        return in_sync
    return in_sync + tuple(member for member in able if member not in record.isr)


def recovery_participants(
    record: PartitionRecord, tickets: Sequence[RecoveryTicket], brokers: Brokers
) -> tuple[RecoveryTicket, ...]:
    """Return the participants of a recovery election (rule 3); none while there is a leader or rule 2 finds a
    candidate.
    """
    if record.has_leader or electable(record, brokers):
        return ()
    return tuple(ticket for ticket in tickets if ticket.has_directory and is_live(brokers, ticket.broker_id))


def recovery_minimum(record: PartitionRecord, feature_level: int) -> int:
    """Return the number of participants that a recovery election requires at this feature level."""
    if feature_level < RAISED_MINIMUM_FEATURE_LEVEL:
        return record.min_insync_replicas
    return min(record.min_insync_replicas, len(record.commit_set))


def recovery_winners(
    record: PartitionRecord, tickets: Sequence[RecoveryTicket], brokers: Brokers, feature_level: int
) -> tuple[BrokerId, ...]:
    """Return the possible winners of a recovery election: those with the greatest log, in the order of preference.

    Empty if too few members take part.
    """
    participants = recovery_participants(record, tickets, brokers)
    if not participants or len(participants) < recovery_minimum(record, feature_level):
        return ()
    greatest = max(_log_end(ticket) for ticket in participants)
    winners = {ticket.broker_id for ticket in participants if _log_end(ticket) == greatest}
    return tuple(replica for replica in record.replicas if replica in winners)


def _log_end(ticket: RecoveryTicket) -> tuple[int, int]:
    return (ticket.last_epoch, ticket.stable_end_offset)


def explain_offline(
    record: PartitionRecord, tickets: Sequence[RecoveryTicket], brokers: Brokers, feature_level: int
) -> str | None:
    """Return a one-line explanation of what a partition without a leader waits for; None if it has a leader.

    An example: `no leader: waits for broker 2 to come back; members: 1 is here and lost its directory, 2 is not live`.
    """
    if record.has_leader:
        return None
    if electable(record, brokers) or recovery_winners(record, tickets, brokers, feature_level):
        return "an election is under way"
    by_broker = {ticket.broker_id: ticket for ticket in tickets}
    states = ", ".join(f"{m} {_state(m, by_broker.get(m), brokers)}" for m in members(record))
    hopes = []
    eligible = [str(m) for m in members(record) if m not in record.not_eligible]
    if eligible:
        hopes.append(f"broker {' or '.join(eligible)} to come back")
    here = len(recovery_participants(record, tickets, brokers))
    might = sum(1 for m in members(record) if m not in by_broker or by_broker[m].has_directory)
    needed = recovery_minimum(record, feature_level)
    if might >= needed:
        hopes.append(f"{needed} of its members with their directories ({here} now)")
    waits = f"waits for {', or for '.join(hopes)}" if hopes else "can only be decided by an operator"
    return f"no leader: {waits}; members: {states}"


def _state(member: BrokerId, ticket: RecoveryTicket | None, brokers: Brokers) -> str:
    """Return the reason why one member cannot lead."""
    presence = "is here" if is_live(brokers, member) else "is not live"
    if ticket is None:
        return presence
    if not ticket.has_directory:
        return f"{presence} and lost its directory"
    log = "an empty log" if ticket.last_epoch < 0 else f"epoch {ticket.last_epoch} up to {ticket.stable_end_offset}"
    return f"{presence} and may lack records ({log})"
