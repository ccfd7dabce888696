"""Version 3 of the REST Proxy API over a socket: resources, lists in pages, and streams of records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from http_api.rest_proxy.v3 import records
from http_api.web.limits import Limits
from raftlog.records.batch import Record, RecordBatch
from raftlog.security.acls import AclFilter, Operation, ResourceType
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.http.api_client import Answer, Api, eventually, running_api
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

NOW = 1_750_000_000_000
BASE = f"/v3/clusters/{CLUSTER_ID}"
RECORDS = f"{BASE}/topics/t/records"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 4, {"max.message.bytes": "65536"})
    async with running_api(broker, clock_ms=lambda: NOW) as running:
        yield running


def stored(api: Api, partition: int = 0) -> list[Record]:
    return [record for batch in api.broker.log("t", partition).batches for record in RecordBatch(batch).records()]


def answers(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("application/json"), answer
    return [json.loads(line) for line in answer.body.splitlines()]


def error(answer: Answer, status: int, error_code: int) -> str:
    assert (answer.status, answer.document["error_code"]) == (status, error_code), answer
    message: str = answer.document["message"]
    return message


# --- Resources -------------------------------------------------------------------------------------------------------


async def test_every_link_leads_to_a_resource(api: Api) -> None:
    """From the list of clusters everything can be reached."""
    await api.post("/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    seen: set[str] = set()
    kinds: set[str] = set()
    todo = ["/v3/clusters"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = await api.get(path)
        assert answer.status == 200, (path, answer)
        document = answer.document
        kinds.add(document["kind"])
        todo += [link.removeprefix(f"http://127.0.0.1:{api.port}") for link in links(document)]
    assert kinds >= {
        "KafkaClusterList", "KafkaCluster", "KafkaBroker", "KafkaBrokerList", "KafkaTopicList", "KafkaTopic",
        "KafkaPartitionList", "KafkaPartition", "KafkaReplicaList", "KafkaReplica", "KafkaReassignment",
        "KafkaReassignmentList", "KafkaTopicConfigList", "KafkaTopicConfig", "KafkaConsumerGroupList",
        "KafkaConsumerGroup", "KafkaConsumerList", "KafkaConsumerGroupLagSummary", "KafkaAclList",
    }  # fmt: skip


def links(node: Any) -> list[str]:
    if isinstance(node, list):
        return [link for one in node for link in links(one)]
    if not isinstance(node, dict):
        return []
    own = [node[name] for name in ("self", "related", "next") if isinstance(node.get(name), str)]
    return own + [link for one in node.values() for link in links(one)]


async def test_links_are_those_of_the_proxy_before_the_node(api: Api) -> None:
    headers = {"Forwarded": "proto=https;host=log.example.com"}
    told = (await api.get(f"{BASE}/topics/t", headers=headers)).document
    assert told["metadata"] == {
        "self": f"https://log.example.com{BASE}/topics/t", "resource_name": f"crn:///kafka={CLUSTER_ID}/topic=t"
    }  # fmt: skip
    assert told["partitions"] == {"related": f"https://log.example.com{BASE}/topics/t/partitions"}


async def test_another_cluster_is_not_known(api: Api) -> None:
    for method, path in (("GET", ""), ("GET", "/topics"), ("GET", "/topics/t"), ("DELETE", "/topics/t")):
        assert CLUSTER_ID in error(await api.call(method, f"/v3/clusters/another{path}"), 404, 404)
    assert api.broker.view.topic("t") is not None


async def test_lists_come_in_pages(api: Api) -> None:
    for number in range(7):
        api.broker.add_topic(f"topic-{number}")
    names: list[str] = []
    path: str | None = f"{BASE}/topics?page_size=3"
    sizes = []
    while path is not None:
        told = (await api.get(path)).document
        sizes.append(len(told["data"]))
        names += [one["topic_name"] for one in told["data"]]
        following = told["metadata"]["next"]
        path = None if following is None else following.removeprefix(f"http://127.0.0.1:{api.port}")
    assert sizes == [3, 3, 2]
    assert names == sorted(["t", *(f"topic-{number}" for number in range(7))])
    error(await api.get(f"{BASE}/topics?page_token=!!"), 400, 400)
    error(await api.get(f"{BASE}/topics?page_size=0"), 400, 400)


async def test_a_topic_is_created_grown_and_deleted(api: Api) -> None:
    asked = {"topic_name": "new", "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "1000"}]}
    planned = await api.post(f"{BASE}/topics", {**asked, "validate_only": True})
    assert planned.status == 200 and api.broker.view.topic("new") is None
    made = await api.post(f"{BASE}/topics", asked)
    assert made.status == 201 and made.headers["Location"].endswith("/topics/new")
    assert (made.document["partitions_count"], made.document["replication_factor"]) == (2, 1)
    error(await api.post(f"{BASE}/topics", asked), 400, 40002)
    error(await api.post(f"{BASE}/topics", {**asked, "validate_only": True}), 400, 40002)
    error(
        await api.post(f"{BASE}/topics", {"topic_name": "x", "configs": [{"name": "nothing", "value": "1"}]}),
        400,
        40002,
    )
    error(await api.post(f"{BASE}/topics", {"topic_name": "a/b"}), 400, 40002)
    error(await api.post(f"{BASE}/topics", {"partitions_count": 1}), 400, 400)
    gone = await api.call("DELETE", f"{BASE}/topics/new")
    assert gone.status == 204 and api.broker.view.topic("new") is None
    error(await api.get(f"{BASE}/topics/new"), 404, 40403)


async def test_settings_are_set_and_reset(api: Api) -> None:
    path = f"{BASE}/topics/t/configs"

    async def setting(name: str) -> tuple[str, bool]:
        told = (await api.get(f"{path}/{name}")).document
        assert (told["source"] == "DEFAULT_CONFIG") is told["is_default"]
        return told["value"], told["is_default"]

    default = await setting("retention.ms")
    assert default[1] is True
    assert await setting("max.message.bytes") == ("65536", False)
    put = await api.call("PUT", f"{path}/retention.ms", json={"value": "1000"})
    assert put.status == 204 and await setting("retention.ms") == ("1000", False)
    assert (await api.call("DELETE", f"{path}/retention.ms")).status == 204
    assert await setting("retention.ms") == default
    changes = [{"name": "retention.ms", "value": "7"}, {"name": "max.message.bytes", "operation": "DELETE"}]
    assert (await api.post(f"{path}:alter", {"data": changes, "validate_only": True})).status == 204
    assert await setting("retention.ms") == default
    assert (await api.post(f"{path}:alter", {"data": changes})).status == 204
    assert await setting("retention.ms") == ("7", False) and (await setting("max.message.bytes"))[1]
    error(await api.post(f"{path}:alter", {"data": [changes[0], changes[0]]}), 400, 40002)
    error(await api.post(f"{path}:alter", {"data": [{"name": "retention.ms", "value": "soon"}]}), 400, 40002)
    error(await api.get(f"{path}/nothing"), 404, 404)
    listed = (await api.get(path)).document["data"]
    assert len({one["name"] for one in listed}) == len(listed) > 10


async def test_lags_of_a_group(api: Api) -> None:
    await api.post("/topics/t/partitions/1", {"records": [{"value": "MQ=="}] * 5}, "application/json")
    for partition, offset in ((0, 0), (1, 2)):
        await api.post("/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": partition, "offset": offset}]})
    group = f"{BASE}/consumer-groups/g"
    told = (await api.get(f"{group}/lags")).document["data"]
    assert [(one["partition_id"], one["current_offset"], one["log_end_offset"], one["lag"]) for one in told] == [
        (0, 0, 0, 0), (1, 2, 5, 3)
    ]  # fmt: skip
    assert (await api.get(f"{group}/lags/t/partitions/1")).document == told[1]
    summary = (await api.get(f"{group}/lag-summary")).document
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_partition_id"]) == (3, 3, 1)
    error(await api.get(f"{group}/lags/t/partitions/2"), 404, 404)
    error(await api.get(f"{BASE}/consumer-groups/none"), 404, 40405)
    error(await api.get(f"{group}/consumers/none"), 404, 404)


async def test_members_and_their_assignments(api: Api) -> None:
    joined = await api.post("/v1/groups/g/members", {"topics": ["t"], "member_id": "m", "client_id": "program"})
    assert joined.status == 201
    group = f"{BASE}/consumer-groups/g"
    (member,) = (await api.get(f"{group}/consumers")).document["data"]
    assert (member["consumer_id"], member["client_id"], member["instance_id"]) == ("m", "program", None)
    assert (await api.get(f"{group}/consumers/m")).document == member
    owned = (await api.get(f"{group}/consumers/m/assignments")).document["data"]
    held = api.broker.view.groups.group("g").members["m"].owned  # type: ignore[union-attr]
    assert [one["partition_id"] for one in owned] == sorted(partition.partition for partition in held)
    for one in owned:
        path = f"{group}/consumers/m/assignments/t/partitions/{one['partition_id']}"
        assert (await api.get(path)).document == one
    error(await api.get(f"{group}/consumers/m/assignments/t/partitions/9"), 404, 404)


async def test_access_rules() -> None:
    broker = SecuredBroker()
    root = await broker.user("root", superuser=True)
    rule = {
        "resource_type": "TOPIC", "resource_name": "t", "pattern_type": "PREFIXED", "principal": "User:bob",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    async with running_api(broker) as api:
        path = f"{BASE}/acls"

        async def rules(query: str = "") -> list[dict[str, Any]]:
            found = (await api.get(f"{path}?{query}", headers=root)).document["data"]
            return [{name: one[name] for name in rule} for one in found]

        assert (await api.post(path, rule, headers=root)).status == 201
        cluster = {**rule, "resource_type": "CLUSTER", "resource_name": "kafka-cluster", "pattern_type": "LITERAL",
                   "operation": "DESCRIBE"}  # fmt: skip
        assert (await api.post(path, cluster, headers=root)).status == 201
        assert await rules("principal=User:bob") == [cluster, rule]
        assert await rules("resource_type=TOPIC&pattern_type=MATCH&resource_name=topic") == [rule]
        assert await rules("resource_type=TOPIC&pattern_type=MATCH&resource_name=other") == []
        assert await rules("operation=ANY&permission=DENY") == []
        for wrong in ({"operation": "FLY"}, {"resource_type": "ANY"}, {"principal": "bob"}, {"host": "nowhere"}):
            error(await api.post(path, {**rule, **wrong}, headers=root), 400, 400)
        error(await api.call("DELETE", path, headers=root), 400, 400)
        gone = await api.call("DELETE", f"{path}?resource_type=TOPIC", headers=root)
        assert [one["resource_name"] for one in gone.document["data"]] == ["t"]
        assert await rules() == [cluster]


# --- Records ---------------------------------------------------------------------------------------------------------


async def test_one_record(api: Api) -> None:
    record = {
        "partition_id": 2, "key": {"type": "BINARY", "data": "aw=="}, "value": {"type": "JSON", "data": {"n": 1}},
        "headers": [{"name": "h", "value": "MQ=="}, {"name": "none"}], "timestamp": "2025-06-15T15:06:40.001Z",
    }  # fmt: skip
    assert answers(await api.post(RECORDS, record)) == [
        {
            "error_code": 200, "cluster_id": CLUSTER_ID, "topic_name": "t", "partition_id": 2, "offset": 0,
            "timestamp": "2025-06-15T15:06:40.001Z", "key": {"type": "BINARY", "size": 1},
            "value": {"type": "JSON", "size": 7},
        }
    ]  # fmt: skip
    (found,) = stored(api, 2)
    assert (found.key, found.value, found.timestamp_ms) == (b"k", b'{"n":1}', NOW + 1)
    assert list(found.headers) == [("h", b"1"), ("none", None)]


async def test_records_of_a_body_are_answered_in_order(api: Api) -> None:
    values: list[dict[str, Any]] = [
        {"value": {"type": "STRING", "data": "ü"}}, {}, {"value": {"type": "STRING", "data": None}},
        {"value": {"type": "JSON", "data": None}}, {"value": {"type": "BINARY", "data": ""}},
    ]  # fmt: skip
    body = b" ".join(json.dumps({"partition_id": 1, **value}).encode() for value in values).replace(b"} {", b"}{")
    told = answers(await api.post(RECORDS, body))
    assert [(one["error_code"], one["offset"]) for one in told] == [(200, number) for number in range(5)]
    assert [one.value for one in stored(api, 1)] == ["ü".encode(), None, None, None, b""]
    assert told[0]["value"] == {"type": "STRING", "size": 2} and "value" not in told[1] and "key" not in told[0]


async def test_wrong_records_have_errors_and_the_others_are_appended(api: Api) -> None:
    good = {"partition_id": 0, "value": {"type": "STRING", "data": "good"}}
    wrong: list[dict[str, Any]] = [
        {**good, "partition_id": 4}, {**good, "value": {"type": "AVRO", "data": 1}}, {**good, "value": {"data": "x"}},
        {**good, "value": {"type": "BINARY", "data": "?"}}, {**good, "value": {"type": "STRING", "data": 1}},
        {**good, "unknown": 1}, {**good, "timestamp": "now"}, {**good, "timestamp": "1960-01-01T00:00:00Z"},
        {**good, "timestamp": "2099-01-01T00:00:00Z"}, {**good, "value": {"type": "STRING", "data": "x" * 70_000}},
    ]  # fmt: skip
    body = b"".join(json.dumps(one).encode() + json.dumps(good).encode() for one in wrong)
    told = answers(await api.post(RECORDS, body))
    codes = [one["error_code"] for one in told]
    assert codes[1::2] == [200] * len(wrong)
    assert codes[0::2] == [40403, 400, 400, 400, 400, 400, 400, 40002, 40002, 413]
    assert [one["offset"] for one in told[1::2]] == list(range(len(wrong)))
    assert len(stored(api)) == len(wrong)
    await api.is_well()


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"  ", 400), (b"[]", 400), (b"1", 400), (b"{", 400), (b'{"value"', 400)]
)
async def test_a_body_without_a_record_is_refused_s11(api: Api, body: bytes, status: int) -> None:
    error(await api.post(RECORDS, body), status, 400)
    error(await api.post(RECORDS, b"{}", "text/plain"), 415, 415)
    assert api.broker.produced == []


async def test_a_stream_that_cannot_be_read_further_ends_with_an_error(api: Api) -> None:
    told = answers(await api.post(RECORDS, b'{"partition_id": 0} {"partition_id": 0} nonsense {}'))
    assert [one["error_code"] for one in told] == [200, 200, 400]
    await api.is_well()


async def test_each_record_is_answered_while_the_stream_goes_on(api: Api) -> None:
    given: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        while (piece := await given.get()) is not None:
            yield piece

    given.put_nowait(b'{"partition_id": 3}')
    headers = {"Content-Type": "application/json"}
    async with api.session.post(RECORDS, data=body(), headers=headers) as response:
        for number in range(20):
            told = json.loads(await asyncio.wait_for(response.content.readline(), 10))
            assert (told["error_code"], told["offset"]) == (200, number)
            given.put_nowait(b'{"partition_id":')
            given.put_nowait(b" 3}")
        assert json.loads(await asyncio.wait_for(response.content.readline(), 10))["offset"] == 20
        given.put_nowait(None)
        assert await response.content.read() == b""
    await api.is_well()


async def test_what_arrives_during_an_append_is_appended_together(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_ARRIVED_BYTES", 64)
    api.broker.hang.clear()
    sent: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(20):
            sent.append(number)
            yield b'{"partition_id": 3}'
            await asyncio.sleep(0)

    headers = {"Content-Type": "application/json"}
    posting = asyncio.create_task(api.session.post(RECORDS, data=body(), headers=headers))
    await eventually(lambda: len(sent) == 20 and len(api.broker.produced) == 1)
    api.broker.hang.set()
    async with await posting as response:
        told = [json.loads(line) for line in (await response.content.read()).splitlines()]
    assert [(one["error_code"], one["offset"]) for one in told] == [(200, offset) for offset in range(20)]
    assert 2 <= len(api.broker.produced) < 10, "bounded pieces, each with all that had arrived"
    await api.is_well()


async def test_an_idle_stream_ends_with_an_error() -> None:
    broker = FakeBroker()
    broker.add_topic("t")
    done = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{}"
        await done.wait()

    async with running_api(broker, limits=Limits(stream_idle_timeout_s=0.2)) as api:
        headers = {"Content-Type": "application/json"}
        async with api.session.post(RECORDS, data=body(), headers=headers) as response:
            lines = [json.loads(line) for line in (await response.content.read()).splitlines()]
            done.set()
        assert [line["error_code"] for line in lines] == [200, 408]


async def test_a_right_lost_in_the_middle_of_a_stream_is_missed_s12() -> None:
    broker = SecuredBroker()
    broker.add_topic("t")
    headers = await broker.user("carol")
    await broker.allow(allow(Operation.WRITE, ResourceType.TOPIC, "t", principal="User:carol"))
    more = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{}"
        await more.wait()
        yield b"{}"

    async with running_api(broker) as api:
        typed = {**headers, "Content-Type": "application/json"}
        async with api.session.post(RECORDS, data=body(), headers=typed) as response:
            assert json.loads(await response.content.readline())["error_code"] == 200
            await broker.security.remove_rules(AclFilter(), dry_run=False)
            more.set()
            assert json.loads(await response.content.readline())["error_code"] == 40301
            assert await response.content.read() == b""
        assert broker.appended("t") == 1


async def test_a_client_that_goes_leaves_nothing_behind(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = (
        f"POST {RECORDS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
    )
    writer.write(head.encode() + b'{"partition_id": 0}')
    await reader.readuntil(b"200")
    writer.transport.abort()
    await eventually(lambda: api.context.requests_under_way == 0)
    assert len(stored(api)) == 1
    await api.is_well()


async def test_a_batch_has_an_answer_for_each_entry(api: Api) -> None:
    good = {"partition_id": 0, "value": {"type": "STRING", "data": "good"}}
    entries = [{"id": "a", **good}, {"id": "b", "value": {"type": "AVRO", "data": 1}}, {"id": "c", **good}]
    told = await api.post(f"{RECORDS}:batch", {"entries": entries})
    assert told.status == 207
    assert [(one["id"], one["offset"]) for one in told.document["successes"]] == [("a", 0), ("c", 1)]
    assert [(one["id"], one["error_code"]) for one in told.document["failures"]] == [("b", 400)]
    for wrong in ([], [entries[0], entries[0]], [{"id": str(number), **good} for number in range(11)]):
        error(await api.post(f"{RECORDS}:batch", {"entries": wrong}), 422, 42208)
    error(await api.post(f"{RECORDS}:batch", {"entries": [{"id": "", **good}]}), 400, 400)
    assert len(stored(api)) == 2
