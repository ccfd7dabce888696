"""The partition manager: produce requests, created and deleted topics, folders, stopping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from partitions.driver.driver import PartitionDriver
from partitions.files.checkpoint import FLUSH_OS_NAME
from partitions.log.log import PartitionLog
from partitions.log.producer_replay import ProducerReplay
from partitions.manager import Produced, TopicRemoved
from partitions.opening.folders import folder_of, parse_folder_name
from raftlog.config import MIB
from raftlog.errors import Applied, RaftlogError
from raftlog.model import Acks, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch, TopicId, TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import FetchPartition, FoundOffset
from tests.support.partitions.replication_cluster import TOPIC, ColdDisk, ReplicationCluster, tp
from tests.support.partitions.replication_cores import broker


def code(answers: list[Any]) -> str:
    (answer,) = answers
    return answer.code if isinstance(answer, RaftlogError) else "ok"


# --- Produce ---


def test_answers_of_a_produce() -> None:
    cluster = ReplicationCluster()
    first = cluster.produce(0)
    cluster.settle()
    assert first == [Produced(0, -1, 0)]
    assert code(cluster.produce(1)) == "not_leader"
    assert cluster.produce(1)[0].leader == 0
    assert code(cluster.produce(0, 5)) == "unknown_partition"
    elsewhere: list[Any] = []
    other = TopicPartition(TopicId(bytes(16)), 0)
    cluster.members[0].manager.produce(other, b"", Acks.ALL, elsewhere.append)
    assert code(elsewhere) == "unknown_topic"


def test_log_append_time_is_the_leaders() -> None:
    cluster = ReplicationCluster(**{"message.timestamp.type": "LogAppendTime"})
    now = cluster.scheduler.clock.wall_ms()
    answers = cluster.produce(0, timestamp=5)
    cluster.settle()
    assert answers == [Produced(0, now, 0)]
    found: list[FoundOffset] = []
    cluster.members[0].manager.find_offset(tp(0), now, found.append)
    cluster.settle()
    assert (found[0].offset, found[0].timestamp_ms) == (0, now)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (b"", "corrupt_batch"),
        (b"x" * 200, "corrupt_batch"),
        (encode([b"x"], base_timestamp_ms=0)[:-1], "corrupt_batch"),
        (encode([b"x"], base_timestamp_ms=0, transactional=True), "corrupt_batch"),  # of no producer
        (encode([bytes(2 * MIB)], base_timestamp_ms=0), "batch_too_large"),
        (encode([b"x"], base_timestamp_ms=2_000_000_000_000), "timestamp_out_of_range"),
        (encode([b"x"], base_timestamp_ms=0, producer_id=1, producer_epoch=0, base_sequence=-1), "corrupt_batch"),
    ],
    ids=["empty", "noise", "cut", "transactional", "too large", "from the future", "without sequence"],
)
def test_bad_input_changes_nothing_and_names_the_reason(batch: bytes, expected: str) -> None:
    """S11."""
    cluster = ReplicationCluster()
    answers: list[Any] = []
    cluster.members[0].manager.produce(tp(0), batch, Acks.ALL, answers.append)
    assert code(answers) == expected
    assert answers[0].applied is Applied.NO
    assert cluster.log_end(0) == (0, 0)


def test_a_produce_that_takes_too_long_has_an_unknown_outcome_and_is_answered_once() -> None:
    cluster = ReplicationCluster()
    cluster.members[1].links[0].close()
    answers = cluster.produce(0, timeout_ms=500)
    cluster.settle()
    cluster.scheduler.advance(0.4)
    assert answers == []
    cluster.scheduler.advance(0.3)
    assert code(answers) == "request_timed_out"
    assert answers[0].applied is Applied.UNKNOWN
    cluster.dial(1, 0)
    cluster.settle()
    assert len(answers) == 1
    assert cluster.fetch(0, 0).records == 1, "it was replicated after all"


def test_time_goes_on_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ReplicationCluster()
    cluster.leader_end(1, 0).paused = True
    answers = cluster.produce(0, timeout_ms=1000)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionDriver, "on_tick", lambda self, now: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cluster.scheduler.advance(0.15)
    cluster.scheduler.advance(1.5)
    assert [answer.code for answer in answers] == ["request_timed_out"]


def test_a_callback_may_produce_at_once() -> None:
    cluster = ReplicationCluster()
    answers: list[Any] = []

    def again(answer: Any) -> None:
        answers.append(answer)
        if len(answers) < 5:
            batch = encode([b"x"], base_timestamp_ms=0)
            cluster.members[0].manager.produce(tp(0), batch, Acks.NONE, again)

    again(None)
    cluster.settle()
    assert [answer.base_offset for answer in answers[1:]] == [0, 1, 2, 3]


def test_an_unregistered_broker_answers_nothing() -> None:
    cluster = ReplicationCluster()
    newcomer = cluster.start(2)
    newcomer.manager.on_metadata([broker(2, 0), cluster.topic, *cluster.records.values()])
    assert not newcomer.manager.active
    assert code(cluster.produce(2)) == "leader_not_available"
    assert cluster.fetch(2, 0).errors == ["leader_not_available"]
    newcomer.manager.on_metadata([broker(2, 1)])
    assert newcomer.manager.active
    assert code(cluster.produce(2)) == "not_leader"


def test_a_partition_that_is_known_before_its_topic_waits_for_it() -> None:
    """No replica can be opened without its topic's settings."""
    cluster = ReplicationCluster()
    late = TopicId(b"a-topic-told-now")
    partition = TopicPartition(late, 0)
    manager = cluster.members[0].manager
    manager.on_metadata([msgspec.structs.replace(cluster.records[0], topic_partition=partition)])
    cluster.settle()
    assert partition not in manager.drivers
    manager.on_metadata([replace(cluster.topic, topic_id=late, name="late")])
    cluster.settle()
    assert manager.drivers[partition].name == "late/0"
    assert cluster.fetch(0, 0).errors == [""], "the others are served throughout"


