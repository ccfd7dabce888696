"""`delete-records`: its range, the time of its answer, and that it stays deleted (S1, S2, S6)."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.driver.requests import Deleted
from partitions.replica import effects as fx
from partitions.replica.deletions import MAX_WAITING
from raftlog.errors import Applied, RaftlogError
from raftlog.model import NO_PRODUCER_ID, Acks, BrokerId, Incarnation, LeaderEpoch, Offset
from raftlog.records.batch import encode
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.support.partitions.replication_cores import CoreDriver, FakeLog, broker, isr_of, record

REQUEST = fx.RequestId(100)


def leading(end: int = 10, *, isr: tuple[int, ...] = (0, 1, 2)) -> CoreDriver:
    """A leader whose log every member of the ISR has."""
    core = CoreDriver(FakeLog.of((1, end)))
    core.lead(epoch=1, isr=isr)
    for follower in isr[1:]:
        core.subscribe(follower, last_epoch=1, end=end)
    return core


def delete(core: CoreDriver, before: int, request: fx.RequestId = REQUEST) -> list[fx.Effect]:
    return core.do(core.replica.delete_records(request, Offset(before)))


def start_at(core: CoreDriver, follower: int, start: int, *, epoch: int = 1, incarnation: int = 1) -> list[fx.Effect]:
    return core.do(
        core.replica.on_follower_start(BrokerId(follower), Incarnation(incarnation), LeaderEpoch(epoch), Offset(start))
    )


def deleted(core: CoreDriver) -> list[tuple[int, int]]:
    return [(e.request, e.log_start_offset) for e in core.out if isinstance(e, fx.RecordsDeleted)]


class TestTheCore:
    def test_it_is_answered_when_every_member_of_the_isr_has_it_on_disk(self) -> None:
        core = leading()
        assert delete(core, 4) == [fx.AdvanceLogStart(Offset(4))]
        assert core.log.log_start_offset == 4
        start_at(core, 1, 4)
        core.fsync()
        assert deleted(core) == []
        start_at(core, 2, 3)
        assert deleted(core) == []
        start_at(core, 2, 4)
        assert deleted(core) == [(REQUEST, 4)]

    def test_it_never_deletes_beyond_the_readable_end(self) -> None:
        core = leading()
        core.produce(count=5)
        core.log.fsync()
        (refused,) = delete(core, 11)
        assert isinstance(refused, fx.Reject)
        assert (refused.error.code, refused.error.applied) == ("offset_out_of_range", Applied.NO)
        assert "11" in refused.error.detail and "[0, 10]" in refused.error.detail
        assert delete(core, -1) == [fx.AdvanceLogStart(Offset(10))]
        assert [e.error.code for e in delete(core, -2) if isinstance(e, fx.Reject)] == ["offset_out_of_range"]

    def test_a_leader_that_must_not_show_its_high_watermark_deletes_nothing(self) -> None:
        core = CoreDriver(FakeLog.of((1, 10)))
        core.lead(epoch=2)
        (refused,) = delete(core, -1)
        assert isinstance(refused, fx.Reject) and refused.error.code == "offset_not_available"

    def test_an_earlier_deletion_is_confirmed_again(self) -> None:
        core = leading()
        delete(core, 4)
        core.fsync()
        start_at(core, 1, 4)
        start_at(core, 2, 4)
        again = [*delete(core, 2, fx.RequestId(101)), *core.do(core.replica.on_log_start())]
        assert again == [fx.RecordsDeleted(fx.RequestId(101), Offset(4))]
        assert core.log.log_start_offset == 4

    def test_below_the_minimum_nothing_is_promised(self) -> None:
        core = leading(isr=(0, 1))
        delete(core, 4)
        core.do(core.replica.on_record(record(isr=(0,), partition_epoch=2), core.now))
        core.fsync()
        assert deleted(core) == [], "broker 1 is of the commit set and may lead next"
        refused = delete(core, 5, fx.RequestId(101))
        assert [e.error.code for e in refused if isinstance(e, fx.Reject)] == ["not_enough_replicas"]
        core.do(core.replica.on_record(record(isr=(0, 1), partition_epoch=3), core.now))
        assert deleted(core) == []
        start_at(core, 1, 4)
        assert deleted(core) == [(REQUEST, 4)]

    def test_a_replica_that_joins_the_isr_has_the_promised_start(self) -> None:
        """S6: otherwise it could lead next and show deleted records again."""
        core = leading(isr=(0, 1))
        core.out.clear()
        delete(core, 4)
        core.fsync()
        start_at(core, 1, 4)
        assert deleted(core) == [(REQUEST, 4)]
        core.subscribe(2, last_epoch=1, end=10)
        assert core.proposals() == []
        start_at(core, 2, 4)
        core.report(2, 10)
        assert [isr_of(e) for e in core.proposals()] == [[0, 1, 2]]

    def test_a_new_leader_keeps_what_its_predecessors_may_have_promised(self) -> None:
        core = CoreDriver(FakeLog.of((1, 10), start=4))
        core.lead(epoch=2, isr=(0, 1))
        core.subscribe(2, last_epoch=1, end=10)
        assert core.proposals() == []
        start_at(core, 2, 4, epoch=2)
        core.report(2, 10)
        assert [isr_of(e) for e in core.proposals()] == [[0, 1, 2]]

    def test_an_acknowledgement_of_another_incarnation_or_epoch_is_ignored(self) -> None:
        core = leading()
        delete(core, 4)
        core.fsync()
        start_at(core, 1, 4)
        start_at(core, 2, 4, incarnation=2)
        start_at(core, 2, 4, epoch=0)
        assert deleted(core) == []

    def test_the_outcome_is_unknown_when_the_leadership_ends(self) -> None:
        core = leading()
        delete(core, 4)
        ended = core.do(core.replica.on_record(record(leader=1, epoch=2, partition_epoch=2), core.now))
        (refused,) = [e for e in ended if isinstance(e, fx.Reject)]
        assert (refused.error.code, refused.error.applied) == ("leadership_lost", Applied.UNKNOWN)
        (elsewhere,) = delete(core, 4)
        assert isinstance(elsewhere, fx.Reject) and elsewhere.error.code == "not_leader"

    def test_waiting_requests_are_bounded(self) -> None:
        core = leading()
        for number in range(MAX_WAITING):
            delete(core, 4, fx.RequestId(number))
        (refused,) = delete(core, 4, fx.RequestId(MAX_WAITING))
        assert isinstance(refused, fx.Reject) and refused.error.code == "overloaded"

    def test_a_follower_that_must_start_again_begins_with_a_whole_batch(self) -> None:
        core = CoreDriver(FakeLog.of((1, 10), start=5))
        core.log.batch_bases = (0, 3, 8)
        core.lead(epoch=2)
        core.subscribe(1, last_epoch=-1, end=0)
        assert core.last_answer() == fx.StartAt(Offset(3), NO_PRODUCER_ID)
        core.subscribe(1, last_epoch=-1, end=3)
        assert core.last_answer() == fx.Matched(Offset(5), Offset(5))


def ask(cluster: ReplicationCluster, before: int, *, number: int = 0, timeout_ms: int = 1000) -> list[Any]:
    answers: list[Any] = []
    driver = cluster.members[number].manager.driver(tp(0))
    assert driver is not None
    driver.delete_records(Offset(before), answers.append, timeout_ms)
    return answers


def pass_time(cluster: ReplicationCluster) -> None:
    """Run disks, and send marks alone."""
    for _ in range(3):
        cluster.settle()
        cluster.scheduler.advance(0.1)
    cluster.settle()


def starts(cluster: ReplicationCluster) -> list[tuple[int, int]]:
    """The start of each broker's log, and its start on disk."""
    found = []
    for member in cluster.members.values():
        driver = member.manager.driver(tp(0))
        assert driver is not None
        found.append((driver.log.log_start_offset, driver.log.stable_start_offset))
    return found


