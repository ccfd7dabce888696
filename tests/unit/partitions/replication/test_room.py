"""Low disk space: leaders refuse clients, followers continue down to half of it, and no acknowledged record is lost
(S1).
"""

from __future__ import annotations

from raftlog.errors import DiskFull
from raftlog.ports import Space
from tests.support.partitions.replication_cluster import ReplicationCluster

TOTAL = 100_000
SHORT, VERY_SHORT, ROOMY = 4_999, 2_499, TOTAL
"""A twentieth is reserved for leaders, half of it for followers."""


def free(cluster: ReplicationCluster, number: int, free_bytes: int) -> None:
    room = cluster.members[number].manager.room
    room._reserved = TOTAL
    room.begin_look()
    room.begin_look()  # Everything appended until now is written.
    room.looked(Space(free_bytes, TOTAL))


def test_a_leader_low_on_space_refuses_clients_with_the_remedy() -> None:
    cluster = ReplicationCluster(2)
    free(cluster, 0, SHORT)
    answers = cluster.produce(0)
    cluster.settle()
    (error,) = answers
    assert isinstance(error, DiskFull)
    assert "disk_reserved_bytes" in error.detail
    assert cluster.log_end(0, 0) == (0, 0)
    free(cluster, 0, ROOMY)
    answers = cluster.produce(0)
    cluster.settle()
    assert len(answers) == 1
    assert not isinstance(answers[0], Exception)


def test_a_follower_accepts_its_leaders_batches_down_to_half_of_the_reserve() -> None:
    """Otherwise the last batches would never be committed, and retention could not remove them."""
    cluster = ReplicationCluster(2)
    free(cluster, 1, SHORT)
    answers = cluster.produce(0)
    cluster.settle()
    assert not isinstance(answers[0], Exception)
    assert cluster.log_end(1, 0) == (1, 1)


def test_a_follower_without_space_accepts_nothing_and_catches_up_later() -> None:
    cluster = ReplicationCluster(2)
    free(cluster, 1, VERY_SHORT)
    answers = cluster.produce(0)
    cluster.settle()
    assert answers == []
    assert cluster.log_end(1, 0) == (0, 0)
    free(cluster, 1, ROOMY)
    for _ in range(3):
        cluster.scheduler.advance(1.0)
        cluster.settle()
    assert len(answers) == 1
    assert not isinstance(answers[0], Exception)
    assert cluster.log_end(1, 0) == (1, 1)
