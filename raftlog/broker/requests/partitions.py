"""Requests for partitions, wherever these are led: executed here, or forwarded to the right broker.

Requests are split by leader: this broker serves its own part and forwards the others, by one hop and no further. If a
leader has moved, the answer is `not_leader`, which is safe to retry: the router waits for its view to advance and
retries until the request's time is over. If the connection of a forwarded produce breaks, the batch may have been
appended. The router resends it only if its producer is idempotent; otherwise the answer says that the outcome is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from raftlog.errors import Applied, RaftlogError
from raftlog.model import BrokerId
from raftlog.ports import Part
from raftlog.records.batch import parse_header
from raftlog.system.futures import answer_of
from raftlog.wire import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
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

from .deletions import DeletionRouter
from .fetch import FetchRouter
from .forwarding import PeerRequests
from .leaders import ASKS_ELSEWHERE, READ_PATIENCE_SECONDS, Asked, Leaders, Slots, left_ms
from .local import OwnRequests


class PartitionRouter:
    """An implementation of `http_api.service.service.PartitionService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        local: OwnRequests,
        forwarder: PeerRequests,
        leaders: Leaders,
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up` brings the view up to date with the quorum (S7); False: the quorum does not answer."""
        self._node_id = node_id
        self._local = local
        self._forwarder = forwarder
        self._leaders = leaders
        self._catch_up = catch_up
        self._fetches = FetchRouter(node_id, local, forwarder, leaders)
        self._deletions = DeletionRouter(node_id, local, forwarder, leaders, self.offsets)

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        await self.know_topics(request.partitions)
        slots = Slots(ProducedPartition, len(request.partitions))
        produce = partial(self._produce_at, request, batches, slots, deadline)
        await self._leaders.ask_until(deadline, request.partitions, slots, produce)
        return ProduceResponse(request.correlation_id, slots.in_order())

    async def _produce_at(
        self,
        request: ProduceRequest,
        batches: Sequence[memoryview],
        slots: Slots[ProducedPartition],
        deadline: float,
        leader: BrokerId,
        positions: list[int],
    ) -> None:
        chosen = [batches[position] for position in positions]
        targets = [_marked(request.partitions[position], position in slots.maybe_applied) for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, timeout_ms=left_ms(deadline), forwarded=True)
        try:
            response = await self._produce_part(leader, part, chosen)
        except RaftlogError as error:
            for position, batch in zip(positions, chosen, strict=True):
                again = error.retriable and (error.applied is Applied.NO or _is_idempotent(batch))
                if error.applied is not Applied.NO:
                    slots.maybe_applied.add(position)
                slots.fail(position, request.partitions[position], error, final=not again)
            return
        for position, told in zip(positions, response.partitions, strict=True):
            answer = self._leaders.weighed(told)
            slots.settle(position, answer, final=answer.error not in ASKS_ELSEWHERE)

    async def _produce_part(
        self, leader: BrokerId, request: ProduceRequest, batches: Sequence[memoryview]
    ) -> ProduceResponse:
        if leader != self._node_id:
            return await self._forwarder.produce(leader, request, batches)
        return await answer_of(lambda tell: self._local.produce(request, batches, tell))

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        await self.know_topics(request.partitions)
        return await self._fetches.fetch(request)

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        await self.know_topics(request.partitions)
        deadline = asyncio.get_running_loop().time() + READ_PATIENCE_SECONDS
        slots = Slots(FoundOffset, len(request.partitions))
        await self._leaders.ask_until(deadline, request.partitions, slots, partial(self._offsets_at, request, slots))
        return OffsetsResponse(request.correlation_id, slots.in_order())

    async def _offsets_at(
        self, request: OffsetsRequest, slots: Slots[FoundOffset], leader: BrokerId, positions: list[int]
    ) -> None:
        targets = [request.partitions[position] for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, forwarded=True)
        try:
            if leader == self._node_id:
                response: OffsetsResponse = await answer_of(lambda tell: self._local.offsets(part, tell))
            else:
                response = await self._forwarder.offsets(leader, part)
        except RaftlogError as error:
            for position in positions:
                slots.fail(position, request.partitions[position], error, final=not error.retriable)
            return
        for position, told in zip(positions, response.partitions, strict=True):
            answer = self._leaders.weighed(told)
            slots.settle(position, answer, final=answer.error not in {*ASKS_ELSEWHERE, "offset_not_available"})

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        await self.know_topics(request.partitions)
        return await self._deletions.delete_records(request)

    async def know_topics(self, asked: Sequence[Asked]) -> None:
        """Catch up with the quorum if a topic or partition is unknown here.

        Topic ids are random, so a client has one from some node, which may know more than this one: the topic, or a
        higher partition count.
        """
        if not all(self._leaders.has_heard_of(target.topic_id, target.partition) for target in asked):
            self._leaders.may_be_behind = not await self._catch_up()


def _marked(target: ProducePartition, maybe_applied: bool) -> ProducePartition:
    """Mark a batch as resent if it may have been applied. A mark of the request itself is kept."""
    return msgspec.structs.replace(target, resent=True) if maybe_applied and not target.resent else target


def _is_idempotent(batch: memoryview) -> bool:
    try:
        return parse_header(batch).producer_id >= 0
    except RaftlogError:
        return False
