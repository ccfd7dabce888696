"""A caller over its quota waits; its answers say for how long, and the line is bounded. S11."""

from __future__ import annotations

import random

from raftlog.broker.requests.pace import MAX_WAITING_REQUESTS
from raftlog.broker.security.quotas.quotas import Limits, Rate
from raftlog.records.batch import encode as encode_batch
from raftlog.security.acls import Operation, ResourceType
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    GroupOffsetsRequest,
    OffsetQuery,
    OffsetsRequest,
    ProducePartition,
    ProduceRequest,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import bearer
from tests.support.security.data_world import RECORDS, DataWorld, FakeStream
from tests.support.security.rules import allow

BATCH = bytes(encode_batch([random.Random(1).randbytes(900)], base_timestamp_ms=0))
PRODUCE = ProduceRequest(5, -1, 1000, [ProducePartition(TOPIC, 0, len(BATCH))])
OFFSETS = OffsetsRequest(6, [OffsetQuery(TOPIC, 0, -1)])
FETCH = FetchRequest(7, 0, 1, 1 << 20, [FetchPartition(TOPIC, 0, 0, 100)])


class Paced:
    """A stream of alice with limits, in a world where she may do everything with `orders`."""

    def __init__(self, path: str, **rates: float) -> None:
        self.world = DataWorld(
            allow(Operation.ALL, ResourceType.TOPIC, "orders"), allow(Operation.ALL, ResourceType.GROUP, "g")
        )
        self.world.credentials.put_user("alice", "correct horse")
        self.token = self.world.credentials.put_token("alice")
        self.world.limits["User:alice"] = Limits({Rate[name.upper()]: value for name, value in rates.items()}, {})
        self.stream = self.open(path)

    def open(self, path: str) -> FakeStream:
        """Another stream of the same caller."""
        return self.world.open(path, bearer(self.token))


def test_a_request_over_the_rate_is_served_and_the_next_one_waits_for_the_debt() -> None:
    p = Paced(PRODUCE_PATH, bytes_in=600.0)
    assert p.stream.ask(PRODUCE, [BATCH]).throttle_ms == 0, "the burst of two seconds has room"
    told = p.stream.ask(PRODUCE, [BATCH])
    assert 1_000 < told.throttle_ms < 2_000
    assert p.stream.ask(PRODUCE, [BATCH]) is None
    p.world.scheduler.advance(told.throttle_ms / 1000 - 0.1)
    assert len(p.stream.sent) == 2
    p.world.scheduler.advance(0.2)
    assert len(p.stream.sent) == 3


def test_records_that_were_read_are_paid_for_before_the_next_request() -> None:
    p = Paced(FETCH_PATH, bytes_out=1.0)
    first = p.stream.ask(FETCH)
    assert first.throttle_ms == (len(RECORDS) - 2) * 1000, "all but the burst of two seconds"
    assert p.stream.ask(OFFSETS) is None
    p.world.scheduler.advance(first.throttle_ms / 1000 + 0.01)
    assert p.stream.sent[-1].correlation_id == OFFSETS.correlation_id


def test_requests_that_ask_the_quorum_have_a_rate_of_their_own() -> None:
    p = Paced(GROUPS_PATH, metadata_commands=0.1)
    request = GroupOffsetsRequest(5, "g")
    p.stream.ask(request)
    p.stream.ask(request)
    served = len(p.world.groups.asked)
    p.stream.ask(request)
    assert len(p.world.groups.asked) == served, "it waits"
    p.world.scheduler.advance(60.0)
    assert len(p.world.groups.asked) == served + 1


def test_a_callers_streams_share_its_quota() -> None:
    p = Paced(FETCH_PATH, requests=1.0)
    for _ in range(3):
        p.stream.ask(OFFSETS)
    served = len(p.world.local.asked)
    others = [p.open(FETCH_PATH) for _ in range(5)]
    assert [other.ask(OFFSETS) for other in others] == [None] * 5, "a new stream begins with its caller's debt"
    assert len(p.world.local.asked) == served
    p.world.scheduler.advance(10.0)
    assert [len(other.sent) for other in others] == [1] * 5


def test_the_line_is_bounded_and_beyond_it_requests_are_refused_s11() -> None:
    p = Paced(FETCH_PATH, requests=1.0)
    for _ in range(3):
        p.stream.ask(OFFSETS)
    for _ in range(MAX_WAITING_REQUESTS):
        assert p.stream.ask(OFFSETS) is None
    refused = p.stream.ask(OFFSETS)
    assert isinstance(refused, ErrorResponse)
    assert (refused.error, refused.correlation_id) == ("throttled", OFFSETS.correlation_id)
    p.stream.receive(b"no message")
    assert (p.stream.sent[-1].error, p.stream.sent[-1].correlation_id) == ("throttled", -1)


def test_waiting_bytes_are_bounded_too_s11() -> None:
    p = Paced(PRODUCE_PATH, requests=1.0)
    large = bytes(encode_batch([b"x" * (3 << 20)], base_timestamp_ms=0))
    request = ProduceRequest(5, -1, 1000, [ProducePartition(TOPIC, 0, len(large))])
    answers = [p.stream.ask(request, [large]) for _ in range(6)]
    assert [getattr(answer, "error", "") for answer in answers[3:]] == ["", "", "throttled"]


def test_a_stream_that_ends_while_requests_wait_is_answered_first() -> None:
    p = Paced(FETCH_PATH, requests=1.0)
    for _ in range(4):
        p.stream.ask(OFFSETS)
    assert p.stream.handler is not None
    p.stream.handler.on_ended(p.stream)  # type: ignore[arg-type]
    assert not p.stream.ended
    p.world.scheduler.advance(10.0)
    assert (len(p.stream.sent), p.stream.ended) == (4, True)


def test_a_closed_stream_drops_what_waits() -> None:
    p = Paced(FETCH_PATH, requests=1.0)
    for _ in range(5):
        p.stream.ask(OFFSETS)
    served = len(p.world.local.asked)
    p.stream.close()
    p.world.scheduler.advance(60.0)
    assert len(p.world.local.asked) == served


def test_without_a_limit_nothing_is_charged() -> None:
    p = Paced(PRODUCE_PATH)
    p.world.limits.clear()
    assert [p.stream.ask(PRODUCE, [BATCH]).throttle_ms for _ in range(50)] == [0] * 50
