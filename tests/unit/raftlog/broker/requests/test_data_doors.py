"""Every path of the data listener and every request on it: refused without a credential and without a rule (S12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import pytest

from metadata.commands.cluster import GrantProducerIds
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.forwarded import head_of
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.broker.security.unauthenticated import TEXT
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId, ProducerEpoch, ProducerId
from raftlog.records.batch import encode as encode_batch
from raftlog.security.acls import AclRule, Operation, ResourceType
from raftlog.security.presented import Presented
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    AbortRequest,
    CommitOffsetsRequest,
    CommitRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    GroupHeartbeat,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupOffsetsRequest,
    InitializeRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    OffsetQuery,
    OffsetsRequest,
    OffsetToCommit,
    OpenBlockRequest,
    ProducePartition,
    ProduceRequest,
    RemovePositionRequest,
    Request,
    RetireBlockRequest,
    SessionFetchRequest,
    SessionFetchResponse,
    SlotToFetch,
    TransactionOutput,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import basic, bearer, header
from tests.support.security.data_world import DataWorld
from tests.support.security.rules import ALICE, allow

BATCH = bytes(encode_batch([b"x"], base_timestamp_ms=0))
KEY = TransactionKey(ProducerId(7), ProducerEpoch(3))
NOBODY = header(None)


def topic(operation: Operation) -> AclRule:
    return allow(operation, ResourceType.TOPIC, "orders")


def group(operation: Operation) -> AclRule:
    return allow(operation, ResourceType.GROUP, "g")


def named(name: str) -> AclRule:
    return allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)


class Door(NamedTuple):
    """One request on its path, and the rules that allow it, all of which are needed."""

    path: str
    request: Request
    rules: Sequence[AclRule]
    body: Sequence[bytes] = ()


PRODUCE = ProduceRequest(5, -1, 1000, [ProducePartition(TOPIC, 0, len(BATCH))])
FETCH = FetchRequest(5, 0, 1, 1 << 20, [FetchPartition(TOPIC, 0, 0, 100)])
SESSION = SessionFetchRequest(5, 1, True, 0, 1, 1 << 20, [SlotToFetch(1, TOPIC, 0, 0, 100)])
OFFSETS = OffsetsRequest(5, [OffsetQuery(TOPIC, 0, -1)])
DELETE = DeleteRecordsRequest(5, 1000, [DeleteRecordsPartition(TOPIC, 0, 3)])
HEARTBEATS = GroupHeartbeatsRequest(5, [GroupHeartbeat("g", "m", 1)])
READS_GROUP = group(Operation.READ)

CLIENT_DOORS = [
    Door(PRODUCE_PATH, PRODUCE, [topic(Operation.WRITE)], [BATCH]),
    Door(FETCH_PATH, FETCH, [topic(Operation.READ)]),
    Door(FETCH_PATH, SESSION, [topic(Operation.READ)]),
    Door(FETCH_PATH, OFFSETS, [topic(Operation.DESCRIBE)]),
    Door(
        GROUPS_PATH,
        JoinGroupRequest(5, "g", "m", "", "app", ["orders"], "", "uniform", 9_000, 9_000),
        [READS_GROUP, topic(Operation.READ)],
    ),
    Door(GROUPS_PATH, MemberHeartbeatRequest(5, "g", "m", 7, 9), [READS_GROUP]),
    Door(GROUPS_PATH, LeaveGroupRequest(5, "g", "m", 7), [READS_GROUP]),
    Door(
        GROUPS_PATH,
        CommitOffsetsRequest(5, "g", "m", 7, 9, [OffsetToCommit(TOPIC, 0, 5)]),
        [READS_GROUP, topic(Operation.READ)],
    ),
    Door(GROUPS_PATH, GroupOffsetsRequest(5, "g"), [group(Operation.DESCRIBE)]),
    Door(TRANSACTIONS_PATH, InitializeRequest(5, "app", 60_000), [named("app")]),
    Door(TRANSACTIONS_PATH, OpenBlockRequest(5, "block", 32, 60_000), [named("block")]),
    Door(TRANSACTIONS_PATH, OpenBlockRequest(5, "", 32, 60_000), [topic(Operation.WRITE)]),
    Door(TRANSACTIONS_PATH, RetireBlockRequest(5, "block"), [named("block")]),
    Door(TRANSACTIONS_PATH, CommitRequest(5, (TransactionOutput(*KEY, ()),)), [topic(Operation.WRITE)]),
    Door(TRANSACTIONS_PATH, AbortRequest(5, (KEY,)), [topic(Operation.WRITE)]),
    Door(TRANSACTIONS_PATH, RemovePositionRequest(5, "p", 5), [named("p")]),
]
FORWARD_DOORS = [
    Door(FORWARD_PATH, PRODUCE, [topic(Operation.WRITE)], [BATCH]),
    Door(FORWARD_PATH, FETCH, [topic(Operation.READ)]),
    Door(FORWARD_PATH, OFFSETS, [topic(Operation.DESCRIBE)]),
    Door(FORWARD_PATH, DELETE, [topic(Operation.DELETE)]),
    Door(FORWARD_PATH, HEARTBEATS, [READS_GROUP]),
]
PATHS = sorted({door.path for door in (*CLIENT_DOORS, *FORWARD_DOORS)})


def name_of(door: Door) -> str:
    return f"{door.path} {type(door.request).__name__}"


def errors(answer: Any) -> set[str]:
    """The codes of an answer; an empty one is a success."""
    if isinstance(answer, ErrorResponse):
        return {answer.error}
    if isinstance(answer, GroupHeartbeatsResponse):
        return set(answer.errors)
    parts = answer.slots if isinstance(answer, SessionFetchResponse) else getattr(answer, "partitions", None)
    return {""} if parts is None else {one.error for one in parts}


def used(w: DataWorld) -> list[Any]:
    """The requests that were carried out, without those of which every partition or member was refused before."""
    return [one for one in w.served if any(getattr(one, part, False) for part in PARTS) or not set(PARTS) & fields(one)]


PARTS = ("partitions", "added", "members")


def fields(request: Any) -> set[str]:
    return set(request.__struct_fields__)


def world() -> DataWorld:
    w = DataWorld()
    w.credentials.put_user("alice", "correct horse")
    w.cluster.do(GrantProducerIds(BrokerId(0), w.cluster.incarnation(0), 10))
    return w


def test_no_request_and_no_path_is_missing_here() -> None:
    doors = (*CLIENT_DOORS, *FORWARD_DOORS)
    assert {type(door.request) for door in doors} == set(get_args(Request))
    assert set(data_acceptors(None, None, None, lambda: True)) == set(PATHS)  # type: ignore[arg-type]
    assert set(world().acceptors) == set(PATHS)


def credentials(w: DataWorld) -> dict[str, Presented]:
    """Credentials that are missing, wrong or no longer valid."""
    expired = w.credentials.put_token("alice", w.credentials.clock.wall_ms() + 1)
    removed = w.credentials.put_token("alice")
    w.credentials.remove_token(removed)
    w.credentials.put_user("carol")
    of_nobody = w.credentials.put_token("carol")
    w.credentials.remove_user("carol")
    w.credentials.clock.advance(1.0)
    token = w.credentials.put_token("alice")
    return {
        "none": NOBODY,
        "empty": header(""),
        "unknown scheme": header("Digest x"),
        "malformed token": bearer("rlt_x"),
        "two headers": header(f"Bearer {token.text.reveal()}, Bearer {token.text.reveal()}"),
        "unknown token": bearer(f"{token.text.reveal()[:-1]}{'A' if token.text.reveal()[-1] != 'A' else 'B'}"),
        "expired token": bearer(expired),
        "removed token": bearer(removed),
        "token of a removed user": bearer(of_nobody),
        "access token": bearer("eyJ.e30.x"),
        "wrong password": basic("alice", "wrong"),
        "unknown user": basic("dave", "correct horse"),
        "certificate of no user": header(None, certificate="dave"),
        "certificate of a node": header(None, certificate="node"),
        "two names": bearer(token, certificate="bob"),
    }


@pytest.mark.parametrize("path", sorted({door.path for door in CLIENT_DOORS}))
def test_without_a_valid_credential_every_stream_is_refused_with_the_same_words_s12(path: str) -> None:
    w = world()
    w.credentials.put_user("bob")
    told = {}
    for name, presented in credentials(w).items():
        stream = w.open(path, presented)
        w.credentials.worker.run_all()
        assert isinstance(stream.refusal, InvalidRequest), name
        told[name] = (stream.refusal.code, stream.refusal.detail)
    assert set(told.values()) == {("unauthenticated", TEXT)}, told
    assert w.served == []
    assert w.sessions.open_of_users == 0


@pytest.mark.parametrize("door", CLIENT_DOORS, ids=name_of)
def test_a_right_credential_needs_every_rule_s12(door: Door) -> None:
    for missing in range(len(door.rules)):
        w = world()
        w.add(*(rule for at, rule in enumerate(door.rules) if at != missing))
        stream = w.open(door.path, bearer(w.credentials.put_token("alice")))
        assert errors(stream.ask(door.request, door.body)) == {"authorization_failed"}
        assert used(w) == [] and stream.records == 0
    w = world()
    w.add(*door.rules)
    stream = w.open(door.path, bearer(w.credentials.put_token("alice")))
    assert errors(stream.ask(door.request, door.body)) == {""}
    assert w.served == [door.request]


@pytest.mark.parametrize("door", CLIENT_DOORS, ids=name_of)
def test_the_rules_of_another_user_do_not_help_s12(door: Door) -> None:
    w = world()
    w.credentials.put_user("bob")
    w.add(*door.rules)
    stream = w.open(door.path, bearer(w.credentials.put_token("bob")))
    assert errors(stream.ask(door.request, door.body)) == {"authorization_failed"}


@pytest.mark.parametrize("door", CLIENT_DOORS, ids=name_of)
def test_where_no_credential_is_needed_everybody_is_anonymous_s12(door: Door) -> None:
    w = DataWorld(mode="optional")
    stream = w.open(door.path, NOBODY)
    assert errors(stream.ask(door.request, door.body)) == {"authorization_failed"}
    assert w.open(door.path, bearer("rlt_wrong")).refusal is not None, "a shown credential is checked"


@pytest.mark.parametrize("certificate", [None, "alice", "node"])
def test_the_forward_stream_is_opened_by_nodes_alone_s12(certificate: str | None) -> None:
    w = world()
    w.add(*(rule for door in FORWARD_DOORS for rule in door.rules))
    token = w.credentials.put_token("alice").text.reveal()
    stream = w.open(FORWARD_PATH, header(f"Bearer {token}", certificate=certificate))
    assert stream.refusal is not None and stream.refusal.code == "cluster_authorization_failed"


@pytest.mark.parametrize("door", FORWARD_DOORS, ids=name_of)
def test_forwarded_requests_are_decided_again_for_their_caller_s12(door: Door) -> None:
    w = world()
    stream = w.open(FORWARD_PATH, NOBODY, node=2)
    head = bytes(head_of(ALICE))
    assert errors(stream.ask(door.request, door.body, head)) == {"authorization_failed"}
    assert used(w) == []
    w.add(*door.rules)
    assert errors(stream.ask(door.request, door.body, head)) == {""}
    assert w.served[-1] == door.request


@pytest.mark.parametrize("door", FORWARD_DOORS, ids=name_of)
def test_a_node_asks_nothing_in_its_own_name_but_to_hear_heartbeats_s12(door: Door) -> None:
    w = world()
    stream = w.open(FORWARD_PATH, NOBODY, node=2)
    answer = stream.ask(door.request, door.body)
    if door.request is HEARTBEATS:
        assert errors(answer) == {""} and w.served == [door.request]
    else:
        assert answer.correlation_id == 5 and errors(answer) == {"authorization_failed"}
        assert w.served == []


@pytest.mark.parametrize("other", FORWARD_DOORS + CLIENT_DOORS, ids=name_of)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_serves_its_own_requests_only_s11(path: str, other: Door) -> None:
    doors = FORWARD_DOORS if path == FORWARD_PATH else CLIENT_DOORS
    if any(door.path == path and type(door.request) is type(other.request) for door in doors):
        return
    w = world()
    w.add(*other.rules)
    if path == FORWARD_PATH:
        stream, head = w.open(path, NOBODY, node=2), bytes(head_of(ALICE))
    else:
        stream, head = w.open(path, bearer(w.credentials.put_token("alice"))), b""
    assert errors(stream.ask(other.request, other.body, head)) == {"invalid_request"}
    assert w.served == []


def test_a_credential_that_cannot_be_checked_at_present_is_no_wrong_one() -> None:
    w = world()
    w.credentials.access_tokens.away = True
    refusal = w.open(FETCH_PATH, bearer("eyJ.e30.x")).refusal
    assert isinstance(refusal, RetriableError) and isinstance(refusal, RaftlogError)
