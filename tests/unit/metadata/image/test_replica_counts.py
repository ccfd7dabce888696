"""Reassignments to more or fewer replicas: `min.insync.replicas` never exceeds their number (S1)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AddPartitions, AlterIsr, AlterTopic, CreateTopic
from metadata.commands.fields import IsrMember
from metadata.commands.replicas import AlterReassignments, BeginMoves, Move, Reassignment
from metadata.commands.results import ReassignmentsAltered, Refused
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, PartitionRecord, TopicPartition
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, Cluster


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def topic(*replicas: int, partitions: int = 1, minimum: int | None = None) -> Cluster:
    """Five live brokers and one topic."""
    cluster = Cluster(0)
    for broker in range(5):
        cluster.restart(broker)
    configs = () if minimum is None else (("min.insync.replicas", str(minimum)),)
    cluster.do(CreateTopic("orders", TOPIC, (ids(*replicas),) * partitions, configs))
    return cluster


def record(cluster: Cluster, number: int = 0) -> PartitionRecord:
    return cluster.image.partitions[TopicPartition(TOPIC, number)]


def ask(cluster: Cluster, *target: int, number: int = 0) -> Refused | None:
    asked = Reassignment(TOPIC, number, record(cluster, number).partition_epoch, ids(*target))
    result = cluster.do(AlterReassignments((asked,)))
    assert isinstance(result, ReassignmentsAltered)
    return result.refusals[0]


def move(cluster: Cluster, *target: int, number: int = 0) -> PartitionRecord:
    """Request, begin, catch up; the leader stays."""
    assert ask(cluster, *target, number=number) is None
    if not record(cluster, number).is_moving:
        cluster.do(BeginMoves((Move(TOPIC, number, record(cluster, number).partition_epoch),)))
    now = record(cluster, number)
    if now.is_moving:
        isr = tuple(IsrMember(broker, cluster.incarnation(broker)) for broker in sorted(now.replicas))
        leader = (now.leader, now.leader_incarnation, now.leader_epoch, now.partition_epoch)
        cluster.do(AlterIsr(TOPIC, number, *leader, isr))
    return record(cluster, number)


def factor(cluster: Cluster) -> int:
    return cluster.image.topics[TOPIC].replication_factor


def test_more_replicas_require_a_larger_majority_once_all_are_in_sync() -> None:
    cluster = topic(0, 1, 2)
    assert ask(cluster, 0, 1, 2, 3, 4) is None
    cluster.do(BeginMoves((Move(TOPIC, 0, cluster.partition.partition_epoch),)))
    cluster.set_isr(0, 1, 2, 3)
    assert (cluster.partition.min_insync_replicas, factor(cluster)) == (2, 3), "it is not complete"
    cluster.do(cluster.isr_proposal(0, 1, 2, 3, 4))
    grown = cluster.partition
    assert (grown.replicas, grown.isr, grown.commit_set) == ((0, 1, 2, 3, 4),) * 3
    assert (grown.min_insync_replicas, factor(cluster)) == (3, 5)


def test_fewer_replicas_need_no_copy_and_require_a_smaller_majority() -> None:
    cluster = topic(0, 1, 2)
    assert ask(cluster, 0) is None
    shrunk = cluster.partition
    assert (shrunk.replicas, shrunk.isr, shrunk.commit_set, shrunk.min_insync_replicas) == ((0,), (0,), (0,), 1)
    assert (shrunk.leader, shrunk.leader_epoch, factor(cluster)) == (0, 0, 1)


def test_fewer_replicas_wait_until_the_remaining_ones_are_in_sync_and_lead() -> None:
    cluster = topic(0, 1, 2)
    cluster.set_isr(0, 1)
    assert ask(cluster, 1, 2) is None
    assert cluster.partition.replicas == (0, 1, 2) and cluster.partition.is_moving
    assert cluster.elect(1) == ""
    assert cluster.partition.replicas == (0, 1, 2), "2 lacks records"
    cluster.do(cluster.isr_proposal(0, 1, 2))
    assert (cluster.partition.replicas, cluster.partition.isr) == ((1, 2), (1, 2))


def test_an_explicit_minimum_never_exceeds_the_replicas() -> None:
    cluster = topic(0, 1, 2, minimum=2)
    before = cluster.partition
    refused = ask(cluster, 0)
    assert refused is not None and refused.code == "invalid_request"
    assert "min.insync.replicas of topic 'orders' is 2, lower that first" in refused.detail
    assert cluster.partition == before
    assert move(cluster, 0, 1).min_insync_replicas == 2
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "1"),)))
    assert move(cluster, 0).min_insync_replicas == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_minimum_is_not_raised_above_the_result_of_a_move(begun: bool) -> None:
    cluster = topic(0, 1, 2)
    assert ask(cluster, 3, 4) is None
    if begun:
        cluster.do(BeginMoves((Move(TOPIC, 0, cluster.partition.partition_epoch),)))
    assert cluster.refusal(AlterTopic(TOPIC, (("min.insync.replicas", "3"),))) == "invalid_config"
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "2"),)))
    cluster.do(AlterTopic(TOPIC, (("retention.ms", "1000"),), ("min.insync.replicas",)))
    assert cluster.partition.min_insync_replicas == 2, "a majority of the three that count now"
    assert ask(cluster) is None
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "3"),)))


def test_a_minimum_is_not_raised_above_the_partition_with_the_fewest_replicas() -> None:
    cluster = topic(0, 1, 2, partitions=2)
    assert move(cluster, 0, number=1).replicas == (0,)
    assert cluster.refusal(AlterTopic(TOPIC, (("min.insync.replicas", "2"),))) == "invalid_config"
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "1"),)))
    cluster.do(AlterTopic(TOPIC, (), ("min.insync.replicas",)))
    assert [record(cluster, n).min_insync_replicas for n in (0, 1)] == [2, 1], "a majority each"


def test_the_factor_of_a_topic_is_that_of_all_its_partitions() -> None:
    cluster = topic(0, 1, 2, partitions=3)
    for number in (2, 0):
        move(cluster, 0, 1, number=number)
        assert factor(cluster) == 3, "new partitions get what most have"
    move(cluster, 0, 1, number=1)
    assert factor(cluster) == 2
    cluster.do(AddPartitions(TOPIC, 3, (ids(3, 4),)))
    assert record(cluster, 3).min_insync_replicas == 2
    assert decode_snapshot(encode_snapshot(cluster.image)).topics == cluster.image.topics


def test_a_cancelled_change_leaves_everything_unchanged() -> None:
    cluster = topic(0, 1, 2)
    assert ask(cluster, 0, 1, 2, 3, 4) is None
    cluster.do(BeginMoves((Move(TOPIC, 0, cluster.partition.partition_epoch),)))
    cluster.set_isr(0, 1, 2, 3)
    assert ask(cluster) is None
    left = cluster.partition
    assert (left.replicas, left.isr, left.min_insync_replicas, factor(cluster)) == ((0, 1, 2), (0, 1, 2), 2, 3)
