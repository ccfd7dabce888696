"""Both ends of the replication link: merging, credit, fairness, cold data, the handshake."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partitions.driver.driver import PartitionDriver
from partitions.manager import PartitionManager
from partitions.replica.effects import Fate
from partitions.replica.follower import State
from partitions.replication import protocol as rp
from partitions.replication import pushes as replication_pushes
from partitions.replication.pushes import MARKS_SECONDS
from partitions.replication.server import HELLO_SECONDS
from raftlog.config import MAX_PUSHES_IN_FLIGHT, MIB, PUSH_MESSAGE_BYTES
from raftlog.model import Acks, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch, TopicPartition
from tests.support.partitions.replication_cluster import AutoLink, ReplicationCluster, tp
from tests.support.partitions.replication_cores import broker

MANY = 40


def test_one_message_serves_many_partitions_and_one_ack_answers_it() -> None:
    cluster = ReplicationCluster(MANY)
    link = cluster.members[1].links[0]
    before = len(link.acks())
    for partition in range(MANY):
        cluster.produce(0, partition)
    cluster.settle()
    assert [len(frame.entries) for frame, _ in link.other.pushes()] == [MANY]
    acks = link.acks()[before:]
    assert [len(ack.entries) for ack in acks] == [MANY]
    assert acks[0].sequence == 1


def test_a_subscriber_of_replicas_that_open_one_by_one_is_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    driver = PartitionManager.driver

    def counted(self: PartitionManager, topic_partition: TopicPartition) -> PartitionDriver | None:
        nonlocal asked
        asked += 1
        return driver(self, topic_partition)

    monkeypatch.setattr(PartitionManager, "driver", counted)

    class LeaderIsSlow(ReplicationCluster):
        """Each replica that the leader opens is in service before it opens the next."""

        def settle(self) -> None:
            self.scheduler.run()
            for member in reversed(self.members.values()):
                while member.worker.pending:
                    member.worker.run_one()
                    self.scheduler.run()
            super().settle()

    cluster = LeaderIsSlow(MANY)
    assert asked == 2 * MANY, "when it subscribed, and when the leader had it"
    cluster.produce(0, MANY - 1)
    cluster.settle()
    assert cluster.log_end(1, MANY - 1) == (1, 1)


def test_idle_partitions_cost_nothing() -> None:
    cluster = ReplicationCluster(MANY)
    link = cluster.members[1].links[0]
    sent = len(link.sent), len(link.other.sent)
    cluster.produce(0, 7)
    cluster.settle()
    cluster.scheduler.advance(60.0)
    cluster.settle()
    assert (len(link.sent), len(link.other.sent)) == (sent[0] + 2, sent[1] + 2), "data, its marks, two answers"
    assert all(len(frame.entries) == 1 for frame, _ in link.other.pushes())


def test_never_more_pushes_in_flight_than_the_credit_and_none_larger_than_a_push() -> None:
    cluster = ReplicationCluster(4)
    link = cluster.members[1].links[0]
    link.paused = True  # acknowledgements stay in flight
    for _ in range(5):
        for partition in range(4):
            cluster.produce(0, partition, size=300_000)
    cluster.settle()
    assert len(link.other.pushes()) == MAX_PUSHES_IN_FLIGHT
    link.resume()
    cluster.settle()
    assert all(0 < size <= PUSH_MESSAGE_BYTES for _, size in link.other.pushes() if _.entries[0].length)
    assert [cluster.log_end(1, partition) for partition in range(4)] == [(5, 5)] * 4


def test_a_large_batch_is_not_starved_by_small_ones() -> None:
    cluster = ReplicationCluster(3)
    link = cluster.members[1].links[0]
    link.paused = True
    for _ in range(MAX_PUSHES_IN_FLIGHT):
        cluster.produce(0, 0)
        cluster.settle()
    for _ in range(20):
        cluster.produce(0, 0, size=120_000)
        cluster.produce(0, 1, size=120_000)
    cluster.produce(0, 2, size=MIB - 1000)
    link.resume()
    pushed = len(link.other.pushes())
    cluster.settle()
    frames = [frame for frame, _ in link.other.pushes()[pushed:]]
    with_large = [n for n, frame in enumerate(frames) if any(entry.slot == 3 for entry in frame.entries)]
    sizes = [[entry.length for entry in frame.entries] for frame in frames]
    assert cluster.log_end(1, 2) == (1, 1)
    assert with_large[0] <= 2, f"each of the three partitions has its turn: {sizes}"


def test_marks_are_sent_with_data_and_alone_when_there_is_none() -> None:
    cluster = ReplicationCluster(2)
    link = cluster.members[1].links[0].other
    cluster.produce(0, 0)
    cluster.settle()
    cluster.produce(0, 0)
    cluster.settle()
    last = link.pushes()[-1][0].entries[0]
    assert (last.high_watermark, last.length > 0) == (1, True)
    cluster.scheduler.advance(MARKS_SECONDS)
    cluster.settle()
    last = link.pushes()[-1][0].entries[0]
    assert (last.high_watermark, last.length) == (2, 0)
    assert cluster.members[1].manager.drivers[tp(0)].replica.high_watermark == 2


def test_a_follower_that_lags_far_gets_regions_of_files_and_cold_data_from_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication_pushes, "CHECKED_BYTES", 0)
    cluster = ReplicationCluster(3, brokers=2, minimum=1, cache_bytes=0)
    cluster.members[1].links[0].close()
    cluster.settle()
    for _ in range(6):
        for partition in range(3):
            cluster.produce(0, partition, size=400_000, acks=Acks.LEADER)
            cluster.settle()
    leader = cluster.members[0]
    leader.disk.cold = True
    cluster.dial(1, 0)
    cluster.scheduler.run()
    assert 0 < len(leader.worker.pending) <= 2, "few at a time, each holds a push in memory"
    assert cluster.log_end(1) == (0, 0)
    leader.worker.run_one()
    leader.disk.cold = False
    cluster.settle()
    assert [cluster.log_end(1, partition) for partition in range(3)] == [(6, 6)] * 3
    assert cluster.leader_end(1, 0).regions > 0


def test_retention_may_overtake_a_follower_that_is_being_served() -> None:
    cluster = ReplicationCluster(minimum=1, **{"segment.bytes": "1024"})
    cluster.set_isr(0)
    cluster.members[0].proposals[-1][1](Fate.REFUSED)
    link = cluster.members[1].links[0]
    link.paused = True
    for _ in range(MAX_PUSHES_IN_FLIGHT + 3):
        cluster.produce(0, size=2000)
        cluster.settle()
    driver = cluster.members[0].manager.drivers[tp(0)]
    assert driver.replica.high_watermark == MAX_PUSHES_IN_FLIGHT + 3
    driver.move_log_start(Offset(MAX_PUSHES_IN_FLIGHT + 2))
    link.resume()
    cluster.settle()
    log = cluster.members[1].manager.drivers[tp(0)].log
    assert (log.log_start_offset, log.log_end_offset) == (MAX_PUSHES_IN_FLIGHT + 2, MAX_PUSHES_IN_FLIGHT + 3)
    assert link.open


def test_a_partition_without_space_does_not_stop_the_others() -> None:
    """Pushes that wait for its fsync would use the whole credit of the link."""
    cluster = ReplicationCluster(2)
    disk = cluster.members[1].disk
    disk.full_folders = (f"partitions/{tp(0).directory_name}",)
    for _ in range(2 * MAX_PUSHES_IN_FLIGHT):
        cluster.produce(0, 0)
        cluster.scheduler.run()
    cluster.settle()
    for _ in range(3):
        cluster.produce(0, 1)
        cluster.settle()
    assert cluster.log_end(1, 1) == (3, 3)
    disk.full_folders = ()
    for _ in range(3):
        cluster.scheduler.advance(1.0)
        cluster.settle()
    assert cluster.log_end(1, 0) == (4, 4)


def test_a_damaged_batch_of_one_partition_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_pushes, "CHECKED_BYTES", 0)
    cluster = ReplicationCluster(2, minimum=1, cache_bytes=0)
    cluster.members[1].links[0].close()
    cluster.settle()
    cluster.produce(0, 0, size=100, acks=Acks.LEADER)
    cluster.settle()
    folder = f"partitions/{tp(0).directory_name}"
    (name,) = [name for name in cluster.members[0].disk.list(folder) if name.endswith(".log")]
    cluster.members[0].disk.flip(f"{folder}/{name}", 120, 1)
    for _ in range(6):
        cluster.dial(1, 0)
        cluster.produce(0, 1, acks=Acks.LEADER)
        cluster.settle()
    assert cluster.log_end(1, 0) == (0, 0)
    assert cluster.log_end(1, 1)[0] >= 5
    assert any("CRC" in str(fields) for _, fields in cluster.members[1].logger.lines)


# --- The handshake ---


def stranger(cluster: ReplicationCluster) -> AutoLink:
    """A link to broker 0 whose other end does nothing by itself."""

    class Nobody:
        def on_opened(self, link: object) -> None: ...

        def on_message(self, link: object, message: memoryview) -> None: ...

        def on_closed(self, link: object) -> None: ...

    accepted = cluster.members[0].manager.accepted
    here, there = AutoLink(cluster.scheduler, 0, Nobody()), AutoLink(cluster.scheduler, -1, accepted)
    here.other, there.other = there, here
    accepted.on_opened(there)
    return here


HELLO = rp.Hello("tests", 1, 1)
FROM_THE_START = rp.Subscription(1, tp(0).topic_id, 0, 1, -1, 0, 0)


@pytest.mark.parametrize(
    "frames",
    [
        [rp.SubscribeFrame([])],
        [rp.AckFrame(0, [])],
        [rp.Hello("another cluster", 1, 1)],
        [rp.Hello("tests", 0, 1)],
        [rp.Hello("tests", 1, 0)],
        [HELLO, HELLO],
        [HELLO, rp.AckFrame(1, [])],
        [HELLO, rp.SubscribeFrame([rp.Subscription(slot, bytes(16), 0, 1, -1, 0, 0) for slot in (2, 2)])],
        [HELLO, rp.SubscribeFrame([rp.Subscription(1, tp(0).topic_id, 0, 1, -1, 0, 5)])],
        [HELLO, rp.SubscribeFrame([rp.Subscription(1, tp(0).topic_id, 0, 1, -1, 0, 0, 1)])],
        [HELLO, rp.SubscribeFrame([FROM_THE_START]), rp.AckFrame(0, [rp.AckEntry(1, 0, 0, 1)])],
    ],
)
def test_a_peer_that_violates_the_protocol_is_dropped(frames: list[rp.FromFollower]) -> None:
    cluster = ReplicationCluster()
    link = stranger(cluster)
    for frame in frames:
        link.send(rp.encode(frame))
        cluster.scheduler.run()
    assert not link.open


def test_junk_drops_the_link_and_nothing_else() -> None:
    cluster = ReplicationCluster()
    link = stranger(cluster)
    link.send([b"\xff" * 50])
    cluster.settle()
    assert not link.open
    cluster.produce(0)
    cluster.settle()
    assert cluster.log_end(1) == (1, 1)


def test_a_newer_incarnation_than_the_view_shows_waits_for_the_view() -> None:
    cluster = ReplicationCluster()
    link = stranger(cluster)
    link.send(rp.encode(rp.Hello("tests", 1, 2)))
    cluster.settle()
    assert link.open
    assert link.other.sent == []
    cluster.tell(broker(1, 2), to=[0])
    cluster.settle()
    assert rp.decode_from_leader(link.other.sent[0])[0] == rp.Welcome("tests", 0, 1)


def test_a_silent_peer_is_dropped_after_a_while() -> None:
    cluster = ReplicationCluster()
    link = stranger(cluster)
    cluster.scheduler.advance(HELLO_SECONDS - 0.1)
    assert link.open
    cluster.scheduler.advance(0.2)
    assert not link.open


def test_a_dropped_link_is_gone_at_once() -> None:
    """Its last frames may still be in flight, and have no receiver."""
    cluster = ReplicationCluster()
    leader = cluster.members[0].manager
    assert any(line.startswith("from 1@1 slots=1") for line in leader.status())
    cluster.tell(broker(1, 2), to=[0])
    assert not any(line.startswith("from ") for line in leader.status())


def test_a_follower_that_dials_again_replaces_its_old_link() -> None:
    cluster = ReplicationCluster()
    old = cluster.members[1].links[0]
    cluster.dial(1, 0)
    cluster.settle()
    assert not old.open
    cluster.produce(0)
    cluster.settle()
    assert cluster.log_end(1) == (1, 1)


def test_a_leader_in_another_incarnation_than_the_records_is_not_subscribed_to() -> None:
    cluster = ReplicationCluster()
    link = cluster.members[1].links[0]
    later_life = replace(
        cluster.records[0],
        leader_incarnation=Incarnation(2),
        leader_epoch=LeaderEpoch(2),
        partition_epoch=PartitionEpoch(2),
    )
    cluster.tell(later_life, to=[1])
    cluster.settle()
    follower = cluster.members[1].manager.drivers[tp(0)].replica.follower
    assert follower is not None
    assert follower.state is State.DETACHED
    assert link.open
    subscribed = [f for f in map(rp.decode_from_follower, link.sent) if isinstance(f, rp.SubscribeFrame)]
    assert [s.leader_epoch for frame in subscribed for s in frame.subscriptions] == [1]


def test_a_link_without_followed_partitions_is_closed() -> None:
    cluster = ReplicationCluster(2)
    assert BrokerId(0) in cluster.members[1].links
    for partition in range(2):
        cluster.elect(1, partition=partition)
    cluster.settle()
    assert 0 not in cluster.members[1].links
    assert 1 in cluster.members[0].links
    cluster.produce(1, 1)
    cluster.settle()
    assert cluster.log_end(0, 1) == (1, 1)
