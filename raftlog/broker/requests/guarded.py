"""The partition requests of one caller: each partition that it may not use is refused, and the others are served.

Requests that last (long polls, fetch sessions) are checked again when the rules change: if the caller has lost a topic
that it reads, or whose records wait for the peer, `on_revoked` is called, and its stream ends before another record is
sent (S12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from metadata.view import ClusterView
from partitions.fetch.session import FetchSession
from partitions.manager import Cancellable
from raftlog.broker.security.access.access import Access
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.idempotency import is_keyed, keyed_producer_id
from raftlog.model import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicId
from raftlog.ports import Part
from raftlog.records.batch import parse_header
from raftlog.security.acls import CLUSTER, Operation
from raftlog.security.principals import Caller
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchedSlot,
    FetchPartition,
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
    SlotToFetch,
)

from .leaders import Asked
from .local import LocalRequests
from .refusals import Refusals, WatchedTopics


class GuardedRequests:
    """`LocalRequests` for one caller; the same calls, with the same answers."""

    def __init__(
        self,
        local: LocalRequests,
        view: ClusterView,
        access: Access,
        caller: Caller,
        on_revoked: Callable[[], None],
        has_unsent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_unsent` returns whether answers that were given have not been taken by the peer."""
        self._local = local
        self._view = view
        self._access = access
        self._caller = caller
        self._reading = WatchedTopics(access, caller, on_revoked, has_unsent)
        self._in_session: set[bytes] = set()
        """Topics that the current session has named."""

    def close(self) -> None:
        """End the watch over the rules."""
        self._reading.close()

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        refusals = self._refusals(Operation.WRITE, request.partitions, "produce")
        if request.restored:
            refused = self._access.refusal(self._caller, Operation.ALTER, CLUSTER, "produce")
            if refused is not None:
                refusals.add(dict.fromkeys(range(len(batches)), refused))
        # The producers of a backup are those of another cluster.
        foreign = (
            {}
            if request.restored
            else {
                at: error
                for at, batch in enumerate(batches)
                if at not in refusals and (error := self._refused_producer(request.partitions[at], batch)) is not None
            }
        )
        refusals.add(foreign)
        if not refusals:
            self._local.produce(request, batches, done)
            return
        part = msgspec.structs.replace(request, partitions=refusals.allowed)

        def answered(response: ProduceResponse) -> None:
            done(ProduceResponse(request.correlation_id, refusals.merged(ProducedPartition, response.partitions)))

        self._local.produce(part, refusals.without(batches), answered)

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Cancellable:
        refusals = self._refusals(Operation.READ, request.partitions, "fetch")
        refusals.add({at: _unknown(one) for at, one in enumerate(request.partitions) if self._is_unknown(one)})
        if refusals:
            # Answered at once, as for any other error of a partition.
            request = msgspec.structs.replace(request, partitions=refusals.allowed, max_wait_ms=0)
        polled = {one.topic_id for one in request.partitions}
        self._reading.begin(polled)

        def answered(response: FetchResponse, parts: list[Part]) -> None:
            self._reading.end(polled)
            if refusals:
                merged = refusals.merged(FetchedPartition, response.partitions)
                response = FetchResponse(response.correlation_id, merged)
            done(response, parts)

        return self._local.fetch(request, answered)

    def fetch_session(
        self,
        current: FetchSession | None,
        request: SessionFetchRequest,
        done: Callable[[SessionFetchResponse, list[Part]], None],
    ) -> FetchSession:
        added = dict.fromkeys(slot.topic_id for slot in request.added)
        topics = self._access.refused_topics(self._caller, Operation.READ, added, "session_fetch")
        refused = [
            FetchedSlot(slot.slot, topics[slot.topic_id].code, topics[slot.topic_id].detail)
            for slot in request.added
            if slot.topic_id in topics
        ]
        for slot in filter(self._is_unknown, request.added):
            error = _unknown(slot)
            refused.append(FetchedSlot(slot.slot, error.code, error.detail))
        if refused:
            over = {slot.slot for slot in refused}
            allowed = [slot for slot in request.added if slot.slot not in over]
            request = msgspec.structs.replace(request, added=allowed, max_wait_ms=0)
        if request.begins:
            self._reading.end(self._in_session)
            self._in_session.clear()
        new = {slot.topic_id for slot in request.added} - self._in_session
        self._reading.begin(new)
        self._in_session |= new

        def answered(response: SessionFetchResponse, parts: list[Part]) -> None:
            slots = [*response.slots, *refused]
            done(SessionFetchResponse(response.correlation_id, slots), parts)

        return self._local.fetch_session(current, request, answered if refused else done)

    def close_session(self, session: FetchSession | None) -> None:
        self._local.close_session(session)

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None:
        refusals = self._refusals(Operation.DESCRIBE, request.partitions, "offsets")
        if not refusals:
            self._local.offsets(request, done)
            return
        part = msgspec.structs.replace(request, partitions=refusals.allowed)

        def answered(response: OffsetsResponse) -> None:
            done(OffsetsResponse(request.correlation_id, refusals.merged(FoundOffset, response.partitions)))

        self._local.offsets(part, answered)

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None:
        refusals = self._refusals(Operation.DELETE, request.partitions, "delete_records")
        if not refusals:
            self._local.delete_records(request, done)
            return
        part = msgspec.structs.replace(request, partitions=refusals.allowed)

        def answered(response: DeleteRecordsResponse) -> None:
            done(DeleteRecordsResponse(request.correlation_id, refusals.merged(DeletedPartition, response.partitions)))

        self._local.delete_records(part, answered)

    def _is_unknown(self, asked: FetchPartition | SlotToFetch) -> bool:
        """Return whether nothing tells yet if the caller may read a topic: it may become known before it is read."""
        return self._view.topic_by_id(TopicId(asked.topic_id)) is None

    def _refusals(self, operation: Operation, asked: Sequence[Asked], action: str) -> Refusals[Asked]:
        return Refusals.of(self._access, self._caller, operation, asked, action)

    def _refused_producer(self, asked: ProducePartition, batch: memoryview) -> RaftlogError | None:
        """Return the error for a batch in the name of a producer id or an idempotency key that is not the caller's, or
        of a transaction that would be one too many of its own.
        """
        try:
            header = parse_header(batch)
        except RaftlogError:
            return None  # the partition refuses the batch, with the reason
        if header.producer_id == NO_PRODUCER_ID:
            return None
        producer_id = ProducerId(header.producer_id)
        if is_keyed(producer_id):
            # Otherwise a caller could take the place of another's request, whose records would then count as appended.
            own = keyed_producer_id(self._caller.principal.name, asked.topic_id, asked.idempotency_key)
            return None if own == producer_id else InvalidRequest("authorization_failed", _NOT_OWN_KEY)
        refused = self._access.refused_id(self._caller, producer_id, "produce")
        if refused is not None or not header.is_transactional:
            return refused
        key = TransactionKey(producer_id, ProducerEpoch(header.producer_epoch))
        return self._access.refused_transaction(self._caller, key)


_NOT_OWN_KEY = "the producer id stands for an idempotency key that is not the caller's"


def _unknown(asked: FetchPartition | SlotToFetch) -> InvalidRequest:
    return InvalidRequest("unknown_topic", f"topic {asked.topic_id.hex()} is unknown to this broker")
