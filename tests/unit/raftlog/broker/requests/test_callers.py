"""Partition requests of one caller, wherever the partitions are led. S12."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.view import ClusterView, FeatureLevelChanged, PartitionChanged, TopicChanged
from raftlog.broker.requests.callers import CallerPartitions, PartitionRouters
from raftlog.broker.security.access.access import Access
from raftlog.errors import InvalidRequest
from raftlog.model import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import FileRegion, Part, release_regions
from raftlog.security.acls import AclRule, Operation, ResourceType
from raftlog.security.authorizer import Authorizer
from raftlog.security.principals import Caller
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
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
)
from tests.support.security.rules import ALICE, KeptAudit, allow

HERE, THERE = BrokerId(0), BrokerId(1)
OPEN, SECRET, LATE = TopicId(b"o" * 16), TopicId(b"s" * 16), TopicId(b"l" * 16)
REFUSED = "authorization_failed"
PATIENCE_S = 30.0


def add_topic(view: ClusterView, topic: TopicId, name: str, *leaders: BrokerId) -> None:
    view.on_events(view.index + 1, [TopicChanged(TopicRecord(topic, name, len(leaders), 1))])
    for number, leader in enumerate(leaders):
        both = (HERE, THERE)
        epochs = (LeaderEpoch(3), PartitionEpoch(5))
        record = PartitionRecord(TopicPartition(topic, number), both, leader, Incarnation(1), *epochs, both, both, 1)
        view.on_events(view.index + 1, [PartitionChanged(record)])


def _answer(request: Any) -> Any:
    match request:
        case ProduceRequest():
            return ProduceResponse(
                0, [ProducedPartition(p.topic_id, p.partition, base_offset=7) for p in request.partitions]
            )
        case FetchRequest():
            return FetchResponse(0, [FetchedPartition(p.topic_id, p.partition) for p in request.partitions])
        case OffsetsRequest():
            return OffsetsResponse(0, [FoundOffset(p.topic_id, p.partition, offset=7) for p in request.partitions])
        case _:
            deleted = [DeletedPartition(p.topic_id, p.partition, log_start_offset=7) for p in request.partitions]
            return DeleteRecordsResponse(0, deleted)


class Local:
    """This broker's partitions: they answer at once; a poll waits until it is released."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.cancelled = 0
        self.polling = asyncio.Event()
        self.polls: list[Callable[[], None]] = []
        self.regions_held = 0

    def produce(self, request: ProduceRequest, batches: Sequence[memoryview], done: Any) -> None:
        self._ask(request, done)

    def offsets(self, request: OffsetsRequest, done: Any) -> None:
        self._ask(request, done)

    def delete_records(self, request: DeleteRecordsRequest, done: Any) -> None:
        self._ask(request, done)

    def fetch(self, request: FetchRequest, done: Any) -> Local:
        parts: list[Part] = []
        if request.max_wait_ms:
            self.asked.append(request)
            self.polling.set()
            self.polls.append(lambda: done(*self._records(request)))
        else:
            self._ask(request, lambda response: done(response, parts))
        return self

    def answer_polls(self) -> None:
        """Answer every long poll with three bytes of a file for each partition."""
        polls, self.polls = self.polls, []
        for poll in polls:
            poll()

    def cancel(self) -> None:
        self.cancelled += 1

    def _records(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        found = [FetchedPartition(p.topic_id, p.partition, length=3) for p in request.partitions]
        self.regions_held += len(found)
        file: Any = None
        return FetchResponse(0, found), [FileRegion(file, 0, 3, self._release) for _ in found]

    def _release(self) -> None:
        self.regions_held -= 1

    def _ask(self, request: Any, done: Any) -> None:
        self.asked.append(request)
        done(_answer(request))


class Others:
    """The connections to other brokers: what was asked, for which caller."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Caller | None]] = []

    async def ask(
        self, peer: BrokerId, request: Any, body: Any, expected: Any, seconds: float, lost: str, caller: Caller | None
    ) -> tuple[Any, memoryview]:
        self.asked.append((request, caller))
        return _answer(request), memoryview(b"")


class Guarded:
    """Alice's partitions in a cluster with the topics `orders` (of both brokers) and `secret`."""

    def __init__(self, *operations: Operation) -> None:
        self.view = ClusterView()
        self.view.on_events(1, [FeatureLevelChanged(SECURITY_FEATURE_LEVEL)])
        add_topic(self.view, OPEN, "orders", HERE, THERE)
        add_topic(self.view, SECRET, "secret", HERE, THERE)
        self.rules = [on(operation) for operation in operations]
        self.authorizer = Authorizer(self.rules)
        self.access = Access(self.view, self.authorizer, KeptAudit())
        self.local, self.others = Local(), Others()
        self.on_catch_up: list[Callable[[], bool]] = []
        local: Any = self.local
        others: Any = self.others
        routers = PartitionRouters(HERE, local, others, self.view, self._catch_up)
        self.partitions = CallerPartitions(routers, self.access, ALICE)

    async def _catch_up(self) -> bool:
        return self.on_catch_up.pop(0)() if self.on_catch_up else True

    def learn_of_late_topic(self) -> bool:
        add_topic(self.view, LATE, "late", HERE)
        return True

    def revoke(self, rule: AclRule) -> None:
        self.authorizer.remove(rule)
        self.access.rules_changed()


def on(operation: Operation, name: str = "orders") -> AclRule:
    return allow(operation, ResourceType.TOPIC, name)


def errors(answers: Sequence[Any]) -> list[str]:
    return [answer.error for answer in answers]


TARGETS = [(SECRET, 0), (OPEN, 0), (SECRET, 1), (OPEN, 1)]
MIXED = [REFUSED, "", REFUSED, ""]


async def test_only_what_the_caller_may_write_is_asked_for_anywhere_s12() -> None:
    guarded = Guarded(Operation.WRITE)
    request = ProduceRequest(5, -1, 1000, [ProducePartition(*target, 1) for target in TARGETS])
    answer = await guarded.partitions.produce(request, [memoryview(b"x")] * 4)
    assert (answer.correlation_id, errors(answer.partitions)) == (5, MIXED)
    assert [p.topic_id for p in answer.partitions] == [topic for topic, _ in TARGETS]
    assert [[p.topic_id for p in one.partitions] for one in guarded.local.asked] == [[OPEN]]
    ((forwarded, caller),) = guarded.others.asked
    assert ([p.topic_id for p in forwarded.partitions], caller) == ([OPEN], ALICE)


async def test_callers_are_not_named_to_nodes_that_may_be_older() -> None:
    guarded = Guarded(Operation.DESCRIBE)
    guarded.view.on_events(guarded.view.index + 1, [FeatureLevelChanged(SECURITY_FEATURE_LEVEL - 1)])
    await guarded.partitions.offsets(OffsetsRequest(5, [OffsetQuery(OPEN, 1, -1)]))
    assert [caller for _, caller in guarded.others.asked] == [None]


async def test_reading_finding_and_deleting_are_decided_one_by_one_s12() -> None:
    guarded = Guarded(Operation.READ, Operation.DELETE)
    fetch = FetchRequest(5, 0, 0, 1 << 20, [FetchPartition(*target, 0, 100) for target in TARGETS])
    fetched, _ = await guarded.partitions.fetch(fetch)
    offsets = await guarded.partitions.offsets(OffsetsRequest(5, [OffsetQuery(*target, -1) for target in TARGETS]))
    deletion = DeleteRecordsRequest(5, 1000, [DeleteRecordsPartition(*target, 3) for target in TARGETS])
    deleted = await guarded.partitions.delete_records(deletion)
    assert [errors(one.partitions) for one in (fetched, offsets, deleted)] == [MIXED] * 3
    asked = [*guarded.local.asked, *(request for request, _ in guarded.others.asked)]
    assert {p.topic_id for request in asked for p in request.partitions} == {OPEN}


async def test_a_request_of_refused_partitions_only_asks_no_one_s12() -> None:
    guarded = Guarded()
    fetch = FetchRequest(5, 10_000, 1, 1 << 20, [FetchPartition(*target, 0, 100) for target in TARGETS])
    fetched, parts = await guarded.partitions.fetch(fetch)
    assert (errors(fetched.partitions), parts) == ([REFUSED] * 4, [])
    assert (guarded.local.asked, guarded.others.asked) == ([], [])


async def test_a_topic_that_becomes_known_late_is_decided_where_it_is_served_s12() -> None:
    """The quorum is silent when the request arrives, so the topic has no name by which it could be refused."""
    guarded = Guarded(Operation.WRITE)
    guarded.on_catch_up = [lambda: False, guarded.learn_of_late_topic]
    answer = await guarded.partitions.offsets(OffsetsRequest(5, [OffsetQuery(LATE, 0, -1)]))
    assert errors(answer.partitions) == [REFUSED]
    assert [request.partitions for request in guarded.local.asked] == [[]]


@pytest.mark.parametrize("targets", [[(OPEN, 0)], [(OPEN, 0), (OPEN, 1)]])
async def test_a_poll_ends_when_its_caller_loses_the_topic_s12(targets: list[tuple[TopicId, int]]) -> None:
    guarded = Guarded(Operation.READ, Operation.WRITE)
    reads, writes = guarded.rules
    request = FetchRequest(5, 60_000, 1, 1 << 20, [FetchPartition(*target, 0, 100) for target in targets])
    poll = asyncio.create_task(guarded.partitions.fetch(request))
    async with asyncio.timeout(PATIENCE_S):
        await guarded.local.polling.wait()
        guarded.revoke(writes)
        await asyncio.sleep(0)
        assert not poll.done(), "it reads what it still may"
        guarded.revoke(reads)
        with pytest.raises(InvalidRequest, match="lost the right") as caught:
            await poll
    assert caught.value.code == REFUSED
    assert guarded.local.cancelled >= 1


async def test_rules_may_change_again_before_a_poll_has_ended_s12() -> None:
    guarded = Guarded(Operation.READ, Operation.WRITE)
    reads, writes = guarded.rules
    request = FetchRequest(5, 60_000, 1, 1 << 20, [FetchPartition(OPEN, 0, 0, 100)])
    for turns in range(4):
        poll = asyncio.create_task(guarded.partitions.fetch(request))
        async with asyncio.timeout(PATIENCE_S):
            await guarded.local.polling.wait()
            guarded.local.polling.clear()
            guarded.revoke(reads)
            for _ in range(turns):
                await asyncio.sleep(0)
            guarded.revoke(writes)
            with pytest.raises(InvalidRequest, match="lost the right"):
                await poll
        guarded.authorizer.add(reads)


@pytest.mark.parametrize("targets", [[(OPEN, 0)], [(OPEN, 0), (OPEN, 1)]])
async def test_records_that_were_fetched_before_the_right_is_lost_are_released_and_not_sent_s12(
    targets: list[tuple[TopicId, int]],
) -> None:
    """The right is lost in each turn of the loop between the records' arrival and the answer."""
    request = FetchRequest(5, 60_000, 1, 1 << 20, [FetchPartition(*target, 0, 100) for target in targets])
    for turns in range(8):
        guarded = Guarded(Operation.READ)
        poll = asyncio.create_task(guarded.partitions.fetch(request))
        async with asyncio.timeout(PATIENCE_S):
            await guarded.local.polling.wait()
            guarded.local.answer_polls()
            for _ in range(turns):
                await asyncio.sleep(0)
            is_answered = poll.done()
            guarded.revoke(guarded.rules[0])
            if is_answered:
                release_regions((await poll)[1])
            else:
                with pytest.raises(InvalidRequest, match="lost the right"):
                    await poll
        assert guarded.local.regions_held == 0, f"lost after {turns} turns"
