"""Requests in flight on one stream are counted, bounded, and released with each answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raftlog.broker.requests import in_flight
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.request_stream import RequestStream
from raftlog.errors import InvalidRequest
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.ports import Answer
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    AbortRequest,
    AssignedTopic,
    CommitOffsetsRequest,
    CommitRequest,
    ErrorResponse,
    GroupChangedResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    GroupRequest,
    GroupResponse,
    InitializeRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    MembershipResponse,
    OffsetToCommit,
    OpenBlockRequest,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ReleasedTopic,
    RemovePositionRequest,
    Request,
    RetireBlockRequest,
    TransactionOutput,
    TransactionRequest,
    TransactionResponse,
    decode_response,
    encode,
)


class Stream:
    """An HTTP/2 stream in its handler's view: sent messages are kept."""

    peer_host = "10.0.0.1"

    def __init__(self, path: str = PRODUCE_PATH) -> None:
        self.path = path
        self.closed = self.ended = False
        self.sent: list[Any] = []

    def send(self, parts: Sequence[Any]) -> None:
        response, _ = decode_response(b"".join(parts))
        self.sent.append(response)

    def end(self) -> None:
        self.ended = True


class Local:
    """This broker's partitions, which answer when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[ProduceRequest, Callable[[ProduceResponse], None]]] = []

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        self.waiting.append((request, done))

    def answer(self) -> None:
        request, done = self.waiting.pop(0)
        answers = [ProducedPartition(one.topic_id, one.partition, base_offset=7) for one in request.partitions]
        done(ProduceResponse(request.correlation_id, answers))

    def close_session(self, session: object) -> None:
        assert session is None


class Groups:
    """This broker's consumer groups, which answer when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[GroupRequest, Answer[GroupResponse]]] = []

    def ask(self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse]) -> None:
        assert client_host == "10.0.0.1"
        self.waiting.append((request, answer))

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        return GroupHeartbeatsResponse(request.correlation_id, [""] * len(request.members))


class World:
    def __init__(self, path: str = PRODUCE_PATH) -> None:
        self.stream, self.local = Stream(path), Local()
        self.groups = Groups()
        self.transactions: list[tuple[TransactionRequest, Answer[TransactionResponse]]] = []
        """Requests of transactional producers, which are answered when a test says so."""

        def ask(request: TransactionRequest, answer: Answer[TransactionResponse]) -> None:
            self.transactions.append((request, answer))

        acceptor = data_acceptors(self.local, self.groups, ask, lambda: True)[path]  # type: ignore[arg-type]
        handler = acceptor(self.stream)  # type: ignore[arg-type]
        assert isinstance(handler, RequestStream)
        self.handler = handler

    def ask(self, request: Request) -> None:
        message = b"".join(encode(request))  # type: ignore[arg-type]
        self.handler.on_message(self.stream, memoryview(message))  # type: ignore[arg-type]

    def produce(self, number: int, size: int, acks: int = -1) -> None:
        request = ProduceRequest(number, acks, 1000, [ProducePartition(b"i" * 16, 0, size)])
        message = b"".join(encode(request, [b"x" * size]))  # type: ignore[arg-type]
        self.handler.on_message(self.stream, memoryview(message))  # type: ignore[arg-type]

    def told(self) -> list[tuple[int, str]]:
        """(correlation id, error) of each answer since the last call."""
        answers, self.stream.sent = self.stream.sent, []
        return [(one.correlation_id, one.error if isinstance(one, ErrorResponse) else "") for one in answers]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(in_flight, "MAX_BYTES_IN_FLIGHT", 1000)
    monkeypatch.setattr(in_flight, "MAX_REQUESTS_IN_FLIGHT", 3)
    return World()


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_bytes_in_flight_are_released_with_their_answer(world: World, acks: int) -> None:
    """However much went through a stream, its bound applies to requests without an answer."""
    for number in range(10):
        world.produce(2 * number, 500, acks)
        world.produce(2 * number + 1, 500, acks)
        assert len(world.local.waiting) == 2
        world.local.answer()
        world.local.answer()
        assert world.told() == ([] if acks == 0 else [(2 * number, ""), (2 * number + 1, "")])


