"""Requests are decided by the rules and recorded; what a request needs follows from its content (S12)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import CreateTopic
from metadata.view import ClusterView
from raftlog.broker.security.access.access import Access
from raftlog.broker.security.access.needs import PRODUCER_IDS, Need, needs_of
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId, Offset, ProducerEpoch, ProducerId, TopicId
from raftlog.security.acls import CLUSTER, AclRule, Operation, Resource, ResourceType
from raftlog.security.authorizer import Authorizer
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitOffsetsRequest,
    CommitRequest,
    GroupHeartbeat,
    GroupHeartbeatsRequest,
    GroupMoves,
    GroupOffsetsRequest,
    InitializeRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    OffsetMove,
    OffsetToCommit,
    OpenBlockRequest,
    PositionMove,
    RemovePositionRequest,
    RetireBlockRequest,
    TopicEnds,
    TransactionOutput,
)
from tests.support.metadata.cluster import TOPIC, Cluster
from tests.support.security.rules import ALICE, BOB, ROOT, KeptAudit, allow

ORDERS = Resource(ResourceType.TOPIC, "orders")
GROUP = Resource(ResourceType.GROUP, "g")
NAME = Resource(ResourceType.TRANSACTIONAL_ID, "n")
UNKNOWN = b"\1" * 16
READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE


def access_of(view: ClusterView, *rules: AclRule) -> tuple[Access, KeptAudit]:
    audit = KeptAudit()
    return Access(view, Authorizer(rules), audit), audit


@pytest.fixture
def view() -> ClusterView:
    return Cluster(3).view


def test_a_refusal_is_recorded_and_says_nothing_about_existence(view: ClusterView) -> None:
    access, audit = access_of(view, allow(READ, ResourceType.TOPIC, "orders"))
    access.check(ALICE, READ, ORDERS, "fetch")
    for name in ("orders", "never-created"):
        with pytest.raises(InvalidRequest) as refused:
            access.check(BOB, READ, Resource(ResourceType.TOPIC, name), "fetch")
        assert refused.value.code == "authorization_failed"
        assert refused.value.detail == f"User:bob may not read topic {name!r}"
    assert [event.allowed for event in audit.events] == [True, False, False]
    assert audit.refused == ["read orders", "read never-created"]


def test_a_list_asks_without_a_record(view: ClusterView) -> None:
    access, audit = access_of(view, allow(DESCRIBE, ResourceType.TOPIC, "orders"))
    assert access.allows(ALICE, DESCRIBE, ORDERS)
    assert not access.allows(BOB, DESCRIBE, ORDERS)
    assert audit.events == []


def test_a_topic_is_created_by_the_right_to_it_or_to_all(view: ClusterView) -> None:
    topic, cluster = ResourceType.TOPIC, ResourceType.CLUSTER
    assert access_of(view, allow(CREATE, topic, "ord", prefixed=True))[0].allows(ALICE, CREATE, ORDERS)
    everywhere = allow(CREATE, cluster, CLUSTER.name)
    assert access_of(view, everywhere)[0].allows(ALICE, CREATE, ORDERS)
    assert not access_of(view, everywhere, allow(CREATE, topic, "orders", deny=True))[0].allows(ALICE, CREATE, ORDERS)
    assert not access_of(view, allow(WRITE, topic))[0].allows(ALICE, CREATE, ORDERS)


def test_producer_ids_are_granted_to_callers_that_may_write_to_some_topic(view: ClusterView) -> None:
    assert access_of(view, allow(WRITE, ResourceType.TOPIC, "x"))[0].allows(ALICE, *PRODUCER_IDS)
    assert access_of(view, allow(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER.name))[0].allows(
        ALICE, *PRODUCER_IDS
    )
    assert not access_of(view, allow(READ, ResourceType.TOPIC, "x"))[0].allows(ALICE, *PRODUCER_IDS)
    denied = allow(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER.name, deny=True)
    assert not access_of(view, allow(WRITE, ResourceType.TOPIC, "x"), denied)[0].allows(ALICE, *PRODUCER_IDS)


def test_all_needs_must_be_met(view: ClusterView) -> None:
    access, audit = access_of(view, allow(READ, ResourceType.GROUP, "g"))
    access.check_all(ALICE, [Need(READ, GROUP)], "commit_offsets")
    with pytest.raises(InvalidRequest):
        access.check_all(ALICE, [Need(READ, GROUP), Need(READ, ORDERS)], "commit_offsets")
    assert audit.refused == ["read orders"]
    access.check_all(ROOT, [Need(READ, GROUP), Need(READ, ORDERS)], "commit_offsets")


def test_only_known_topics_are_named_in_a_refusal(view: ClusterView) -> None:
    access, _ = access_of(view)
    assert set(access.refused_topics(ALICE, READ, [TOPIC, UNKNOWN], "fetch")) == {TOPIC}


def test_listeners_are_called_after_a_change_until_they_end(view: ClusterView) -> None:
    access, _ = access_of(view)
    calls: list[int] = []
    end = access.subscribe(lambda: calls.append(1))
    access.rules_changed()
    end()
    access.rules_changed()
    assert calls == [1]


def test_a_listener_that_another_one_ended_is_not_called(view: ClusterView) -> None:
    access, _ = access_of(view)
    calls: list[str] = []
    ends = [access.subscribe(lambda: ends[1]()), access.subscribe(lambda: calls.append("ended"))]
    access.rules_changed()
    assert calls == []


def test_each_change_of_the_rules_makes_another_version(view: ClusterView) -> None:
    access, _ = access_of(view)
    versions = [access.rules_version]
    for _ in range(2):
        access.rules_changed()
        versions.append(access.rules_version)
    assert len(set(versions)) == 3


# --- Needs -----------------------------------------------------------------------------------------------------------


def test_members_need_to_read_the_group_and_the_topics_that_they_name(view: ClusterView) -> None:
    join = JoinGroupRequest(0, "g", "m", "", "", ["orders", "later"], "", "", 10_000, 10_000)
    later = Resource(ResourceType.TOPIC, "later")
    assert list(needs_of(join, view)) == [Need(READ, GROUP), Need(READ, ORDERS), Need(READ, later)]
    commit = CommitOffsetsRequest(0, "g", "m", 1, 1, [OffsetToCommit(TOPIC, 0, 5), OffsetToCommit(UNKNOWN, 0, 5)])
    assert list(needs_of(commit, view)) == [Need(READ, GROUP), Need(READ, ORDERS)]
    for simple in (MemberHeartbeatRequest(0, "g", "m", 1, 1), LeaveGroupRequest(0, "g", "m", 1)):
        assert list(needs_of(simple, view)) == [Need(READ, GROUP)]
    assert list(needs_of(GroupOffsetsRequest(0, "g"), view)) == [Need(DESCRIBE, GROUP)]
    beats = GroupHeartbeatsRequest(0, [GroupHeartbeat("g", "m", 1), GroupHeartbeat("h", "m", 1)])
    assert list(needs_of(beats, view)) == [Need(READ, GROUP), Need(READ, Resource(ResourceType.GROUP, "h"))]


def test_transactional_producers_need_to_write_under_their_name(view: ClusterView) -> None:
    for request in (InitializeRequest(0, "n", 1000), OpenBlockRequest(0, "n", 5, 1000), RetireBlockRequest(0, "n")):
        assert list(needs_of(request, view)) == [Need(WRITE, NAME)]
    assert list(needs_of(RemovePositionRequest(0, "n", 3), view)) == [Need(WRITE, NAME)]
    assert list(needs_of(OpenBlockRequest(0, "", 5, 1000), view)) == [PRODUCER_IDS]


def test_a_commit_needs_every_name_topic_and_group_in_it() -> None:
    cluster = Cluster(3)
    cluster.do(CreateTopic("second", TopicId(b"topic-number-002"), ((BrokerId(0),),)))
    outputs = (
        TransactionOutput(ProducerId(7), ProducerEpoch(0), (TopicEnds(TOPIC, (0,), (Offset(3),)),)),
        TransactionOutput(ProducerId(7), ProducerEpoch(0), (TopicEnds(TOPIC, (0,), (Offset(4),)),)),
    )
    moves = GroupMoves("g", "", 0, 0, (OffsetMove(TopicId(b"topic-number-002"), 0, -1, Offset(3)),))
    commit = CommitRequest(0, outputs, (moves,), (PositionMove("n", -1, 1),), block="b")
    assert list(dict.fromkeys(needs_of(commit, cluster.view))) == [
        PRODUCER_IDS,
        Need(WRITE, ORDERS),
        Need(READ, GROUP),
        Need(READ, Resource(ResourceType.TOPIC, "second")),
        Need(WRITE, NAME),
        Need(WRITE, Resource(ResourceType.TRANSACTIONAL_ID, "b")),
    ]
    abort = AbortRequest(0, (TransactionKey(ProducerId(7), ProducerEpoch(0)),))
    assert list(needs_of(abort, cluster.view)) == [PRODUCER_IDS]
