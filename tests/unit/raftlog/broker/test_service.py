"""The router with fake brokers: deadlines, retries, and the resources that a cancelled fetch must release."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from metadata.commands.envelope import Command
from metadata.commands.results import Done
from metadata.quorum.port import Fate, Outcome
from metadata.view import ClusterView, PartitionChanged, TopicChanged, TopicRemoved
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.requests import fetch as routing_fetch
from raftlog.broker.requests import forwarding
from raftlog.broker.requests.forwarding import CallerForwarder, Forwarder
from raftlog.broker.requests.leaders import Leaders, Slots
from raftlog.broker.requests.partitions import PartitionRouter
from raftlog.broker.security.access.request_access import OpenAccess
from raftlog.broker.service import Router
from raftlog.errors import RaftlogError, RetriableError
from raftlog.http2 import Http2Stream
from raftlog.model import (
    NO_BROKER,
    BrokerId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import FileRegion, Part, release_regions
from raftlog.records.batch import encode as encode_batch
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
    decode_request,
    encode,
)
from tests.support.http.http2_server import Recorder, Server

HERE, THERE = BrokerId(0), BrokerId(1)
TOPIC = TopicId(b"t" * 16)
PATIENCE_S = 30.0


def view_of(*leaders: BrokerId, name: str = "t") -> ClusterView:
    """One topic, with a partition for each of these leaders."""
    view = ClusterView()
    view.on_events(1, [TopicChanged(TopicRecord(TOPIC, name, len(leaders), 2))])
    for number, leader in enumerate(leaders):
        lead(view, number, leader)
    return view


def lead(view: ClusterView, number: int, leader: BrokerId) -> None:
    both = (HERE, THERE)
    tp = TopicPartition(TOPIC, number)
    epochs = (LeaderEpoch(3), PartitionEpoch(5))
    record = PartitionRecord(tp, both, leader, Incarnation(1), *epochs, both, both, 1)
    view.on_events(view.index + 1, [PartitionChanged(record)])


class Others:
    """A forwarder: its requests, and its answers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Callable[[Any], Any] = lambda request: None
        self.waits = asyncio.Event()
        self.waits.set()

    async def produce(self, peer: BrokerId, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        self.asked.append(request)
        await self.waits.wait()
        return self.answer(request)  # type: ignore[no-any-return]

    async def fetch(self, peer: BrokerId, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        self.asked.append(request)
        await self.waits.wait()
        return self.answer(request), memoryview(b"")

    async def offsets(self, peer: BrokerId, request: OffsetsRequest) -> OffsetsResponse:
        self.asked.append(request)
        return self.answer(request)  # type: ignore[no-any-return]

    async def delete_records(self, peer: BrokerId, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        self.asked.append(request)
        return self.answer(request)  # type: ignore[no-any-return]


class Here:
    """This broker's own partitions: every fetch gets a region, which must be released once."""

    def __init__(self) -> None:
        self.held = 0
        self.given = 0
        self.error = ""
        self.high_watermark = 10

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Any:
        answers, parts = [], list[Part]()
        for asked in request.partitions:
            length = 0 if self.error else 5
            numbers = {"high_watermark": self.high_watermark, "leader_epoch": 3, "length": length}
            answers.append(FetchedPartition(asked.topic_id, asked.partition, self.error, **numbers))
            if length:
                self.held += 1
                self.given += 1
                parts.append(FileRegion(None, 0, length, self._release))  # type: ignore[arg-type]
        done(FetchResponse(request.correlation_id, answers), parts)
        return SimpleNamespace(cancel=lambda: None)

    def _release(self) -> None:
        self.held -= 1


class Quorum:
    """Answers proposals as configured."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.proposed: list[Command] = []
        self.timeouts: list[float] = []
        self.barriers = 0
        self.barrier = Outcome(Fate.APPLIED, 1, Done())
        self.before_barrier: Callable[[], None] = lambda: None
        self.before: Callable[[], None] = lambda: None

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.proposed.append(command)
        self.timeouts.append(timeout)
        self.before()
        done(self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0])

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.barriers += 1
        self.before_barrier()
        done(self.barrier)


def router_of(view: ClusterView, here: Here, others: Others, quorum: Quorum) -> Router:
    def when_view_reaches(index: int, callback: Callable[[], None]) -> None:
        callback()

    broker = SimpleNamespace(
        view=view,
        local=here,
        identity=SimpleNamespace(node_id=HERE, cluster_id="c"),
        when_view_reaches=when_view_reaches,
    )
    broker.manager = SimpleNamespace(drivers={})
    broker.cluster_clock = SimpleNamespace(stamp_ms=lambda: 0)
    none: Any = None
    return Router(broker, quorum, others, random.Random(1), none, none, OpenAccess(), none, none)  # type: ignore[arg-type]


def partitions_of(view: ClusterView, here: Here, others: Others, quorum: Quorum) -> PartitionRouter:
    def when_view_reaches(index: int, callback: Callable[[], None]) -> None:
        callback()

    proposer = Proposer(quorum, when_view_reaches)  # type: ignore[arg-type]
    return PartitionRouter(HERE, here, others, Leaders(view), lambda: proposer.catch_up_within(2.0))  # type: ignore[arg-type]


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def quorum() -> Quorum:
    return Quorum(Outcome(Fate.APPLIED, 1, Done()))


async def turns_until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never holds")


def produce_request(timeout_ms: int) -> tuple[ProduceRequest, list[memoryview]]:
    batch = encode_batch([b"x"], base_timestamp_ms=1)
    return ProduceRequest(7, -1, timeout_ms, [ProducePartition(TOPIC, 0, len(batch))]), [memoryview(batch)]


def fetch_request(*partitions: int, offset: int = 0) -> FetchRequest:
    return FetchRequest(7, 0, 0, 1 << 20, [FetchPartition(TOPIC, p, offset, 1 << 20) for p in partitions])


# --- Produce ----------------------------------------------------------------------------------------------------------


async def test_a_retry_has_only_the_remaining_time(here: Here, quorum: Quorum) -> None:
    others = Others()

    def moved(request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(0, [ProducedPartition(TOPIC, 0, "not_leader", leader=0)])

    others.answer = moved
    answer = await partitions_of(view_of(THERE), here, others, quorum).produce(*produce_request(400))
    assert [p.error for p in answer.partitions] == ["not_leader"]
    times = [request.timeout_ms for request in others.asked]
    assert len(times) >= 2
    assert 0 < times[-1] < times[0] <= 400
    assert all(request.forwarded for request in others.asked)


async def test_a_retry_finds_the_new_leader(here: Here, quorum: Quorum) -> None:
    others, view = Others(), view_of(NO_BROKER)
    others.answer = lambda request: ProduceResponse(0, [ProducedPartition(TOPIC, 0, base_offset=9)])
    answer = asyncio.create_task(partitions_of(view, here, others, quorum).produce(*produce_request(20_000)))
    await asyncio.sleep(0)
    lead(view, 0, THERE)
    assert [p.base_offset for p in (await answer).partitions] == [9]


async def test_a_batch_that_may_have_been_appended_is_resent_only_by_idempotent_producers(
    here: Here, quorum: Quorum
) -> None:
    for producer_id, times in ((-1, 1), (5, 2)):
        others = Others()
        answers: list[Any] = [
            RetriableError("outcome_unknown", "it broke"),
            ProduceResponse(0, [ProducedPartition(TOPIC, 0, base_offset=1)]),
        ]

        def answer(request: ProduceRequest, answers: list[Any] = answers) -> Any:
            given = answers.pop(0)
            if isinstance(given, RaftlogError):
                raise given
            return given

        others.answer = answer
        ids = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
        batch = encode_batch([b"x"], base_timestamp_ms=1, **ids)  # type: ignore[arg-type]
        request = ProduceRequest(7, -1, 5_000, [ProducePartition(TOPIC, 0, len(batch))])
        found = await partitions_of(view_of(THERE), here, others, quorum).produce(request, [memoryview(batch)])
        assert len(others.asked) == times
        assert [p.error for p in found.partitions] == (["outcome_unknown"] if times == 1 else [""])
        assert [request.partitions[0].resent for request in others.asked] == [False, True][:times]


def idempotent_request(timeout_ms: int, *, resent: bool = False) -> tuple[ProduceRequest, list[memoryview]]:
    batch = encode_batch([b"x"], base_timestamp_ms=1, producer_id=5, producer_epoch=0, base_sequence=0)
    part = ProducePartition(TOPIC, 0, len(batch), resent)
    return ProduceRequest(7, -1, timeout_ms, [part]), [memoryview(batch)]


async def test_the_mark_of_a_resent_batch_is_forwarded(here: Here, quorum: Quorum) -> None:
    """S1: only the leader can judge a resend, if it knows that it is one."""
    for resent in (False, True):
        others = Others()
        others.answer = lambda request: ProduceResponse(0, [ProducedPartition(TOPIC, 0, base_offset=1)])
        await partitions_of(view_of(THERE), here, others, quorum).produce(*idempotent_request(5_000, resent=resent))
        assert [request.partitions[0].resent for request in others.asked] == [resent]


@pytest.mark.parametrize("last", ["not_leader", "unknown_producer_id", "overloaded"])
async def test_the_last_attempts_error_does_not_determine_the_outcome_of_an_earlier_one(
    here: Here, quorum: Quorum, last: str
) -> None:
    """S1: after an error that means "not appended", the producer would send the batch again under another name."""
    others = Others()
    answers = [RetriableError("outcome_unknown", "it broke")]

    def answer(request: ProduceRequest) -> ProduceResponse:
        if answers:
            raise answers.pop()
        return ProduceResponse(0, [ProducedPartition(TOPIC, 0, last, "no")])

    others.answer = answer
    found = await partitions_of(view_of(THERE), here, others, quorum).produce(*idempotent_request(300))
    assert [p.error for p in found.partitions] == ["outcome_unknown"]
    assert last in found.partitions[0].detail
    others.answer = lambda request: ProduceResponse(0, [ProducedPartition(TOPIC, 0, last, "no")])
    found = await partitions_of(view_of(THERE), here, others, quorum).produce(*idempotent_request(300))
    assert [p.error for p in found.partitions] == [last], "of one attempt it does"


def test_slots_keep_the_order_of_the_request() -> None:
    slots = Slots(ProducedPartition, 3)
    for position in (2, 0, 1):
        slots.settle(position, ProducedPartition(TOPIC, position, "not_leader"), final=False)
    slots.settle(1, ProducedPartition(TOPIC, 1), final=True)
    assert list(slots.open) == [0, 2]
    assert [p.partition for p in slots.in_order()] == [0, 1, 2]


# --- Fetch ------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_fetch_releases_its_regions(here: Here, quorum: Quorum) -> None:
    """One leader has answered with a region of a file, the other has not."""
    others = Others()
    others.waits.clear()
    fetch = asyncio.create_task(partitions_of(view_of(HERE, THERE), here, others, quorum).fetch(fetch_request(0, 1)))
    await turns_until(lambda: bool(others.asked) and here.held > 0)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert here.given == 1 and here.held == 0


async def test_a_fetch_may_be_cancelled_while_it_looks_for_a_leader(here: Here, quorum: Quorum) -> None:
    view, others = view_of(HERE, NO_BROKER), Others()
    fetch = asyncio.create_task(partitions_of(view, here, others, quorum).fetch(fetch_request(0, 1)))
    await turns_until(lambda: here.held > 0)
    await asyncio.sleep(0)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert here.held == 0


async def test_all_leaders_together_give_no_more_than_was_requested(here: Here, quorum: Quorum) -> None:
    others = Others()
    others.answer = lambda request: FetchResponse(0, [FetchedPartition(TOPIC, 1)])
    local = here.fetch
    seen: list[int] = []

    def fetch(request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Any:
        seen.append(request.max_bytes)
        return local(request, done)

    here.fetch = fetch  # type: ignore[method-assign]
    _, parts = await partitions_of(view_of(HERE, THERE), here, others, quorum).fetch(fetch_request(0, 1))
    assert seen[0] + others.asked[0].max_bytes <= fetch_request(0, 1).max_bytes
    for part in parts:
        assert isinstance(part, FileRegion)
        part.release()


async def test_a_fetch_of_many_partitions_takes_turns_and_may_end_in_each(
    here: Here, quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_fetch, "PARTITIONS_A_TURN", 3)
    others = Others()
    others.answer = lambda request: FetchResponse(0, [FetchedPartition(TOPIC, p.partition) for p in request.partitions])
    router = partitions_of(view_of(*[HERE, THERE] * 10), here, others, quorum)
    response, parts = await router.fetch(fetch_request(*range(20)))
    assert [answer.partition for answer in response.partitions] == list(range(20))
    assert [answer.length for answer in response.partitions] == [5, 0] * 10
    assert len(parts) == here.held == 10
    release_regions(parts)
    cancelled = 0
    for turns in range(60):
        fetch = asyncio.create_task(router.fetch(fetch_request(*range(20))))
        for _ in range(turns):
            await asyncio.sleep(0)
        fetch.cancel()
        (outcome,) = await asyncio.gather(fetch, return_exceptions=True)
        cancelled += isinstance(outcome, asyncio.CancelledError)
        if isinstance(outcome, tuple):
            release_regions(outcome[1])
        assert here.held == 0, f"cancelled after {turns} turns"
    assert 10 < cancelled < 60


async def test_a_leader_that_accepts_no_polls_is_not_asked_endlessly(here: Here, quorum: Quorum) -> None:
    """It has no room for waiting fetches, and no data."""
    others = Others()

    def answer(request: FetchRequest) -> FetchResponse:
        if request.max_wait_ms:
            raise RetriableError("overloaded", "too many fetches wait")
        return FetchResponse(0, [FetchedPartition(TOPIC, p.partition) for p in request.partitions])

    others.answer = answer
    view = view_of(THERE, BrokerId(2))
    request = replace_struct(fetch_request(0, 1), max_wait_ms=400, min_bytes=1)
    response, _ = await partitions_of(view, here, others, quorum).fetch(request)
    assert [p.error for p in response.partitions] == ["", ""]
    assert len(others.asked) < 60, "some ten rounds of two leaders, asked twice"


# --- Forwarding -------------------------------------------------------------------------------------------------------


async def test_a_peer_that_cannot_be_dialed_is_dialed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dialed = []

    async def fail(host: str, port: int, **_: Any) -> None:
        dialed.append(host)
        raise UnicodeError("label too long") if len(dialed) == 1 else RetriableError("connection_lost", "refused")

    monkeypatch.setattr(forwarding, "connect", fail)
    forwarder = Forwarder(lambda peer: Endpoint("h", 1))
    for _ in range(2):
        with pytest.raises(RetriableError) as caught:
            await CallerForwarder(forwarder, None).produce(THERE, *produce_request(100))
        assert caught.value.code == "connection_lost"
    assert len(dialed) == 2
    await forwarder.close()


async def test_a_forwarded_request_arrives_unchanged_and_its_answer_returns() -> None:
    arrived: list[OffsetsRequest] = []

    def answer(stream: Http2Stream, message: memoryview) -> None:
        request, _ = decode_request(message)
        assert isinstance(request, OffsetsRequest)
        arrived.append(request)
        found = [FoundOffset(one.topic_id, one.partition, offset=40 + one.partition) for one in request.partitions]
        stream.send(encode(OffsetsResponse(request.correlation_id, found)))

    async with Server() as server, asyncio.timeout(PATIENCE_S):
        server.acceptors[forwarding.FORWARD_PATH] = lambda stream: Recorder(answer)
        forwarder = Forwarder(lambda peer: Endpoint("127.0.0.1", server.port))
        asked = OffsetsRequest(7, [OffsetQuery(TOPIC, 0, -1), OffsetQuery(TOPIC, 2, -2)], isolation=1)
        response = await CallerForwarder(forwarder, None).offsets(THERE, asked)
        await forwarder.close()
    assert [replace_struct(request, correlation_id=7) for request in arrived] == [asked]
    assert [(found.partition, found.offset) for found in response.partitions] == [(0, 40), (2, 42)]


async def test_dialing_counts_as_part_of_the_requests_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(host: str, port: int, **_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(forwarding, "connect", hang)
    monkeypatch.setattr(forwarding, "ANSWER_GRACE_SECONDS", 0.0)
    forwarder = Forwarder(lambda peer: Endpoint("h", 1))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RetriableError) as caught:
            await CallerForwarder(forwarder, None).produce(THERE, *produce_request(50))
    assert caught.value.code == "connection_lost", "it was not sent"
    await forwarder.close()


# --- A node whose view lags -------------------------------------------------------------------------------------------


async def test_a_topic_that_a_silent_quorum_may_have_created_is_not_denied(here: Here, quorum: Quorum) -> None:
    """S7: this node's view lacks it, and cannot be brought up to date: another node may know it. No caller waits
    here."""
    view = ClusterView()
    router = partitions_of(view, here, Others(), quorum)
    offsets = OffsetsRequest(7, [OffsetQuery(TOPIC, 0, -1)])
    deletion = DeleteRecordsRequest(7, 20_000, [DeleteRecordsPartition(TOPIC, 0, 5)])

    async def codes() -> list[str]:
        async with asyncio.timeout(PATIENCE_S / 3):
            answers = [
                await router.produce(*produce_request(20_000)),
                (await router.fetch(fetch_request(0)))[0],
                await router.offsets(offsets),
                await router.delete_records(deletion),
            ]
        return [answer.partitions[0].error for answer in answers]

    quorum.barrier = Outcome(Fate.UNKNOWN, detail="nobody leads")
    assert await codes() == ["metadata_behind"] * 4
    quorum.barrier = Outcome(Fate.APPLIED, 1, Done())
    assert await codes() == ["unknown_topic"] * 4


async def test_a_partition_that_a_silent_quorum_may_have_added_is_not_denied(here: Here, quorum: Quorum) -> None:
    """S7: the topic is known here, and has grown elsewhere."""
    others, view = Others(), view_of(THERE)
    others.answer = lambda request: FetchResponse(0, [FetchedPartition(TOPIC, 1, high_watermark=4)])
    router = partitions_of(view, here, others, quorum)

    async def fetched() -> str:
        async with asyncio.timeout(PATIENCE_S / 3):
            response, _ = await router.fetch(fetch_request(1))
        return response.partitions[0].error

    quorum.barrier = Outcome(Fate.UNKNOWN, detail="nobody leads")
    assert await fetched() == "metadata_behind"
    quorum.barrier = Outcome(Fate.APPLIED, 1, Done())
    assert await fetched() == "unknown_partition"

    def grow() -> None:
        lead(view, 1, THERE)
        view.on_events(view.index + 1, [TopicChanged(TopicRecord(TOPIC, "t", 2, 2))])

    quorum.before_barrier = grow
    assert await fetched() == ""


@pytest.mark.parametrize("denial", ["unknown_topic", "unknown_partition"])
async def test_a_leader_that_does_not_know_its_partition_yet_does_not_deny_it(
    here: Here, quorum: Quorum, denial: str
) -> None:
    """S7: it was just elected, and lags behind this node: a topic that was created a moment ago is written to here."""
    others, view = Others(), view_of(THERE)
    router = partitions_of(view, here, others, quorum)
    denials = [denial, denial]

    def error() -> str:
        return denials.pop() if denials else ""

    others.answer = lambda request: ProduceResponse(0, [ProducedPartition(TOPIC, 0, error())])
    assert [p.error for p in (await router.produce(*produce_request(20_000))).partitions] == [""]
    denials = [denial, denial]
    others.answer = lambda request: FetchResponse(0, [FetchedPartition(TOPIC, 0, error())])
    response, _ = await router.fetch(fetch_request(0))
    assert [p.error for p in response.partitions] == [""]
    denials = [denial, denial]
    others.answer = lambda request: OffsetsResponse(0, [FoundOffset(TOPIC, 0, error(), offset=4)])
    found = await router.offsets(OffsetsRequest(7, [OffsetQuery(TOPIC, 0, -1)]))
    assert [p.offset for p in found.partitions] == [4]
    denials = [denial, denial]
    others.answer = lambda request: DeleteRecordsResponse(0, [DeletedPartition(TOPIC, 0, error())])
    deletion = DeleteRecordsRequest(7, 20_000, [DeleteRecordsPartition(TOPIC, 0, 5)])
    assert [p.error for p in (await router.delete_records(deletion)).partitions] == [""]


async def test_a_topic_is_gone_when_the_own_view_agrees(here: Here, quorum: Quorum) -> None:
    others, view = Others(), view_of(THERE)

    def deny(request: ProduceRequest) -> ProduceResponse:
        if len(others.asked) == 2:
            view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t")])
        return ProduceResponse(0, [ProducedPartition(TOPIC, 0, "unknown_topic")])

    others.answer = deny
    answer = await partitions_of(view, here, others, quorum).produce(*produce_request(20_000))
    assert [p.error for p in answer.partitions] == ["unknown_topic"] and len(others.asked) == 2
