"""The partitions of a broker in memory for one caller, refused by the real rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from raftlog.broker.requests.refusals import Refusals
from raftlog.broker.security.access.access import Access
from raftlog.ports import Part
from raftlog.security.acls import Operation
from raftlog.security.principals import Caller
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
)

if TYPE_CHECKING:
    from .fake_broker import FakeBroker


class FakeCallerPartitions:
    """`PartitionService`."""

    def __init__(self, broker: FakeBroker, access: Access, caller: Caller) -> None:
        self._broker = broker
        self._access = access
        self._caller = caller

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        refusals = Refusals.of(self._access, self._caller, Operation.WRITE, request.partitions, "produce")
        part = msgspec.structs.replace(request, partitions=refusals.allowed)
        response = await self._broker.produce(part, refusals.without(batches))
        return ProduceResponse(request.correlation_id, refusals.merged(ProducedPartition, response.partitions))

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        refusals = Refusals.of(self._access, self._caller, Operation.READ, request.partitions, "fetch")
        part = msgspec.structs.replace(request, partitions=refusals.allowed)
        if refusals:
            part = msgspec.structs.replace(part, max_wait_ms=0)
        response, parts = await self._broker.fetch(part)
        return FetchResponse(request.correlation_id, refusals.merged(FetchedPartition, response.partitions)), parts

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        refusals = Refusals.of(self._access, self._caller, Operation.DESCRIBE, request.partitions, "offsets")
        response = await self._broker.offsets(msgspec.structs.replace(request, partitions=refusals.allowed))
        return OffsetsResponse(request.correlation_id, refusals.merged(FoundOffset, response.partitions))

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        refusals = Refusals.of(self._access, self._caller, Operation.DELETE, request.partitions, "delete_records")
        response = await self._broker.delete_records(msgspec.structs.replace(request, partitions=refusals.allowed))
        return DeleteRecordsResponse(request.correlation_id, refusals.merged(DeletedPartition, response.partitions))