def test_a_process_whose_name_was_taken_stops_serving() -> None:
    cluster = ReplicationCluster()
    waiting = cluster.produce(0)
    cluster.tell(broker(0, 2), to=[0])
    assert code(waiting) == "leadership_lost"
    assert not cluster.members[0].manager.active
    assert cluster.members[0].manager.drivers == {}
    cluster.settle()
    assert code(cluster.produce(0)) == "leader_not_available"


# --- Topics, folders, stopping ---


def test_folder_names_are_read_strictly() -> None:
    assert parse_folder_name(tp(12).directory_name) == tp(12)
    for name in ("", "x-1", "lost+found", tp(1).directory_name + "x", TOPIC.hex() + "-01", TOPIC.hex().upper() + "-1"):
        assert parse_folder_name(name) is None


def test_removing_a_topic_with_answers_and_regions_in_flight() -> None:
    cluster = ReplicationCluster(cache_bytes=0)
    cluster.produce(0, size=1000)
    cluster.settle()
    kept: list[Any] = []
    cluster.members[0].manager.fetch(
        [fetch_partition(0)], lambda answers, parts: kept.extend(parts), min_bytes=1, max_bytes=MIB, max_wait_ms=0
    )
    waiting = cluster.produce(0)
    cluster.tell(TopicRemoved(TOPIC))
    assert code(waiting) == "leadership_lost"
    cluster.settle()
    assert cluster.members[0].disk.list("partitions") == []
    (region,) = kept
    assert len(region.file.pread(region.length, region.position)) == region.length > 1000
    region.release()
    assert code(cluster.produce(0)) == "unknown_topic"


