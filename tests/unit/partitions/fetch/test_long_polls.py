"""Long polls and offsets: the answers for consumers, and the conditions that they wait for."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.fetch import long_polls as fetch_waiters
from partitions.manager import TopicRemoved
from raftlog.config import MIB
from raftlog.errors import RaftlogError
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, FoundOffset
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster, tp


def test_a_fetch_of_many_partitions_has_separate_errors() -> None:
    cluster = ReplicationCluster(3)
    for partition in (0, 1):
        cluster.produce(0, partition)
    cluster.settle()
    cluster.elect(1, partition=2)
    fetch = cluster.fetch(0, 0, 9, 0, 0)
    assert fetch.errors == ["", "offset_out_of_range", "not_leader", "unknown_partition"]
    assert fetch.answers is not None
    assert fetch.records == 1
    assert fetch.answers[0].high_watermark == 1
    assert (fetch.answers[1].high_watermark, fetch.answers[1].log_start_offset) == (1, 0), "both bounds are told"
    assert "[0, 1]" in fetch.answers[1].detail
    assert fetch.answers[2].leader == 1


def test_min_bytes_waits_for_enough_and_the_deadline_answers_with_the_rest() -> None:
    cluster = ReplicationCluster(2)
    fetch = cluster.fetch(0, 0, 0, min_bytes=3000, wait_ms=5000)
    for partition in (0, 1):
        cluster.produce(0, partition, size=1000)
        cluster.settle()
        cluster.scheduler.advance(0.1)
    assert fetch.answers is None
    cluster.produce(0, 1, size=1000)
    cluster.settle()
    cluster.scheduler.advance(0.1)
    assert fetch.records == 3
    late = cluster.fetch(0, 0, 2, min_bytes=1 << 19, wait_ms=1000)
    cluster.scheduler.advance(0.9)
    assert late.answers is None
    cluster.scheduler.advance(0.2)
    assert late.records == 1


def test_max_bytes_bounds_an_answer_but_not_below_one_batch() -> None:
    cluster = ReplicationCluster(3)
    for partition in range(3):
        cluster.produce(0, partition, size=5000)
    cluster.settle()
    assert cluster.fetch(0, 0, 0, 0, max_bytes=100).records == 1
    assert cluster.fetch(0, 0, 0, 0, max_bytes=11_000).records == 2


def test_the_leader_epoch_of_a_consumer_is_checked() -> None:
    cluster = ReplicationCluster()
    leader = cluster.members[0].manager.drivers[tp(0)]
    for epoch, expected in ((1, ""), (0, "fenced_leader_epoch"), (2, "unknown_leader_epoch")):
        try:
            leader.reads.readable_end(epoch)
            found = ""
        except RaftlogError as error:
            found = error.code
        assert found == expected


def test_a_cancelled_fetch_is_not_answered() -> None:
    cluster = ReplicationCluster()
    fetch = cluster.fetch(0, 0, wait_ms=1000)
    fetch.handle.cancel()
    cluster.produce(0)
    cluster.settle()
    cluster.scheduler.advance(2.0)
    assert fetch.answers is None


def test_cold_data_is_loaded_before_the_answer() -> None:
    cluster = ReplicationCluster(2, cache_bytes=0)
    for partition in (0, 1):
        cluster.produce(0, partition)
    cluster.settle()
    cluster.members[0].disk.cold = True
    fetch = cluster.fetch(0, 0, 0, max_bytes=2 * MIB)
    assert fetch.answers is None
    cluster.settle()
    assert fetch.records == 2
    dropped = cluster.fetch(0, 0, 0)
    dropped.handle.cancel()
    cluster.settle()
    assert dropped.answers is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryError(), "offset_not_available"), (RuntimeError("can't start new thread"), "replica_not_available")],
)
def test_a_poll_whose_load_no_worker_accepts_is_answered(
    error: Exception, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: a poll whose cold data cannot be loaded must not wait; the other partition is answered as usual."""
    cluster = ReplicationCluster(2, cache_bytes=0)
    for partition in (0, 1):
        cluster.produce(0, partition)
    cluster.settle()
    leader = cluster.members[0]
    submit, refused = leader.worker.submit, [error]

    def refuse_once(work: Any, done: Any) -> None:
        if refused:
            raise refused.pop()
        submit(work, done)

    monkeypatch.setattr(leader.worker, "submit", refuse_once)
    leader.disk.cold = True
    fetch = cluster.fetch(0, 0, 0, max_bytes=2 * MIB)
    cluster.settle()
    assert fetch.errors == [code, ""]
    assert fetch.records == 1


def test_waiting_polls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_waiters, "MAX_WAITING_POLLS", 2)
    monkeypatch.setattr(fetch_waiters, "MAX_WAITING_PARTITIONS", 3)
    cluster = ReplicationCluster(2)
    first = cluster.fetch(0, 0, 0, wait_ms=1000)
    assert cluster.fetch(0, 0, 0, wait_ms=1000).errors == ["overloaded"] * 2
    second = cluster.fetch(0, 0, wait_ms=1000)
    assert cluster.fetch(0, 0, wait_ms=1000).errors == ["overloaded"]
    assert first.answers is None
    assert second.answers is None
    cluster.scheduler.advance(1.0)
    assert first.errors == ["", ""]
    assert second.errors == [""]
    assert cluster.fetch(0, 0, wait_ms=1000).answers is None, "there is room again"


def test_a_waiting_fetch_is_answered_at_the_end_of_leadership_and_of_the_topic() -> None:
    cluster = ReplicationCluster()
    fetch = cluster.fetch(0, 0, wait_ms=10_000)
    cluster.elect(1)
    cluster.settle()
    assert fetch.errors == ["not_leader"]
    fetch = cluster.fetch(1, 0, wait_ms=10_000)
    cluster.tell(TopicRemoved(TOPIC))
    cluster.settle()
    assert fetch.errors == ["unknown_topic"]


def test_offsets_by_position_and_time_end_at_the_high_watermark() -> None:
    cluster = ReplicationCluster()
    base = cluster.scheduler.clock.wall_ms()
    for n in range(3):
        cluster.produce(0, timestamp=base + n)
        cluster.settle()
    cluster.members[1].links[0].close()
    cluster.settle()
    cluster.produce(0, timestamp=base + 3)
    cluster.settle()
    found: list[FoundOffset] = []
    for timestamp in (TIMESTAMP_LATEST, TIMESTAMP_EARLIEST, base + 1, base + 3):
        cluster.members[0].manager.find_offset(tp(0), timestamp, found.append)
        cluster.settle()
    assert [(f.offset, f.timestamp_ms) for f in found] == [(3, -1), (0, -1), (1, base + 1), (-1, -1)]
    assert {f.leader_epoch for f in found} == {1}
    cluster.members[1].manager.find_offset(tp(0), TIMESTAMP_LATEST, found.append)
    assert (found[-1].error, found[-1].leader) == ("not_leader", 0)
