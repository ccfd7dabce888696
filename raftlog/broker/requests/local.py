"""Requests of the wire protocol, answered by this broker's own partitions.

A request names many partitions; each is asked separately, and the answer is sent when all have answered. The code uses
callbacks and ports: the data listener, the router and the simulator share it. If this broker does not lead a partition,
the answer is `not_leader` with a hint; forwarding is the router's job.

Batches are passed to the partitions in the order of arrival. A request may name thousands, so only some are passed on
in one turn of the loop, and later requests wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from partitions.driver.requests import Deleted
from partitions.fetch.session import FetchSession
from partitions.manager import Cancellable, PartitionManager, Produced
from raftlog.errors import NotLeader, RaftlogError, RetriableError
from raftlog.model import Acks, Offset, TopicId, TopicPartition
from raftlog.ports import Part, Scheduler
from raftlog.slices import in_turns
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

BATCHES_A_TURN = 64
"""Batches passed to their partitions in one turn of the loop: each costs 50 to 200 microseconds, including its
check."""


class LocalRequests:
    """Produce, fetch and offset requests for partitions that this broker leads."""

    def __init__(self, manager: PartitionManager, scheduler: Scheduler) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._to_hand_over: deque[tuple[Callable[[], None], Callable[[RaftlogError], None]]] = deque()
        """Arrived batches in order, each with the callback for one that could not be passed on."""
        self._handing_over = False
        """Whether `_hand_over` runs or is scheduled."""

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        """Call `done` when every batch has its answer, at the latest after the request's timeout."""
        asked = request.partitions
        answers: list[ProducedPartition | None] = [None] * len(asked)
        missing = len(asked)

        def answered(position: int, answer: Produced | RaftlogError) -> None:
            nonlocal missing
            if answers[position] is not None:
                return  # The hand-over failed, and the partition answered nevertheless.
            answers[position] = _produced(asked[position], answer)
            missing -= 1
            if not missing:
                done(ProduceResponse(request.correlation_id, [a for a in answers if a is not None]))

        if not asked:
            done(ProduceResponse(request.correlation_id, []))
        for position, (target, batch) in enumerate(zip(asked, batches, strict=True)):
            done_with_it = partial(answered, position)
            hand_over = partial(
                self._manager.produce,
                TopicPartition(TopicId(target.topic_id), target.partition),
                batch,
                Acks(request.acks),
                done_with_it,
                timeout_ms=request.timeout_ms,
                resent=target.resent,
            )
            self._to_hand_over.append((hand_over, done_with_it))
        if not self._handing_over:
            self._hand_over()

    def _hand_over(self) -> None:
        # Batches that arrive during the callbacks are queued behind those that are still here.
        self._handing_over = True
        try:
            for _ in range(BATCHES_A_TURN):
                if not self._to_hand_over:
                    break
                hand_over, answered = self._to_hand_over.popleft()
                try:
                    hand_over()
                except Exception as error:
                    # It is unknown whether the batch was appended. Without this answer its whole request would get
                    # none.
                    answered(RetriableError("outcome_unknown", f"an unexpected error: {error!r}"))
                    raise
        finally:
            self._handing_over = bool(self._to_hand_over)
            if self._handing_over:
                self._scheduler.call_soon(self._hand_over)

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
        asked = request.partitions
        answers: list[FoundOffset | None] = [None] * len(asked)
        missing = len(asked)

        def answered(position: int, answer: FoundOffset) -> None:
            nonlocal missing
            answers[position] = answer
            missing -= 1
            if not missing:
                done(OffsetsResponse(request.correlation_id, [a for a in answers if a is not None]))

        if not asked:
            done(OffsetsResponse(request.correlation_id, []))

        def find(position: int) -> None:
            query = asked[position]
            self._manager.find_offset(
                TopicPartition(TopicId(query.topic_id), query.partition),
                query.timestamp_ms,
                partial(answered, position),
                isolation=request.isolation,
            )

        in_turns(self._scheduler, range(len(asked)), find)

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None:
        """Call `done` when every partition has answered, at the latest after the request's timeout."""
        asked = request.partitions
        answers: list[DeletedPartition | None] = [None] * len(asked)
        missing = len(asked)

        def answered(position: int, answer: Deleted | RaftlogError) -> None:
            nonlocal missing
            answers[position] = _deleted(asked[position], answer)
            missing -= 1
            if not missing:
                done(DeleteRecordsResponse(request.correlation_id, [a for a in answers if a is not None]))

        if not asked:
            done(DeleteRecordsResponse(request.correlation_id, []))

        def delete(position: int) -> None:
            target = asked[position]
            tp = TopicPartition(TopicId(target.topic_id), target.partition)
            self._manager.delete_records(tp, Offset(target.before), partial(answered, position), request.timeout_ms)

        in_turns(self._scheduler, range(len(asked)), delete)


def _deleted(target: DeleteRecordsPartition, answer: Deleted | RaftlogError) -> DeletedPartition:
    if isinstance(answer, RaftlogError):
        leader = answer.leader if isinstance(answer, NotLeader) else -1
        return DeletedPartition(target.topic_id, target.partition, answer.code, answer.detail, leader=leader)
    return DeletedPartition(target.topic_id, target.partition, log_start_offset=answer.log_start_offset)


def _produced(target: ProducePartition, answer: Produced | RaftlogError) -> ProducedPartition:
    if isinstance(answer, RaftlogError):
        leader = answer.leader if isinstance(answer, NotLeader) else -1
        return ProducedPartition(target.topic_id, target.partition, answer.code, answer.detail, leader=leader)
    return ProducedPartition(
        target.topic_id,
        target.partition,
        base_offset=answer.base_offset,
        log_append_time_ms=answer.log_append_time_ms,
        log_start_offset=answer.log_start_offset,
    )
