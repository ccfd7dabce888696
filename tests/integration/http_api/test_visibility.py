"""Callers see and change what rules allow them, and nothing tells them of the rest (S12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from http_api.service.transactions import OpenTransaction
from http_api.web import listing
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition, TopicRecord
from raftlog.records.batch import encode
from raftlog.security.acls import CLUSTER_NAME, Operation, ResourceType
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    CONTENT_TYPE,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_response,
)
from tests.support.client.secured_broker import Headers, SecuredBroker
from tests.support.http.api_client import Answer, Api, running_api
from tests.support.http.route_rights import raw
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

TOPIC, GROUP, NAME = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


@pytest_asyncio.fixture
async def broker() -> SecuredBroker:
    """Two topics of six records, one of which alice may use."""
    made = SecuredBroker()
    for name in ("open", "secret"):
        topic = made.add_topic(name, 2)
        for partition in range(2):
            for _ in range(3):
                made.logs[TopicPartition(topic.topic_id, partition)].append(encode([b"a"], base_timestamp_ms=0))
    await made.allow(
        allow(READ, TOPIC, "open"), allow(WRITE, TOPIC, "open"), allow(READ, GROUP, "g"), allow(WRITE, NAME, "mine")
    )
    return made


@pytest_asyncio.fixture
async def api(broker: SecuredBroker) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        yield running


@pytest_asyncio.fixture
async def alice(broker: SecuredBroker) -> Headers:
    return await broker.user("alice")


@pytest_asyncio.fixture
async def root(broker: SecuredBroker) -> Headers:
    return await broker.user("root", superuser=True)


def topic(broker: SecuredBroker, name: str) -> TopicRecord:
    found = broker.view.topic(name)
    assert found is not None
    return found


async def names(api: Api, path: str, member: str, headers: Headers, name: str = "name") -> list[str]:
    answer = await api.get(path, headers=headers)
    assert answer.status == 200, answer
    return [one[name] for one in answer.document[member]]


# --- Lists -----------------------------------------------------------------------------------------------------------


async def test_lists_have_only_entries_that_may_be_described(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers
) -> None:
    for group in ("g", "other"):
        body = {"offsets": [{"topic": "secret", "partition": 0, "offset": 1}]}
        assert (await api.post(f"/v1/groups/{group}/offsets", body, headers=root)).status == 204
    positions = [{"name": name, "current": -1, "new": 1} for name in ("mine", "other")]
    assert (await api.post("/v1/transactions/commit", {"positions": positions}, headers=root)).status == 200

    assert await names(api, "/v1/topics", "topics", root) == ["open", "secret"]
    assert await names(api, "/v1/topics", "topics", alice) == ["open"]
    assert await names(api, "/v1/topics?pattern=s.*", "topics", alice) == []
    assert await names(api, "/v1/groups", "groups", root, "group") == ["g", "other"]
    assert await names(api, "/v1/groups", "groups", alice, "group") == ["g"]
    assert await names(api, "/v1/positions", "positions", root) == ["mine", "other"]
    assert await names(api, "/v1/positions", "positions", alice) == ["mine"]
    assert await names(api, "/v1/positions?prefix=o", "positions", alice) == []


async def test_a_denial_hides_an_entry_of_an_allowed_prefix(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    await broker.allow(allow(DESCRIBE, TOPIC, "s", prefixed=True), allow(DESCRIBE, TOPIC, "secret", deny=True))
    broker.add_topic("second")
    assert await names(api, "/v1/topics", "topics", alice) == ["open", "second"]


async def test_a_long_list_of_positions_ends_after_entries_that_may_be_described(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound counts what is shown, and the loop is left between the checks."""
    monkeypatch.setattr("http_api.routes.transactions.MAX_POSITIONS", 2)
    monkeypatch.setattr(listing, "CHECKS_PER_TURN", 1)
    await broker.allow(allow(DESCRIBE, NAME, "z", prefixed=True))
    positions = [{"name": name, "current": -1, "new": 1} for name in ("a1", "a2", "a3", "z1", "z2", "z3")]
    assert (await api.post("/v1/transactions/commit", {"positions": positions}, headers=root)).status == 200
    told = (await api.get("/v1/positions", headers=alice)).document
    assert ([one["name"] for one in told["positions"]], told["more"]) == (["z1", "z2"], True)
    told = (await api.get("/v1/positions?prefix=z3", headers=alice)).document
    assert ([one["name"] for one in told["positions"]], told["more"]) == (["z3"], False)


# --- Transactions ----------------------------------------------------------------------------------------------------


