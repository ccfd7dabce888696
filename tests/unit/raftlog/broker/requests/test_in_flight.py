"""Fetches in flight are bounded by connection and by caller, whatever the number of streams and connections (S11)."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.broker.requests import in_flight
from raftlog.security.acls import Operation, ResourceType
from raftlog.wire import FETCH_PATH, ErrorResponse, FetchPartition, FetchRequest, SessionFetchRequest, SlotToFetch
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import bearer
from tests.support.security.data_world import DataWorld, FakeStream
from tests.support.security.rules import allow

POLL = FetchRequest(1, 1000, 1, 1000, [FetchPartition(TOPIC, 0, 0, 1000)])
SESSION_POLL = SessionFetchRequest(2, 0, True, 1000, 1, 1000, [SlotToFetch(0, TOPIC, 0, 0, 1000)])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DataWorld:
    monkeypatch.setattr(in_flight, "MAX_POLLS_OF_CONNECTION", 3)
    monkeypatch.setattr(in_flight, "MAX_POLLS_OF_CALLER", 5)
    made = DataWorld()
    for user in ("alice", "bob"):
        made.credentials.put_user(user)
        made.add(allow(Operation.READ, ResourceType.TOPIC, "orders", principal=f"User:{user}"))
    return made


def opened(world: DataWorld, user: str, connection: Any = None) -> FakeStream:
    stream = world.open(FETCH_PATH, bearer(world.credentials.put_token(user)))
    if connection is not None:
        stream.connection = connection
    return stream


def waits(stream: FakeStream, request: Any = POLL) -> bool:
    """Whether the request is in flight; otherwise it must have been refused."""
    answer = stream.ask(request)
    assert answer is None or (isinstance(answer, ErrorResponse) and answer.error == "overloaded")
    return answer is None


@pytest.mark.parametrize("request_kind", [POLL, SESSION_POLL], ids=["poll", "session"])
def test_the_polls_of_a_connection_and_of_a_caller_are_bounded(world: DataWorld, request_kind: Any) -> None:
    first = opened(world, "alice")
    assert [waits(first, request_kind) for _ in range(4)] == [True] * 3 + [False]
    second = opened(world, "alice")
    assert [waits(second, request_kind) for _ in range(4)] == [True, True, False, False]
    assert waits(opened(world, "bob"), request_kind), "another caller has its own"


def test_an_answered_poll_makes_room(world: DataWorld) -> None:
    stream = opened(world, "alice")
    assert [waits(stream) for _ in range(4)] == [True] * 3 + [False]
    world.local.answer_polls()
    assert [waits(stream) for _ in range(4)] == [True] * 3 + [False]


def test_the_end_of_a_stream_makes_room(world: DataWorld) -> None:
    stream = opened(world, "alice")
    assert [waits(stream) for _ in range(3)] == [True] * 3
    stream.close()
    other = opened(world, "alice")
    assert [waits(other) for _ in range(4)] == [True] * 3 + [False]
