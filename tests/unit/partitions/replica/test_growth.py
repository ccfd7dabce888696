"""The ISR grows again once its members are complete, whatever happened: no chance is missed permanently (S10)."""

from __future__ import annotations

from partitions.replica.effects import Fate
from tests.support.partitions.replication_cluster import ReplicationCluster
from tests.support.partitions.replication_cores import broker


def settle_all_but(cluster: ReplicationCluster, held: int) -> None:
    """Deliver messages and run disks, except one broker's disk."""
    for _ in range(1_000):
        moved = cluster.scheduler.run()
        for number, member in cluster.members.items():
            while number != held and member.worker.pending:
                member.worker.run_one()
                moved += 1
        if not moved:
            return
    raise AssertionError("never comes to rest")


def proposed(cluster: ReplicationCluster) -> list[list[int]]:
    """The ISRs that the leader, broker 0, has proposed."""
    return [[int(member) for member, _ in proposal.isr] for proposal, _ in cluster.members[0].proposals]


def test_a_follower_that_catches_up_just_after_a_refusal_is_proposed_later() -> None:
    """Between a refusal and the next proposal there is a pause. The partition is idle, and no other event follows."""
    cluster = ReplicationCluster(brokers=3)
    answers = cluster.produce(0)
    settle_all_but(cluster, 2)
    cluster.set_isr(0, 1)
    settle_all_but(cluster, 2)
    assert len(answers) == 1 and proposed(cluster) == []
    cluster.tell(broker(1, fenced=True))
    cluster.tell(broker(1))
    ((_, answer),) = cluster.members[0].proposals
    answer(Fate.REFUSED)
    cluster.scheduler.advance(0.15)
    settle_all_but(cluster, 2)
    assert proposed(cluster) == [[0]], "nothing to propose, and nothing to wait for"
    cluster.settle()
    cluster.scheduler.advance(0.5)
    cluster.settle()
    assert proposed(cluster) == [[0], [0, 1, 2]]
