"""Produced batches are checked in the order of arrival, and by a worker if that may take long (S1, S11)."""

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
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.partitions.replication_cluster import ReplicationCluster, tp

PLAIN = encode([b"plain"], base_timestamp_ms=0)
PACKED = encode([b"packed" * 20], base_timestamp_ms=0, codec=Codec.ZSTD)
DAMAGED = PACKED[:-1] + bytes([PACKED[-1] ^ 1])


class Queue:
    """The batches of one partition, and the result of each: its number and `ok` or the error's code."""

    def __init__(self) -> None:
        self.worker = ManualWorker(ManualScheduler())
        self.seen: list[tuple[int, str]] = []
        self.given_up: set[int] = set()
        self.on_checked = self.checked
        self.incoming = IncomingBatches(
            self.worker,
            lambda request: request not in self.given_up,
            lambda arrival, header: self.on_checked(arrival, header),
        )
        self.again: list[bytes] = []

    def arrive(self, number: int, batch: bytes) -> None:
        self.incoming.arrive(Arrival(RequestId(number), batch, Acks.ALL, TopicConfig(), 0))

    def checked(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        self.seen.append((arrival.request, header.code if isinstance(header, RaftlogError) else "ok"))
        while self.again:
            self.arrive(100 + len(self.again), self.again.pop())


def test_a_plain_batch_is_checked_on_the_loop() -> None:
    queue = Queue()
    queue.arrive(1, PLAIN)
    queue.arrive(2, PLAIN[:-1])
    queue.arrive(3, b"")
    assert queue.seen == [(1, "ok"), (2, "corrupt_batch"), (3, "corrupt_batch")]
    assert not queue.worker.pending


def test_a_compressed_batch_is_checked_by_a_worker_and_later_ones_wait() -> None:
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


def test_a_producer_may_send_again_during_its_answer_and_keeps_its_order() -> None:
    queue = Queue()
    for number in (1, 2, 3):
        queue.arrive(number, PACKED)
    queue.again = [PACKED]
    queue.worker.run_all()
    assert queue.seen == [(1, "ok"), (2, "ok"), (3, "ok"), (101, "ok")]


def test_an_abandoned_batch_is_neither_checked_nor_answered() -> None:
    queue = Queue()
    for number in (1, 2, 3, 4):
        queue.arrive(number, PACKED)
    queue.given_up = {2, 3}
    queue.worker.run_all()
    assert [number for number, _ in queue.seen] == [1, 4]


def test_a_batch_abandoned_while_a_worker_checks_it_is_not_answered() -> None:
    """Its deadline passed, or the leadership ended: it must not be appended now."""
    queue = Queue()
    for number in (1, 2, 3, 4):
        queue.arrive(number, PACKED)
    queue.worker.run_one()
    queue.given_up = {1}
    queue.worker.scheduler.run()
    queue.given_up = {1, 3}
    queue.worker.run_all()
    assert queue.seen == [(2, "ok"), (4, "ok")]


def test_jobs_are_small_and_waiting_batches_are_bounded() -> None:
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


def test_closing_drops_waiting_batches() -> None:
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


def test_a_batch_whose_leadership_ended_during_its_check_is_not_appended() -> None:
    cluster = ReplicationCluster()
    answers: list[Any] = []
    cluster.members[0].manager.produce(tp(0), PACKED, Acks.ALL, answers.append)
    cluster.elect(1)
    cluster.settle()
    assert [answer.code for answer in answers] == ["not_leader"]
    assert cluster.log_end(0) == (0, 0)


def test_a_bug_in_a_callback_does_not_stop_later_batches() -> None:
    queue = Queue()
    for number in (1, 2):
        queue.arrive(number, PACKED)
    queue.worker.run_one()

    def fail(arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        queue.on_checked = queue.checked
        raise AssertionError("a bug")

    queue.on_checked = fail
    with pytest.raises(AssertionError):
        queue.worker.scheduler.run()
    queue.arrive(3, PACKED)
    queue.worker.run_all()
    assert queue.seen == [(2, "ok"), (3, "ok")]
