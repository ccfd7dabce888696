"""`delete-records` over several leaders: split by leader, forwarded, and combined again.

Deletion up to an offset is idempotent, so retriable failures are retried until the request's deadline. `latest` is
not an offset: it is a different one each time, and a retry would delete records that arrived later. So it is resolved
once, before the first attempt, and every attempt names the resulting offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from raftlog.errors import CODES, Applied, RaftlogError, RetriableError, error_from_code
from raftlog.model import BrokerId
from raftlog.system.futures import answer_of
from raftlog.wire import (
    TIMESTAMP_LATEST,
    UP_TO_HIGH_WATERMARK,
    DeletedPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
)

from .forwarding import PeerRequests
from .leaders import Leaders, Slots, left_ms
from .local import OwnRequests


class DeletionRouter:
    """Deletions, wherever the partitions are led. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        local: OwnRequests,
        forwarder: PeerRequests,
        leaders: Leaders,
        offsets: Callable[[OffsetsRequest], Awaitable[OffsetsResponse]],
    ) -> None:
        """`offsets` looks up offsets at the leaders, wherever they are."""
        self._node_id = node_id
        self._local = local
        self._forwarder = forwarder
        self._leaders = leaders
        self._offsets = offsets

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Return the answers in the order of the request, at the latest after its timeout."""
        deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        slots = Slots(DeletedPartition, len(request.partitions))
        request = await self._with_offsets(request, slots, deadline)
        delete = partial(self._delete_at, request, slots, deadline)
        await self._leaders.ask_until(deadline, request.partitions, slots, delete)
        return DeleteRecordsResponse(request.correlation_id, slots.in_order())

    async def _with_offsets(
        self, request: DeleteRecordsRequest, slots: Slots[DeletedPartition], deadline: float
    ) -> DeleteRecordsRequest:
        """Return the request with an offset for every partition. A partition for which the lookup fails is settled."""
        positions = [p for p, asked in enumerate(request.partitions) if asked.before == UP_TO_HIGH_WATERMARK]
        if not positions:
            return request
        targets = list(request.partitions)
        queries = [OffsetQuery(targets[p].topic_id, targets[p].partition, TIMESTAMP_LATEST) for p in positions]
        # Records of open transactions are kept: deletion ends at the last stable offset.
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._offsets(OffsetsRequest(0, queries, isolation=1))
        except TimeoutError:
            late = RetriableError(
                "offset_not_available", "the latest offset could not be determined in time; nothing was deleted"
            )
            for position in positions:
                slots.fail(position, targets[position], late, final=True)
            return request
        for position, found in zip(positions, answer.partitions, strict=True):
            target = targets[position]
            if found.error:
                error = error_from_code(found.error, found.detail, found.leader)
                slots.fail(position, target, error, final=True)
            else:
                targets[position] = msgspec.structs.replace(target, before=found.offset)
        return msgspec.structs.replace(request, partitions=targets)

    async def _delete_at(
        self,
        request: DeleteRecordsRequest,
        slots: Slots[DeletedPartition],
        deadline: float,
        leader: BrokerId,
        positions: list[int],
    ) -> None:
        targets = [request.partitions[position] for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, timeout_ms=left_ms(deadline), forwarded=True)
        try:
            if leader == self._node_id:
                response: DeleteRecordsResponse = await answer_of(lambda tell: self._local.delete_records(part, tell))
            else:
                response = await self._forwarder.delete_records(leader, part)
        except RaftlogError as error:
            for position in positions:
                if error.applied is not Applied.NO:
                    slots.maybe_applied.add(position)
                slots.fail(position, request.partitions[position], error, final=not error.retriable)
            return
        for position, told in zip(positions, response.partitions, strict=True):
            answer = self._leaders.weighed(told)
            code = CODES.get(answer.error)
            if code is not None and code.applied is not Applied.NO:
                slots.maybe_applied.add(position)
            slots.settle(position, answer, final=code is None or not code.retriable)
