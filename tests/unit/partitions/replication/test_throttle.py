"""Throttled moves: never above the rates, and no replica that is or may be in sync waits (KIP-73)."""

from __future__ import annotations

import math
from random import Random

import pytest
from msgspec.structs import replace

from partitions.manager import TopicRemoved
from partitions.replication.pushes import THROTTLE_SECONDS
from partitions.replication.throttle import MoveThrottle, TokenBucket
from partitions.view import PartitionView
from raftlog.model import UNTHROTTLED, BrokerId, PartitionEpoch, PartitionRecord, ReplicationThrottle
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster

KB = 1_000
B1, B2 = BrokerId(1), BrokerId(2)


# --- The buckets by themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_over_any_time_no_more_than_the_rate_a_burst_and_one_message(seed: int) -> None:
    random = Random(seed)
    rate, now, bucket = 1000.0, 5.0, TokenBucket(1000.0, 5.0)
    sent: list[tuple[float, int]] = []
    for _ in range(300):
        now += random.choice((0.0, 0.01, 0.05, 3.0))
        if bucket.room(now) >= 1:
            count = random.choice((1, 100, 5000))
            bucket.take(count)
            sent.append((now, count))
    for first, (begin, _) in enumerate(sent):
        total = 0
        for end, count in sent[first:]:
            assert total <= rate * (end - begin + 1) + 1e-6, "before the last one, which may overdraw"
            total += count
    assert sum(count for _, count in sent) > 0.5 * rate * (sent[-1][0] - sent[0][0]) * 0.2


def test_a_debt_is_paid_at_the_current_rate() -> None:
    bucket = TokenBucket(10.0, 0.0)
    bucket.take(1010)
    assert bucket.room(0.0) == -1000
    bucket.change_rate(1000.0, 0.0)
    assert bucket.room(0.9) < 1 <= bucket.room(1.1)
    bucket.change_rate(5.0, 100.0)
    assert bucket.room(100.0) == 5.0, "what was saved is not more than the new rate saves"


def test_a_clock_that_stands_still_gives_nothing() -> None:
    bucket = TokenBucket(10.0, 7.0)
    bucket.take(10)
    assert bucket.room(7.0) == bucket.room(6.0) == 0
    assert bucket.room(8.0) == 10


def test_without_rates_there_is_room_for_everything() -> None:
    throttle = MoveThrottle()
    throttle.update(UNTHROTTLED, {B1: 3}, 0.0)
    throttle.sent(B1, 1 << 40)
    assert throttle.room(B1, 0.0) == math.inf


def test_all_receivers_share_what_is_sent() -> None:
    throttle = MoveThrottle()
    throttle.update(ReplicationThrottle(leader_rate=100), {B1: 1, B2: 1}, 0.0)
    throttle.sent(B1, 60)
    assert throttle.room(B2, 0.0) == 40


def test_all_leaders_share_what_is_received() -> None:
    throttle = MoveThrottle()
    rates = ReplicationThrottle(follower_rate=100)
    throttle.update(rates, {B1: 1, B2: 2}, 0.0)
    assert (throttle.room(B1, 0.0), throttle.room(B2, 0.0)) == (100, 50)
    throttle.sent(B2, 50)
    throttle.update(rates, {B2: 1}, 0.0)
    assert throttle.room(B2, 0.5) == 50, "another leader is done: the whole rate"
    assert throttle.room(B1, 0.0) == math.inf, "nothing is being added there"


def test_the_view_counts_the_senders_to_a_broker_that_is_not_in_sync() -> None:
    cluster = ReplicationCluster(4, brokers=4)
    view = PartitionView()
    view.apply([cluster.topic])
    added = (BrokerId(3),)
    records = [added_to(replace(cluster.records[n], leader=BrokerId(n % 2)), 3) for n in range(3)]
    assert view.apply(records).moves
    assert view.leaders_of_added() == {3: 2}
    leaderless = replace(records[1], leader=BrokerId(-1), partition_epoch=PartitionEpoch(9))
    assert view.apply([leaderless]).moves
    assert view.leaders_of_added() == {3: 1}
    done = replace(records[0], isr=(*records[0].isr, *added))
    assert view.apply([done, replace(records[2], adding_replicas=(), target_replicas=())]).moves
    assert view.leaders_of_added() == {}
    assert not view.apply([cluster.records[3]]).moves
    assert view.apply([TopicRemoved(TOPIC)]).moves
    assert view.leaders_of_added() == {}


# --- On a link -------------------------------------------------------------------------------------------------------


def added_to(record: PartitionRecord, *brokers: int) -> PartitionRecord:
    """The partition while a reassignment is adding these brokers, which are not in sync."""
    adding = tuple(map(BrokerId, brokers))
    isr = tuple(broker for broker in record.replicas if broker not in adding)
    epoch = PartitionEpoch(record.partition_epoch + 1)
    return replace(
        record, partition_epoch=epoch, isr=isr, commit_set=isr, adding_replicas=adding, target_replicas=record.replicas
    )