async def test_transactions_are_seen_by_their_names_and_without_hidden_topics(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers
) -> None:
    keys = {}
    for name in ("mine", "other"):
        made = await api.post("/v1/transactions/initialize", {"transactional_id": name}, headers=root)
        keys[name] = TransactionKey(
            ProducerId(made.document["producer_id"]), ProducerEpoch(made.document["producer_epoch"])
        )
    keys["nameless"] = TransactionKey(ProducerId(999), ProducerEpoch(0))
    broker.transactions.open_now = [
        OpenTransaction(key, TopicPartition(topic(broker, where).topic_id, 0), Offset(3))
        for key in keys.values()
        for where in ("open", "secret")
    ]

    async def seen(headers: Headers) -> list[tuple[Any, list[str]]]:
        listed = (await api.get("/v1/transactions", headers=headers)).document["transactions"]
        return [(one["transactional_id"], sorted(at["topic"] for at in one["partitions"])) for one in listed]

    both = ["open", "secret"]
    assert await seen(root) == [("mine", both), ("other", both), (None, both)]
    assert await seen(alice) == [("mine", ["open"])]
    told = (await api.get("/v1/transactions/mine", headers=alice)).document
    assert [at["topic"] for at in told["partitions"]] == ["open"]
    for name in ("other", "none"):
        (await api.get(f"/v1/transactions/{name}", headers=alice)).problem("authorization_failed")