def test_a_removed_replica_keeps_its_folder_until_its_last_job_has_ended() -> None:
    """Jobs open files by name: one that outlived the renaming would write into the folder of a later replica."""
    cluster = ReplicationCluster()
    member = cluster.members[0]
    cluster.produce(0)
    cluster.scheduler.run()
    assert len(member.worker.pending) == 1, "the job"
    cluster.tell(TopicRemoved(TOPIC))
    cluster.scheduler.run()
    assert len(member.worker.pending) == 1, "still the job alone"
    member.worker.run_one()
    assert member.disk.list("partitions") == [tp(0).directory_name]
    cluster.settle()
    assert member.disk.list("partitions") == member.disk.list("partitions-removed") == []


def fetch_partition(offset: int) -> Any:
    return FetchPartition(TOPIC, 0, offset, MIB)


def test_a_clean_stop_is_reported_clean_and_keeps_everything() -> None:
    cluster = ReplicationCluster()
    cluster.produce(0)
    cluster.settle()
    waiting = cluster.produce(0)
    poll = cluster.fetch(0, 1, wait_ms=10_000)
    stopped: list[bool] = []
    member = cluster.members[0]
    member.manager.close(stopped.append)
    cluster.settle()
    assert stopped == [True]
    assert code(waiting) == "leadership_lost"
    assert poll.answers is not None
    again = cluster.start(0, member.disk)
    (report,) = again.manager.load(clean_shutdown=True)
    assert (report.clean, report.stable_end_offset, report.cut_or_quarantined) == (True, 2, False)


def test_a_stop_with_a_failed_log_is_not_clean() -> None:
    cluster = ReplicationCluster(2)
    member = cluster.members[0]
    member.disk.fail_fsync = 1
    cluster.produce(0, 0)
    cluster.settle()
    assert [partition for partition, _ in member.offline] == [tp(0)]
    stopped: list[bool] = []
    member.manager.close(stopped.append)
    cluster.settle()
    assert stopped == [False]


def test_an_offline_replica_says_so_again_when_it_is_elected() -> None:
    cluster = ReplicationCluster()
    member = cluster.members[1]
    member.disk.fail_fsync = 1
    cluster.produce(0)
    cluster.settle()
    assert len(member.offline) == 1
    cluster.elect(1)
    assert len(member.offline) == 2
    assert code(cluster.produce(1)) == "replica_not_available"


def test_flush_os_is_marked_on_disk_and_an_unclean_stop_reported_as_a_cut() -> None:
    cluster = ReplicationCluster(flush="os")
    member = cluster.members[0]
    marker = f"{folder_of(tp(0))}/{FLUSH_OS_NAME}"
    assert not member.disk.exists(marker), "there is nothing yet that might not be fsynced"
    cluster.produce(0)
    cluster.settle()
    assert member.disk.exists(marker)
    again = cluster.start(0, member.disk)
    (report,) = again.manager.load(clean_shutdown=False)
    assert report.cut_or_quarantined, "what it acknowledged may be gone"
    again.manager.on_metadata([broker(0), cluster.topic, *cluster.records.values()])
    cluster.settle()
    assert again.manager.drivers[tp(0)].log.config.flush == "os"
    assert member.disk.exists(marker)


@pytest.mark.parametrize(("before", "after"), [("os", "fsync"), ("fsync", "os")])
@pytest.mark.parametrize("restart", [False, True])
def test_a_change_of_flush_takes_effect_at_once(before: str, after: str, restart: bool) -> None:
    """Whether the broker runs or learns of it when it restarts."""
    cluster = ReplicationCluster(flush=before)
    member = cluster.members[0]
    marker = f"{folder_of(tp(0))}/{FLUSH_OS_NAME}"
    cluster.produce(0)
    cluster.settle()
    assert member.disk.exists(marker) == (before == "os")
    cluster.topic = replace(cluster.topic, configs=(("flush", after), ("retention.ms", "1234")))
    if restart:
        member.manager.close(lambda _: None)
        cluster.settle()
        again = cluster.start(0, member.disk)
        again.manager.on_metadata([broker(0), cluster.topic, *cluster.records.values()])
    else:
        again = member
        cluster.tell(cluster.topic)
    cluster.settle()
    log = again.manager.drivers[tp(0)].log
    assert (log.config.flush, log.config.retention_ms) == (after, 1234)
    assert log.log_end_offset == 1
    for _ in range(2):
        member.disk.fsyncs = 0  # The first batch after a start also writes a checkpoint.
        cluster.produce(0, acks=Acks.LEADER)
        cluster.settle()
    assert member.disk.fsyncs == (1 if after == "fsync" else 0)
    assert member.disk.exists(marker) == (after == "os")


