"""An exception that nobody foresaw: the replica is thrown away and opened again, and never serves half updated."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.driver.driver import PartitionDriver
from partitions.driver.requests import Produced
from partitions.log.job import LogJob
from partitions.log.slice import ReadBy
from partitions.producers.state import ProducerStates
from partitions.upkeep.resets import FIRST_PAUSE_SECONDS, MOST_RESETS, WINDOW_SECONDS
from partitions.view import TopicRemoved
from raftlog.errors import RaftlogError, ResourceShortage, Unforeseen
from raftlog.model import Acks, Offset
from raftlog.records.batch import encode
from tests.support.replication_cluster import TOPIC, ReplicationCluster, tp

PAUSE = FIRST_PAUSE_SECONDS * 2**MOST_RESETS


class Bug(Exception):
    """Nobody catches this one by its name."""


class Breaks:
    """Has one method of a class raise at its next calls, after or before it did its work."""

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
    """Time passes, and everything comes to rest."""
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


def test_between_log_and_producers_nothing_half_done_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1. The batch is in the log, and its producer's state does not know: a resend would be appended twice."""
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


def test_a_leader_leads_again_in_a_later_epoch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S5. Its follower has what it pushed and did not write: in the same epoch other batches would get those
    offsets."""
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


def test_one_that_breaks_again_and_again_is_given_up_and_said_to_be() -> None:
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


def test_breaking_now_and_then_is_borne() -> None:
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


def test_an_event_that_hears_of_a_broken_job_first_resets_the_replica() -> None:
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


def test_a_follower_that_is_refused_for_a_broken_job_is_not_refused_for_ever() -> None:
    """S10. A leader that nobody writes to hears of it by what its followers read."""
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


def test_a_replica_that_was_removed_meanwhile_does_not_come_back() -> None:
    cluster = ReplicationCluster(brokers=1, minimum=1)
    driver(cluster).throw_away(Bug("before its topic went"))
    cluster.settle()
    cluster.tell(TopicRemoved(TOPIC))
    passes(cluster, PAUSE)
    manager = cluster.members[0].manager
    assert manager.driver(tp(0)) is None and manager.out_of_service() == []
    assert not manager.resets.is_barred(tp(0))


def test_who_is_called_back_and_breaks_harms_nobody_else() -> None:
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
