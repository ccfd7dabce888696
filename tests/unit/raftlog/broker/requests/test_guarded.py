"""A caller gets the partitions that it may use, in the order of its request, and a refusal for each other one (S12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from metadata.commands.cluster import CreateTopic, GrantProducerIds, GrantProducerIdsTo, SetFeatureLevel
from metadata.commands.results import ProducerIdsGranted
from metadata.commands.transactions import ChangeTransactionsAs, OpenBlock
from raftlog.broker.requests.guarded import GuardedRequests
from raftlog.broker.requests.local import LocalRequests
from raftlog.broker.security.access.access import Access
from raftlog.idempotency import keyed_producer_id
from raftlog.model import BrokerId, TopicId
from raftlog.ports import Part
from raftlog.records.batch import encode
from raftlog.security.acls import CLUSTER_NAME, AclRule, Operation, ResourceType
from raftlog.security.authorizer import Authorizer
from raftlog.security.principals import Caller
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchedSlot,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
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
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.transactions import TransactionCluster
from tests.support.security.rules import ALICE, BOB, ROOT, KeptAudit, allow

OPEN, SECRET, UNKNOWN = TOPIC, TopicId(b"topic-number-002"), TopicId(b"\1" * 16)
REFUSED = "authorization_failed"
EVERYBODY_WRITES = tuple(
    allow(Operation.WRITE, ResourceType.TOPIC, "orders", principal=str(caller.principal)) for caller in (ALICE, BOB)
)


class Local:
    """The partitions behind the guard: every request is kept, and answered when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.batches: list[memoryview] = []
        self.answers: list[Callable[[], None]] = []
        self.cancelled = 0

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        self.asked.append(request)
        self.batches = list(batches)
        found = [ProducedPartition(p.topic_id, p.partition, base_offset=7) for p in request.partitions]
        done(ProduceResponse(request.correlation_id, found))

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> object:
        self.asked.append(request)
        found = [FetchedPartition(p.topic_id, p.partition, length=3) for p in request.partitions]
        parts: list[Part] = [b"abc"] * len(found)
        self.answers.append(lambda: done(FetchResponse(request.correlation_id, found), parts))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def fetch_session(
        self, current: object, request: SessionFetchRequest, done: Callable[[SessionFetchResponse, list[Part]], None]
    ) -> object:
        self.asked.append(request)
        slots = [FetchedSlot(one.slot, length=3) for one in request.added]
        parts: list[Part] = [b"abc"] * len(slots)
        self.answers.append(lambda: done(SessionFetchResponse(request.correlation_id, slots), parts))
        return "session"

    def close_session(self, session: object) -> None:
        self.asked.append(session)

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None:
        self.asked.append(request)
        found = [FoundOffset(p.topic_id, p.partition, offset=7) for p in request.partitions]
        done(OffsetsResponse(request.correlation_id, found))

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None:
        self.asked.append(request)
        found = [DeletedPartition(p.topic_id, p.partition, log_start_offset=7) for p in request.partitions]
        done(DeleteRecordsResponse(request.correlation_id, found))


class Guarded:
    """A guard over `Local`, in a cluster with the topics `orders` (open to alice) and `secret`."""

    def __init__(self, *rules: AclRule, caller: Caller = ALICE) -> None:
        self.cluster = TransactionCluster(3)
        self.cluster.do(CreateTopic("secret", SECRET, ((BrokerId(0),),)))
        self.authorizer, self.audit, self.local = Authorizer(rules), KeptAudit(), Local()
        self.access = Access(self.cluster.view, self.authorizer, self.audit)
        self.revoked = 0
        self.requests = GuardedRequests(
            cast(LocalRequests, self.local), self.cluster.view, self.access, caller, self._on_revoked
        )

    def _on_revoked(self) -> None:
        self.revoked += 1

    def revoke(self, rule: AclRule) -> None:
        self.authorizer.remove(rule)
        self.access.rules_changed()


def on(operation: Operation, name: str = "orders") -> AclRule:
    return allow(operation, ResourceType.TOPIC, name)


def batch() -> memoryview:
    return memoryview(encode([b"x"], base_timestamp_ms=0))


def produce(*targets: tuple[TopicId, int]) -> tuple[ProduceRequest, list[memoryview]]:
    batches = [batch() for _ in targets]
    partitions = [
        ProducePartition(topic, number, one.nbytes) for (topic, number), one in zip(targets, batches, strict=True)
    ]
    return ProduceRequest(5, -1, 1000, partitions), batches