def depose(cluster: ReplicationCluster) -> PartitionLog:
    """Broker 0 leads, appends batches that its follower does not get, is deposed and truncates. Returns its log, before
    a worker has done anything."""
    cluster.members[1].links[0].other.paused = True
    cluster.produce(0)
    cluster.settle()
    cluster.elect(1)
    cluster.scheduler.run()
    return cluster.members[0].manager.drivers[tp(0)].log


def test_a_leader_judges_no_producer_before_its_worker_has_read_the_state_again() -> None:
    """Elected right after it truncated: its state still has the truncated batches, and would answer a resend as a
    duplicate."""
    cluster = ReplicationCluster()
    member = cluster.members[0]
    cluster.produce(0)
    cluster.settle()
    log = depose(cluster)
    assert log.log_end_offset == 1 and log.producers.stale
    cluster.elect(0)
    assert code(cluster.produce(0)) == "replica_not_available"
    member.worker.run_all()
    assert not log.producers.stale
    waiting = cluster.produce(0)
    cluster.settle()
    assert isinstance(waiting[0], Produced)


def test_a_start_that_moves_while_producers_are_read_again_reaches_the_disk_afterwards() -> None:
    """S10: 1. A follower truncates; its producer state is read again. 2. Its leader's start moves: the follower's waits
    for a snapshot of producers, which it cannot write yet. 3. The state has been read. 4. Nothing else happens to the
    log: the leader may need this replica, with this start, to append anything at all."""
    cluster = ReplicationCluster(**{"segment.bytes": "1024"})
    member = cluster.members[0]
    for _ in range(4):
        cluster.produce(0, size=900)
        cluster.settle()
    log = depose(cluster)
    held = [work for work in member.worker.pending if isinstance(getattr(work[0], "__self__", None), ProducerReplay)]
    assert len(held) == 1 and log.producers.stale
    member.worker.pending.remove(held[0])
    cluster.settle()
    cluster.members[1].manager.drivers[tp(0)].move_log_start(Offset(3))
    cluster.scheduler.advance(1.0)
    cluster.settle()
    assert (log.log_end_offset, log.log_start_offset, log.stable_start_offset) == (4, 3, 0)
    member.worker.pending.append(held[0])
    cluster.settle()
    assert log.stable_start_offset == 3 and not log.producers.stale


def test_retention_moves_the_start_of_leader_and_followers() -> None:
    cluster = ReplicationCluster(**{"retention.bytes": "3000", "segment.bytes": "1024"})
    for _ in range(10):
        cluster.produce(0, size=900)
        cluster.settle()
    cluster.scheduler.advance(31.0)
    cluster.settle()
    cluster.scheduler.advance(1.0)
    cluster.settle()
    starts = [cluster.members[n].manager.drivers[tp(0)].log.log_start_offset for n in (0, 1)]
    assert 0 < starts[0] == starts[1] < 10
    assert cluster.fetch(0, 0).errors == ["offset_out_of_range"]


