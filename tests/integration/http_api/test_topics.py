"""Topics, offsets, producers, cluster, health and the API's own description, over a socket."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from http_api.routes.cluster import OPENAPI
from http_api.web.limits import PIECE_BYTES
from raftlog.api.cluster import HealthInfo
from raftlog.broker.service import Scrubs
from raftlog.errors import InvalidRequest, InvariantViolation, RetriableError
from raftlog.model import TopicId, TopicPartition
from raftlog.records.batch import encode
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, running_api
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("orders", 3, {"retention.ms": "60000"})
    async with running_api(broker) as running:
        yield running


async def test_a_topic_is_created_described_changed_grown_listed_and_deleted(api: Api) -> None:
    created = await api.post("/v1/topics", {"name": "new", "partitions": 2, "configs": {"retention.ms": 1000}})
    assert created.status == 201
    assert created.headers["Location"] == "/v1/topics/new"
    assert created.document["configs"]["retention.ms"] == "1000"
    assert created.document["overrides"] == ["retention.ms"]
    assert [partition["partition"] for partition in created.document["partitions"]] == [0, 1]
    assert (await api.get("/v1/topics/new")).document == created.document

    changed = await api.call(
        "PATCH", "/v1/topics/new", json={"set": {"flush": "os", "segment.bytes": 4096}, "remove": ["retention.ms"]}
    )
    assert changed.status == 200
    assert changed.document["overrides"] == ["flush", "segment.bytes"]
    assert changed.document["configs"]["retention.ms"] == "604800000"

    grown = await api.post("/v1/topics/new/partitions", {"count": 4})
    assert (grown.status, grown.document["partition_count"], len(grown.document["partitions"])) == (200, 4, 4)

    listed = (await api.get("/v1/topics")).document["topics"]
    assert [(topic["name"], topic["partition_count"]) for topic in listed] == [("new", 4), ("orders", 3)]

    fitting = (await api.get("/v1/topics?pattern=n.w|ord")).document["topics"]
    assert [topic["name"] for topic in fitting] == ["new"]  # whole names
    (await api.get("/v1/topics?pattern=(")).problem("invalid_request")

    deleted = await api.call("DELETE", "/v1/topics/new")
    assert (deleted.status, deleted.body) == (204, b"")
    (await api.get("/v1/topics/new")).problem("unknown_topic")


async def test_nobody_is_told_that_a_topic_does_not_exist_before_the_quorum_was_asked(api: Api) -> None:
    """S7: another node has just created it, and this node's view is behind."""
    api.broker.unseen.append(lambda: api.broker.add_topic("fresh", 2))
    assert (await api.get("/v1/topics/fresh")).document["partition_count"] == 2
    api.broker.unseen.append(lambda: api.broker.add_topic("fresher", 1))
    taken = await api.post("/v1/topics/fresher/records", {"records": [{"value": "x"}]})
    assert taken.status == 200
    (await api.get("/v1/topics/none")).problem("unknown_topic")
    api.broker.quorum_answers = False
    (await api.get("/v1/topics/none")).problem("quorum_unavailable")
    assert (await api.get("/v1/topics/orders")).status == 200


async def test_a_caller_that_knows_another_topic_of_the_name_is_told_of_the_present_one(api: Api) -> None:
    """S7: the topic was deleted and created again, and this node's view is behind."""
    old = (await api.get("/v1/topics/orders")).document
    assert old["created_index"] > 0 and (await api.get("/v1/topics")).document["topics"][0]["created_index"] > 0

    another = f"topic_id={'ab' * 16}"
    api.broker.quorum_answers = False
    (await api.get(f"/v1/topics/orders?{another}")).problem("metadata_behind")
    assert (await api.get(f"/v1/topics/orders?topic_id={old['id'].upper()}")).document["id"] == old["id"]
    api.broker.quorum_answers = True
    api.broker.unseen.append(lambda: api.broker.create_again("orders"))
    new = (await api.get(f"/v1/topics/orders?{another}")).document
    assert new["created_index"] > old["created_index"] and new["id"] != old["id"]
    for no_id in ("-1", "ab", "x" * 32):
        (await api.get(f"/v1/topics/orders?topic_id={no_id}")).problem("invalid_request")


