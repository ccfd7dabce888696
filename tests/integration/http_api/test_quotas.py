"""Callers over a quota wait: 429 with the time, and nothing of the request is used (S11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from metadata.view import QuotaLimits
from raftlog.security.acls import Operation, ResourceType
from raftlog.wire import CONTENT_TYPE, FetchPartition, FetchRequest
from tests.support.client.secured_broker import Headers, SecuredBroker
from tests.support.http.api_client import Answer, Api, eventually, running_api
from tests.support.http.route_rights import raw
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

RECORDS = "/v1/topics/t/records"


@pytest_asyncio.fixture
async def broker() -> SecuredBroker:
    broker = SecuredBroker()
    broker.add_topic("t")
    await broker.allow(*(allow(one, ResourceType.TOPIC, "t") for one in (Operation.READ, Operation.WRITE)))
    return broker


@pytest_asyncio.fixture
async def api(broker: SecuredBroker) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running


@pytest_asyncio.fixture
async def alice(broker: SecuredBroker) -> Headers:
    return await broker.user("alice")


async def limit(broker: SecuredBroker, entity: str = "User:alice", **limits: int) -> None:
    await broker.security.put_quota(entity, QuotaLimits(**limits))


def throttled(answer: Answer) -> int:
    """Check the refusal, and return the seconds to wait."""
    answer.problem("throttled")
    return int(answer.headers["Retry-After"])


async def test_requests_are_limited_by_their_rate(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    await limit(broker, requests_per_second=2)
    answers = [await api.get("/v1/identity", headers=alice) for _ in range(6)]
    # A burst of two seconds, and the one that goes into debt.
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert throttled(answers[-1]) == 1
    broker.clock.advance(0.5)
    assert (await api.get("/v1/identity", headers=alice)).status == 200


async def test_a_refused_request_costs_nothing(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    await limit(broker, requests_per_second=1)
    for _ in range(3):
        await api.get("/v1/identity", headers=alice)
    waits = [throttled(await api.post(RECORDS, {"records": [{"value": 1}]}, headers=alice)) for _ in range(10)]
    assert set(waits) == {1}, "refusals do not add to the debt"
    assert broker.produced == []
    broker.clock.advance(1)
    assert (await api.get("/v1/identity", headers=alice)).status == 200


async def test_bodies_are_limited_and_a_large_one_passes_first(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    await limit(broker, bytes_in_per_second=1_000)
    large = {"records": [{"value": "x" * 10_000}]}
    assert (await api.post(RECORDS, large, headers=alice)).status == 200
    # 10 kB and some at 1 kB a second, of which the burst pays two seconds.
    assert 8 <= throttled(await api.post(RECORDS, large, headers=alice)) <= 9
    assert len(broker.produced) == 1
    broker.clock.advance(9)
    assert (await api.post(RECORDS, large, headers=alice)).status == 200


async def test_bytes_count_as_they_were_sent_even_if_they_are_refused(
    api: Api, broker: SecuredBroker, alice: Headers
) -> None:
    await limit(broker, bytes_in_per_second=1_000)
    (await api.post(RECORDS, b"{" * 20_000, headers=alice)).problem("invalid_json")
    assert throttled(await api.get("/v1/identity", headers=alice)) == 18


@pytest.mark.parametrize("path", ["records", "batches"])
async def test_answers_are_limited(api: Api, broker: SecuredBroker, alice: Headers, path: str) -> None:
    root = await broker.user("root", superuser=True)
    records = {"records": [{"value": "x" * 1_000}] * 20}
    assert (await api.post(RECORDS, records, headers=root)).status == 200
    await limit(broker, bytes_out_per_second=1_000)

    async def read() -> Answer:
        if path == "records":
            return await api.get("/v1/topics/t/partitions/0/records", headers={**alice, "Accept-Encoding": "identity"})
        topic = broker.view.topic("t")
        assert topic is not None
        message: Any = FetchRequest(0, 0, 1, 1_000_000, [FetchPartition(topic.topic_id, 0, 0, 1_000_000)])
        return await api.post("/v1/fetch", raw(message), CONTENT_TYPE, headers=alice)

    answer = await read()
    assert answer.status == 200
    waits = [throttled(await read()) for _ in range(10)]
    wait = waits[0]
    assert set(waits) == {wait}, "refusals do not add to the debt"
    assert 0 <= len(answer.body) / 1_000 - 2 - wait + 1 <= 1
    broker.clock.advance(wait)
    assert (await read()).status == 200


async def test_an_address_is_limited_whatever_its_users(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    bob = await broker.user("bob")
    await limit(broker, "Address:127.0.0.1", requests_per_second=1)
    answers = [await api.get("/v1/identity", headers=headers) for headers in (alice, bob, alice, bob, alice)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]


async def test_quotas_concern_neither_strangers_nor_load_balancers(
    api: Api, broker: SecuredBroker, alice: Headers
) -> None:
    """A request without a credential is no user's: it uses up nothing that others have."""
    await limit(broker, "User:*", requests_per_second=1, bytes_out_per_second=1)
    await limit(broker, "Address:*", requests_per_second=1)
    for _ in range(10):
        assert (await api.get("/v1/health")).status == 200
        (await api.get("/v1/identity")).problem("unauthenticated")
    assert (await api.get("/v1/identity", headers=alice)).status == 200
    assert (await api.get("/v1/health", headers=alice)).status == 200