def moving(
    rates: ReplicationThrottle, count: int, *, size: int = 10 * KB, partitions: int = 1, cold: bool = False
) -> ReplicationCluster:
    """Broker 0 leads, 1 is in sync, 2 is being added to partition 0 and has none of `count` records."""
    cluster = ReplicationCluster(partitions, brokers=3)
    cluster.members[2].links[0].close()
    cluster.settle()
    answers = [cluster.produce(0, size=size) for _ in range(count)]
    cluster.settle()
    cluster.tell(rates, added_to(cluster.records[0], 2))
    cluster.settle()
    assert all(answers), "who is in sync does not wait"
    cluster.members[0].disk.cold = cold
    cluster.dial(2, 0)
    cluster.settle()
    return cluster


def pushed(cluster: ReplicationCluster) -> int:
    """Bytes that broker 0 sent to broker 2."""
    return sum(length for _, length in cluster.leader_end(2, 0).pushes())


def pass_time(cluster: ReplicationCluster, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        cluster.scheduler.advance(0.1)
        cluster.settle()


@pytest.mark.parametrize(
    "rates",
    [ReplicationThrottle(leader_rate=50 * KB), ReplicationThrottle(follower_rate=50 * KB)],
    ids=["leader", "follower"],
)
def test_an_added_replica_gets_its_rate_and_the_others_do_not_wait(rates: ReplicationThrottle) -> None:
    cluster = moving(rates, 40)
    assert 0 < pushed(cluster) <= 75 * KB, "a second's worth, and one batch"
    pass_time(cluster, 4.0)
    assert 180 * KB <= pushed(cluster) <= 275 * KB
    answers = cluster.produce(0, size=10 * KB)
    cluster.settle()
    assert answers and cluster.log_end(1) == (41, 41)
    assert cluster.log_end(2)[0] < 40
    pass_time(cluster, 4.5)
    assert cluster.log_end(2) == (41, 41)


def test_other_partitions_of_the_same_follower_do_not_wait() -> None:
    cluster = moving(ReplicationThrottle(leader_rate=1), 5, partitions=2)
    answers = [cluster.produce(0, 1) for _ in range(5)]
    cluster.settle()
    assert all(answers)
    assert cluster.log_end(2, 1) == (5, 5) and cluster.log_end(2, 0)[0] == 1, "one batch goes, and is paid for"


def test_a_replica_that_may_be_in_the_isr_is_not_throttled() -> None:
    """No acknowledgement waits for the throttle: neither once it is accepted nor while it is proposed."""
    cluster = moving(ReplicationThrottle(leader_rate=1), 1)
    assert cluster.members[0].proposals, "it has all there is, and is proposed"
    answers = cluster.produce(0, size=KB)
    cluster.settle()
    assert answers and cluster.log_end(2) == (2, 2)


def test_a_waiting_replica_continues_as_soon_as_it_is_in_the_isr() -> None:
    cluster = moving(ReplicationThrottle(leader_rate=1), 2)
    assert cluster.log_end(2)[0] == 1
    old = cluster.records[0]
    in_sync = replace(old, partition_epoch=PartitionEpoch(old.partition_epoch + 1), isr=old.replicas)
    cluster.tell(in_sync)
    cluster.scheduler.advance(THROTTLE_SECONDS)
    cluster.settle()
    assert cluster.log_end(2) == (2, 2)


@pytest.mark.parametrize("rates", [UNTHROTTLED, ReplicationThrottle(leader_rate=1 << 40)])
def test_a_new_rate_takes_effect_at_once(rates: ReplicationThrottle) -> None:
    cluster = moving(ReplicationThrottle(leader_rate=1), 5)
    pass_time(cluster, 1.0)
    assert cluster.log_end(2)[0] == 1
    cluster.tell(rates)
    cluster.scheduler.advance(THROTTLE_SECONDS)
    cluster.settle()
    assert cluster.log_end(2) == (5, 5)


def test_a_link_that_breaks_does_not_evade_the_throttle() -> None:
    cluster = moving(ReplicationThrottle(leader_rate=10 * KB), 20)
    for _ in range(5):
        cluster.members[2].links[0].close()
        cluster.settle()
        cluster.dial(2, 0)
        cluster.settle()
    assert cluster.log_end(2)[0] <= 2
    pass_time(cluster, 25.0)
    assert cluster.log_end(2) == (20, 20)


def test_cold_data_is_throttled_too() -> None:
    cluster = moving(ReplicationThrottle(leader_rate=50 * KB), 40, cold=True)
    assert 0 < pushed(cluster) <= 75 * KB
    pass_time(cluster, 9.0)
    assert cluster.log_end(2) == (40, 40)
