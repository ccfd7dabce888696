"""Checks of open transactions: bounded in each turn of the loop, for any number of them and of decisions."""

from __future__ import annotations

import pytest

from partitions.log.producer_replay import ProducerReplay
from partitions.replica import transactions as leader_transactions
from partitions.upkeep import transaction_checks as transaction_looks
from raftlog.errors import DiskFull, RetriableError
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.support.partitions.transaction_logs import key
from tests.unit.partitions.test_manager import depose


def open_in(cluster: ReplicationCluster, partitions: int, each: int) -> None:
    for number in range(each):
        for partition in range(partitions):
            cluster.write(0, key(number), b"x", partition=partition)
    cluster.settle()


def turns(cluster: ReplicationCluster) -> list[int]:
    """The number of verdicts requested in each turn, until nothing is due any more."""
    decisions, found = cluster.members[0].decisions, []
    for _ in range(1000):
        before = decisions.asked
        cluster.scheduler.run()
        if decisions.asked > before:
            found.append(decisions.asked - before)
        if not cluster.members[0].manager.transactions.facts().due:
            return found
        cluster.scheduler.clock.advance(transaction_looks.PAUSE_SECONDS)
    raise AssertionError("never comes to rest")


def test_a_turn_requests_a_bounded_number_of_verdicts_and_the_next_ones_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_looks, "WORK_A_TURN", 20)
    monkeypatch.setattr(leader_transactions, "LOOK_KEYS", 10)
    cluster = ReplicationCluster(4)
    open_in(cluster, partitions=4, each=25)
    turns(cluster)
    cluster.members[0].manager.on_transactions(())
    asked = turns(cluster)
    assert sum(asked) == 100
    assert max(asked) <= 30, "one look more than is allowed in a turn"


def test_decisions_during_a_sweep_cause_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions checked before the decisions arrived may have been decided by them."""
    monkeypatch.setattr(transaction_looks, "WORK_A_TURN", 5)
    monkeypatch.setattr(leader_transactions, "LOOK_KEYS", 5)
    cluster = ReplicationCluster()
    open_in(cluster, partitions=1, each=20)
    turns(cluster)
    manager = cluster.members[0].manager
    manager.on_transactions(())
    cluster.scheduler.run()
    cluster.decide(lambda decisions: decisions.abort(key(0)), to=[0])
    turns(cluster)
    cluster.settle()
    still_open = [one for one, _ in manager.drivers[tp(0)].facts().open_transactions]
    assert key(0) not in still_open and len(still_open) == 19


def test_a_leader_that_reads_its_state_again_checks_afterwards() -> None:
    """S10: elected in the middle of a replay, it would not know that anything is open, and never check."""
    cluster = ReplicationCluster()
    open_in(cluster, partitions=1, each=1)
    log, member = depose(cluster), cluster.members[0]
    (held,) = [one for one in member.worker.pending if isinstance(getattr(one[0], "__self__", None), ProducerReplay)]
    member.worker.pending.remove(held)
    cluster.settle()
    cluster.elect(0)
    cluster.decide(lambda decisions: decisions.abort(key(0)))
    for _ in range(5):
        cluster.scheduler.advance(0.2)
        cluster.settle()
    assert log.producers.stale and cluster.log_end(0) == (1, 1)
    member.worker.pending.append(held)
    cluster.settle()
    assert not log.producers.stale and cluster.log_end(0) == (2, 2)


def test_awaited_markers_are_reported_although_the_disk_was_full() -> None:
    cluster = ReplicationCluster()
    open_in(cluster, partitions=1, each=1)
    driver = cluster.members[0].manager.drivers[tp(0)]
    driver.log.hindered = DiskFull("no room")
    cluster.decide(lambda decisions: decisions.commit(key(1), {tp(0): 0}))
    cluster.settle()
    assert cluster.members[0].markers == [(tp(0), key(1))], "nothing has to be written for that"
    cluster.decide(lambda decisions: decisions.commit(key(0), {tp(0): 1}))
    cluster.settle()
    assert cluster.log_end(0) == (1, 1)
    driver.log.hindered = None
    for _ in range(3):
        cluster.scheduler.advance(0.3)
        cluster.settle()
    assert cluster.log_end(0) == (2, 2)
    assert cluster.members[0].markers[1:] == [(tp(0), key(0))]


def test_decisions_concern_only_partitions_with_open_transactions() -> None:
    cluster = ReplicationCluster(5)
    looks = cluster.members[0].manager.transactions
    for _ in range(3):
        cluster.scheduler.advance(0.2)
        cluster.settle()
    assert looks.facts().watched == ()
    cluster.write(0, key(1), b"x", partition=3)
    cluster.settle()
    assert looks.facts().watched == (tp(3),)
    asked = cluster.members[0].decisions.asked
    cluster.decide(lambda decisions: decisions.abort(key(1)))
    for _ in range(3):
        cluster.settle()
        cluster.scheduler.advance(0.2)
    assert cluster.members[0].decisions.asked == asked + 1
    assert looks.facts().watched == ()


def test_nothing_is_checked_while_the_state_is_read_again_or_the_replica_is_gone() -> None:
    cluster = ReplicationCluster()
    open_in(cluster, partitions=1, each=1)
    driver = cluster.members[0].manager.drivers[tp(0)]
    cluster.decide(lambda decisions: decisions.abort(key(0)), to=[])
    cluster.members[0].decisions.abort(key(0))
    driver.log.producers.stale = True
    assert not driver.look_at_transactions().more
    with pytest.raises(RetriableError, match="rebuilding its transaction state"):
        driver.reads.last_stable_offset(driver.replica.high_watermark)
    assert driver.reads.settled_end == driver.log.log_start_offset, "nothing may go"
    fetch = cluster.fetch(0, 0, isolation=1)
    assert fetch.errors == ["offset_not_available"]
    assert cluster.fetch(0, 0).records == 1, "who reads all of it is not concerned"
    driver.log.producers.stale = False
    driver.close(RetriableError("shutting_down", "the test is over"))
    cluster.members[0].manager.on_transactions([tp(0)])
    assert not driver.look_at_transactions().more
    assert cluster.log_end(0)[0] == 1
