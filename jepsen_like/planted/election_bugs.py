"""Bugs of leader elections: each leaves out one rule of the quorum for partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from metadata.controller import controller
from metadata.controller.controller import Controller
from metadata.image import brokers as image_brokers
from metadata.image import partitions as image_partitions
from metadata.image import reassignments as image_reassignments
from metadata.image.image import ClusterImage
from metadata.rules import elections as image_elections
from metadata.rules.elections import is_live, members, recovery_minimum, recovery_participants
from partitions.opening.folders import OpenedReplica
from partitions.replica.replica import Replica
from raftlog.model import NO_BROKER, PartitionEpoch

from .patches import CLUSTER, Patch, Planted, original

_begin_role = original(Replica, "_begin_role")
_electable = original(image_elections, "electable")
_report = original(OpenedReplica, "report")
_revise = original(ClusterImage, "revise")


def _settle_without_epochs(state: Any, broker: Any, former_directory: Any, topic_partitions: Any, reports: Any) -> None:
    """A restarted broker keeps its leaderships, with its new incarnation and the old epochs, and stays in the ISRs."""
    for topic_partition in topic_partitions:
        record = state.partitions[topic_partition]
        if record.leader == broker.broker_id:
            epoch = PartitionEpoch(record.partition_epoch + 1)
            again = msgspec.structs.replace(record, leader_incarnation=broker.incarnation, partition_epoch=epoch)
            state.put_partition(again, state.tickets_of(topic_partition))


def _anybody_live(record: Any, brokers: Any) -> Any:
    """Unclean leader election: if no member of the commit set can lead, any live replica does."""
    return _electable(record, brokers) or tuple(r for r in record.replicas if is_live(brokers, r))


def _smallest_log(record: Any, tickets: Any, brokers: Any, feature_level: int) -> Any:
    participants = recovery_participants(record, tickets, brokers)
    if len(participants) < recovery_minimum(record, feature_level) or not participants:
        return ()
    least = min(participants, key=lambda ticket: (ticket.last_epoch, ticket.stable_end_offset))
    return (least.broker_id,)


def _first_back(record: Any, tickets: Any, brokers: Any, feature_level: int) -> Any:
    return tuple(ticket.broker_id for ticket in recovery_participants(record, tickets, brokers))[:1]


def _only_isr(record: Any, brokers: Any) -> Any:
    """Ignore the commit set: only the remaining ISR counts."""
    return tuple(m for m in _electable(record, brokers) if m in record.isr)


def _any_member(record: Any, brokers: Any) -> Any:
    """Ignore the marks of members that lost records."""
    able = tuple(m for m in members(record) if is_live(brokers, m))
    return able if record.leader == NO_BROKER else tuple(m for m in able if m in record.isr)


def _isr_of_any_incarnation(state: Any, record: Any, command: Any) -> Any:
    return None


def _complete_when_led(state: Any, record: Any) -> Any:
    """Complete a move once a target leads, regardless of the ISR."""
    target = record.target_replicas
    if not target or record.leader not in target or not set(target).issubset(record.replicas):
        return record
    return state.revise(record, replicas=target, isr=tuple(sorted(target)), adding_replicas=(), target_replicas=())


def _vouch_for_everything(opened: Any) -> Any:
    report = _report.fget(opened)  # type: ignore[attr-defined]
    return replace(report, cut_or_quarantined=False)


def _commit_set_follows_the_isr(state: Any, record: Any, **changes: Any) -> Any:
    """Replace the commit set by the latest ISR, however small."""
    revised = _revise(state, record, **changes)
    if revised.commit_set != revised.isr:
        revised = msgspec.structs.replace(revised, commit_set=revised.isr)
        kept = (t for t in state.tickets_of(revised.topic_partition) if t.broker_id in revised.isr)
        state._events.pop()
        state.put_partition(revised, tuple(kept))
    return revised


ELECTION_BUGS = (
    Planted(
        "a_restarted_leader_resumes_its_epoch",
        "a broker that registers again leads on in its old epoch, in which an offset may then have two records",
        "register_broker ends every leadership of the former incarnation and raises the epochs",
        (Patch(image_brokers, "_settle_the_past", _settle_without_epochs),),
        found_by=CLUSTER,
    ),
    Planted(
        "unclean_election",
        "a replica outside of ISR and commit set leads",
        "electable",
        (Patch(image_partitions, "electable", _anybody_live), Patch(controller, "electable", _anybody_live)),
        found_by=CLUSTER,
    ),
    Planted(
        "marked_members_are_elected",
        "a replica that lost records leads",
        "electable leaves out marked members",
        (Patch(image_partitions, "electable", _any_member), Patch(controller, "electable", _any_member)),
        found_by=CLUSTER,
    ),
    Planted(
        "a_cut_is_not_reported",
        "a replica that lost records still counts as in sync",
        "a registration reports what recovery cut or quarantined",
        (Patch(OpenedReplica, "report", property(_vouch_for_everything)),),
        found_by=CLUSTER,
    ),
    Planted(
        "recovery_takes_a_smaller_log",
        "a recovery election is won by a shorter log",
        "recovery_winners chooses the greatest (last epoch, end)",
        (
            Patch(image_partitions, "recovery_winners", _smallest_log),
            Patch(controller, "recovery_winners", _smallest_log),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "recovery_takes_the_first_back",
        "after a power failure of all nodes the first replica to return leads, and the others truncate to its log",
        "recovery_winners needs min.insync.replicas participants",
        (
            Patch(image_partitions, "recovery_winners", _first_back),
            Patch(controller, "recovery_winners", _first_back),
            Patch(Controller, "_waits_for_somebody", lambda self, record: False),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "the_commit_set_is_not_asked",
        "a partition waits for a replica that cannot return, although another has every record",
        "electable includes the commit set while the ISR is below the minimum",
        (Patch(image_partitions, "electable", _only_isr), Patch(controller, "electable", _only_isr)),
        found_by=CLUSTER,
    ),
    Planted(
        "the_commit_set_follows_the_isr",
        "a shrunken ISR replaces the record of the larger one",
        "ClusterImage.revise keeps the last ISR that could commit",
        (Patch(ClusterImage, "revise", _commit_set_follows_the_isr),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_isr_takes_any_incarnation",
        "an ISR is accepted with a member that has restarted since the leader's last report of it (KIP-903)",
        "alter_isr needs each member in the incarnation that its leader knows",
        (Patch(image_partitions, "_no_isr", _isr_of_any_incarnation),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_move_ends_before_it_is_in_sync",
        "a replica that is being added counts as complete",
        "settle waits until every target is in the ISR",
        (
            Patch(image_partitions, "settle", _complete_when_led),
            Patch(image_reassignments, "settle", _complete_when_led),
        ),
        found_by=CLUSTER,
    ),
)