async def test_a_commit_needs_the_right_to_each_of_its_parts(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    made = (await api.post("/v1/transactions/initialize", {"transactional_id": "mine"}, headers=alice)).document

    async def commit(where: str, **more: Any) -> Answer:
        output = {**made, "topics": [{"topic_id": topic(broker, where).topic_id.hex(), "end_offsets": [[0, 1]]}]}
        return await api.post("/v1/transactions/commit", {"transactions": [output], **more}, headers=alice)

    (await commit("secret")).problem("authorization_failed")
    hidden = {"topic_id": topic(broker, "secret").topic_id.hex(), "partition": 0, "start": -1, "end": 1}
    (await commit("open", group_offsets=[{"group": "g", "ranges": [hidden]}])).problem("authorization_failed")
    (await commit("open", positions=[{"name": "other", "current": -1, "new": 1}])).problem("authorization_failed")
    (await commit("open", block="other")).problem("authorization_failed")
    assert (await commit("open")).status == 200


async def test_nobody_ends_the_transaction_of_another(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers
) -> None:
    made = (await api.post("/v1/transactions/initialize", {"transactional_id": "other"}, headers=root)).document
    body = {"transactions": [made]}
    (await api.post("/v1/transactions/abort", body, headers=alice)).problem("authorization_failed")
    (await api.post("/v1/transactions/commit", body, headers=alice)).problem("authorization_failed")


async def test_an_empty_commit_and_abort_cost_the_quorum_nothing(api: Api, broker: SecuredBroker) -> None:
    nobody, index = await broker.user("nobody"), broker.view.index
    for path in ("commit", "abort"):
        answer = await api.post(f"/v1/transactions/{path}", {"transactions": []}, headers=nobody)
        assert answer.status in (200, 400, 403), answer
    assert broker.view.index == index


# --- Groups ----------------------------------------------------------------------------------------------------------


async def test_a_group_is_described_without_hidden_topics(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers
) -> None:
    joined = (await api.post("/v1/groups/g/members", {"topics": ["open", "secret"]}, headers=root)).document
    beat = {"incarnation": joined["incarnation"]}
    path = f"/v1/groups/g/members/{joined['member_id']}/heartbeat"
    assert {one["topic"] for one in (await api.post(path, beat, headers=root)).document["assigned"]} == {
        "open", "secret"
    }  # fmt: skip
    offsets = [{"topic": name, "partition": 0, "offset": 1} for name in ("open", "secret")]
    generation = (await api.post(path, beat, headers=root)).document["generation"]
    commit = {"offsets": offsets, "member_id": joined["member_id"], **beat, "generation": generation}
    assert (await api.post("/v1/groups/g/offsets", commit, headers=root)).status == 204
    for headers, known in ((root, {"open", "secret"}), (alice, {"open"})):
        (member,) = (await api.get("/v1/groups/g", headers=headers)).document["members"]
        assert set(member["topics"]) == known
        for part in ("assigned", "target"):
            assert {one["topic"] for one in member[part]} == known
        for lag in ("true", "false"):
            assert set(await names(api, f"/v1/groups/g/offsets?lag={lag}", "offsets", headers, "topic")) == known


@pytest.mark.parametrize("where", ["secret", "absent"])
async def test_a_group_cannot_be_used_to_find_topics(
    api: Api, broker: SecuredBroker, alice: Headers, where: str
) -> None:
    """The answer is the same whether the topic exists or not."""
    for path, body in (
        ("offsets", {"offsets": [{"topic": where, "partition": 0, "offset": 1}]}),
        ("members", {"topics": ["open", where]}),
        ("seek", {"to": "earliest", "topics": [{"topic": where}]}),
        ("seek", {"to": "earliest", "topics": [{"topic": "open"}, {"topic": where, "partitions": [77]}], "plan": True}),
    ):
        told = (await api.post(f"/v1/groups/g/{path}", body, headers=alice)).problem("authorization_failed")
        assert told["detail"] == f"User:alice may not read topic '{where}'"
    assert broker.view.groups.group("g") is None


async def test_offsets_of_topics_that_may_not_be_read_are_not_moved(
    api: Api, broker: SecuredBroker, alice: Headers, root: Headers
) -> None:
    offsets = [{"topic": name, "partition": 0, "offset": 2} for name in ("open", "secret")]
    assert (await api.post("/v1/groups/g/offsets", {"offsets": offsets}, headers=root)).status == 204

    def committed(name: str) -> int:
        found = broker.view.groups.offsets("g")[TopicPartition(topic(broker, name).topic_id, 0)]
        return int(found.offset)

    row = {"topic": "secret", "topic_id": topic(broker, "secret").topic_id.hex(), "partition": 0}
    planned = {"to": "planned", "planned": [{**row, "offset": 2, "new_offset": 0}]}
    (await api.post("/v1/groups/g/seek", planned, headers=alice)).problem("authorization_failed")
    by_id = {"offsets": [{"topic_id": row["topic_id"], "partition": 0, "offset": 3}]}
    (await api.post("/v1/groups/g/offsets", by_id, headers=alice)).problem("authorization_failed")

    told = await api.post("/v1/groups/g/seek", {"to": "earliest"}, headers=alice)
    assert [(one["topic"], one["new_offset"]) for one in told.document["offsets"]] == [("open", 0)]
    assert (committed("open"), committed("secret")) == (0, 2)
    await broker.allow(allow(DESCRIBE, TOPIC, "secret"))
    (await api.post("/v1/groups/g/seek", {"to": "earliest"}, headers=alice)).problem("authorization_failed")
    assert committed("secret") == 2


# --- Batches ---------------------------------------------------------------------------------------------------------


async def test_each_partition_of_a_batch_request_is_decided(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    ids = [topic(broker, name).topic_id for name in ("open", "secret")]
    batch = encode([b"v"], base_timestamp_ms=1)

    async def send(path: str, message: Any, *parts: bytes) -> Any:
        answer = await api.post(path, raw(message, *parts), CONTENT_TYPE, headers=alice)
        assert answer.status == 200, answer
        return decode_response(answer.body)

    produce = ProduceRequest(0, -1, 1000, [ProducePartition(one, 0, len(batch)) for one in ids])
    produced, _ = await send("/v1/produce", produce, batch, batch)
    assert isinstance(produced, ProduceResponse)
    assert [one.error for one in produced.partitions] == ["", "authorization_failed"]
    assert (broker.appended("open"), broker.appended("secret")) == (7, 6)

    fetch = FetchRequest(0, 60_000, 1, 100_000, [FetchPartition(one, 0, 0, 100_000) for one in reversed(ids)])
    fetched, body = await send("/v1/fetch", fetch)
    assert isinstance(fetched, FetchResponse)
    assert [one.error for one in fetched.partitions] == ["authorization_failed", ""]
    assert fetched.partitions[0].high_watermark == -1 and len(body) == fetched.partitions[1].length

    found, _ = await send("/v1/offsets", OffsetsRequest(0, [OffsetQuery(one, 0, -1) for one in ids]))
    assert isinstance(found, OffsetsResponse)
    assert [(one.error, one.offset) for one in found.partitions] == [("", 4), ("authorization_failed", -1)]


async def test_a_name_of_any_length_is_refused_in_bounded_text(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    told = (await api.get("/v1/topics/" + "x" * 7_000, headers=alice)).problem("authorization_failed")
    assert len(told["detail"]) < 1_000


async def test_refusals_are_recorded_with_route_and_request(api: Api, broker: SecuredBroker, alice: Headers) -> None:
    (await api.get("/v1/topics/secret", headers={**alice, "X-Request-Id": "r-1"})).problem("authorization_failed")
    event = broker.audit.events[-1]
    assert (event.action, event.allowed, event.principal) == ("GET /v1/topics/{topic}", False, "User:alice")
    await names(api, "/v1/topics", "topics", alice)
    assert broker.audit.events[-1] is event, "entries of lists are not recorded"


async def test_a_topic_is_restored_by_those_who_may_alter_the_cluster_s12(
    broker: SecuredBroker, api: Api, alice: Headers
) -> None:
    """It reserves producer ids, which are the whole cluster's."""
    await broker.allow(allow(Operation.CREATE, TOPIC, "new"))
    body = {"name": "new", "restored_producer_ids_below": 100}
    (await api.post("/v1/topics", body, headers=alice)).problem("authorization_failed")
    assert broker.view.topic("new") is None
    await broker.allow(allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
    answer = await api.post("/v1/topics", body, headers=alice)
    assert (answer.status, answer.document["configs"]["restoring"]) == (201, "100")
