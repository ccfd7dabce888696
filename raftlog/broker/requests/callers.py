"""Requests for partitions of one caller, wherever these are led (S12).

Partitions that the caller may not use are refused at the start. The others are decided again where they are served:
here by `GuardedRequests`, elsewhere by the broker that gets the caller with the request. So a topic that becomes known
only while a request waits for its leader is decided as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.view import ClusterView
from raftlog.broker.security.access.access import Access
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId
from raftlog.ports import Part, release_regions
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

from .forwarding import CallerForwarder, Forwarder
from .guarded import GuardedRequests
from .leaders import Asked, Leaders
from .local import LocalRequests, OwnRequests
from .partitions import PartitionRouter
from .refusals import Refusals, WatchedTopics


class PartitionRouters:
    """The routers of one node: one for everybody without security, one for each caller with it."""

    def __init__(
        self,
        node_id: BrokerId,
        local: LocalRequests,
        forwarder: Forwarder,
        view: ClusterView,
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up` brings the view up to date with the quorum (S7); False: the quorum does not answer."""
        self._node_id = node_id
        self._local = local
        self._forwarder = forwarder
        self._view = view
        self._leaders = Leaders(view)
        self._catch_up = catch_up

    def of_everybody(self) -> PartitionRouter:
        """Return the router of a node without security."""
        return self._router(self._local, None)

    @contextmanager
    def of(self, access: Access, caller: Caller) -> Iterator[PartitionRouter]:
        """Return the router of one request: it serves what the caller may use, and forwards with the caller."""
        # `CallerPartitions` watches the topics that are being read, wherever they are led.
        guarded = GuardedRequests(self._local, self._view, access, caller, on_revoked=lambda: None)
        try:
            # Older nodes do not understand a message with a caller; before they are gone there are no users either.
            named = self._view.feature_level >= SECURITY_FEATURE_LEVEL
            yield self._router(guarded, caller if named else None)
        finally:
            guarded.close()

    def _router(self, own: OwnRequests, caller: Caller | None) -> PartitionRouter:
        others = CallerForwarder(self._forwarder, caller)
        return PartitionRouter(self._node_id, own, others, self._leaders, self._catch_up)


class CallerPartitions:
    """An implementation of `http_api.service.service.PartitionService` for one caller."""

    def __init__(self, routers: PartitionRouters, access: Access, caller: Caller) -> None:
        self._routers = routers
        self._access = access
        self._caller = caller

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        with self._routers.of(self._access, self._caller) as router:
            refusals = await self._refusals(router, Operation.WRITE, request.partitions, "produce")
            part = msgspec.structs.replace(request, partitions=refusals.allowed)
            response = await router.produce(part, refusals.without(batches))
            return ProduceResponse(request.correlation_id, refusals.merged(ProducedPartition, response.partitions))

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        with self._routers.of(self._access, self._caller) as router:
            refusals = await self._refusals(router, Operation.READ, request.partitions, "fetch")
            part = msgspec.structs.replace(request, partitions=refusals.allowed)
            if refusals:
                # Answered at once, as for any other error of a partition.
                part = msgspec.structs.replace(part, max_wait_ms=0)
            response, parts = await self._fetch_while_allowed(router, part)
            return FetchResponse(request.correlation_id, refusals.merged(FetchedPartition, response.partitions)), parts

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        with self._routers.of(self._access, self._caller) as router:
            refusals = await self._refusals(router, Operation.DESCRIBE, request.partitions, "offsets")
            response = await router.offsets(msgspec.structs.replace(request, partitions=refusals.allowed))
            return OffsetsResponse(request.correlation_id, refusals.merged(FoundOffset, response.partitions))

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        with self._routers.of(self._access, self._caller) as router:
            refusals = await self._refusals(router, Operation.DELETE, request.partitions, "delete_records")
            response = await router.delete_records(msgspec.structs.replace(request, partitions=refusals.allowed))
            return DeleteRecordsResponse(request.correlation_id, refusals.merged(DeletedPartition, response.partitions))

    async def _refusals(
        self, router: PartitionRouter, operation: Operation, asked: Sequence[Asked], action: str
    ) -> Refusals[Asked]:
        # Rules are about names, and a topic that this node does not know has none.
        await router.know_topics(asked)
        return Refusals.of(self._access, self._caller, operation, asked, action)

    async def _fetch_while_allowed(
        self, router: PartitionRouter, request: FetchRequest
    ) -> tuple[FetchResponse, list[Part]]:
        """Fetch, and end the wait if the caller loses the right to a topic meanwhile. Records that have been fetched by
        then are released."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.timeout(None)
        is_lost = False

        def lose() -> None:
            nonlocal is_lost
            is_lost = True
            waiting.reschedule(loop.time())

        watched = WatchedTopics(self._access, self._caller, lose)
        watched.begin({one.topic_id for one in request.partitions})
        try:
            async with waiting:
                response, parts = await router.fetch(request)
        except TimeoutError:
            if not is_lost:
                raise
            raise self._lost() from None
        finally:
            watched.close()
        if is_lost:  # The answer was on its way through the loop already, and overtook the end of the wait.
            release_regions(parts)
            raise self._lost()
        return response, parts

    def _lost(self) -> InvalidRequest:
        return InvalidRequest(
            "authorization_failed", f"{self._caller} lost the right to read while the request waited; nothing is sent"
        )