@pytest.mark.parametrize("wrong_ms", [0, 8 * 86_400_000, -8 * 86_400_000])
@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_no_wall_clock_makes_records_expire_s1(wrong_ms: int, stamps: str) -> None:
    """The leader's is wrong from the start, and right later: records are stamped and kept as they should be."""
    configs = {"retention.ms": "604800000", "segment.bytes": "1024", "message.timestamp.type": stamps}
    cluster = ReplicationCluster(**configs)
    cluster.scheduler.clock.jump_wall(wrong_ms)
    for member in cluster.members.values():
        member.time.wrong_ms = wrong_ms
    sent_ms = cluster.scheduler.clock.wall_ms() - wrong_ms
    for _ in range(10):
        cluster.produce(0, size=900, timestamp=sent_ms)
        cluster.settle()
    log = cluster.members[0].manager.drivers[tp(0)].log
    for _ in range(4):
        cluster.scheduler.advance(31.0)
        cluster.settle()
    assert log.log_start_offset == 0
    cluster.scheduler.clock.jump_wall(-wrong_ms)
    for member in cluster.members.values():
        member.time.wrong_ms = 0
    cluster.scheduler.advance(31.0)
    cluster.settle()
    assert log.log_start_offset == 0
    cluster.scheduler.clock.jump_wall(8 * 86_400_000)
    cluster.scheduler.advance(31.0)
    cluster.settle()
    assert (log.log_start_offset > 0) == (stamps == "CreateTime" or wrong_ms <= 0), "a week has passed for everybody"


def test_a_disk_that_cannot_open_a_replica_is_reported() -> None:
    cluster = ReplicationCluster()
    disk = ColdDisk()
    newcomer = cluster.start(2, disk)
    disk.full = True
    cluster.replicas = (*cluster.replicas, BrokerId(2))
    widened = msgspec.structs.replace(cluster.records[0], replicas=cluster.replicas, partition_epoch=PartitionEpoch(2))
    newcomer.manager.on_metadata([broker(0), broker(1), broker(2), cluster.topic, widened])
    cluster.settle()
    assert any("failed" in line for line in newcomer.manager.status())
    disk.full = False
    cluster.scheduler.advance(6.0)
    cluster.settle()
    assert tp(0) in newcomer.manager.drivers


def test_a_broken_invariant_takes_one_replica_offline_and_is_reported() -> None:
    cluster = ReplicationCluster(2)
    driver = cluster.members[0].manager.drivers[tp(0)]
    assert driver.replica.leader is not None
    driver.replica.leader.high_watermark = 99
    answers = cluster.produce(0, 0)
    assert code(answers) == "leadership_lost"
    events = [event for event, _ in cluster.members[0].logger.lines]
    assert events[0].startswith("INVARIANT ")
    assert "offline" in str(driver)
    cluster.produce(0, 1)
    cluster.settle()
    assert cluster.log_end(1, 1) == (1, 1), "the others go on"
    cluster.members[0].manager.check_invariants()


def test_status_lines_are_for_people() -> None:
    cluster = ReplicationCluster(2)
    assert cluster.members[0].manager.status() == [
        "orders/0 leader epoch=1 leo=0 stable=0 hw=0 isr=0,1 lag 1:0",
        "orders/1 leader epoch=1 leo=0 stable=0 hw=0 isr=0,1 lag 1:0",
        "from 1@1 slots=2 waiting=0 pushes=0/0 data=0 marks=0",
    ]
    assert cluster.members[1].manager.status()[-1] == "to 0@1 open follows=2 slots=2 pushes=0/0/0"


def test_a_new_incarnation_of_the_leader_is_followed_on_a_new_link() -> None:
    cluster = ReplicationCluster()
    cluster.produce(0)
    cluster.settle()
    disk = cluster.members[0].disk
    cluster.members[1].links[0].close()
    cluster.settle()
    member = cluster.start(0, disk, clean_shutdown=False)
    member.manager.on_registered(Incarnation(2))
    record = msgspec.structs.replace(
        cluster.records[0],
        leader_incarnation=Incarnation(2),
        leader_epoch=LeaderEpoch(2),
        partition_epoch=PartitionEpoch(2),
    )
    cluster.tell(broker(0, 2), broker(1), cluster.topic, record)
    cluster.dial(1, 0)
    cluster.settle()
    cluster.produce(0)
    cluster.settle()
    assert cluster.log_end(1) == (2, 2)
    assert cluster.fetch(0, 0).records == 2
