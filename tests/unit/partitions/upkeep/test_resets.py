"""An unexpected exception: the replica is discarded and opened again, and never serves a half updated state."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from partitions.driver.driver import PartitionDriver
from partitions.driver.requests import Produced
from partitions.files.durable import alone
from partitions.files.segment import segment_name
from partitions.log.job import LogJob
from partitions.log.slice import ReadBy
from partitions.log.tail import FetchCache
from partitions.opening.folders import folder_of, open_steps
from partitions.opening.log_manager import HINDERED_RETRY_SECONDS
from partitions.producers.state import ProducerStates
from partitions.recovery.recover import _Recovery
from partitions.upkeep.resets import FIRST_PAUSE_SECONDS, MOST_RESETS, WINDOW_SECONDS
from partitions.view import TopicRemoved
from raftlog.errors import RaftlogError, ResourceShortage, Unforeseen
from raftlog.model import Acks, Offset, ReplicaReport
from raftlog.records.batch import encode
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster, tp

PAUSE = FIRST_PAUSE_SECONDS * 2**MOST_RESETS
SEGMENT = f"{folder_of(tp(0))}/{segment_name(Offset(0))}"


class Bug(Exception):
    """An exception that is not caught by its name."""


class Breaks:
    """Makes one method of a class raise at its next calls, after or before it did its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, *, error: type[Exception] = Bug) -> None:
        self.left = 0
        self.broke = 0
        original = getattr(kind, name)

        def breaking(*args: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                self.broke += 1
                raise error("half way")
            return original(*args, **options)

        monkeypatch.setattr(kind, name, breaking)


def events(cluster: ReplicationCluster, number: int) -> list[str]:
    return [event for event, _ in cluster.members[number].logger.lines]


def passes(cluster: ReplicationCluster, seconds: float) -> None:
    """Let time pass until nothing moves."""
    cluster.scheduler.advance(seconds)
    cluster.settle()


def driver(cluster: ReplicationCluster, number: int = 0) -> PartitionDriver:
    found = cluster.members[number].manager.driver(tp(0))
    assert found is not None
    return found


def code_of(answers: list[Any]) -> str:
    (answer,) = answers
    assert isinstance(answer, RaftlogError), answer
    return answer.code


def report_of_the_next_start(cluster: ReplicationCluster) -> ReplicaReport:
    disk = cluster.members[0].disk
    return alone(disk, open_steps(disk, tp(0), None, FetchCache(0), False, clean_shutdown=False)).report


def test_between_log_and_producers_no_half_done_state_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1. The batch is in the log, and its producer's state does not have it: a resend would be appended twice."""
    cluster = ReplicationCluster(brokers=1, minimum=1)
    manager = cluster.members[0].manager
    batch = encode([b"once"], base_timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=0)
    breaks = Breaks(monkeypatch, ProducerStates, "append")
    breaks.left = 1
    first: list[Any] = []
    manager.produce(tp(0), batch, Acks.ALL, first.append)
    cluster.settle()
    assert code_of(first) == "leadership_lost"  # its outcome is unknown
    assert manager.driver(tp(0)) is None
    again: list[Any] = []
    manager.produce(tp(0), batch, Acks.ALL, again.append)
    assert code_of(again) == "leader_not_available"
    passes(cluster, PAUSE)
    cluster.elect(0)
    cluster.settle()
    last: list[Any] = []
    manager.produce(tp(0), batch, Acks.ALL, last.append)
    cluster.settle()
    (answer,) = last
    assert isinstance(answer, Produced)
    assert driver(cluster).log.log_end_offset == 1


def test_a_leader_leads_again_only_in_a_later_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S5. Its follower has batches that it pushed and did not write: in the same epoch other batches would get
    those offsets."""
    cluster = ReplicationCluster(brokers=2, minimum=1)
    cluster.produce(0)
    cluster.settle()
    breaks = Breaks(monkeypatch, ProducerStates, "append")
    breaks.left = 1
    cluster.produce(0)
    cluster.settle()
    assert breaks.broke == 1
    passes(cluster, PAUSE)
    manager = cluster.members[0].manager
    assert driver(cluster).replica.leader is None
    assert manager.cannot_lead(tp(0)) and manager.waits_for_epoch(tp(0))
    assert cluster.members[0].offline and cluster.members[0].offline[0][0] == tp(0)
    # The same record once more, or a newer one of this epoch, changes nothing.
    cluster.set_isr(0, 1)
    assert driver(cluster).replica.leader is None
    assert code_of(cluster.produce(0)) == "leader_not_available"
    cluster.elect(0)
    cluster.settle()
    assert driver(cluster).replica.leader is not None
    assert not manager.cannot_lead(tp(0))
    answers = cluster.produce(0)
    cluster.settle()
    assert isinstance(answers[0], Produced)
    assert driver(cluster, 1).log.log_end_offset == driver(cluster).log.log_end_offset


def test_a_follower_is_opened_again_and_follows() -> None:
    cluster = ReplicationCluster(brokers=2, minimum=2)
    cluster.produce(0)
    cluster.settle()
    answers = cluster.produce(0)
    cluster.scheduler.run()
    broken = driver(cluster, 1)
    broken.throw_away(Bug("in a follower"))
    cluster.settle()
    assert "replica reset" in events(cluster, 1)
    for _ in range(20):
        passes(cluster, 1.0)
    assert driver(cluster, 1) is not broken
    assert driver(cluster, 1).log.log_end_offset == driver(cluster).log.log_end_offset == 2
    assert isinstance(answers[0], Produced)


def test_a_replica_that_breaks_repeatedly_is_given_up_and_reported() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    member = cluster.members[0]
    for number in range(MOST_RESETS):
        driver(cluster).throw_away(Bug(f"number {number}"))
        assert member.manager.out_of_service() == []
        passes(cluster, PAUSE)
        cluster.elect(0)
        cluster.settle()
    driver(cluster).throw_away(Bug("once too often"))
    passes(cluster, 10 * PAUSE)
    (line,) = member.manager.out_of_service()
    assert "once too often" in line and "offline" in line
    assert member.manager.cannot_lead(tp(0)) and not member.manager.waits_for_epoch(tp(0))
    assert member.manager.resets.resets == MOST_RESETS + 1


def test_breaking_now_and_then_is_tolerated() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    for _ in range(3 * MOST_RESETS):
        driver(cluster).throw_away(Bug("now and then"))
        passes(cluster, WINDOW_SECONDS / 2)
        cluster.elect(0)
        cluster.settle()
    assert cluster.members[0].manager.out_of_service() == []


def test_a_shortage_is_not_counted() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    for _ in range(3 * MOST_RESETS):
        driver(cluster).throw_away(ResourceShortage("too many open files"))
        passes(cluster, 1.0)
        cluster.elect(0)
        cluster.settle()
    assert cluster.members[0].manager.out_of_service() == []


def test_a_worker_that_breaks_in_a_job_resets_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    breaks = Breaks(monkeypatch, LogJob, "run")
    breaks.left = 1
    answers = cluster.produce(0)
    cluster.settle()
    assert code_of(answers) == "leadership_lost"
    passes(cluster, PAUSE)
    cluster.elect(0)
    cluster.settle()
    answers = cluster.produce(0)
    cluster.settle()
    assert isinstance(answers[0], Produced)


def test_an_event_that_sees_a_broken_job_first_resets_the_replica() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    cluster.produce(0)
    cluster.settle()
    broken = driver(cluster)
    broken.log.failed = Unforeseen("a job broke, and its owner is not called yet")
    answers = cluster.produce(0)
    cluster.settle()
    assert code_of(answers) == "leadership_lost"
    assert cluster.members[0].manager.resets.resets == 1
    assert not any(event.startswith("INVARIANT") for event in events(cluster, 0))


def test_a_follower_refused_for_a_broken_job_is_accepted_again() -> None:
    """S10. A leader without writes learns of it by its followers' reads."""
    cluster = ReplicationCluster(brokers=2, minimum=1)
    cluster.produce(0)
    cluster.settle()
    leader = driver(cluster)
    leader.log.broke(Bug("half way"))
    with pytest.raises(RaftlogError) as caught:
        leader.read(Offset(0), leader.log.log_end_offset, 1000, min_one_batch=True, by=ReadBy.FOLLOWER_AGAIN)
    assert caught.value.retriable
    assert cluster.members[0].manager.driver(tp(0)) is None
    passes(cluster, PAUSE)
    assert driver(cluster).log.failed is None


def test_a_replica_that_is_not_fsynced_is_opened_again_with_all_that_was_written() -> None:
    """S10. The process lives, and with it the page cache: nothing was lost, and no restart has to report anything."""
    cluster = ReplicationCluster(brokers=1, minimum=1, flush="os")
    cluster.produce(0)
    cluster.settle()
    driver(cluster).throw_away(Bug("somewhere"))
    passes(cluster, PAUSE)
    assert cluster.members[0].manager.out_of_service() == []
    cluster.elect(0)
    cluster.produce(0)
    cluster.settle()
    assert cluster.log_end(0) == (2, 2)
    assert report_of_the_next_start(cluster).cut_or_quarantined, "an unclean stop may have lost anything"


@pytest.mark.parametrize("flush", ["os", "fsync"])
def test_a_replica_that_lost_what_was_stable_is_not_opened_again(flush: str) -> None:
    """S6, S9. A failed sync drops pages from the cache, and what is left looks like a whole log."""
    cluster = ReplicationCluster(brokers=1, minimum=1, flush=flush)
    cluster.produce(0)
    cluster.settle()
    driver(cluster).throw_away(Bug("somewhere"))
    cluster.members[0].disk.inode_of(SEGMENT).truncate(0)
    passes(cluster, PAUSE)
    (line,) = cluster.members[0].manager.out_of_service()
    assert "only the next start can report" in line
    assert report_of_the_next_start(cluster).cut_or_quarantined


def test_a_replica_that_was_about_to_be_emptied_is_opened_again_as_it_is() -> None:
    """S10. Its log begins where its leader's does, far beyond the end of its files, which no job has removed yet."""
    cluster = ReplicationCluster(brokers=1, minimum=1)
    cluster.produce(0)
    cluster.settle()
    driver(cluster).log.truncate_fully_and_start_at(Offset(500))
    driver(cluster).throw_away(Bug("before the next job"))
    passes(cluster, PAUSE)
    assert cluster.members[0].manager.out_of_service() == []
    assert cluster.log_end(0) == (1, 1)


def with_a_reported_loss(monkeypatch: pytest.MonkeyPatch) -> tuple[ReplicationCluster, Breaks]:
    """Return a broker that recovered from a torn write, and breaks in the job that takes note of the report."""
    cluster = ReplicationCluster(brokers=1, minimum=1)
    cluster.produce(0)
    cluster.settle()
    disk = cluster.members[0].disk
    tear(disk)
    breaks = Breaks(monkeypatch, LogJob, "run")
    cluster.start(0, disk, clean_shutdown=False)
    breaks.left = 1
    cluster.tell(*cluster.brokers(), cluster.topic, *cluster.records.values())
    cluster.settle()
    return cluster, breaks


def tear(disk: SimDisk) -> None:
    """Leave the beginning of a batch at the end of the log."""
    with contextlib.closing(disk.open(SEGMENT)) as file:
        file.pwritev([bytes(20)], file.size())


def test_a_loss_that_the_quorum_knows_keeps_no_replica_closed_s10(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of the loss is on disk, because the job that would have removed it broke."""
    cluster, breaks = with_a_reported_loss(monkeypatch)
    assert breaks.broke == 1
    cluster.produce(0)
    passes(cluster, PAUSE)
    manager = cluster.members[0].manager
    assert manager.resets.resets == 1
    assert manager.out_of_service() == []
    cluster.elect(0)
    answers = cluster.produce(0)
    cluster.settle()
    assert isinstance(answers[0], Produced)


def test_a_loss_that_the_first_of_two_attempts_found_keeps_the_replica_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S9. The first attempt cuts the log and meets a shortage; the second one finds a whole log."""
    cluster, _ = with_a_reported_loss(monkeypatch)
    shortages = Breaks(monkeypatch, _Recovery, "_write_anew", error=ResourceShortage)
    cluster.produce(0)
    cluster.scheduler.run()
    tear(cluster.members[0].disk)
    shortages.left = 1
    passes(cluster, PAUSE)
    passes(cluster, HINDERED_RETRY_SECONDS)
    assert shortages.broke == 1
    (line,) = cluster.members[0].manager.out_of_service()
    assert "only the next start can report" in line


def test_a_replica_that_was_removed_meanwhile_does_not_come_back() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    driver(cluster).throw_away(Bug("before its topic went"))
    cluster.settle()
    cluster.tell(TopicRemoved(TOPIC))
    passes(cluster, PAUSE)
    manager = cluster.members[0].manager
    assert manager.driver(tp(0)) is None and manager.out_of_service() == []
    assert not manager.resets.is_barred(tp(0))


def test_a_callback_that_raises_affects_no_other() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    manager = cluster.members[0].manager

    def bad(answer: object) -> None:
        raise Bug("a caller's")

    answers: list[Any] = []
    batch = encode([b"x"], base_timestamp_ms=1)
    manager.produce(tp(0), batch, Acks.ALL, bad)
    manager.produce(tp(0), bytes(batch), Acks.ALL, answers.append)
    cluster.settle()
    assert isinstance(answers[0], Produced)
    assert "a callback failed" in events(cluster, 0)
    assert manager.resets.resets == 0
