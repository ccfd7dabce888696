"""`delete-records` with several leaders: `latest` is one offset, however often a leader is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from metadata.view import ClusterView
from raftlog.broker.requests.deletions import DeletionRouter
from raftlog.broker.requests.leaders import Leaders
from raftlog.errors import RetriableError
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
)
from tests.unit.raftlog.broker.test_service import HERE, THERE, TOPIC, view_of

LATEST = -1


class Leader:
    """The leader of all partitions, elsewhere: it fails the first times, while records continue to arrive."""

    def __init__(self, *failures: str | RetriableError) -> None:
        self.failures = list(failures)
        self.end = 10
        self.asked: list[list[int]] = []
        self.offset_requests: list[OffsetsRequest] = []
        self.offset_error = ""
        self.silent = False

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        self.offset_requests.append(request)
        if self.silent:
            await asyncio.Event().wait()
        found = [FoundOffset(q.topic_id, q.partition, self.offset_error, offset=self.end) for q in request.partitions]
        return OffsetsResponse(0, found)

    async def delete_records(self, peer: int, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        self.asked.append([one.before for one in request.partitions])
        self.end += 5
        failure = self.failures.pop(0) if self.failures else ""
        if isinstance(failure, RetriableError):
            raise failure
        deleted = [
            DeletedPartition(one.topic_id, one.partition, failure, log_start_offset=-1 if failure else one.before)
            for one in request.partitions
        ]
        return DeleteRecordsResponse(request.correlation_id, deleted)


async def delete(leader: Leader, *before: int, view: ClusterView | None = None, timeout_ms: int = 5_000) -> Any:
    router = DeletionRouter(
        HERE,
        None,  # type: ignore[arg-type]
        leader,  # type: ignore[arg-type]
        Leaders(view or view_of(*[THERE] * len(before))),
        leader.offsets,
    )
    asked = [DeleteRecordsPartition(TOPIC, number, offset) for number, offset in enumerate(before)]
    answer = await router.delete_records(DeleteRecordsRequest(3, timeout_ms, asked))
    return [(one.error, one.log_start_offset) for one in answer.partitions]


async def test_latest_is_that_of_the_first_attempt() -> None:
    """A retry after a lost answer must not include records that arrived meanwhile."""
    leader = Leader("not_leader", RetriableError("outcome_unknown", "the connection broke"))
    assert await delete(leader, LATEST, 4) == [("", 10), ("", 4)]
    assert leader.asked == [[10, 4]] * 3
    assert len(leader.offset_requests) == 1


async def test_latest_ends_before_open_transactions() -> None:
    leader = Leader()
    await delete(leader, LATEST, 4)
    (asked,) = leader.offset_requests
    assert (asked.isolation, [query.partition for query in asked.partitions]) == (1, [0])


async def test_explicit_offsets_need_no_lookup() -> None:
    leader = Leader()
    assert await delete(leader, 3, 4) == [("", 3), ("", 4)]
    assert not leader.offset_requests


async def test_a_partition_whose_latest_offset_is_unknown_keeps_its_records() -> None:
    leader = Leader()
    leader.offset_error = "leader_not_available"
    assert await delete(leader, LATEST, 4) == [("leader_not_available", -1), ("", 4)]
    assert leader.asked == [[4]]
    silent = Leader()
    silent.silent = True
    assert (await delete(silent, LATEST, timeout_ms=50)) == [("offset_not_available", -1)]
    assert silent.asked == []


async def test_nothing_is_deleted_of_a_topic_that_does_not_exist() -> None:
    leader = Leader()
    leader.offset_error = "unknown_topic"
    assert await delete(leader, LATEST, view=ClusterView()) == [("unknown_topic", -1)]
    assert leader.asked == []


async def test_the_last_attempts_error_does_not_determine_the_outcome_of_an_earlier_one() -> None:
    """S11: a caller that believes that nothing changed may rely on records that are gone."""
    lost = RetriableError("outcome_unknown", "the connection broke")
    assert await delete(Leader(lost, "offset_out_of_range"), 4) == [("outcome_unknown", -1)]
    assert await delete(Leader("request_timed_out", *["not_leader"] * 99), 4, timeout_ms=150) == [
        ("outcome_unknown", -1)
    ]
    assert await delete(Leader("not_leader", "offset_out_of_range"), 4) == [("offset_out_of_range", -1)]
