"""A reassignment that replaces another one in progress (KIP-455): the kept replicas, the removed ones, the refusals."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.replicas import REPLACEMENT_FEATURE_LEVEL, Reassignment, ThrottleReassignments
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, PartitionRecord
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, TP, Cluster, report

from .test_reassignments import begin, only, reassign


def seven(*, level: int = FEATURE_LEVEL, min_insync_replicas: int = 2) -> Cluster:
    """Seven live brokers of this version, and one partition on 0, 1 and 2."""
    cluster = Cluster(7, replicas=(0, 1, 2), min_insync_replicas=min_insync_replicas, feature_level=FEATURE_LEVEL)
    cluster.do(SetFeatureLevel(level))
    return cluster


def moving(*target: int, min_insync_replicas: int = 2) -> Cluster:
    """A reassignment to `target` that has begun."""
    cluster = seven(min_insync_replicas=min_insync_replicas)
    assert reassign(cluster, *target) == "" and begin(cluster) == ""
    return cluster


def lists(record: PartitionRecord) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return record.replicas, record.adding_replicas, record.target_replicas


def test_replicas_of_the_new_target_continue_to_copy_and_the_others_are_removed() -> None:
    cluster = moving(0, 3, 4)
    assert reassign(cluster, 0, 3, 5) == ""
    record = cluster.partition
    assert lists(record) == ((0, 1, 2, 3), (3,), (0, 3, 5)), "3 is kept, 4 is gone, 5 waits to be added"
    assert not record.is_moving and record.let_go
    assert TP in cluster.image.adding and TP not in cluster.image.moving
    assert cluster.image.replicas_of(BrokerId(4)) == []
    assert begin(cluster) == ""
    record = cluster.partition
    assert lists(record) == ((0, 1, 2, 3, 5), (3, 5), (0, 3, 5))
    assert record.leader_epoch == 1, "one was let go in the epoch before: everybody matches anew (S6)"
    cluster.do(cluster.isr_proposal(0, 1, 2, 3, 5))
    assert (cluster.partition.replicas, cluster.partition.isr) == ((0, 3, 5), (0, 3, 5))


def test_replicas_that_the_first_move_has_in_sync_stay_in_sync() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 1, 2, 3)
    assert reassign(cluster, 3, 5, 6) == ""
    record = cluster.partition
    assert (record.isr, record.commit_set, record.adding_replicas) == ((0, 1, 2, 3), (0, 1, 2, 3), (3,))
    assert begin(cluster) == ""
    cluster.do(cluster.isr_proposal(0, 1, 2, 3, 5, 6))
    assert cluster.elect(3) == ""
    assert cluster.partition.replicas == (3, 5, 6)


def test_a_target_that_is_already_reached_completes_at_once() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 1, 2, 3)
    assert reassign(cluster, 0, 3) == ""
    record = cluster.partition
    assert (record.replicas, record.isr, record.commit_set, record.target_replicas) == ((0, 3), (0, 3), (0, 3), ())
    assert not cluster.image.reassigning


def test_the_former_replicas_as_a_target_are_a_cancellation() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 1, 2, 3)
    assert reassign(cluster, 2, 1, 0) == ""
    record = cluster.partition
    assert (lists(record), record.isr, record.commit_set) == (((2, 1, 0), (), ()), (0, 1, 2), (0, 1, 2))


def test_the_same_target_again_changes_nothing_and_another_order_only_the_order() -> None:
    cluster = moving(0, 3, 4)
    before = cluster.partition
    assert reassign(cluster, 0, 3, 4) == ""
    assert cluster.partition == before
    assert reassign(cluster, 4, 3, 0) == ""
    assert lists(cluster.partition) == ((0, 1, 2, 3, 4), (3, 4), (4, 3, 0))
    assert not cluster.partition.let_go, "nobody went"


def test_all_current_replicas_as_a_target_add_to_the_former_ones() -> None:
    cluster = moving(0, 1, 3)
    assert reassign(cluster, 0, 1, 2, 3) == ""
    assert lists(cluster.partition) == ((0, 1, 2, 3), (3,), (0, 1, 2, 3)) and cluster.partition.is_moving
    cluster.do(cluster.isr_proposal(0, 1, 2, 3))
    assert lists(cluster.partition) == ((0, 1, 2, 3), (), ())


def test_a_replacement_is_refused_if_it_would_leave_too_few_in_sync() -> None:
    """With 1 and 2 out of sync, records acknowledged since may be on 0 and 3 only (S1, S6)."""
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 3)
    before = cluster.partition
    assert reassign(cluster, 0, 5, 6) == "not_enough_replicas"
    assert cluster.partition == before, "the move goes on as it was"
    assert reassign(cluster, 0, 3, 5) == "", "who has the records stays"
    assert cluster.partition.commit_set == (0, 3)


def test_a_replacement_is_refused_if_it_would_remove_the_leader() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 1, 2, 3)
    assert cluster.elect(3) == ""
    assert reassign(cluster, 0, 4, 5) == "not_enough_replicas"
    assert cluster.elect(0) == ""
    assert reassign(cluster, 0, 4, 5) == ""
    assert (cluster.partition.isr, cluster.partition.adding_replicas) == ((0, 1, 2), (4,))


def test_replicas_that_are_only_in_the_commit_set_are_not_removed_either() -> None:
    cluster = moving(0, 3, 4)
    cluster.set_isr(0, 3)
    cluster.fence(3)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((0,), (0, 3))
    assert reassign(cluster, 0, 4, 5) == "not_enough_replicas"


def test_without_a_leader_only_replicas_that_never_were_members_are_removed() -> None:
    cluster = moving(0, 1, 3, min_insync_replicas=1)
    cluster.fence(0, 1, 2)
    assert reassign(cluster, 0, 1, 4) == ""
    assert lists(cluster.partition) == ((0, 1, 2), (), (0, 1, 4))
    cluster = moving(0, 3, 4, min_insync_replicas=1)
    cluster.set_isr(0, 3)
    cluster.fence(0, 3)
    assert reassign(cluster, 0, 4, 5) == "not_enough_replicas"
    assert reassign(cluster, 0, 3, 5) == ""


@pytest.mark.parametrize(
    ("target", "code"), [((0,), "invalid_request"), ((0, 0, 3), "invalid_request"), ((0, 3, 6), "not_eligible")]
)
def test_an_invalid_target_leaves_the_move_unchanged(target: tuple[int, ...], code: str) -> None:
    cluster = moving(0, 3, 4)
    cluster.fence(6)
    before = cluster.partition
    assert reassign(cluster, *target) == code
    assert cluster.partition == before


def test_an_added_offline_replica_may_be_kept() -> None:
    cluster = moving(0, 3, 4)
    cluster.fence(3)
    assert reassign(cluster, 0, 3, 5) == ""
    assert begin(cluster) == ""
    cluster.restart(3, report(0, 0))
    cluster.do(cluster.isr_proposal(0, 1, 2, 3, 5))
    assert cluster.partition.replicas == (0, 3, 5)


def test_a_queued_move_with_copies_can_be_cancelled_and_replaced_again() -> None:
    cluster = moving(0, 3, 4)
    assert reassign(cluster, 0, 3, 5) == ""
    assert reassign(cluster, 0, 3, 6) == ""
    assert lists(cluster.partition) == ((0, 1, 2, 3), (3,), (0, 3, 6))
    assert reassign(cluster) == ""
    assert lists(cluster.partition) == ((0, 1, 2), (), ())
    assert not cluster.image.adding and not cluster.image.reassigning


def test_a_partition_that_copies_already_has_its_place_among_the_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.image.reassignments.MAX_MOVES_UNDER_WAY", 1)
    cluster = moving(0, 3, 4)
    assert reassign(cluster, 0, 3, 5) == ""
    assert begin(cluster) == ""


def test_a_throttle_of_a_replacement_takes_effect() -> None:
    cluster = moving(0, 3, 4)
    target = (BrokerId(0), BrokerId(3), BrokerId(5))
    asked = Reassignment(TOPIC, 0, cluster.partition.partition_epoch, target)
    assert only(cluster.apply(ThrottleReassignments((asked,), 1_000, None))) == ""
    assert cluster.image.throttle.leader_rate == 1_000
    assert cluster.partition.target_replicas == (0, 3, 5)


def test_a_snapshot_keeps_a_queued_move_with_copies() -> None:
    cluster = moving(0, 3, 4)
    assert reassign(cluster, 0, 3, 5) == ""
    read = decode_snapshot(encode_snapshot(cluster.image))
    assert read.partitions == cluster.image.partitions
    assert (read.reassigning, read.moving, read.adding) == (cluster.image.reassigning, {}, cluster.image.adding)


def test_below_its_feature_level_no_move_in_progress_is_replaced() -> None:
    """A node of an older version would refuse it: all nodes decide alike, by the agreed level (S7)."""
    cluster = seven(level=REPLACEMENT_FEATURE_LEVEL - 1)
    assert reassign(cluster, 0, 3, 4) == "" and begin(cluster) == ""
    before = cluster.partition
    assert reassign(cluster, 0, 3, 5) == "reassignment_in_progress"
    assert cluster.partition == before
    cluster.do(SetFeatureLevel(REPLACEMENT_FEATURE_LEVEL))
    assert reassign(cluster, 0, 3, 5) == ""
