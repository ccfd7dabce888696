"""Produced batches are checked in the order of arrival, and off the loop where that may take long (S1, S11)."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.driver.incoming import MAX_BATCHES_A_JOB, MAX_WAITING_BATCHES, Arrival, IncomingBatches
from partitions.replica.effects import RequestId
from raftlog.config import TopicConfig
from raftlog.errors import RaftlogError
from raftlog.model import Acks
from raftlog.records.batch import BatchHeader, encode
from raftlog.records.header import Codec
from tests.support.manual import ManualScheduler, ManualWorker
from tests.support.replication_cluster import ReplicationCluster, tp

PLAIN = encode([b"plain"], base_timestamp_ms=0)
PACKED = encode([b"packed" * 20], base_timestamp_ms=0, codec=Codec.ZSTD)
DAMAGED = PACKED[:-1] + bytes([PACKED[-1] ^ 1])


class Queue:
    """The batches of one partition, and what came of each: its number and `ok` or the error's code."""

    def __init__(self) -> None:
        self.worker = ManualWorker(ManualScheduler())
        self.seen: list[tuple[int, str]] = []
        self.given_up: set[int] = set()
        self.incoming = IncomingBatches(self.worker, lambda request: request not in self.given_up, self.checked)
        self.again: list[bytes] = []

    def arrive(self, number: int, batch: bytes) -> None:
        self.incoming.arrive(Arrival(RequestId(number), batch, Acks.ALL, TopicConfig(), 0))

    def checked(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        self.seen.append((arrival.request, header.code if isinstance(header, RaftlogError) else "ok"))
        while self.again:
            self.arrive(100 + len(self.again), self.again.pop())


def test_a_plain_batch_is_checked_where_it_arrives() -> None:
    queue = Queue()
    queue.arrive(1, PLAIN)
    queue.arrive(2, PLAIN[:-1])
    queue.arrive(3, b"")
    assert queue.seen == [(1, "ok"), (2, "corrupt_batch"), (3, "corrupt_batch")]
    assert not queue.worker.pending


def test_a_compressed_batch_is_a_workers_and_all_others_wait_behind_it() -> None:
    queue = Queue()
    queue.arrive(1, PACKED)
    queue.arrive(2, PLAIN)
    queue.arrive(3, DAMAGED)
    queue.arrive(4, PACKED)
    assert queue.seen == []
    queue.worker.run_all()
    assert queue.seen == [(1, "ok"), (2, "ok"), (3, "corrupt_batch"), (4, "ok")]
    queue.arrive(5, PLAIN)
    assert queue.seen[-1] == (5, "ok")


def test_who_is_answered_may_produce_again_at_once_and_keeps_its_place() -> None:
    queue = Queue()
    for number in (1, 2, 3):
        queue.arrive(number, PACKED)
    queue.again = [PACKED]
    queue.worker.run_all()
    assert queue.seen == [(1, "ok"), (2, "ok"), (3, "ok"), (101, "ok")]


def test_what_nobody_waits_for_is_neither_checked_nor_told() -> None:
    queue = Queue()
    for number in (1, 2, 3, 4):
        queue.arrive(number, PACKED)
    queue.given_up = {2, 3}
    queue.worker.run_all()
    assert [number for number, _ in queue.seen] == [1, 4]


def test_who_gave_up_while_a_worker_checks_is_not_told() -> None:
    """Its deadline passed, or the leadership ended: appending it now could only be a surprise."""
    queue = Queue()
    for number in (1, 2, 3, 4):
        queue.arrive(number, PACKED)
    queue.worker.run_one()
    queue.given_up = {1}
    queue.worker.scheduler.run()
    queue.given_up = {1, 3}
    queue.worker.run_all()
    assert queue.seen == [(2, "ok"), (4, "ok")]


def test_jobs_are_small_and_what_waits_is_bounded() -> None:
    queue = Queue()
    for number in range(MAX_WAITING_BATCHES):
        queue.arrive(number, PACKED)
    queue.arrive(9999, PACKED)
    assert queue.seen == [(9999, "overloaded")]
    queue.worker.run_one()
    queue.worker.scheduler.run()
    queue.worker.run_one()
    queue.worker.scheduler.run()
    assert len(queue.seen) == 1 + MAX_BATCHES_A_JOB + 1  # the first went alone
    queue.worker.run_all()
    assert [number for number, _ in queue.seen[1:]] == list(range(MAX_WAITING_BATCHES))


def test_closing_drops_what_waits() -> None:
    queue = Queue()
    queue.arrive(1, PACKED)
    queue.arrive(2, PACKED)
    queue.incoming.close()
    queue.worker.run_all()
    assert queue.seen == []


# --- In a broker ---


def test_a_compressed_batch_is_appended_in_its_order() -> None:
    """S1: a producer's batches keep their order, whichever of them needs a worker."""
    cluster = ReplicationCluster()
    answers: list[Any] = []
    for batch in (PACKED, PLAIN, PACKED):
        cluster.members[0].manager.produce(tp(0), batch, Acks.ALL, answers.append)
    assert cluster.log_end(0) == (0, 0)
    cluster.settle()
    assert [answer.base_offset for answer in answers] == [0, 1, 2]
    assert cluster.fetch(0, 0).errors == [""]


def test_one_that_lost_its_leader_while_it_was_checked_is_not_appended() -> None:
    cluster = ReplicationCluster()
    answers: list[Any] = []
    cluster.members[0].manager.produce(tp(0), PACKED, Acks.ALL, answers.append)
    cluster.elect(1)
    cluster.settle()
    assert [answer.code for answer in answers] == ["not_leader"]
    assert cluster.log_end(0) == (0, 0)


def test_a_bug_in_what_is_told_does_not_stop_those_behind_it() -> None:
    queue = Queue()
    for number in (1, 2):
        queue.arrive(number, PACKED)
    queue.worker.run_one()
    broken = queue.checked

    def fail(arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        queue.incoming._checked = broken
        raise AssertionError("a bug")

    queue.incoming._checked = fail
    with pytest.raises(AssertionError):
        queue.worker.scheduler.run()
    queue.arrive(3, PACKED)
    queue.worker.run_all()
    assert queue.seen == [(2, "ok"), (3, "ok")]