async def test_nothing_is_read_of_another_topic_than_the_one_that_is_meant_nor_written_to_it(api: Api) -> None:
    """S1, S7: whichever was created first. A node that knows another one asks the quorum before it says so."""
    old = (await api.get("/v1/topics/orders")).document["id"]
    record = {"records": [{"value": "x", "partition": 0}]}
    deletion = {"partitions": [{"partition": 0, "before": "latest"}]}

    async def all_of(topic_id: str) -> list[Answer]:
        place, meant = "/v1/topics/orders/partitions/0", f"topic_id={topic_id}"
        return [
            await api.post(f"/v1/topics/orders/records?{meant}", record),
            await api.get(f"{place}/records?{meant}"),
            await api.get(f"{place}/offsets?{meant}"),
            await api.post(f"/v1/topics/orders/delete-records?{meant}", deletion),
        ]

    assert [answer.status for answer in await all_of(old)] == [200] * 4
    api.broker.quorum_answers = False
    for answer in await all_of("ab" * 16):
        answer.problem("metadata_behind")
    api.broker.quorum_answers = True
    new = api.broker.create_again("orders")
    for answer in await all_of(old):
        assert "was deleted" in answer.problem("unknown_topic")["detail"]
    gone = await api.call("DELETE", f"/v1/topics/orders?topic_id={old}")
    assert "was deleted" in gone.problem("unknown_topic")["detail"]
    assert api.broker.log("orders").batches == []
    assert [answer.status for answer in await all_of(new.topic_id.hex())] == [200] * 4
    assert len(api.broker.log("orders").batches) == 1
    for answer in await all_of("soon"):
        answer.problem("invalid_request")
    assert (await api.call("DELETE", f"/v1/topics/orders?topic_id={new.topic_id.hex()}")).status == 204


async def test_nobody_is_told_that_a_partition_does_not_exist_before_the_quorum_was_asked(api: Api) -> None:
    """S7: another node has just added it, and this node's view is behind."""
    grown: list[int] = []

    def grow_to(count: int) -> None:
        def grow() -> None:
            api.broker.grow("orders", count)
            grown.append(count)

        api.broker.unseen.append(grow)

    count = (await api.get("/v1/topics/orders")).document["partition_count"]
    grow_to(count + 1)
    assert (await api.get(f"/v1/topics/orders/partitions/{count}/offsets")).document["latest"] == 0
    grow_to(count + 2)
    named = await api.post(f"/v1/topics/orders/records?partition={count + 1}", {"records": [{"value": "x"}]})
    assert named.status == 200
    grow_to(count + 3)
    named = await api.post("/v1/topics/orders/records", {"records": [{"value": "x", "partition": count + 2}]})
    assert named.status == 200
    assert grown == [count + 1, count + 2, count + 3]
    far = {"records": [{"value": "x", "partition": count + 3}]}
    (await api.post("/v1/topics/orders/records", far)).problem("unknown_partition")
    (await api.get("/v1/topics/orders/partitions/999/records")).problem("unknown_partition")
    api.broker.quorum_answers = False
    (await api.get("/v1/topics/orders/partitions/999/records")).problem("quorum_unavailable")
    (await api.post("/v1/topics/orders/records", far)).problem("quorum_unavailable")


