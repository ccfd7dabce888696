"""Forwarded requests of many callers on one stream: each is served as its caller, within bounds (S12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.requests import forward_stream
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.forwarded import head_of
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.security.acls import AclRule, Operation, ResourceType
from raftlog.security.principals import Caller, Principal
from raftlog.wire import ErrorResponse, FetchPartition, FetchRequest, OffsetQuery, OffsetsRequest
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import header
from tests.support.security.data_world import DataWorld, FakeStream
from tests.support.security.rules import ALICE, BOB, ROOT, allow

READ = allow(Operation.READ, ResourceType.TOPIC, "orders")
BOB_READS = allow(Operation.READ, ResourceType.TOPIC, "orders", principal="User:bob")
EVERYBODY_READS = allow(Operation.READ, ResourceType.TOPIC, "orders", principal="User:*")
OFFSETS = OffsetsRequest(6, [OffsetQuery(TOPIC, 0, -1)])


def poll(number: int) -> FetchRequest:
    return FetchRequest(number, 10_000, 1, 1 << 20, [FetchPartition(TOPIC, 0, 0, 100)], forwarded=True)


def head(caller: Caller) -> bytes:
    return bytes(head_of(caller))


def test_a_caller_that_loses_its_topic_is_answered_and_the_others_go_on_s12() -> None:
    w = DataWorld(READ, BOB_READS)
    stream = w.open(FORWARD_PATH, header(None), node=2)
    for number, caller in enumerate((ALICE, BOB, ALICE, ROOT)):
        stream.ask(poll(number), caller=head(caller))
    w.remove(READ)
    assert [(one.correlation_id, one.error) for one in stream.sent] == [
        (0, "authorization_failed"),
        (2, "authorization_failed"),
    ]
    assert not stream.ended and stream.records == 0
    w.local.answer_polls()
    assert [one.correlation_id for one in stream.sent[2:]] == [1, 3] and stream.records == 6
    w.add(READ)
    assert stream.ask(OFFSETS, caller=head(ALICE)).partitions[0].offset == 7, "the caller is served again"


def test_callers_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_stream, "MAX_CALLERS", 3)
    w = DataWorld(allow(Operation.READ, ResourceType.TOPIC, "orders", principal="User:*"))
    stream = w.open(FORWARD_PATH, header(None), node=2)
    callers = [Caller(Principal(f"user-{number}"), "10.0.0.1") for number in range(10)]
    for caller in callers:
        assert stream.ask(OFFSETS, caller=head(caller)).partitions[0].offset == 7
    for number, caller in enumerate(callers[:3]):
        stream.ask(poll(number), caller=head(caller))
    refused = stream.ask(OFFSETS, caller=head(callers[5]))
    assert (refused.correlation_id, refused.error) == (6, "overloaded")
    assert stream.ask(OFFSETS, caller=head(callers[2])).partitions[0].offset == 7
    w.local.answer_polls()
    assert stream.ask(OFFSETS, caller=head(callers[5])).partitions[0].offset == 7


def test_the_long_polls_of_a_closed_stream_end() -> None:
    w = DataWorld(READ, BOB_READS)
    stream = w.open(FORWARD_PATH, header(None), node=2)
    stream.ask(poll(1), caller=head(ALICE))
    stream.ask(poll(2), caller=head(BOB))
    stream.close()
    assert w.local.polls == []
    w.remove(READ)
    assert stream.sent == []


def test_a_stream_whose_node_has_ended_ends_with_the_last_answer() -> None:
    w = DataWorld(READ)
    stream = w.open(FORWARD_PATH, header(None), node=2)
    stream.ask(poll(1), caller=head(ALICE))
    assert stream.handler is not None
    stream.handler.on_ended(stream)  # type: ignore[arg-type]
    assert not stream.ended
    w.local.answer_polls()
    assert stream.ended and stream.records == 3


@pytest.mark.parametrize(
    ("mode", "rules", "told"),
    [("required", [EVERYBODY_READS], ""), ("optional", [], ""), ("optional", [EVERYBODY_READS], "7")],
)
def test_requests_without_a_caller_are_those_of_everybody_while_credentials_are_optional_s12(
    mode: str, rules: list[AclRule], told: str
) -> None:
    """A node that has no security yet forwards them while the cluster moves to security, node by node."""
    stream = DataWorld(*rules, mode=mode).open(FORWARD_PATH, header(None), node=2)
    answer = stream.ask(OFFSETS)
    if told:
        assert answer.partitions[0].offset == int(told)
    elif mode == "optional":
        assert answer.partitions[0].error == "authorization_failed"
    else:
        assert answer.error == "authorization_failed"


def test_a_node_without_security_serves_whatever_caller_is_named() -> None:
    w = DataWorld()
    acceptors = data_acceptors(w.local, w.groups, w.groups.ask_transactions, lambda: True)  # type: ignore[arg-type]
    stream = FakeStream(w, FORWARD_PATH, header(None), 2)
    stream.accept(acceptors[FORWARD_PATH](stream))  # type: ignore[arg-type]
    assert stream.ask(OFFSETS, caller=head(ALICE)).partitions[0].offset == 7
    assert stream.ask(OFFSETS).partitions[0].offset == 7
    stream.receive(head(ALICE)[:-1])
    assert stream.sent[-1].error == "invalid_request"


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_are_answered_with_an_error_s11(message: bytes, named: bool) -> None:
    w = DataWorld()
    stream = w.open(FORWARD_PATH, header(None), node=2)
    stream.receive(head(ALICE) + message if named else message)
    (answer,) = stream.sent
    assert isinstance(answer, ErrorResponse) and w.served == []
