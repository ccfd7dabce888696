"""`delete-records` over several leaders: split by who leads, forwarded, and put together again.

Deleting twice does what deleting once does, so whatever may be asked again is, until the request's time is up.

What is *not* here: the deletion (`partitions/leader_deletions.py`).
"""

from __future__ import annotations

import asyncio

import msgspec

from raftlog.errors import CODES, NotLeader, RaftlogError
from raftlog.model import BrokerId
from raftlog.wire import DeletedPartition, DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse

from .forwarding import Forwarder
from .local import LocalRequests
from .routing_leaders import Leaders, Slots, resolve


class DeletionRouter:
    """Lives on the broker's loop."""

    def __init__(self, node_id: BrokerId, local: LocalRequests, forwarder: Forwarder, leaders: Leaders) -> None:
        self._node_id = node_id
        self._local = local
        self._forwarder = forwarder
        self._leaders = leaders

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Answers in the order asked, at the latest after the request's timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_ms / 1000
        slots: Slots[DeletedPartition] = Slots(len(request.partitions))
        while slots.open:
            groups = self._leaders.groups(request.partitions, slots, _failed)
            left_ms = max(int((deadline - loop.time()) * 1000), 0)
            request = msgspec.structs.replace(request, timeout_ms=left_ms)
            await asyncio.gather(
                *(self._delete_at(leader, request, positions, slots) for leader, positions in groups.items())
            )
            if slots.open and not await self._leaders.retry_before(deadline):
                break
        return DeleteRecordsResponse(request.correlation_id, slots.in_order())

    async def _delete_at(
        self, leader: BrokerId, request: DeleteRecordsRequest, positions: list[int], slots: Slots[DeletedPartition]
    ) -> None:
        targets = [request.partitions[position] for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, forwarded=True)
        try:
            if leader == self._node_id:
                future: asyncio.Future[DeleteRecordsResponse] = asyncio.get_running_loop().create_future()
                self._local.delete_records(part, lambda answer: resolve(future, answer))
                response = await future
            else:
                response = await self._forwarder.delete_records(leader, part)
        except RaftlogError as error:
            for position in positions:
                slots.settle(position, _failed(request.partitions[position], error), final=not error.retriable)
            return
        for position, answer in zip(positions, response.partitions, strict=True):
            code = CODES.get(answer.error)
            slots.settle(position, answer, final=code is None or not code.retriable)


def _failed(target: DeleteRecordsPartition, error: RaftlogError) -> DeletedPartition:
    leader = error.leader if isinstance(error, NotLeader) else -1
    return DeletedPartition(target.topic_id, target.partition, error.code, error.detail, leader=leader)
