"""A caller sees and moves only what it may, in groups of many (S12)."""

from __future__ import annotations

from typing import Any

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.transactions import ChangeTransactionsAs, OpenBlock
from raftlog.broker.requests.forwarded import head_of
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.errors import RetriableError
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.security.acls import Operation, ResourceType
from raftlog.transactions import TransactionKey
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import (
    GROUPS_PATH,
    TRANSACTIONS_PATH,
    AbortRequest,
    CommitRequest,
    CommittedOffset,
    ErrorResponse,
    GroupHeartbeat,
    GroupHeartbeatsRequest,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    TransactionOutput,
    TransactionRequest,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import bearer, header
from tests.support.security.data_world import SECRET_TOPIC, DataWorld
from tests.support.security.rules import ALICE, allow

ASK = GroupOffsetsRequest(5, "g")
FOUND = GroupOffsetsResponse(5, [CommittedOffset(TOPIC, "orders", 0, 3), CommittedOffset(SECRET_TOPIC, "secret", 0, 4)])
DESCRIBES_GROUP = allow(Operation.DESCRIBE, ResourceType.GROUP, "g")


def offsets(w: DataWorld) -> Any:
    w.credentials.put_user("alice")
    return w.open(GROUPS_PATH, bearer(w.credentials.put_token("alice"))).ask(ASK)


def test_offsets_are_shown_of_topics_that_the_caller_may_describe_s12() -> None:
    w = DataWorld(DESCRIBES_GROUP, allow(Operation.READ, ResourceType.TOPIC, "orders"))
    w.groups.answers[GroupOffsetsRequest] = FOUND
    assert offsets(w) == GroupOffsetsResponse(5, FOUND.offsets[:1])
    w = DataWorld(DESCRIBES_GROUP)
    w.groups.answers[GroupOffsetsRequest] = FOUND
    assert offsets(w) == GroupOffsetsResponse(5, [])
    w = DataWorld(DESCRIBES_GROUP, allow(Operation.DESCRIBE, ResourceType.TOPIC))
    w.groups.answers[GroupOffsetsRequest] = FOUND
    assert offsets(w) == FOUND


def test_an_error_instead_of_offsets_is_told_as_it_is() -> None:
    w = DataWorld(DESCRIBES_GROUP)
    w.groups.answers[GroupOffsetsRequest] = RetriableError("quorum_unavailable", "no leader")
    assert offsets(w) == ErrorResponse(5, "quorum_unavailable", "no leader")


def test_heartbeats_are_decided_member_by_member_s12() -> None:
    w = DataWorld(allow(Operation.READ, ResourceType.GROUP, "open"))
    stream = w.open(FORWARD_PATH, header(None), node=2)
    members = [GroupHeartbeat(group, f"m-{at}", 1) for at, group in enumerate(("open", "shut", "open", "shut"))]
    answer = stream.ask(GroupHeartbeatsRequest(5, members), caller=bytes(head_of(ALICE)))  # type: ignore[arg-type]
    assert answer.errors == ["", "authorization_failed", "", "authorization_failed"]
    (heard,) = w.groups.asked
    assert [member.group_id for member in heard.members] == ["open", "open"]


def test_transactions_of_another_principal_are_neither_committed_nor_aborted_s12() -> None:
    w = DataWorld(*(allow(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, principal=f"User:{n}") for n in "ab"))
    cluster = w.cluster
    cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    first = cluster.view.transactions.granted_below
    cluster.do(ChangeTransactionsAs((OpenBlock("", 10, 60_000),), ("a",)))

    def told(name: str, request: TransactionRequest) -> str:
        w.credentials.put_user(name)
        answer = w.open(TRANSACTIONS_PATH, bearer(w.credentials.put_token(name))).ask(request)
        return answer.error if isinstance(answer, ErrorResponse) else ""

    def requests(ahead: int) -> list[TransactionRequest]:
        key = TransactionKey(ProducerId(first + ahead), ProducerEpoch(0))
        return [AbortRequest(1, (key,)), CommitRequest(1, (TransactionOutput(*key, ()),), (), (), "", 0)]

    assert [told("b", request) for request in requests(3)] == ["authorization_failed"] * 2
    assert [told("b", request) for request in requests(10)] == ["metadata_behind"] * 2
    assert w.groups.asked == []
    assert [told("a", request) for request in requests(3)] == ["", ""]
    assert w.groups.principals == ["a", "a"]