async def test_a_description_has_what_the_quorum_agreed(api: Api) -> None:
    api.broker.set_leader("orders", 2, -1)
    described = (await api.get("/v1/topics/orders")).document
    topic = api.broker.view.topic("orders")
    assert topic is not None
    assert described["id"] == topic.topic_id.hex()
    assert described["replication_factor"] == 1
    assert described["partitions"][0] == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 3,
        "partition_epoch": 5,
        "replicas": [1],
        "isr": [1],
        "commit_set": [1],
        "not_eligible": [],
        "adding_replicas": [],
        "removing_replicas": [],
        "unclean_leader_epochs": [],
        "min_insync_replicas": 1,
    }
    assert described["partitions"][2]["leader"] is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "orders"}, "topic_exists"),
        ({"name": "no/slash"}, "invalid_topic_name"),
        ({"name": ""}, "invalid_topic_name"),
        ({"name": "x" * 250}, "invalid_topic_name"),
        ({"name": "t", "configs": {"retention.msec": "1"}}, "invalid_config"),
        ({"name": "t", "configs": {"segment.bytes": 1}}, "invalid_config"),
        ({"name": "t", "partitions": 10_001}, "invalid_request"),
        ({"name": "t", "replication_factor": 9}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_and_not_made(api: Api, body: object, code: str) -> None:
    (await api.post("/v1/topics", body)).problem(code)
    assert [topic.name for topic in api.broker.view.topics()] == ["orders"]


async def test_paths_of_unknown_topics_and_partitions(api: Api) -> None:
    for method, path, body in (
        ("GET", "/v1/topics/none", None),
        ("DELETE", "/v1/topics/none", None),
        ("PATCH", "/v1/topics/none", {}),
        ("POST", "/v1/topics/none/partitions", {"count": 2}),
        ("POST", "/v1/topics/none/records", {"records": [{"value": 1}]}),
        ("GET", "/v1/topics/none/partitions/0/records", None),
        ("GET", "/v1/topics/none/partitions/0/offsets", None),
        ("GET", "/v1/topics/%00%F0%9F%98%80%2F..%2F/partitions/0/offsets", None),
    ):
        (await api.call(method, path, json=body)).problem("unknown_topic")
    for number in ("3", "2147483647"):
        (await api.get(f"/v1/topics/orders/partitions/{number}/offsets")).problem("unknown_partition")
    for number in ("-1", "x", "0x0", "1_0", "%20", "99999999999999999999", "%D9%A1"):
        refused = (await api.get(f"/v1/topics/orders/partitions/{number}/records")).problem("invalid_request")
        assert "partition" in refused["detail"]


async def test_offsets_by_position_and_by_time(api: Api) -> None:
    path = "/v1/topics/orders/partitions/1/offsets"
    assert (await api.get(path)).document == {"earliest": 0, "latest": 0, "leader_epoch": 3}
    api.broker.append("orders", encode([b"a", b"b"], timestamps_ms=[100, 200], base_timestamp_ms=0), 1)
    assert (await api.get(path)).document == {"earliest": 0, "latest": 2, "leader_epoch": 3}
    for time, offset, timestamp in ((0, 0, 100), (100, 0, 100), (101, 1, 200), (201, None, None)):
        found = (await api.get(path, params={"timestamp": time})).document
        assert found == {"offset": offset, "timestamp": timestamp, "leader_epoch": 3}
    for far in ("-1", str(2**63), "9" * 40):
        (await api.get(path, params={"timestamp": far})).problem("timestamp_out_of_range")
    (await api.get(path, params={"timestamp": "yesterday"})).problem("invalid_request")
    api.broker.partition_errors[1] = "not_leader"
    assert (await api.get(path)).problem("not_leader")["retriable"]


async def test_producer_ids(api: Api) -> None:
    assert (await api.post("/v1/producers")).document == {"producer_id": 1, "producer_epoch": 0}
    assert (await api.post("/v1/producers", {})).document == {"producer_id": 2, "producer_epoch": 0}
    (await api.post("/v1/producers", {"transactional_id": "x"})).problem("invalid_request")
    (await api.post("/v1/producers", b"x", "text/plain")).problem("unsupported_media_type")
    api.broker.fail["allocate_producer_id"] = RetriableError("quorum_unavailable", "no leader")
    (await api.post("/v1/producers")).problem("quorum_unavailable")


async def test_cluster_and_quorum(api: Api) -> None:
    cluster = (await api.get("/v1/cluster")).document
    assert cluster["cluster_id"] == "fake-cluster"
    assert cluster["controller"] is None
    assert cluster["nodes"] == [
        {
            "id": 1,
            "api": "127.0.0.1:9640",
            "data": "127.0.0.1:9641",
            "rack": "rack-a",
            "fenced": False,
            "incarnation": 7,
        }
    ]
    api.broker.view.controller = api.broker.node_id
    assert (await api.get("/v1/cluster")).document["controller"] == 1
    quorum = (await api.get("/v1/quorum")).document
    assert (quorum["leader"], quorum["term"], quorum["voters"]) == (1, 4, [1, 2])
    assert quorum["match_index"] == {"1": 11, "2": 10}


@pytest.mark.parametrize(
    ("found", "health", "ready"),
    [
        (HealthInfo(True, []), 200, 200),
        (HealthInfo(True, ["partition 3 has no leader"]), 503, 200),
        (HealthInfo(False, ["not registered"]), 503, 503),
        (HealthInfo(False, []), 503, 503),
    ],
)
async def test_health_and_readiness(api: Api, found: HealthInfo, health: int, ready: int) -> None:
    api.broker.health_now = found
    told = await api.get("/v1/health")
    assert told.status == health
    assert told.document == {"ready": found.ready, "problems": list(found.problems)}
    assert (await api.get("/v1/ready")).status == ready
    head = await api.call("HEAD", "/v1/ready")
    assert (head.status, head.body) == (ready, b"")
    assert (await api.call("HEAD", "/v1/health")).status == health
    live = await api.get("/v1/live")
    assert (live.status, live.document) == (200, {"live": True}), "a restart would not help"
    assert (await api.call("HEAD", "/v1/live")).status == 200


async def test_whether_a_node_may_be_stopped(api: Api) -> None:
    path = "/v1/cluster/brokers/1/roll-check"
    assert (await api.get(path)).document == {"node": 1, "safe": True, "reasons": []}
    api.broker.roll_reasons = ["t/0 has no other replica than the one on node 1"]
    told = await api.get(path)
    assert (told.status, told.document["safe"]) == (200, False)
    assert told.document["reasons"] == api.broker.roll_reasons
    assert (await api.get("/v1/cluster/brokers/x/roll-check")).status == 400


async def test_the_api_describes_itself(api: Api) -> None:
    told = await api.get("/openapi.json")
    assert told.body == OPENAPI
    again = await api.get("/openapi.json", headers={"If-None-Match": told.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    small = await api.get("/openapi.json", headers={"Accept-Encoding": "gzip, deflate"})
    assert small.headers["Content-Encoding"] == "gzip" and small.headers["Vary"] == "Accept-Encoding"
    assert small.body == OPENAPI, "the session decompresses it"
    assert int(small.headers["Content-Length"]) < len(OPENAPI) / 5
    whole = await api.get("/openapi.json", headers={"Accept-Encoding": "gzip;q=0"})
    assert whole.body == OPENAPI and "Content-Encoding" not in whole.headers


async def test_the_example_of_a_deletion_works_on_a_new_topic(api: Api) -> None:
    manual = (ROOT / "docs" / "http-api.md").read_text()
    example = re.search(r"/v1/topics/orders/delete-records .*?-d '(\{.*?\})'", manual, re.DOTALL)
    assert example is not None
    done = await api.post("/v1/topics/orders/delete-records", json.loads(example[1]))
    assert done.status == 200, done.body


async def test_the_first_path_says_where_to_go_on(api: Api) -> None:
    told = await api.get("/")
    assert told.document["name"] == "raftlog"
    for path in told.document["links"]:
        assert (await api.get(path)).status in (200, 503), path
    browser = await api.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert browser.headers["Content-Type"].startswith("text/html")
    assert browser.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert all(f'href="{path}"' in browser.body.decode() for path in told.document["links"])
    (await api.get("/", headers={"Accept": "image/png"})).problem("not_acceptable")


async def test_what_a_call_raises_is_what_the_client_is_told(api: Api) -> None:
    api.broker.fail["create_topic"] = InvalidRequest("invalid_config", "too strange")
    assert (await api.post("/v1/topics", {"name": "t"})).problem("invalid_config")["detail"] == "too strange"
    api.broker.fail["create_topic"] = RetriableError("outcome_unknown", "perhaps")
    assert (await api.post("/v1/topics", {"name": "t"})).problem("outcome_unknown")["applied"] == "unknown"
    api.broker.fail["delete_topic"] = InvariantViolation("two leaders")
    (await api.call("DELETE", "/v1/topics/orders")).problem("internal_error")


async def test_what_nobody_expected_is_told_without_its_details(api: Api) -> None:
    api.broker.fail["quorum_status"] = ZeroDivisionError("a secret")
    told = await api.get("/v1/quorum", headers={"X-Request-Id": "find-me-1"})
    assert told.problem("internal_error")["request_id"] == "find-me-1"
    assert b"secret" not in told.body
    await api.is_well()


async def test_request_ids_are_taken_over_when_they_are_sane(api: Api) -> None:
    assert (await api.get("/v1/topics", headers={"X-Request-Id": "a.b-c_1:2"})).headers["X-Request-Id"] == "a.b-c_1:2"
    for strange in ("", "with space", "x" * 65, "ü", "<script>"):
        given = (await api.get("/v1/topics", headers={"X-Request-Id": strange})).headers["X-Request-Id"]
        assert given != strange
        assert len(given) == 16
    first, second = [(await api.get("/nope")).headers["X-Request-Id"] for _ in range(2)]
    assert first != second


async def test_answers_carry_safe_headers(api: Api) -> None:
    for path in ("/v1/topics", "/nope"):
        headers = (await api.get(path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "raftlog"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_long_list_goes_out_in_pieces(api: Api, encoding: str) -> None:
    names = [f"topic-{number:04}-{'x' * 200}" for number in range(1_000)]
    for name in names:
        api.broker.add_topic(name, 1)
    answer = await api.get("/v1/topics", headers={"Accept-Encoding": encoding})
    assert [topic["name"] for topic in answer.document["topics"] if topic["name"] in set(names)] == names
    assert (int(answer.headers["Content-Length"]) > PIECE_BYTES) is (encoding == "identity")


async def test_how_far_a_check_of_this_nodes_disk_is(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = api.broker.view.topic("orders")
    assert topic is not None
    gone = TopicPartition(TopicId(b"g" * 16), 0)
    found = [
        SimpleNamespace(topic_partition=TopicPartition(topic.topic_id, 2), finding="a file, byte 7: another CRC"),
        SimpleNamespace(topic_partition=gone, finding="of a deleted topic"),
    ]
    run = SimpleNamespace(running=True, wanted=3, done=1, total_bytes=4096, bytes_read=1024, findings=found)
    broker: Any = SimpleNamespace(view=api.broker.view, identity=api.broker, scrubber=SimpleNamespace(run=run))
    monkeypatch.setattr(api.broker, "scrubs", Scrubs(broker), raising=False)
    answer = await api.get("/v1/scrub")
    assert answer.status == 200
    assert answer.document == {
        "node_id": api.broker.node_id,
        "running": True,
        "replicas": 3,
        "replicas_done": 1,
        "total_bytes": 4096,
        "bytes_read": 1024,
        "findings": [{"topic": "orders", "partition": 2, "detail": "a file, byte 7: another CRC"}],
    }
