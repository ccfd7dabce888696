"""Reassignments: replicas are added, catch up, and only then are the others removed (KIP-455).

The states of a partition, by its record:

    settled    no target
    waiting    a target some of whose replicas are not added yet; `begin_moves` adds them
    moving     every target replica is a replica; those in `adding_replicas` catch up with the leader

A reassignment is complete in the very command that makes both true: all target replicas are in the ISR, and one of them
leads. Then replicas and ISR become the target. (Kafka's controller completes it on learning of that ISR. Here no state
exists in which a complete move is still in progress, and a controller's death delays nothing.) Nothing acknowledged is
lost by it (S1, S6): every remaining replica was in the ISR, so it has everything acknowledged under this leader and
before; a departing one is in neither ISR nor commit set from then on. A target never has fewer replicas than
`min.insync.replicas`, so the new ISR is the new commit set.

A target may have more or fewer replicas than before. If `min.insync.replicas` is not set but a majority, it is settled
again in the last step; once all partitions of a topic have the same number, that is its replication factor.

A leader that is not among the targets must hand over first: that is an ordinary election of a member of the ISR, which
the controller proposes. The image does not elect by itself, because it does not know which brokers are responsive.
During the move the added replicas count like any other: the leader may take them into the ISR, and they may be elected.
Another order of the same replicas is not a move: it takes effect at once, whichever brokers are live.

A removed replica deletes its data, and may be added again a moment later. A leader that learns of both in one step
(from a snapshot) would continue to count what that broker had (S6), and a broker that does would wait for a leader that
has forgotten it (S10). So a replica that is added in a leader epoch in which one was removed is added in the next
epoch: no message of the old one counts in it, and all followers match again. (Kafka raises the epoch whenever a replica
goes, which interrupts every move that ends.)

Another target may replace one that is in progress, begun or not (from feature level 4 on; before, only one that waits).
Replicas being added that the new target names too stay and continue copying, so that nothing is copied twice; the
others are removed at once. Replicas that the new target adds wait for `begin_moves` like any other, so a partition may
wait and copy at the same time. A cancellation is a target of the original replicas.

Added replicas are removed only if that leaves a leader and `min.insync.replicas` of the others in sync (or if they
never were members): records acknowledged since may be on them and on too few others. Otherwise the request is refused
with the reason, and the move continues as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from metadata.commands.replicas import (
    REPLACEMENT_FEATURE_LEVEL,
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    Move,
    Reassignment,
    ThrottleReassignments,
    UnregisterBroker,
)
from metadata.commands.results import Done, ReassignmentsAltered, Refused
from metadata.rules.elections import electable, is_live, recovery_winners
from metadata.rules.topic_config import minimum_for
from raftlog.model import BrokerId, PartitionEpoch, PartitionRecord, TopicPartition, TopicRecord

from .image import ClusterImage

MAX_MOVES_UNDER_WAY = 256
"""The moves that copy at a time in the whole cluster: a bound whatever a controller proposes."""


def alter_reassignments(state: ClusterImage, command: AlterReassignments) -> ReassignmentsAltered:
    """Apply each entry, decided on its own, in order."""
    return ReassignmentsAltered(tuple(_alter(state, reassignment) for reassignment in command.reassignments))


def throttle_reassignments(state: ClusterImage, command: ThrottleReassignments) -> ReassignmentsAltered:
    """Set the rates if any reassignment was accepted, or if the command has none; applying a command clears them at the
    end.
    """
    refusals = tuple(_alter(state, reassignment) for reassignment in command.reassignments)
    if state.reassigning and (None in refusals or not refusals):
        state.put_throttle(command.throttle)
    return ReassignmentsAltered(refusals)


def begin_moves(state: ClusterImage, command: BeginMoves) -> ReassignmentsAltered:
    """Apply each entry, decided on its own, in order."""
    return ReassignmentsAltered(tuple(_begin(state, move) for move in command.moves))


def settle(state: ClusterImage, record: PartitionRecord) -> PartitionRecord:
    """Complete the partition's reassignment, if it is complete; called wherever ISR or leader changed."""
    target = record.target_replicas
    if not target or record.leader not in target or not set(target).issubset(record.isr):
        return record
    topic = state.topics[record.topic_partition.topic_id]
    minimum = record.min_insync_replicas
    if len(target) != record.replica_count:
        minimum = minimum_for(dict(topic.configs), len(target))
    settled = state.revise(
        record,
        replicas=target,
        isr=tuple(sorted(target)),
        min_insync_replicas=minimum,
        adding_replicas=(),
        target_replicas=(),
    )
    _follow_factor(state, topic, len(target))
    return settled


