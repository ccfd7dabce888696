"""Requests with many batches: passed on in order, a bounded number per turn of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from partitions.manager import PartitionManager, Produced
from raftlog.broker.requests.local import LocalRequests
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import Offset
from raftlog.slices import ENTRIES_PER_TURN, PER_TURN
from raftlog.wire import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from tests.support.partitions.manual import ManualScheduler

TOPIC = bytes(16)


class Manager:
    """Accepts batches and answers each at once with its number."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.fails = False
        self.before_answer: Callable[[], None] = lambda: None

    def produce(self, tp: Any, batch: memoryview, acks: Any, done: Callable[[Produced], None], **_: Any) -> None:
        if self.fails:
            self.fails = False
            raise AssertionError("a bug")
        self.taken.append(tp.partition)
        self.before_answer()
        done(Produced(Offset(tp.partition), -1, Offset(0)))

    def find_offset(self, tp: Any, timestamp_ms: int, done: Callable[[FoundOffset], None], *, isolation: int) -> None:
        self.taken.append(tp.partition)
        done(FoundOffset(tp.topic_id, tp.partition, offset=tp.partition))

    def delete_records(self, tp: Any, before: Offset, done: Callable[[RaftlogError], None], timeout_ms: int) -> None:
        self.taken.append(tp.partition)
        done(RetriableError("leader_not_available", ""))


class Local:
    def __init__(self) -> None:
        self.manager = Manager()
        self.scheduler = ManualScheduler()
        self.local = LocalRequests(cast(PartitionManager, self.manager), self.scheduler)
        self.answers: list[ProduceResponse] = []

    def produce(self, first: int, count: int) -> None:
        targets = [ProducePartition(TOPIC, number, 1) for number in range(first, first + count)]
        self.local.produce(ProduceRequest(first, -1, 100, targets), [memoryview(b"x")] * count, self.answers.append)


def test_a_small_request_is_passed_on_at_once() -> None:
    local = Local()
    local.produce(0, 3)
    assert [answer.base_offset for answer in local.answers[0].partitions] == [0, 1, 2]


def test_a_large_one_takes_turns_and_later_ones_wait_behind_it() -> None:
    """No call blocks the event loop, and a producer's batches keep their order (S1)."""
    local = Local()
    count = 3 * ENTRIES_PER_TURN
    local.produce(0, count)
    local.produce(count, 1)
    assert len(local.manager.taken) == ENTRIES_PER_TURN
    local.scheduler.run()
    assert local.manager.taken == list(range(count + 1))
    assert [answer.correlation_id for answer in local.answers] == [0, count]


def test_a_batch_produced_by_a_callback_comes_behind_the_waiting_ones() -> None:
    local = Local()

    def again() -> None:
        local.manager.before_answer = lambda: None
        local.produce(1000, 1)

    local.manager.before_answer = again
    local.produce(0, 3)
    assert local.manager.taken == [0, 1, 2, 1000]


def test_a_bug_in_one_stops_neither_later_ones_nor_the_answer() -> None:
    """No caller waits forever for an outcome that is unknown (S1)."""
    local = Local()
    local.manager.fails = True
    with pytest.raises(AssertionError):
        local.produce(0, 2)
    local.produce(5, 1)
    local.scheduler.run()
    assert local.manager.taken == [1, 5]
    first, second = local.answers
    assert [(one.partition, one.error) for one in first.partitions] == [(0, "outcome_unknown"), (1, "")]
    assert [one.error for one in second.partitions] == [""]


def test_offsets_of_many_partitions_are_looked_up_in_slices() -> None:
    local, count = Local(), 2 * PER_TURN + 1
    found: list[OffsetsResponse] = []
    local.local.offsets(OffsetsRequest(1, [OffsetQuery(TOPIC, number, -1) for number in range(count)]), found.append)
    assert len(local.manager.taken) == PER_TURN and not found
    local.scheduler.run()
    assert [one.offset for one in found[0].partitions] == list(range(count))


def test_records_of_many_partitions_are_deleted_in_slices() -> None:
    local, count = Local(), 2 * PER_TURN + 1
    done: list[DeleteRecordsResponse] = []
    asked = [DeleteRecordsPartition(TOPIC, number, 1) for number in range(count)]
    local.local.delete_records(DeleteRecordsRequest(1, 100, asked), done.append)
    assert len(local.manager.taken) == PER_TURN and not done
    local.scheduler.run()
    assert [one.partition for one in done[0].partitions] == list(range(count))
    assert {one.error for one in done[0].partitions} == {"leader_not_available"}