def test_more_bytes_than_may_be_in_flight_are_refused_until_some_are_answered(world: World) -> None:
    world.produce(0, 600)
    world.produce(1, 401)
    assert world.told() == [(1, "overloaded")] and len(world.local.waiting) == 1
    world.produce(2, 400)
    world.produce(3, 1)
    assert world.told() == [(3, "overloaded")], "the bound is exact"
    world.local.answer()
    world.produce(4, 600)
    world.produce(5, 1)
    assert world.told() == [(0, ""), (5, "overloaded")] and len(world.local.waiting) == 2


def test_one_request_above_the_bound_is_accepted_if_nothing_else_is_in_flight(world: World) -> None:
    world.produce(0, 5000)
    world.produce(1, 0)
    assert world.told() == [(1, "overloaded")]
    world.local.answer()
    world.produce(2, 5000)
    assert world.told() == [(0, "")] and len(world.local.waiting) == 1


def test_more_requests_than_may_be_in_flight_are_refused_until_one_is_answered(world: World) -> None:
    for number in range(4):
        world.produce(number, 1)
    assert world.told() == [(3, "overloaded")]
    world.local.answer()
    world.produce(4, 1)
    world.produce(5, 1)
    assert world.told() == [(0, ""), (5, "overloaded")]


def test_a_stream_whose_peer_has_ended_ends_with_the_last_answer(world: World) -> None:
    world.produce(0, 1)
    world.produce(1, 1)
    world.handler.on_ended(world.stream)  # type: ignore[arg-type]
    world.local.answer()
    assert not world.stream.ended
    world.local.answer()
    assert world.stream.ended and world.told() == [(0, ""), (1, "")]


def test_answers_to_a_closed_stream_are_dropped(world: World) -> None:
    world.produce(0, 1)
    world.stream.closed = True
    world.handler.on_closed(world.stream, "gone")  # type: ignore[arg-type]
    world.local.answer()
    assert not world.stream.sent and not world.stream.ended


# --- Members of groups -----------------------------------------------------------------------------------------------

TOPIC = b"i" * 16
MEMBERSHIP = MembershipResponse(1, 7, 9, "Stable", [AssignedTopic(TOPIC, "t", [0, 1])], [])
MEMBERS_ASK: list[tuple[GroupRequest, GroupResponse]] = [
    (JoinGroupRequest(1, "g", "m", "", "app", ["t"], "", "uniform", 9_000, 9_000), MEMBERSHIP),
    (MemberHeartbeatRequest(1, "g", "m", 7, 9, [ReleasedTopic(TOPIC, [1])]), MEMBERSHIP),
    (LeaveGroupRequest(1, "g", "m", 7), GroupChangedResponse(1)),
    (CommitOffsetsRequest(1, "g", "m", 7, 9, [OffsetToCommit(TOPIC, 0, 5)]), GroupChangedResponse(1)),
    (GroupOffsetsRequest(1, "g"), GroupOffsetsResponse(1, [])),
]


@pytest.mark.parametrize(("asked", "response"), MEMBERS_ASK, ids=[type(asked).__name__ for asked, _ in MEMBERS_ASK])
def test_a_member_is_answered(asked: GroupRequest, response: GroupResponse) -> None:
    world = World(GROUPS_PATH)
    world.ask(asked)
    world.ask(asked)
    assert [one[0] for one in world.groups.waiting] == [asked] * 2
    world.groups.waiting[0][1](response)
    world.groups.waiting[1][1](InvalidRequest("member_fenced", "no"))
    assert world.stream.sent == [response, ErrorResponse(1, "member_fenced", "no")]


def test_requests_of_members_in_flight_are_bounded_by_number_and_bytes(world: World) -> None:
    members = World(GROUPS_PATH)
    for number in range(5):
        members.ask(LeaveGroupRequest(number, "g", "m", 7))
    assert members.told() == [(3, "overloaded"), (4, "overloaded")] and len(members.groups.waiting) == 3
    large = World(GROUPS_PATH)
    large.ask(CommitOffsetsRequest(1, "g", "m", 7, 9, [OffsetToCommit(TOPIC, 0, 5, -1, "x" * 600)]))
    large.ask(CommitOffsetsRequest(2, "g", "m", 7, 9, [OffsetToCommit(TOPIC, 0, 5, -1, "x" * 600)]))
    assert large.told() == [(2, "overloaded")]
    large.groups.waiting[0][1](GroupChangedResponse(1))
    large.ask(CommitOffsetsRequest(3, "g", "m", 7, 9, [OffsetToCommit(TOPIC, 0, 5, -1, "x" * 600)]))
    assert large.told() == [(1, "")]