async def test_connections_are_limited_and_one_too_many_is_closed(
    api: Api, broker: SecuredBroker, alice: Headers
) -> None:
    await limit(broker, connections=1)
    bob = await broker.user("bob")
    request = "".join(f"{name}: {value}\r\n" for name, value in alice.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        writer.write(f"GET /v1/identity HTTP/1.1\r\nHost: 127.0.0.1\r\n{request}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        answer = await api.get("/v1/identity", headers=alice)
        assert throttled(answer) == 1
        assert "as many connections" in answer.document["detail"]
        assert answer.headers["Connection"] == "close"
        assert (await api.get("/v1/identity", headers=bob)).status == 200
    finally:
        writer.close()
    await eventually(lambda: api.connections <= 1)
    assert (await api.get("/v1/identity", headers=alice)).status == 200
    # The same connection again, kept open by the client.
    assert (await api.get("/v1/identity", headers=alice)).status == 200


async def test_connections_of_an_address_are_limited_whatever_its_users(
    api: Api, broker: SecuredBroker, alice: Headers
) -> None:
    await limit(broker, "Address:127.0.0.1", connections=0)
    throttled(await api.get("/v1/identity", headers=alice))
    throttled(await api.get("/v1/identity", headers=await broker.user("bob")))
    assert (await api.get("/v1/ready")).status == 200
    await eventually(lambda: api.connections == 1)


async def test_groups_and_offsets_beyond_the_quota_are_refused_for_good(
    api: Api, broker: SecuredBroker, alice: Headers
) -> None:
    """Waiting does not help: the answer says what to do, and not when to retry."""
    bob = await broker.user("bob")
    await broker.allow(*(allow(Operation.READ, ResourceType.GROUP, principal=f"User:{n}") for n in ("alice", "bob")))
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    await limit(broker, groups=1, committed_offsets=1)
    topic = broker.view.topic("t")
    assert topic is not None

    async def commit(group: str, headers: Headers) -> Answer:
        offset = {"topic_id": topic.topic_id.hex(), "partition": 0, "offset": 5}
        body = {"member_id": "", "incarnation": 0, "generation": 0, "offsets": [offset]}
        return await api.post(f"/v1/groups/{group}/offsets", body, headers=headers)

    assert (await commit("one", alice)).status == 204
    told = (await commit("two", alice)).problem("quota_exceeded")
    assert "User:alice has 1 groups" in told["detail"] and "groups)" in told["detail"]
    assert (await commit("one", alice)).status == 204
    assert (await commit("two", bob)).status == 204
    joined = await api.post("/v1/groups/three/members", {"topics": ["t"]}, headers=alice)
    joined.problem("quota_exceeded")
    assert {group.group_id for group in broker.view.groups.groups()} == {"one", "two"}
