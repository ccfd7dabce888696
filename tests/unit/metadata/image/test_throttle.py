"""A throttle is set with a move, applies to all moves, and ends in the command by which the last one ends."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.commands.envelope import encode
from metadata.commands.replicas import AlterReassignments, BeginMoves, Move, Reassignment, ThrottleReassignments
from metadata.commands.results import ReassignmentsAltered
from metadata.records.events import ThrottleChanged
from metadata.snapshot.encoder import encode_snapshot
from raftlog.errors import InvalidRequest
from raftlog.model import UNTHROTTLED, BrokerId, ReplicationThrottle, TopicPartition
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC, Cluster

SLOW = ReplicationThrottle(leader_rate=100, follower_rate=50)


def cluster_of(partitions: int = 2) -> Cluster:
    cluster = Cluster(0)
    for broker in range(5):
        cluster.restart(broker)
    cluster.do(CreateTopic("orders", TOPIC, (tuple(map(BrokerId, (0, 1, 2))),) * partitions))
    return cluster


def to(cluster: Cluster, *target: int, number: int = 0) -> Reassignment:
    epoch = cluster.image.partitions[TopicPartition(TOPIC, number)].partition_epoch
    return Reassignment(TOPIC, number, epoch, tuple(map(BrokerId, target)))


def ask(cluster: Cluster, *asked: Reassignment, throttle: ReplicationThrottle = SLOW) -> list[str]:
    result = cluster.do(ThrottleReassignments(asked, throttle.leader_rate, throttle.follower_rate))
    assert isinstance(result, ReassignmentsAltered)
    return ["" if refused is None else refused.code for refused in result.refusals]


def test_it_is_set_with_a_move_and_removed_with_the_last() -> None:
    cluster = cluster_of()
    assert ask(cluster, to(cluster, 0, 1, 3), to(cluster, 0, 1, 4, number=1)) == ["", ""]
    assert cluster.image.throttle == cluster.view.throttle == SLOW
    assert ThrottleChanged(SLOW) in cluster.events
    cluster.do(AlterReassignments((to(cluster, number=1),)))
    assert cluster.image.throttle == SLOW, "another move is left"
    cluster.do(BeginMoves((Move(TOPIC, 0, cluster.partition.partition_epoch),)))
    cluster.do(cluster.isr_proposal(0, 1, 2, 3))
    assert cluster.image.throttle == cluster.view.throttle == UNTHROTTLED
    assert cluster.events[-1] == ThrottleChanged(UNTHROTTLED)


def test_it_ends_with_a_cancelled_move_and_with_a_deleted_topic() -> None:
    cluster = cluster_of()
    ask(cluster, to(cluster, 0, 1, 3))
    cluster.do(AlterReassignments((to(cluster),)))
    assert cluster.image.throttle == UNTHROTTLED
    ask(cluster, to(cluster, 0, 1, 3))
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.image.throttle == UNTHROTTLED


def test_without_a_move_there_is_none() -> None:
    cluster = cluster_of()
    assert ask(cluster) == [] and cluster.image.throttle == UNTHROTTLED
    assert ask(cluster, to(cluster, 0, 1, 9)) == ["invalid_request"] and cluster.image.throttle == UNTHROTTLED
    assert ask(cluster, to(cluster, 2, 1, 0)) == [""] and cluster.image.throttle == UNTHROTTLED, "nothing is copied"


def test_it_can_be_changed_and_lifted_while_moves_continue() -> None:
    cluster = cluster_of()
    cluster.do(AlterReassignments((to(cluster, 0, 1, 3),)))
    assert ask(cluster) == [] and cluster.image.throttle == SLOW
    faster = ReplicationThrottle(leader_rate=1000)
    assert ask(cluster, to(cluster, 0, 1, 9, number=1), throttle=faster) == ["invalid_request"]
    assert cluster.image.throttle == SLOW, "whoever is refused changes nothing"
    assert ask(cluster, to(cluster, 0, 1, 4, number=1), throttle=faster) == [""] and cluster.image.throttle == faster
    assert ask(cluster, throttle=UNTHROTTLED) == [] and cluster.image.throttle == UNTHROTTLED


def test_a_plain_reassignment_leaves_it_unchanged() -> None:
    cluster = cluster_of()
    ask(cluster, to(cluster, 0, 1, 3))
    cluster.do(AlterReassignments((to(cluster, 0, 1, 3, number=1),)))
    assert cluster.image.throttle == SLOW


def test_a_snapshot_keeps_it_and_a_follower_receives_it() -> None:
    cluster = cluster_of()
    before = decode_snapshot(encode_snapshot(cluster.image))
    ask(cluster, to(cluster, 0, 1, 3))
    read = decode_snapshot(encode_snapshot(cluster.image))
    assert read.throttle == SLOW and diff(cluster.image, read) == []
    assert ThrottleChanged(SLOW) in diff(before, read)
    assert ThrottleChanged(UNTHROTTLED) in diff(read, before)


@pytest.mark.parametrize("rate", [0, -1, 2**62 + 1])
def test_invalid_rates_never_enter_the_log(rate: int) -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        encode(ThrottleReassignments((), rate, None))