def test_a_stream_of_members_accepts_nothing_else_and_continues_s11() -> None:
    world = World(GROUPS_PATH)
    world.produce(1, 5)
    world.handler.on_message(world.stream, memoryview(b"\x00\x00\x00\x01\xc1"))  # type: ignore[arg-type]
    world.ask(LeaveGroupRequest(2, "g", "m", 7))
    assert world.told() == [(1, "invalid_request"), (-1, "invalid_request")]
    assert len(world.groups.waiting) == 1


def test_an_answer_that_is_too_long_for_the_peer_is_refused_s11(monkeypatch: pytest.MonkeyPatch) -> None:
    world, send = World(GROUPS_PATH), Stream.send

    def short(stream: Stream, parts: Sequence[Any]) -> None:
        if isinstance(decode_response(b"".join(parts))[0], GroupOffsetsResponse):
            raise InvalidRequest("body_too_large", "too long")
        send(stream, parts)

    monkeypatch.setattr(Stream, "send", short)
    world.ask(GroupOffsetsRequest(5, "g"))
    world.groups.waiting[0][1](GroupOffsetsResponse(5, []))
    assert world.told() == [(5, "body_too_large")]


# --- Transactional producers -----------------------------------------------------------------------------------------

KEY = TransactionKey(ProducerId(7), ProducerEpoch(3))
PRODUCERS_ASK: list[TransactionRequest] = [
    InitializeRequest(1, "app", 60_000, b"attempt-number-1", KEY),
    OpenBlockRequest(1, "block", 32, 60_000),
    RetireBlockRequest(1, "block"),
    CommitRequest(1, (TransactionOutput(*KEY, ()),), visible_within_ms=1_000),
    AbortRequest(1, (KEY,)),
    RemovePositionRequest(1, "p", 5),
]


@pytest.mark.parametrize("request_", PRODUCERS_ASK, ids=[type(one).__name__ for one in PRODUCERS_ASK])
def test_a_transactional_producer_is_answered(request_: TransactionRequest) -> None:
    world = World(TRANSACTIONS_PATH)
    world.ask(request_)
    world.ask(request_)
    assert [one[0] for one in world.transactions] == [request_] * 2
    world.transactions[0][1](TransactionResponse(1, (KEY,), 32, True))
    world.transactions[1][1](InvalidRequest("producer_fenced", "no"))
    assert world.stream.sent == [TransactionResponse(1, (KEY,), 32, True), ErrorResponse(1, "producer_fenced", "no")]


def test_requests_of_producers_in_flight_are_bounded_by_number_and_bytes(world: World) -> None:
    producers = World(TRANSACTIONS_PATH)
    for number in range(5):
        producers.ask(RetireBlockRequest(number, "b"))
    assert producers.told() == [(3, "overloaded"), (4, "overloaded")] and len(producers.transactions) == 3
    large = World(TRANSACTIONS_PATH)
    for number in range(3):
        large.ask(RetireBlockRequest(number, "b" * 400))
    assert large.told() == [(2, "overloaded")]
    large.transactions[0][1](TransactionResponse(0))
    large.ask(RetireBlockRequest(3, "b" * 400))
    assert large.told() == [(0, "")]


def test_answers_to_a_closed_producers_stream_are_dropped() -> None:
    world = World(TRANSACTIONS_PATH)
    world.ask(RetireBlockRequest(1, "b"))
    world.stream.closed = True
    world.handler.on_closed(world.stream, "gone")  # type: ignore[arg-type]
    world.transactions[0][1](TransactionResponse(1))
    assert world.stream.sent == []


def test_a_stream_of_producers_accepts_nothing_else_and_continues_s11() -> None:
    world = World(TRANSACTIONS_PATH)
    world.produce(1, 5)
    world.ask(LeaveGroupRequest(2, "g", "m", 7))
    world.handler.on_message(world.stream, memoryview(b"\x00\x00\x00\x01\xc1"))  # type: ignore[arg-type]
    world.ask(RetireBlockRequest(3, "b"))
    assert world.told() == [(1, "invalid_request"), (2, "invalid_request"), (-1, "invalid_request")]
    assert len(world.transactions) == 1