def _follow_factor(state: ClusterImage, topic: TopicRecord, count: int) -> None:
    """Update the topic's replication factor once all its partitions have this many replicas."""
    if count == topic.replication_factor:
        return
    # The last partitions are checked first: mostly they move last.
    names = (TopicPartition(topic.topic_id, number) for number in reversed(range(topic.partition_count)))
    if all(state.partitions[name].replica_count == count for name in names):
        state.put_topic(replace(topic, replication_factor=count))


def _alter(state: ClusterImage, asked: Reassignment) -> Refused | None:
    record = state.partitions.get(asked.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {asked.topic_partition}")
    if record.partition_epoch != asked.partition_epoch:
        return stale_epoch(record, asked.partition_epoch)
    if not asked.target_replicas:
        return _cancel(state, record)
    if record.is_moving and state.feature_level < REPLACEMENT_FEATURE_LEVEL:
        return Refused(
            "reassignment_in_progress",
            f"{record.topic_partition} is being moved: let it complete, or cancel it first; the cluster replaces moves "
            f"that have begun from feature level {REPLACEMENT_FEATURE_LEVEL} on, and is at {state.feature_level}",
        )
    if record.is_moving and asked.target_replicas == record.target_replicas:
        return None
    return _no_target(state, record, asked.target_replicas) or _aim(state, record, asked.target_replicas)


def _cancel(state: ClusterImage, record: PartitionRecord) -> Refused | None:
    if not record.target_replicas:
        return Refused("no_reassignment_in_progress", f"{record.topic_partition} is not being reassigned")
    return _aim(state, record, _without(record.replicas, record.adding_replicas))


def _aim(state: ClusterImage, record: PartitionRecord, target: tuple[BrokerId, ...]) -> Refused | None:
    """Set the target, whatever was in progress.

    Replicas being added that it names continue copying; the others are removed.
    """
    original = _without(record.replicas, record.adding_replicas)
    kept = tuple(broker_id for broker_id in record.adding_replicas if broker_id in target)
    gone = _without(record.adding_replicas, target)
    refused = _cannot_let_go(record, gone)
    if refused is not None:
        return refused
    isr = _without(record.isr, gone)
    if set(target) == set(original):
        if record.target_replicas or target != record.replicas:
            state.revise(record, replicas=target, isr=isr, adding_replicas=(), target_replicas=())
        return None
    aimed = state.revise(record, replicas=original + kept, isr=isr, adding_replicas=kept, target_replicas=target)
    settle(state, aimed)
    return None


def _cannot_let_go(record: PartitionRecord, gone: tuple[BrokerId, ...]) -> Refused | None:
    """Return the refusal if acknowledged records may be on these replicas and on too few others (S1, S6)."""
    if set(gone).isdisjoint((*record.isr, *record.commit_set)):
        return None
    stays = _without(record.replicas, gone)
    if record.leader in stays and len(_without(record.isr, gone)) >= record.min_insync_replicas:
        return None
    return Refused(
        "not_enough_replicas",
        f"{record.topic_partition} is led by {record.leader}, in sync are {record.isr}: to let go {gone}, a leader and "
        f"{record.min_insync_replicas} in-sync replicas are needed among {stays}",
    )


def _no_target(state: ClusterImage, record: PartitionRecord, target: tuple[BrokerId, ...]) -> Refused | None:
    """Return why the replicas cannot be these, or None."""
    topic = state.topics[record.topic_partition.topic_id]
    if len(set(target)) != len(target):
        return Refused("invalid_request", f"{record.topic_partition} needs replicas on different brokers")
    minimum = minimum_for(dict(topic.configs), len(target))
    if minimum > len(target):
        return Refused(
            "invalid_request",
            f"{record.topic_partition} cannot have {len(target)} replicas: min.insync.replicas of topic {topic.name!r} "
            f"is {minimum}, lower that first",
        )
    for broker_id in target:
        if broker_id not in state.brokers:
            return Refused("invalid_request", f"broker {broker_id} is not registered")
        if broker_id not in record.replicas and not is_live(state.brokers, broker_id):
            return Refused("not_eligible", f"broker {broker_id} is fenced: nothing can be moved to it")
    return None


def _begin(state: ClusterImage, move: Move) -> Refused | None:
    record = state.partitions.get(move.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {move.topic_partition}")
    if record.partition_epoch != move.partition_epoch:
        return stale_epoch(record, move.partition_epoch)
    if not record.target_replicas or record.is_moving:
        return Refused("no_reassignment_in_progress", f"{record.topic_partition} has no move that waits")
    if record.topic_partition not in state.adding and len(state.adding) >= MAX_MOVES_UNDER_WAY:
        return Refused("overloaded", f"{MAX_MOVES_UNDER_WAY} partitions are being moved, which is the most")
    adding = tuple(broker_id for broker_id in record.target_replicas if broker_id not in record.replicas)
    for broker_id in adding:
        if not is_live(state.brokers, broker_id):
            return Refused("not_eligible", f"broker {broker_id} is fenced: nothing can be moved to it")
    again = record.has_leader and record.let_go
    state.revise(
        record,
        leader=state.brokers[record.leader] if again else "same",
        replicas=record.replicas + adding,
        adding_replicas=record.adding_replicas + adding,
    )
    return None


def _without(members: tuple[BrokerId, ...], gone: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(member for member in members if member not in gone)


# --- Brokers that go, and the last resort ----------------------------------------------------------------------------


def unregister_broker(state: ClusterImage, command: UnregisterBroker) -> Done | Refused:
    """Remove a broker that nothing depends on. A later process with its id is a new broker."""
    broker = state.brokers.get(command.broker_id)
    if broker is None:
        return Done()
    if broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {command.broker_id} is at incarnation {broker.incarnation}")
    if not broker.fenced:
        return Refused("invalid_request", f"broker {command.broker_id} is alive: stop its node first")
    held = state.replicas_of(command.broker_id)
    awaited = [tp for tp in state.reassigning if command.broker_id in state.partitions[tp].target_replicas]
    if held or awaited:
        return Refused(
            "invalid_request",
            f"broker {command.broker_id} has {len(held)} replicas and is to get {len(awaited)}: drain it first",
        )
    state.remove_broker(broker)
    return Done()


def elect_unclean(state: ClusterImage, command: ElectUnclean) -> Done | Refused:
    """Elect a leader uncleanly: records that the candidate lacks are lost. The record keeps the fact."""
    record = state.partitions.get(command.topic_partition)
    if record is None:
        return Refused("unknown_partition", f"there is no partition {command.topic_partition}")
    if record.partition_epoch != command.partition_epoch:
        return stale_epoch(record, command.partition_epoch)
    broker = state.brokers.get(command.candidate)
    if broker is None or broker.incarnation != command.incarnation or broker.fenced:
        return Refused("stale_incarnation", f"broker {command.candidate} is not live at {command.incarnation}")
    tickets = state.tickets_of(record.topic_partition)
    if record.has_leader:
        return Refused("invalid_request", f"{record.topic_partition} has a leader, broker {record.leader}")
    winners = recovery_winners(record, tickets, state.brokers, state.feature_level)
    if winners or electable(record, state.brokers):
        return Refused("invalid_request", f"{record.topic_partition} can be led without loss: an election is under way")
    if command.candidate not in record.replicas:
        return Refused("not_eligible", f"broker {command.candidate} has no replica of {record.topic_partition}")
    revised = state.revise(
        record,
        leader=broker,
        isr=(command.candidate,),
        tickets=(ticket for ticket in tickets if ticket.broker_id != command.candidate),
        unclean=True,
    )
    settle(state, revised)
    return Done()


def stale_epoch(record: PartitionRecord, named: PartitionEpoch) -> Refused:
    return Refused(
        "stale_partition_epoch", f"{record.topic_partition} is at partition epoch {record.partition_epoch}, not {named}"
    )
