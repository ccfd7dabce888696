"""Requests of the wire protocol, answered by this broker's own partitions.

A request names many partitions; each is asked separately, and the answer is sent when all have answered. The code uses
callbacks and ports: the data listener, the router and the simulator share it. If this broker does not lead a partition,
the answer is `not_leader` with a hint; forwarding is the router's job.

Batches are passed to the partitions in the order of arrival. A request may name thousands, so only some are passed on
in one turn of the loop, and later requests wait behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol

import msgspec

from partitions.driver.requests import Deleted
from partitions.fetch.session import FetchSession
from partitions.manager import Cancellable, PartitionManager, Produced
from raftlog.errors import LogEndMoved, RaftlogError, RetriableError
from raftlog.model import Acks, Offset, TopicId, TopicPartition
from raftlog.ports import Part, Scheduler
from raftlog.slices import WorkQueue, in_turns
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    SessionFetchRequest,
    SessionFetchResponse,
)

from .leaders import Answer, failed


class _Answers(Generic[Answer]):
    """The answers of a request's partitions. `done` is called once, when all are there."""

    def __init__(self, count: int, done: Callable[[list[Answer]], None]) -> None:
        self._answers: list[Answer | None] = [None] * count
        self._missing = count
        self._done: Callable[[list[Answer]], None] = done
        if not count:
            done([])

    def add(self, position: int, answer: Answer) -> None:
        """Store an answer. A second one is ignored: a hand-over failed, and the partition answered nevertheless."""
        if self._answers[position] is None:
            self._answers[position] = answer
            self._missing -= 1
            if not self._missing:
                self._done([one for one in self._answers if one is not None])


class OwnRequests(Protocol):
    """Requests to this broker's own partitions, as one caller may make them: `LocalRequests`, or `GuardedRequests`."""

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None: ...

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Cancellable: ...

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None: ...

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None: ...


class LocalRequests:
    """Produce, fetch and offset requests for partitions that this broker leads."""

    def __init__(self, manager: PartitionManager, scheduler: Scheduler) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._arrived = WorkQueue(scheduler)
        """The hand-over of each batch, in the order of arrival. Batches that arrive meanwhile queue behind."""

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        """Call `done` when every batch has its answer, at the latest after the request's timeout."""
        number, asked = request.correlation_id, request.partitions
        answers = _Answers[ProducedPartition](len(asked), lambda found: done(ProduceResponse(number, found)))

        def hand_over(position: int, target: ProducePartition, batch: memoryview) -> None:
            def done_with_it(answer: Produced | RaftlogError) -> None:
                answers.add(position, _produced(target, answer))

            tp = TopicPartition(TopicId(target.topic_id), target.partition)
            acks, timeout_ms = Acks(request.acks), request.timeout_ms
            try:
                self._manager.produce(
                    tp,
                    batch,
                    acks,
                    done_with_it,
                    timeout_ms=timeout_ms,
                    resent=target.resent,
                    restored=request.restored,
                    expected_end_offset=target.expected_end_offset,
                )
            except Exception as error:
                # It is unknown whether the batch was appended. Without this answer its whole request would get none.
                done_with_it(RetriableError("outcome_unknown", f"an unexpected error: {error!r}"))
                raise

        pairs = zip(asked, batches, strict=True)
        self._arrived.add(*(partial(hand_over, position, *pair) for position, pair in enumerate(pairs)))

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Cancellable:
        """Begin a long poll; `done` is called once.

        The receiver of the parts sends or releases every region in them.
        """

        def answered(partitions: list[FetchedPartition], parts: list[Part]) -> None:
            done(FetchResponse(request.correlation_id, partitions), parts)

        return self._manager.fetch(
            request.partitions,
            answered,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_wait_ms=request.max_wait_ms,
            isolation=request.isolation,
        )

    def fetch_session(
        self,
        current: FetchSession | None,
        request: SessionFetchRequest,
        done: Callable[[SessionFetchResponse, list[Part]], None],
    ) -> FetchSession:
        """Begin a long poll of a session; see `FetchSessions.fetch`."""
        number = request.correlation_id
        return self._manager.fetch_session(
            current, request, lambda slots, parts: done(SessionFetchResponse(number, slots), parts)
        )

    def close_session(self, session: FetchSession | None) -> None:
        """Close a session whose stream has ended."""
        self._manager.close_session(session)

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None:
        """Call `done` when every partition has answered."""
        number, asked = request.correlation_id, request.partitions
        answers = _Answers[FoundOffset](len(asked), lambda found: done(OffsetsResponse(number, found)))

        def find(position: int) -> None:
            query = asked[position]
            self._manager.find_offset(
                TopicPartition(TopicId(query.topic_id), query.partition),
                query.timestamp_ms,
                partial(answers.add, position),
                isolation=request.isolation,
            )

        in_turns(self._scheduler, range(len(asked)), find)

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None:
        """Call `done` when every partition has answered, at the latest after the request's timeout."""
        number, asked = request.correlation_id, request.partitions
        answers = _Answers[DeletedPartition](len(asked), lambda found: done(DeleteRecordsResponse(number, found)))

        def delete(position: int) -> None:
            target = asked[position]

            def deleted(answer: Deleted | RaftlogError) -> None:
                answers.add(position, _deleted(target, answer))

            tp = TopicPartition(TopicId(target.topic_id), target.partition)
            self._manager.delete_records(tp, Offset(target.before), deleted, request.timeout_ms)

        in_turns(self._scheduler, range(len(asked)), delete)


def _deleted(target: DeleteRecordsPartition, answer: Deleted | RaftlogError) -> DeletedPartition:
    if isinstance(answer, RaftlogError):
        return failed(DeletedPartition, target, answer)
    return DeletedPartition(target.topic_id, target.partition, log_start_offset=answer.log_start_offset)


def _produced(target: ProducePartition, answer: Produced | RaftlogError) -> ProducedPartition:
    if isinstance(answer, LogEndMoved):
        refused = failed(ProducedPartition, target, answer)
        return msgspec.structs.replace(refused, log_end_offset=answer.log_end_offset)
    if isinstance(answer, RaftlogError):
        return failed(ProducedPartition, target, answer)
    return ProducedPartition(
        target.topic_id,
        target.partition,
        base_offset=answer.base_offset,
        log_append_time_ms=answer.log_append_time_ms,
        log_start_offset=answer.log_start_offset,
    )