class TestReplicas:
    def test_all_replicas_begin_there_when_it_is_answered(self) -> None:
        cluster = ReplicationCluster(brokers=3)
        for _ in range(5):
            cluster.produce(0)
        cluster.settle()
        answers = ask(cluster, 3)
        assert answers == []
        pass_time(cluster)
        assert answers == [Deleted(Offset(3))]
        assert starts(cluster) == [(3, 3)] * 3
        (refused,) = cluster.fetch(0, 2).answers or ()
        assert refused.error == "offset_out_of_range" and "[3, 5]" in refused.detail
        assert cluster.fetch(0, 3).records == 2

    def test_the_answered_start_is_on_every_disk_and_not_only_on_the_leaders(self) -> None:
        """S1: the leader's own start is further by then, and a successor would not have it."""
        cluster = ReplicationCluster()
        for _ in range(5):
            cluster.produce(0)
        cluster.settle()
        to_leader = cluster.members[1].links[0]
        to_leader.paused = True
        answers = ask(cluster, 2)
        pass_time(cluster)
        assert answers == [] and starts(cluster) == [(2, 2), (2, 2)]
        cluster.leader_end(1, 0).paused = True
        driver = cluster.members[0].manager.driver(tp(0))
        assert driver is not None
        driver.move_log_start(Offset(4))
        to_leader.resume()
        pass_time(cluster)
        assert starts(cluster) == [(4, 4), (2, 2)]
        assert answers == [Deleted(Offset(2))]

    def test_the_answer_waits_for_a_follower_and_reports_a_timeout(self) -> None:
        cluster = ReplicationCluster()
        cluster.produce(0)
        cluster.settle()
        cluster.leader_end(1, 0).paused = True
        answers = ask(cluster, 1, timeout_ms=500)
        cluster.scheduler.advance(0.3)
        assert answers == []
        cluster.scheduler.advance(0.4)
        (late,) = answers
        assert isinstance(late, RaftlogError)
        assert (late.code, late.applied) == ("request_timed_out", Applied.UNKNOWN)

    def test_a_new_leader_begins_at_its_predecessors_start(self) -> None:
        cluster = ReplicationCluster(brokers=3)
        for _ in range(4):
            cluster.produce(0)
        cluster.settle()
        answers = ask(cluster, 2)
        pass_time(cluster)
        assert answers == [Deleted(Offset(2))]
        cluster.elect(1)
        cluster.settle()
        assert cluster.fetch(1, 1).errors == ["offset_out_of_range"]
        assert cluster.fetch(1, 2).records == 2

    def test_an_empty_follower_copies_a_log_that_begins_inside_a_batch(self) -> None:
        cluster = ReplicationCluster(brokers=3)
        cluster.tell(broker(2, fenced=True))
        cluster.set_isr(0, 1)
        cluster.members[2].links[0].close()
        for _ in range(3):
            batch = encode([b"v"] * 4, base_timestamp_ms=0)
            cluster.members[0].manager.produce(tp(0), batch, Acks.ALL, lambda answer: None)
        cluster.settle()
        answers = ask(cluster, 6)
        pass_time(cluster)
        assert answers == [Deleted(Offset(6))]
        cluster.tell(broker(2))
        cluster.dial(2, 0)
        pass_time(cluster)
        follower = cluster.members[2].manager.driver(tp(0))
        assert follower is not None
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (6, 12)
        assert follower.log.stable_start_offset == 6


@pytest.mark.parametrize("number", [1, 2])
def test_a_broker_that_does_not_lead_names_the_leader(number: int) -> None:
    cluster = ReplicationCluster(brokers=3)
    (refused,) = ask(cluster, 0, number=number)
    assert (refused.code, refused.leader) == ("not_leader", 0)
