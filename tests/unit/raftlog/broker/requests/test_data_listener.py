"""What is in flight on one stream of requests is counted, bounded, and given back with each answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raftlog.broker.requests import data_listener
from raftlog.broker.requests.data_listener import RequestStream, data_acceptors
from raftlog.wire import (
    PRODUCE_PATH,
    ErrorResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_response,
    encode,
)


class Stream:
    """Of HTTP/2, as its handler sees it: what is sent is kept."""

    path = PRODUCE_PATH

    def __init__(self) -> None:
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


class World:
    def __init__(self) -> None:
        self.stream, self.local = Stream(), Local()
        acceptor = data_acceptors(self.local, lambda: True)[PRODUCE_PATH]  # type: ignore[arg-type]
        handler = acceptor(self.stream)  # type: ignore[arg-type]
        assert isinstance(handler, RequestStream)
        self.handler = handler

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
    monkeypatch.setattr(data_listener, "MAX_BYTES_IN_FLIGHT", 1000)
    monkeypatch.setattr(data_listener, "MAX_REQUESTS_IN_FLIGHT", 3)
    return World()


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_bytes_in_flight_are_given_back_with_their_answer(world: World, acks: int) -> None:
    """However much went through a stream, its bound is on what has no answer yet."""
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


def test_one_request_above_the_bound_is_taken_where_nothing_else_is_in_flight(world: World) -> None:
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


def test_answers_to_a_stream_that_is_gone_are_dropped(world: World) -> None:
    world.produce(0, 1)
    world.stream.closed = True
    world.handler.on_closed(world.stream, "gone")  # type: ignore[arg-type]
    world.local.answer()
    assert not world.stream.sent and not world.stream.ended