def errors(answers: Sequence[Any]) -> list[str]:
    return [answer.error for answer in answers]


def test_batches_for_topics_that_the_caller_may_not_write_are_not_appended_s12() -> None:
    guarded = Guarded(on(Operation.WRITE))
    request, batches = produce((SECRET, 0), (OPEN, 0), (SECRET, 0), (OPEN, 1), (UNKNOWN, 0))
    answered: list[ProduceResponse] = []
    guarded.requests.produce(request, batches, answered.append)
    assert errors(answered[0].partitions) == [REFUSED, "", REFUSED, "", ""]
    assert [p.topic_id for p in answered[0].partitions] == [SECRET, OPEN, SECRET, OPEN, UNKNOWN]
    assert guarded.local.batches == [batches[1], batches[3], batches[4]]
    assert answered[0].correlation_id == 5


def test_a_request_of_allowed_partitions_passes_as_it_is() -> None:
    guarded = Guarded(caller=ROOT)
    request, batches = produce((SECRET, 0), (OPEN, 0))
    guarded.requests.produce(request, batches, lambda response: None)
    assert guarded.local.asked == [request]


def test_a_request_of_refused_partitions_only_is_answered() -> None:
    guarded = Guarded()
    request, batches = produce((SECRET, 0))
    answered: list[ProduceResponse] = []
    guarded.requests.produce(request, batches, answered.append)
    assert errors(answered[0].partitions) == [REFUSED]


