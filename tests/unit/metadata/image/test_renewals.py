"""A leader that continues in a new epoch after a reset: the effect in the quorum (S4, S5)."""

from __future__ import annotations

import pytest

from metadata.commands.replicas import RenewLeadership
from metadata.commands.results import Done
from raftlog.model import BrokerId, Incarnation, LeaderEpoch
from tests.support.metadata.cluster import TOPIC, Cluster


def renewal(cluster: Cluster, broker: int, *, epoch: int = 0, incarnation: int = 0) -> RenewLeadership:
    own = Incarnation(cluster.incarnation(broker) + incarnation)
    return RenewLeadership(TOPIC, 0, BrokerId(broker), own, LeaderEpoch(cluster.partition.leader_epoch + epoch))


def test_it_leads_in_the_next_epoch_and_nothing_else_changes() -> None:
    cluster = Cluster()
    before = cluster.partition
    assert cluster.do(renewal(cluster, 0)) == Done()
    after = cluster.partition
    assert (after.leader, after.leader_incarnation) == (before.leader, before.leader_incarnation)
    assert after.leader_epoch == before.leader_epoch + 1
    assert (after.isr, after.commit_set, after.not_eligible) == (before.isr, before.commit_set, before.not_eligible)


@pytest.mark.parametrize(
    ("broker", "options", "code"),
    [
        (1, {}, "not_leader"),
        (0, {"incarnation": 1}, "stale_incarnation"),
        (0, {"epoch": -1}, "fenced_leader_epoch"),
        (0, {"epoch": 1}, "unknown_leader_epoch"),
    ],
)
def test_no_other_broker_and_at_no_other_time(broker: int, options: dict[str, int], code: str) -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.elect(0)
    before = cluster.partition
    assert cluster.refusal(renewal(cluster, broker, **options)) == code
    assert cluster.partition == before


def test_a_duplicate_counts_once() -> None:
    cluster = Cluster()
    command = renewal(cluster, 0)
    cluster.do(command)
    assert cluster.refusal(command) == "fenced_leader_epoch"
