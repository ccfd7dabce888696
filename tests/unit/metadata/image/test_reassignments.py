"""The application of reassignments: every step and refusal; no replica with acknowledged records is lost (S1, S6)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.commands.replicas import (
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    Move,
    Reassignment,
    UnregisterBroker,
)
from metadata.commands.results import ReassignmentsAltered
from metadata.records.events import BrokerRemoved
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, PartitionEpoch
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, TP, Cluster, report


def five(*, min_insync_replicas: int = 2) -> Cluster:
    """Five live brokers, and one partition on 0, 1 and 2."""
    cluster = Cluster(0)
    for broker in range(5):
        cluster.restart(broker)
    replicas = (BrokerId(0), BrokerId(1), BrokerId(2))
    cluster.do(CreateTopic("orders", TOPIC, (replicas,), (("min.insync.replicas", str(min_insync_replicas)),)))
    return cluster


def reassign(cluster: Cluster, *target: int, epoch: int | None = None) -> str:
    """Request it; returns the code of the refusal, or ""."""
    at = cluster.partition.partition_epoch if epoch is None else PartitionEpoch(epoch)
    asked = Reassignment(TOPIC, 0, at, tuple(map(BrokerId, target)))
    return only(cluster.apply(AlterReassignments((asked,))))


def begin(cluster: Cluster, epoch: int | None = None) -> str:
    at = cluster.partition.partition_epoch if epoch is None else PartitionEpoch(epoch)
    return only(cluster.apply(BeginMoves((Move(TOPIC, 0, at),))))


def only(result: object) -> str:
    assert isinstance(result, ReassignmentsAltered)
    (refused,) = result.refusals
    return "" if refused is None else refused.code


def moving(*target: int, min_insync_replicas: int = 2) -> Cluster:
    """A reassignment to `target` that has begun."""
    cluster = five(min_insync_replicas=min_insync_replicas)
    assert reassign(cluster, *target) == ""
    assert begin(cluster) == ""
    return cluster


def test_a_move_waits_begins_and_completes_when_its_targets_are_in_sync() -> None:
    cluster = five()
    assert reassign(cluster, 0, 3, 4) == ""
    waiting = cluster.partition
    assert (waiting.replicas, waiting.target_replicas, waiting.is_moving) == ((0, 1, 2), (0, 3, 4), False)
    assert begin(cluster) == ""
    record = cluster.partition
    assert record.replicas == (0, 1, 2, 3, 4)
    assert (record.adding_replicas, record.removing_replicas, record.is_moving) == ((3, 4), (1, 2), True)
    cluster.set_isr(0, 1, 2, 3)
    assert cluster.partition.is_moving
    cluster.do(cluster.isr_proposal(0, 1, 2, 3, 4))
    record = cluster.partition
    assert (record.replicas, record.isr, record.commit_set) == ((0, 3, 4), (0, 3, 4), (0, 3, 4))
    assert (record.leader, record.leader_epoch) == (0, 0), "who leads goes on leading"
    assert (record.adding_replicas, record.target_replicas) == ((), ())
    assert cluster.image.replicas_of(BrokerId(1)) == [] and cluster.image.replicas_of(BrokerId(3)) == [TP]
    assert not cluster.image.reassigning and not cluster.image.moving


def test_a_removed_leader_hands_over_before_it_is_removed() -> None:
    cluster = moving(1, 2, 3)
    cluster.set_isr(0, 1, 2, 3)
    assert cluster.partition.is_moving, "its leader would be no replica"
    assert cluster.elect(3) == ""
    record = cluster.partition
    assert (record.replicas, record.isr, record.leader, record.leader_epoch) == ((1, 2, 3), (1, 2, 3), 3, 1)


def test_a_dead_old_member_does_not_hold_up_a_move() -> None:
    cluster = moving(0, 1, 3)
    cluster.fence(2)
    cluster.do(cluster.isr_proposal(0, 1, 3))
    assert cluster.partition.replicas == (0, 1, 3)


def test_a_target_that_dies_holds_up_a_move_until_it_returns() -> None:
    cluster = moving(0, 1, 3)
    cluster.fence(3)
    assert cluster.refusal(cluster.isr_proposal(0, 1, 2, 3)) == "not_eligible"
    assert cluster.partition.is_moving
    cluster.restart(3, report(0, 0))
    cluster.do(cluster.isr_proposal(0, 1, 2, 3))
    assert cluster.partition.replicas == (0, 1, 3)


def test_every_crash_between_the_steps_leaves_a_partition_that_can_continue() -> None:
    """The leader dies before, during and after the catching up; the reassignment continues under the next one (S10)."""
    for dies_with in ((0, 1, 2), (0, 1, 2, 3)):
        cluster = moving(0, 3, 4)
        if cluster.partition.isr != dies_with:
            cluster.set_isr(*dies_with)
        cluster.fence(0)
        assert cluster.elect(1) == ""
        assert cluster.partition.is_moving
        cluster.restart(0)
        cluster.do(cluster.isr_proposal(0, 1, 2, 3, 4))
        assert cluster.partition.is_moving, "broker 1 leads and goes"
        assert cluster.elect(0) == ""
        assert cluster.partition.replicas == (0, 3, 4)


def test_an_added_member_counts_for_the_commit_set_and_may_be_elected_from_it() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 3)
    assert cluster.partition.commit_set == (0, 3)
    cluster.fence(0)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((3,), (0, 3))
    assert cluster.elect(3) == ""


def test_a_reordering_needs_no_move() -> None:
    cluster = five()
    assert reassign(cluster, 2, 1, 0) == ""
    assert cluster.partition.replicas == (2, 1, 0) and not cluster.image.reassigning
    assert cluster.partition.leader == 0, "handing it to the preferred leader is an election"


def test_a_reordering_waits_for_no_replica() -> None:
    """No replica is added or removed. Waiting for an offline one could take forever, and hold up other moves."""
    cluster = five()
    cluster.fence(2)
    assert reassign(cluster, 2, 1, 0) == ""
    record = cluster.partition
    assert (record.replicas, record.isr, record.target_replicas) == ((2, 1, 0), (0, 1), ())
    assert reassign(cluster, 1, 0, 3) == ""
    assert reassign(cluster, 0, 1, 2) == "", "it takes the place of what waits"
    assert (cluster.partition.replicas, cluster.partition.target_replicas) == ((0, 1, 2), ())


def test_a_replica_added_where_one_was_removed_gets_another_leader_epoch() -> None:
    """The leader may not know of the time in between, in which the replica was deleted (S6), and the replica may not
    know that its leader dropped its state (S10)."""
    cluster = moving(0, 1, 3)
    assert cluster.partition.leader_epoch == 0, "nobody was ever let go"
    assert reassign(cluster) == ""
    late = cluster.isr_proposal(0, 1, 2)
    assert reassign(cluster, 0, 1, 3) == "" and begin(cluster) == ""
    record = cluster.partition
    assert (record.leader, record.leader_incarnation, record.leader_epoch) == (0, cluster.incarnation(0), 1)
    assert cluster.refusal(late) == "fenced_leader_epoch"
    cluster.do(cluster.isr_proposal(0, 1, 2, 3))
    assert (cluster.partition.replicas, cluster.partition.leader_epoch) == ((0, 1, 3), 1), "the end costs no epoch"
    assert reassign(cluster, 0, 1, 2) == "" and begin(cluster) == ""
    assert cluster.partition.leader_epoch == 2, "2 was let go by the move"


def test_an_election_in_between_makes_another_epoch_needless() -> None:
    cluster = moving(0, 1, 3)
    assert reassign(cluster) == ""
    assert cluster.elect(1) == ""
    assert reassign(cluster, 0, 1, 3) == "" and begin(cluster) == ""
    assert cluster.partition.leader_epoch == 1
    cluster = moving(0, 1, 3)
    assert reassign(cluster) == ""
    cluster.fence(0, 1, 2)
    assert reassign(cluster, 0, 1, 3) == "" and begin(cluster) == ""
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (-1, 1), "there is nobody who remembers"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((0,), "invalid_request"),
        ((0, 1, 1), "invalid_request"),
        ((0, 1, 9), "invalid_request"),
        ((0, 1, 4), "not_eligible"),
    ],
)
def test_invalid_targets_are_refused(target: tuple[int, ...], code: str) -> None:
    cluster = five()
    cluster.fence(4)
    before = cluster.partition
    assert reassign(cluster, *target) == code
    assert cluster.partition == before


def test_a_decision_by_a_stale_record_is_refused() -> None:
    cluster = five()
    cluster.set_isr(0, 1)
    assert reassign(cluster, 0, 1, 3, epoch=0) == "stale_partition_epoch"
    assert reassign(cluster, 0, 1, 3) == ""
    assert begin(cluster, epoch=1) == "stale_partition_epoch"
    assert begin(cluster) == ""
    assert begin(cluster) == "no_reassignment_in_progress"
    assert reassign(cluster, 0, 1, 4) == "reassignment_in_progress"


def test_a_waiting_target_can_be_replaced_and_withdrawn() -> None:
    cluster = five()
    assert reassign(cluster, 0, 1, 3) == ""
    assert reassign(cluster, 0, 1, 4) == ""
    assert cluster.partition.target_replicas == (0, 1, 4)
    assert reassign(cluster) == ""
    assert cluster.partition.target_replicas == ()
    assert reassign(cluster) == "no_reassignment_in_progress"
    assert reassign(cluster, 0, 1, 3) == "" and reassign(cluster, 0, 1, 2) == ""
    assert not cluster.image.reassigning


def test_a_cancelled_move_removes_the_added_replicas() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 1, 2, 3)
    assert reassign(cluster) == ""
    record = cluster.partition
    assert (record.replicas, record.isr, record.commit_set) == ((0, 1, 2), (0, 1, 2), (0, 1, 2))
    assert not cluster.image.moving


def test_a_move_is_not_cancelled_if_that_would_leave_too_few() -> None:
    """With 1 and 2 out of sync, records acknowledged since may be on 0 and 3 only (S1)."""
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 3)
    assert reassign(cluster) == "not_enough_replicas"
    cluster.do(cluster.isr_proposal(0, 1, 3))
    assert cluster.elect(3) == ""
    assert reassign(cluster) == "not_enough_replicas", "the leader would go"
    assert cluster.elect(0) == ""
    assert reassign(cluster) == ""
    assert cluster.partition.replicas == (0, 1, 2)


def test_a_move_without_a_leader_is_cancelled_only_if_the_added_never_were_members() -> None:
    cluster = moving(0, 1, 3, min_insync_replicas=1)
    cluster.fence(0, 1, 2)
    assert not cluster.partition.has_leader
    assert reassign(cluster) == ""
    assert cluster.partition.replicas == (0, 1, 2)
    cluster = moving(0, 3, 4, min_insync_replicas=1)
    cluster.set_isr(0, 3)
    cluster.fence(0, 3)
    assert reassign(cluster) == "not_enough_replicas"


def test_deleting_a_topic_ends_its_moves() -> None:
    cluster = moving(0, 3, 4)
    cluster.do(DeleteTopic(TOPIC))
    assert not cluster.image.reassigning and not cluster.image.moving


def test_a_snapshot_keeps_a_move() -> None:
    cluster = moving(0, 3, 4)
    read = decode_snapshot(encode_snapshot(cluster.image))
    assert read.partitions == cluster.image.partitions
    assert (read.reassigning, read.moving) == (cluster.image.reassigning, cluster.image.moving)


def test_a_snapshot_keeps_that_a_replica_was_removed() -> None:
    cluster = moving(0, 1, 3)
    assert reassign(cluster) == ""
    assert cluster.partition.let_go
    assert decode_snapshot(encode_snapshot(cluster.image)).partitions == cluster.image.partitions


def test_moves_in_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.image.reassignments.MAX_MOVES_UNDER_WAY", 0)
    cluster = five()
    assert reassign(cluster, 0, 3, 4) == ""
    assert begin(cluster) == "overloaded"
    assert reassign(cluster, 0, 1) == "", "that copies nothing"
    assert cluster.partition.replicas == (0, 1)


# --- Removal of brokers ----------------------------------------------------------------------------------------------


def test_a_broker_is_unregistered_once_it_has_stopped_and_nothing_depends_on_it() -> None:
    cluster = five()

    def unregister(broker: int) -> UnregisterBroker:
        return UnregisterBroker(BrokerId(broker), cluster.incarnation(broker))

    command = unregister(4)
    assert cluster.refusal(command) == "invalid_request", "it is alive"
    assert reassign(cluster, 0, 1, 4) == ""
    cluster.fence(4)
    assert cluster.refusal(command) == "invalid_request", "a move waits for it"
    assert reassign(cluster) == ""
    cluster.restart(4)
    cluster.fence(4)
    assert cluster.refusal(command) == "stale_incarnation"
    command = unregister(4)
    cluster.do(command)
    assert cluster.events == [BrokerRemoved(BrokerId(4), command.incarnation)]
    assert cluster.view.broker(BrokerId(4)) is None
    cluster.do(command)
    cluster.fence(2)
    assert cluster.refusal(unregister(2)) == "invalid_request", "it has a replica"
    cluster.restart(4)
    assert cluster.view.broker(BrokerId(4)) is not None


# --- The last resort -------------------------------------------------------------------------------------------------


def unclean(cluster: Cluster, candidate: int) -> ElectUnclean:
    epoch = cluster.partition.partition_epoch
    return ElectUnclean(TOPIC, 0, BrokerId(candidate), cluster.incarnation(candidate), epoch)


def test_no_unclean_election_while_a_replica_can_be_elected_without_loss() -> None:
    cluster = five()
    assert cluster.refusal(unclean(cluster, 1)) == "invalid_request", "there is a leader"
    cluster.fence(0)
    assert cluster.refusal(unclean(cluster, 2)) == "invalid_request", "1 and 2 have everything"


def test_an_unclean_election_is_recorded() -> None:
    cluster = five()
    cluster.set_isr(0, 1)
    cluster.fence(0, 1)
    assert cluster.elect(2) == "not_eligible"
    assert cluster.refusal(unclean(cluster, 3)) == "not_eligible", "it has no replica"
    cluster.do(unclean(cluster, 2))
    record = cluster.partition
    assert (record.leader, record.isr, record.unclean_leader_epochs) == (2, (2,), (record.leader_epoch,))
    again = decode_snapshot(encode_snapshot(cluster.image))
    assert again.partitions[TP].unclean_leader_epochs == record.unclean_leader_epochs
    cluster.restart(0)
    cluster.do(cluster.isr_proposal(0, 2))
    assert cluster.partition.commit_set == (0, 2)
    assert cluster.partition.unclean_leader_epochs == record.unclean_leader_epochs


def test_the_record_keeps_only_the_latest_unclean_elections() -> None:
    cluster = five(min_insync_replicas=1)
    for _ in range(10):
        cluster.set_isr(cluster.partition.leader)
        cluster.fence(cluster.partition.leader)
        last = cluster.partition.isr[0]
        cluster.do(unclean(cluster, (last + 1) % 3))
        cluster.restart(last)
    assert len(cluster.partition.unclean_leader_epochs) == 8
    assert cluster.partition.unclean_leader_epochs[-1] == cluster.partition.leader_epoch
