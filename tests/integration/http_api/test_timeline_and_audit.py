"""The timeline shows each caller what it may describe, and only administrators read the audit log (S12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from raftlog.api.timeline import ChangeKind, ClusterChange
from raftlog.broker.security.audit.audit import AuditLevel, AuditTrail, of_failed_login
from raftlog.broker.security.audit.recent import RecentAudit
from raftlog.security.acls import Operation, ResourceType
from tests.support.client.secured_broker import Headers, SecuredBroker
from tests.support.http.api_client import Api, running_api
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration


class Remembered:
    """Explanations of a broker that remembers these changes."""

    def __init__(self, changes: list[ClusterChange]) -> None:
        self._changes = changes
        self.read = 0

    def changes(self) -> Iterator[ClusterChange]:
        for change in self._changes:
            self.read += 1
            yield change


def change(number: int, kind: ChangeKind, topic: str | None = None) -> ClusterChange:
    partition = None if topic is None else 0
    return ClusterChange(kind, "info", f"change {number}", index=number, topic=topic, partition=partition)


CHANGES = [
    change(6, "leader", "open"),
    change(5, "leader", "secret"),
    change(4, "broker"),
    change(3, "quorum"),
    change(2, "isr", "open"),
    change(1, "leader", "open"),
]


@pytest_asyncio.fixture
async def broker() -> SecuredBroker:
    made = SecuredBroker()
    made.explain = Remembered(CHANGES)
    await made.allow(allow(Operation.DESCRIBE, ResourceType.TOPIC, "open"))
    return made


@pytest_asyncio.fixture
async def api(broker: SecuredBroker) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running


async def indexes(api: Api, headers: Headers, query: str = "") -> list[int]:
    answer = await api.get(f"/v1/timeline{query}", headers=headers)
    assert answer.status == 200, answer
    return [one["index"] for one in answer.document["changes"]]


async def test_changes_of_topics_and_of_the_cluster_need_their_rights_s12(api: Api, broker: SecuredBroker) -> None:
    alice, root = await broker.user("alice"), await broker.user("root", superuser=True)
    assert await indexes(api, alice) == [6, 2, 1]
    assert await indexes(api, root) == [6, 5, 4, 3, 2, 1]
    assert await indexes(api, alice, "?topic=secret") == []
    await broker.allow(allow(Operation.DESCRIBE, ResourceType.CLUSTER, "raftlog-cluster"))
    assert await indexes(api, alice) == [6, 4, 3, 2, 1]


async def test_kind_topic_and_number_select(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    assert await indexes(api, root, "?kind=leader") == [6, 5, 1]
    assert await indexes(api, root, "?topic=open&kind=isr") == [2]
    broker.explain.read = 0
    answer = await api.get("/v1/timeline?limit=2", headers=root)
    assert [one["index"] for one in answer.document["changes"]] == [6, 5] and answer.document["more"]
    assert broker.explain.read == 3, "no more than one beyond the page is read"
    assert not (await api.get("/v1/timeline?limit=6", headers=root)).document["more"]
    for query in ("?kind=other", "?limit=0", "?limit=1001", "?limit=x", "?topic=a&topic=b", "?other=1"):
        (await api.get(f"/v1/timeline{query}", headers=root)).problem("invalid_request")


async def test_the_audit_log_is_read_by_those_who_may_alter_the_cluster_s12(api: Api, broker: SecuredBroker) -> None:
    trail = AuditTrail(AuditLevel.CHANGES, 1)
    for number in range(3):
        trail.note(of_failed_login("10.0.0.9", f"user{number}", "password", "unknown user"), 1_000 + number)
    recent = RecentAudit("changes")
    recent.write([line.text for line in trail.take(2_000)], lambda error: None)
    broker.recent_audit = recent
    alice, root = await broker.user("alice"), await broker.user("root", superuser=True)
    await broker.allow(allow(Operation.DESCRIBE, ResourceType.CLUSTER, "raftlog-cluster"))
    (await api.get("/v1/audit", headers=alice)).problem("authorization_failed")
    read = (await api.get("/v1/audit?limit=2", headers=root)).document
    assert (read["recorded"], read["level"], read["node_id"]) == (True, "changes", 1)
    assert [(one["principal"], one["time_ms"], one["allowed"]) for one in read["lines"]] == [
        ("user2", 1_002, False), ("user1", 1_001, False)
    ]  # fmt: skip
    assert any(event.action == "GET /v1/audit" and event.allowed for event in broker.audit.events), "a look is recorded"


async def test_a_node_without_an_audit_log_says_so(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    assert (await api.get("/v1/audit", headers=root)).document == {
        "recorded": False, "level": "", "node_id": 1, "lines": []
    }  # fmt: skip