def test_batches_of_a_backup_need_the_right_to_alter_the_cluster_s12() -> None:
    guarded = Guarded(on(Operation.WRITE))
    written = memoryview(encode([b"x"], base_timestamp_ms=0, producer_id=1, producer_epoch=0, base_sequence=0))
    targets = [ProducePartition(topic, 0, written.nbytes) for topic in (OPEN, UNKNOWN)]
    request = ProduceRequest(5, -1, 1000, targets, restored=True)
    answered: list[ProduceResponse] = []
    guarded.requests.produce(request, [written] * 2, answered.append)
    assert errors(answered[0].partitions) == [REFUSED, REFUSED]
    assert guarded.local.asked == [] or guarded.local.asked[0].partitions == []
    guarded.authorizer.add(allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
    guarded.requests.produce(request, [written] * 2, answered.append)
    assert errors(answered[1].partitions) == ["", ""], "its producers are another cluster's"
    assert guarded.local.asked[-1] == request


def test_an_idempotency_key_is_the_callers_own_s12() -> None:
    """Otherwise its records would count as those of another's request, which would never be appended."""
    guarded = Guarded(on(Operation.WRITE))
    answered: list[ProduceResponse] = []
    for principal, topic_id, text, error in (
        ("alice", OPEN, "0:order-1", ""),
        ("bob", OPEN, "0:order-1", REFUSED),
        ("alice", SECRET, "0:order-1", REFUSED),
        ("alice", OPEN, "0:order-2", REFUSED),
    ):
        producer_id = keyed_producer_id(principal, topic_id, "0:order-1")
        forged = memoryview(
            encode([b"x"], base_timestamp_ms=0, producer_id=producer_id, producer_epoch=0, base_sequence=7)
        )
        target = ProducePartition(OPEN, 0, forged.nbytes, idempotency_key=text)
        guarded.requests.produce(ProduceRequest(5, -1, 1000, [target]), [forged], answered.append)
        assert errors(answered[-1].partitions) == [error], (principal, text)


def test_the_name_of_another_producer_is_refused_s12() -> None:
    guarded = Guarded(on(Operation.WRITE))
    answered: list[ProduceResponse] = []
    producer_id, epoch = guarded.cluster.initialize("payments")
    forged = memoryview(
        encode([b"x"], base_timestamp_ms=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    )
    request = ProduceRequest(5, -1, 1000, [ProducePartition(OPEN, 0, forged.nbytes)])
    guarded.requests.produce(request, [forged], answered.append)
    assert errors(answered[0].partitions) == [REFUSED]
    guarded.authorizer.add(allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "payments"))
    guarded.requests.produce(request, [forged], answered.append)
    assert errors(answered[1].partitions) == [""]


def forge(guarded: Guarded, producer_id: int, epoch: int = 0, *, caller: Caller = ALICE) -> str:
    """Return the error of a caller's batch in the name of a producer id; empty if the partition gets it."""
    requests = GuardedRequests(
        cast(LocalRequests, guarded.local), guarded.cluster.view, guarded.access, caller, lambda: None
    )
    one = memoryview(
        encode([b"x"], base_timestamp_ms=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    )
    answered: list[ProduceResponse] = []
    requests.produce(ProduceRequest(5, -1, 1000, [ProducePartition(OPEN, 0, one.nbytes)]), [one], answered.append)
    (error,) = errors(answered[0].partitions)
    assert bool(guarded.local.batches) == (not error)
    return error


def test_a_producer_id_of_another_principal_is_refused_in_every_epoch_s12() -> None:
    guarded = Guarded(*EVERYBODY_WRITES)
    guarded.cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    incarnation = guarded.cluster.incarnation(0)
    granted = guarded.cluster.do(GrantProducerIdsTo(BrokerId(0), incarnation, 10, ALICE.principal.name))
    assert isinstance(granted, ProducerIdsGranted)
    hers = granted.first
    assert forge(guarded, hers) == ""
    assert [forge(guarded, hers, epoch, caller=BOB) for epoch in (0, 1, 7)] == [REFUSED] * 3
    assert [event.principal for event in guarded.audit.events if not event.allowed] == ["User:bob"] * 3
    assert "another principal" in guarded.audit.events[-1].reason
    assert forge(guarded, hers, 1) == "", "its owner may raise the epoch"
    assert forge(guarded, hers, 2, caller=ROOT) == ""


def test_ids_of_a_block_without_a_name_are_refused_to_others_s12() -> None:
    guarded = Guarded(*EVERYBODY_WRITES)
    guarded.cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    first = guarded.cluster.view.transactions.granted_below
    guarded.cluster.do(ChangeTransactionsAs((OpenBlock("", 10, 60_000),), (ALICE.principal.name,)))
    assert forge(guarded, first) == ""
    assert forge(guarded, first + 9, caller=BOB) == REFUSED


def test_an_id_that_may_be_granted_to_others_is_refused_until_it_is_known_s12() -> None:
    """Ids count up: one that is not granted yet is the next producer's."""
    guarded = Guarded(*EVERYBODY_WRITES)
    next_id = guarded.cluster.view.transactions.granted_below
    assert [forge(guarded, next_id + ahead, caller=BOB) for ahead in (0, 1, 10**9)] == ["metadata_behind"] * 3
    granted = guarded.cluster.do(GrantProducerIds(BrokerId(0), guarded.cluster.incarnation(0), 10))
    assert isinstance(granted, ProducerIdsGranted)
    # Granted without security: it belongs to no principal.
    assert forge(guarded, next_id, caller=BOB) == ""


def test_bytes_that_are_no_batch_are_left_to_the_partition() -> None:
    guarded = Guarded(on(Operation.WRITE))
    request = ProduceRequest(5, -1, 1000, [ProducePartition(OPEN, 0, 3)])
    guarded.requests.produce(request, [memoryview(b"abc")], lambda response: None)
    assert guarded.local.asked == [request]


def test_a_fetch_with_refused_partitions_is_answered_at_once_and_in_order_s12() -> None:
    guarded = Guarded(on(Operation.READ))
    request = FetchRequest(5, 10_000, 1, 1 << 20, [FetchPartition(t, 0, 0, 100) for t in (SECRET, OPEN, SECRET)])
    answered: list[tuple[FetchResponse, list[Part]]] = []
    guarded.requests.fetch(request, lambda response, parts: answered.append((response, parts)))
    (passed,) = guarded.local.asked
    assert ([p.topic_id for p in passed.partitions], passed.max_wait_ms) == ([OPEN], 0)
    guarded.local.answers.pop()()
    response, parts = answered[0]
    assert errors(response.partitions) == [REFUSED, "", REFUSED]
    assert [p.length for p in response.partitions] == [0, 3, 0]
    assert parts == [b"abc"]


def test_slots_of_a_session_are_refused_one_by_one_s12() -> None:
    guarded = Guarded(on(Operation.READ))
    added = [SlotToFetch(1, SECRET, 0, 0, 100), SlotToFetch(2, OPEN, 0, 0, 100)]
    request = SessionFetchRequest(5, 1, True, 10_000, 1, 1 << 20, added)
    answered: list[SessionFetchResponse] = []
    session = guarded.requests.fetch_session(None, request, lambda response, parts: answered.append(response))
    (passed,) = guarded.local.asked
    assert ([slot.slot for slot in passed.added], passed.max_wait_ms) == ([2], 0)
    guarded.local.answers.pop()()
    assert [(slot.slot, slot.error) for slot in answered[0].slots] == [(2, ""), (1, REFUSED)]
    guarded.requests.close_session(session)
    assert guarded.local.asked[-1] == session


def test_a_topic_that_becomes_known_after_it_was_named_is_not_read_s12() -> None:
    """The rules could not be asked about it, since they name topics."""
    guarded, later = Guarded(on(Operation.READ)), TopicId(b"l" * 16)
    added = [SlotToFetch(1, later, 0, 0, 100), SlotToFetch(2, OPEN, 0, 0, 100)]
    slots: list[FetchedSlot] = []
    request = SessionFetchRequest(5, 1, True, 10_000, 1, 1 << 20, added)
    guarded.requests.fetch_session(None, request, lambda response, parts: slots.extend(response.slots))
    fetched: list[FetchedPartition] = []
    polled = [FetchPartition(later, 0, 0, 100), FetchPartition(OPEN, 0, 0, 100)]
    poll = FetchRequest(5, 10_000, 1, 1 << 20, polled)
    guarded.requests.fetch(poll, lambda response, parts: fetched.extend(response.partitions))
    guarded.cluster.do(CreateTopic("later", later, ((BrokerId(0),),)))
    for answer in guarded.local.answers:
        answer()
    assert sorted((slot.slot, slot.error) for slot in slots) == [(1, "unknown_topic"), (2, "")]
    assert errors(fetched) == ["unknown_topic", ""]


def test_a_reader_that_loses_its_topic_is_told_before_more_records_come_s12() -> None:
    reads, writes = on(Operation.READ), on(Operation.WRITE)
    guarded = Guarded(reads, writes)
    request = FetchRequest(5, 10_000, 1, 1 << 20, [FetchPartition(OPEN, 0, 0, 100)])
    guarded.requests.fetch(request, lambda response, parts: None)
    guarded.revoke(writes)
    assert guarded.revoked == 0, "the poll still reads what it may"
    guarded.revoke(reads)
    assert guarded.revoked == 1
    guarded.local.answers.pop()()
    guarded.access.rules_changed()
    assert guarded.revoked == 1, "the poll has ended"


def test_a_session_is_checked_again_whenever_the_rules_change_until_it_begins_again_s12() -> None:
    reads = on(Operation.READ)
    guarded = Guarded(reads)
    begins = SessionFetchRequest(5, 1, True, 0, 1, 1 << 20, [SlotToFetch(1, OPEN, 0, 0, 100)])
    session = guarded.requests.fetch_session(None, begins, lambda response, parts: None)
    guarded.revoke(reads)
    assert guarded.revoked == 1
    guarded.requests.fetch_session(session, SessionFetchRequest(6, 2, True, 0, 1, 1), lambda response, parts: None)
    guarded.access.rules_changed()
    assert guarded.revoked == 1
    guarded.requests.close()
    guarded.requests.fetch_session(session, begins, lambda response, parts: None)
    guarded.access.rules_changed()
    assert guarded.revoked == 1, "a closed guard watches nothing"


@pytest.mark.parametrize("operation", [Operation.DESCRIBE, Operation.READ, Operation.WRITE])
def test_offsets_are_found_for_those_who_may_describe_a_topic(operation: Operation) -> None:
    guarded = Guarded(on(operation))
    answered: list[OffsetsResponse] = []
    request = OffsetsRequest(5, [OffsetQuery(SECRET, 0, -1), OffsetQuery(OPEN, 0, -1)])
    guarded.requests.offsets(request, answered.append)
    assert errors(answered[0].partitions) == [REFUSED, ""]


def test_records_are_deleted_by_those_who_may_delete_s12() -> None:
    guarded = Guarded(on(Operation.WRITE), on(Operation.DELETE, "secret"))
    answered: list[DeleteRecordsResponse] = []
    request = DeleteRecordsRequest(5, 1000, [DeleteRecordsPartition(OPEN, 0, 3), DeleteRecordsPartition(SECRET, 0, 3)])
    guarded.requests.delete_records(request, answered.append)
    assert errors(answered[0].partitions) == [REFUSED, ""]
    assert guarded.audit.refused == ["delete orders"]
