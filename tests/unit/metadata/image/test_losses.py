"""A replica for which its broker can no longer vouch: the effect of the report in the quorum (S6, S9)."""

from __future__ import annotations

import pytest

from metadata.commands.replicas import ReportLoss
from metadata.commands.results import Done, IsrAltered
from raftlog.model import NO_BROKER, BrokerId, Incarnation, LeaderEpoch
from tests.support.metadata.cluster import TOPIC, Cluster


def loss(cluster: Cluster, broker: int, *, epoch: int | None = None) -> ReportLoss:
    leader_epoch = cluster.partition.leader_epoch if epoch is None else LeaderEpoch(epoch)
    return ReportLoss(TOPIC, 0, BrokerId(broker), cluster.incarnation(broker), leader_epoch)


def test_a_follower_leaves_the_isr_and_the_leader_starts_another_epoch() -> None:
    cluster = Cluster()
    before = cluster.partition
    assert cluster.do(loss(cluster, 1)) == Done()
    after = cluster.partition
    assert (after.leader, after.leader_incarnation) == (before.leader, before.leader_incarnation)
    assert after.leader_epoch == before.leader_epoch + 1
    assert (after.isr, after.commit_set, after.not_eligible) == ((0, 2), (0, 2), ())


def test_a_leader_loses_its_leadership_and_another_can_lead() -> None:
    cluster = Cluster()
    before = cluster.partition
    assert cluster.do(loss(cluster, 0)) == Done()
    after = cluster.partition
    assert after.leader == NO_BROKER and after.leader_epoch == before.leader_epoch + 1
    assert (after.isr, after.not_eligible) == ((1, 2), (0,))
    assert cluster.elect(0) == "not_eligible"
    cluster.elect(1)
    assert cluster.partition.leader == 1


def test_a_leader_that_does_not_know_yet_cannot_add_it_again() -> None:
    """The leader still believes that the replica has everything; its proposal is of the epoch before (S6)."""
    cluster = Cluster()
    stale = cluster.isr_proposal(0, 1, 2)
    cluster.do(loss(cluster, 1))
    assert cluster.refusal(stale) == "fenced_leader_epoch"
    assert cluster.partition.isr == (0, 2)


def test_the_replica_is_in_sync_again_when_it_is_added_in_a_later_epoch() -> None:
    cluster = Cluster()
    cluster.do(loss(cluster, 1))
    assert isinstance(cluster.do(cluster.isr_proposal(0, 1, 2)), IsrAltered)
    assert (cluster.partition.isr, cluster.partition.not_eligible) == ((0, 1, 2), ())


def test_below_the_minimum_the_replica_is_marked_and_counts_as_empty() -> None:
    cluster = Cluster()
    cluster.fence(2)
    cluster.do(loss(cluster, 1))
    record = cluster.partition
    assert (record.isr, record.commit_set, record.not_eligible) == ((0,), (0, 1), (1,))
    (ticket,) = cluster.image.tickets_of(record.topic_partition)
    assert (ticket.broker_id, ticket.last_epoch, ticket.stable_end_offset) == (1, -1, 0)
    cluster.fence(0)
    assert cluster.elect(1) == "not_eligible"


def test_the_last_copy_is_not_given_up() -> None:
    cluster = Cluster()
    cluster.fence(1)
    cluster.fence(2)
    before = cluster.partition
    assert cluster.refusal(loss(cluster, 0)) == "not_eligible"
    assert cluster.partition == before


def test_a_replica_that_does_not_count_still_ends_the_epoch() -> None:
    """Its leader may be about to add it."""
    cluster = Cluster()
    cluster.do(cluster.isr_proposal(0, 2))
    before = cluster.partition
    pending = cluster.isr_proposal(0, 1, 2)
    assert cluster.do(loss(cluster, 1)) == Done()
    assert cluster.partition.leader_epoch == before.leader_epoch + 1
    assert cluster.refusal(pending) == "fenced_leader_epoch"


def test_a_late_copy_of_the_report_changes_nothing() -> None:
    cluster = Cluster()
    report = loss(cluster, 1)
    cluster.do(report)
    before = cluster.partition
    assert cluster.refusal(report) == "fenced_leader_epoch"
    assert cluster.partition == before


@pytest.mark.parametrize("kind", ["epoch", "incarnation", "stranger"])
def test_a_stale_report_is_refused(kind: str) -> None:
    """S11."""
    cluster = Cluster()
    right = loss(cluster, 1)
    wrong, code = {
        "epoch": (loss(cluster, 1, epoch=right.leader_epoch + 1), "unknown_leader_epoch"),
        "incarnation": (
            ReportLoss(TOPIC, 0, BrokerId(1), Incarnation(right.incarnation + 1), right.leader_epoch),
            "stale_incarnation",
        ),
        "stranger": (
            ReportLoss(TOPIC, 0, BrokerId(3), Incarnation(right.incarnation), right.leader_epoch),
            "unknown_partition",
        ),
    }[kind]
    before = cluster.partition
    assert cluster.refusal(wrong) == code
    assert cluster.partition == before
