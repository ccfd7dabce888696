"""Requests of the wire, answered by this broker's own partitions.

One request names many partitions; each is asked on its own, and the answer goes out when all have answered. Callback
style, on ports: the data listener, the router and the simulator use it alike. Whoever asks for a partition that this
broker does not lead gets `not_leader` with a hint: forwarding is the router's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partitions.manager import Cancellable, PartitionManager, Produced
from raftlog.errors import NotLeader, RaftlogError
from raftlog.model import Acks, TopicId, TopicPartition
from raftlog.ports import Part
from raftlog.wire import (
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
)


class LocalRequests:
    """Produce, fetch and offset requests for partitions led here."""

    def __init__(self, manager: PartitionManager) -> None:
        self._manager = manager

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        """`done` once every batch has its answer: at the latest after the request's timeout."""
        asked = request.partitions
        answers: list[ProducedPartition | None] = [None] * len(asked)
        missing = len(asked)

        def answered(position: int, answer: Produced | RaftlogError) -> None:
            nonlocal missing
            answers[position] = _produced(asked[position], answer)
            missing -= 1
            if not missing:
                done(ProduceResponse(request.correlation_id, [a for a in answers if a is not None]))

        if not asked:
            done(ProduceResponse(request.correlation_id, []))
        for position, (target, batch) in enumerate(zip(asked, batches, strict=True)):
            self._manager.produce(
                TopicPartition(TopicId(target.topic_id), target.partition),
                batch,
                Acks(request.acks),
                lambda answer, position=position: answered(position, answer),  # type: ignore[misc]
                timeout_ms=request.timeout_ms,
            )

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Cancellable:
        """A long poll; `done` once. The receiver of the parts sends or releases every region in them."""

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

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None:
        """`done` once every partition has answered."""
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
        for position, query in enumerate(asked):
            self._manager.find_offset(
                TopicPartition(TopicId(query.topic_id), query.partition),
                query.timestamp_ms,
                lambda answer, position=position: answered(position, answer),  # type: ignore[misc]
            )


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
