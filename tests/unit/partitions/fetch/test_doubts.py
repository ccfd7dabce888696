"""Positions beyond a high watermark: no reader is refused by a leader that was deposed (S3; KIP-320)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from partitions.fetch.doubts import PATIENCE_SECONDS
from tests.support.client.session_reader import Polled, SessionReader
from tests.support.partitions.replication_cluster import Fetch, ReplicationCluster


@dataclass
class SlowQuorum:
    """A quorum that answers when the test says so."""

    questions: list[Callable[[bool], None]] = field(default_factory=list)

    def catch_up(self, number: int, done: Callable[[bool], None]) -> None:
        self.questions.append(done)


@dataclass
class Reading:
    """One way to request partition 0 from broker 0."""

    cluster: ReplicationCluster
    polled: Polled | None = None
    fetched: Fetch | None = None

    def error(self) -> str | None:
        """None while there is no answer."""
        if self.polled is not None:
            return None if self.polled.slots is None else self.polled.by_slot[1].error
        assert self.fetched is not None
        return None if self.fetched.answers is None else self.fetched.answers[0].error

    def high_watermark(self) -> int:
        if self.polled is not None:
            return self.polled.by_slot[1].high_watermark
        assert self.fetched is not None and self.fetched.answers is not None
        return self.fetched.answers[0].high_watermark


def in_session(cluster: ReplicationCluster, offset: int) -> Reading:
    return Reading(cluster, polled=SessionReader(cluster).poll({1: (0, offset)}, wait_ms=0))


def without_session(cluster: ReplicationCluster, offset: int) -> Reading:
    return Reading(cluster, fetched=cluster.fetch(0, offset))


each_way = pytest.mark.parametrize("read", [in_session, without_session])


def cluster_of(quorum: SlowQuorum, records: int = 3) -> ReplicationCluster:
    cluster = ReplicationCluster(brokers=3)
    cluster.catch_up = quorum.catch_up
    for _ in range(records):
        cluster.produce(0)
    cluster.settle()
    return cluster


def depose(cluster: ReplicationCluster) -> None:
    """Broker 1 leads and commits two more records; broker 0 does not know."""
    new_leader = cluster.elect(1, isr=(1, 2), to=(1, 2))
    assert new_leader.leader == 1
    for _ in range(2):
        cluster.produce(1)
    cluster.settle()
    assert cluster.fetch(1, 4).records == 1, "offset 4 is committed"


@each_way
def test_a_deposed_leader_denies_no_offset_that_its_successor_has_committed(
    read: Callable[[ReplicationCluster, int], Reading],
) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    depose(cluster)
    reading = read(cluster, 4)
    cluster.settle()
    assert reading.error() is None, "it is not known yet who leads"
    cluster.tell(cluster.records[0], to=(0,))
    quorum.questions.pop()(True)
    assert reading.error() == "not_leader"


@each_way
def test_a_leader_that_cannot_reach_the_quorum_denies_nothing(
    read: Callable[[ReplicationCluster, int], Reading],
) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    refused = read(cluster, 4)
    quorum.questions.pop()(False)
    assert refused.error() == "leader_not_available"
    silent = read(cluster, 4)
    cluster.scheduler.advance(PATIENCE_SECONDS)
    assert silent.error() == "leader_not_available"
    quorum.questions.pop()(True)
    assert len(cluster.members[0].manager.fetches.doubts) == 0, "an answer that is late changes nothing"


@each_way
def test_a_confirmed_leader_denies_the_offset(read: Callable[[ReplicationCluster, int], Reading]) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    reading = read(cluster, 4)
    quorum.questions.pop()(True)
    assert reading.error() == "offset_out_of_range" and reading.high_watermark() == 3


@each_way
def test_the_same_leader_in_a_new_epoch_is_confirmed_again(read: Callable[[ReplicationCluster, int], Reading]) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    reading = read(cluster, 4)
    cluster.elect(0)
    cluster.settle()
    quorum.questions.pop()(True)
    assert reading.error() == "leader_not_available"


@each_way
def test_records_appended_meanwhile_may_contain_the_offset(
    read: Callable[[ReplicationCluster, int], Reading],
) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    reading = read(cluster, 4)
    cluster.produce(0)
    cluster.settle()
    quorum.questions.pop()(True)
    assert reading.error() == "offset_not_available"


@each_way
def test_an_offset_below_the_start_needs_no_confirmation(read: Callable[[ReplicationCluster, int], Reading]) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    driver = next(iter(cluster.members[0].manager.drivers.values()))
    answers: list[object] = []
    driver.delete_records(driver.log.log_end_offset, answers.append, 1_000)
    cluster.settle()
    assert driver.log.log_start_offset == 3
    assert read(cluster, 1).error() == "offset_out_of_range" and quorum.questions == []


def test_there_is_one_question_at_a_time_and_no_request_uses_an_earlier_one() -> None:
    """An answer covers only the requests that came before its question."""
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    first, second, third = (without_session(cluster, 4 + number) for number in range(3))
    assert len(quorum.questions) == 1
    quorum.questions.pop()(True)
    assert (first.error(), second.error(), third.error()) == ("offset_out_of_range", None, None)
    assert len(quorum.questions) == 1, "those that waited share one"
    quorum.questions.pop()(True)
    assert second.error() == third.error() == "offset_out_of_range" and quorum.questions == []


def test_a_poll_that_ended_meanwhile_gets_no_answer() -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    reader = SessionReader(cluster)
    polled = reader.poll({1: (0, 4)}, wait_ms=0)
    fetched = cluster.fetch(0, 4)
    reader.close()
    fetched.handle.cancel()
    for _ in range(2):
        quorum.questions.pop()(True)
    assert polled.slots == [] and fetched.answers is None


@each_way
def test_a_stopping_broker_answers_waiting_requests(read: Callable[[ReplicationCluster, int], Reading]) -> None:
    quorum = SlowQuorum()
    cluster = cluster_of(quorum)
    readings = [read(cluster, 4), read(cluster, 5)]
    cluster.members[0].manager.fetches.close()
    assert [reading.error() for reading in readings] == ["leader_not_available"] * 2
    assert read(cluster, 6).error() == "leader_not_available"
