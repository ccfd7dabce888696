"""Version 2 of the REST Proxy API over a socket: requests as clients of Confluent, Redpanda and Karapace write them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from metadata.view import InstanceChanged
from raftlog.model import TopicPartition
from raftlog.partitioner import partition_for_key
from raftlog.records.batch import Record, RecordBatch, encode
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, running_api

pytestmark = pytest.mark.integration

NOW = 1_750_000_000_000
V2 = "application/vnd.kafka.v2+json"
BINARY, JSON, TEXT = (f"application/vnd.kafka.{embedded}.v2+json" for embedded in ("binary", "json", "text"))


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 4, {"max.message.bytes": "65536"})
    async with running_api(broker, clock_ms=lambda: NOW) as running:
        yield running


def stored(api: Api, partition: int = 0, topic: str = "t") -> list[Record]:
    return [record for batch in api.broker.log(topic, partition).batches for record in RecordBatch(batch).records()]


def appended(answer: Answer) -> list[tuple[int, int]]:
    """Return partition and offset of each record of an answer without errors."""
    assert answer.status == 200 and answer.headers["Content-Type"].startswith(V2), answer
    document = answer.document
    assert document["key_schema_id"] is document["value_schema_id"] is None
    assert all(entry["error_code"] is entry["error"] is None for entry in document["offsets"]), document
    return [(entry["partition"], entry["offset"]) for entry in document["offsets"]]


def error(answer: Answer, status: int, error_code: int) -> str:
    """Check that an answer is the error with this number, and return its message."""
    assert answer.headers["Content-Type"].startswith(V2), answer
    assert set(answer.document) == {"error_code", "message"}
    assert (answer.status, answer.document["error_code"]) == (status, error_code), answer
    message: str = answer.document["message"]
    return message


# --- Metadata --------------------------------------------------------------------------------------------------------


async def test_brokers_and_topics(api: Api) -> None:
    api.broker.add_topic("other")
    assert (await api.get("/brokers")).document == {"brokers": [1]}
    assert (await api.get("/topics")).document == ["other", "t"]


async def test_a_topic_has_its_settings_and_partitions(api: Api) -> None:
    told = (await api.get("/topics/t")).document
    assert told["name"] == "t"
    assert told["configs"]["max.message.bytes"] == "65536"
    replicas = [{"broker": 1, "leader": True, "in_sync": True}]
    partitions = [{"partition": number, "leader": 1, "replicas": replicas} for number in range(4)]
    assert told["partitions"] == partitions
    assert (await api.get("/topics/t/partitions")).document == partitions
    assert (await api.get("/topics/t/partitions/2")).document == partitions[2]


async def test_offsets_of_a_partition(api: Api) -> None:
    await api.post("/topics/t/partitions/1", {"records": [{"value": "MQ=="}] * 3}, BINARY)
    told = (await api.get("/topics/t/partitions/1/offsets")).document
    assert told == {"beginning_offset": 0, "end_offset": 3}


async def test_what_does_not_exist_has_the_numbers_of_the_rest_proxy(api: Api) -> None:
    for path in ("/topics/none", "/topics/none/partitions", "/topics/none/partitions/0/offsets"):
        assert "none" in error(await api.get(path), 404, 40401)
    for path in ("/topics/t/partitions/9", "/topics/t/partitions/9/offsets", "/topics/t/partitions/9/records?offset=0"):
        assert "0 to 3" in error(await api.get(path), 404, 40402)
    error(await api.post("/topics/none", {"records": [{"value": ""}]}, BINARY), 404, 40401)
    error(await api.get("/consumers"), 404, 404)
    error(await api.call("DELETE", "/topics/t"), 405, 405)


@pytest.mark.parametrize("accept", ["", "*/*", V2, "application/*", f"{V2}; q=0.9, application/json; q=0.5"])
async def test_answers_have_the_type_of_version_2(api: Api, accept: str) -> None:
    answer = await api.get("/topics", headers={"Accept": accept})
    assert answer.headers["Content-Type"].startswith(V2)


async def test_other_types_of_answers(api: Api) -> None:
    answer = await api.get("/topics", headers={"Accept": "application/json"})
    assert answer.headers["Content-Type"].startswith("application/json")
    error(await api.get("/topics", headers={"Accept": "text/html"}), 406, 406)
    error(await api.post("/topics/t", {"records": [{"value": ""}]}, BINARY, headers={"Accept": BINARY}), 406, 406)
    assert stored(api) == []


# --- Produce ---------------------------------------------------------------------------------------------------------


async def test_binary_records(api: Api) -> None:
    body = {
        "records": [
            {"key": "a2V5", "value": "Y29uZmx1ZW50"},
            {"value": "a2Fma2E=", "partition": 2},
            {"value": "bG9ncw==", "partition": 2, "timestamp": 7, "headers": [{"key": "h", "value": "MQ=="}]},
            {"key": "a2V5", "value": None, "partition": 2},
        ]
    }
    keyed = partition_for_key(b"key", 4)
    assert keyed != 2
    assert appended(await api.post("/topics/t", body, BINARY)) == [(keyed, 0), (2, 0), (2, 1), (2, 2)]
    assert [(one.key, one.value) for one in stored(api, keyed)] == [(b"key", b"confluent")]
    kafka, logs, tombstone = stored(api, 2)
    assert (kafka.key, kafka.value, kafka.timestamp_ms) == (None, b"kafka", NOW)
    assert (logs.value, logs.timestamp_ms, list(logs.headers)) == (b"logs", 7, [("h", b"1")])
    assert (tombstone.key, tombstone.value) == (b"key", None)


@pytest.mark.parametrize(
    "media_type", [V2, "application/json", "application/octet-stream", "application/vnd.kafka+json"]
)
async def test_records_without_a_format_are_binary(api: Api, media_type: str) -> None:
    answer = await api.post("/topics/t/partitions/0", {"records": [{"value": "YWI="}]}, media_type)
    assert appended(answer) == [(0, 0)]
    assert stored(api)[0].value == b"ab"


async def test_json_records_are_stored_as_they_were_sent(api: Api) -> None:
    body = b'{"records":[{"key":"k","value":{"n": 1.10, "big": 12345678901234567890}},{"value":"text"},{"value":null}]}'
    assert len(appended(await api.post("/topics/t/partitions/0", body, JSON))) == 3
    assert [(one.key, one.value) for one in stored(api)] == [
        (b'"k"', b'{"n": 1.10, "big": 12345678901234567890}'), (None, b'"text"'), (None, None)
    ]  # fmt: skip


async def test_text_records(api: Api) -> None:
    body = {"records": [{"key": "k", "value": "grüße"}, {"value": ""}]}
    assert len(appended(await api.post("/topics/t/partitions/0", body, TEXT))) == 2
    assert [(one.key, one.value) for one in stored(api)] == [(b"k", "grüße".encode()), (None, b"")]


async def test_members_about_schemas_may_be_null(api: Api) -> None:
    body: dict[str, Any] = {"value_schema": None, "records": [{"value": "MQ=="}], "key_schema_id": None}
    assert len(appended(await api.post("/topics/t", body, BINARY))) == 1
    error(await api.post("/topics/t", {**body, "value_schema": '{"type":"string"}'}, BINARY), 422, 422)


@pytest.mark.parametrize(
    ("body", "media_type", "status", "words"),
    [
        (b"", BINARY, 400, ""),
        (b"{", BINARY, 400, ""),
        (b"[]", BINARY, 422, ""),
        (b"{}", BINARY, 422, "records"),
        (b'{"records": []}', BINARY, 422, "no records"),
        (b'{"records": [{"value": "not base64"}]}', BINARY, 400, "value of record 0"),
        (b'{"records": [{"value": "MQ=="}, {"key": "M", "value": "MQ=="}]}', BINARY, 400, "key of record 1"),
        (b'{"records": [{"value": 7}]}', BINARY, 400, "value of record 0"),
        (b'{"records": [{"value": 7}]}', TEXT, 400, "value of record 0"),
        (b'{"records": [{"value": }]}', JSON, 400, "byte 23"),
        (b'{"records": [{"value": "MQ==", "offset": 1}]}', BINARY, 422, "offset"),
        (b'{"records": [{"value": "MQ==", "timestamp": -1}]}', BINARY, 400, "timestamp"),
        (b'{"records": [{"value": "MQ==", "headers": {"a": "MQ=="}}]}', BINARY, 422, "headers"),
    ],
)
async def test_bad_bodies_append_nothing_s11(api: Api, body: bytes, media_type: str, status: int, words: str) -> None:
    answer = await api.post("/topics/t", body, media_type)
    assert answer.status == status and words in answer.document["message"], answer
    assert str(answer.document["error_code"]).startswith(str(status))
    assert api.broker.produced == []
    await api.is_well()


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/vnd.kafka.avro.v2+json", "application/vnd.kafka.v1+json"]
)
async def test_formats_that_do_not_exist_are_refused(api: Api, media_type: str) -> None:
    assert BINARY in error(await api.post("/topics/t", {"records": [{"value": ""}]}, media_type), 415, 415)


async def test_partitions_that_do_not_exist_append_nothing_s11(api: Api) -> None:
    records = [{"value": "MQ==", "partition": 0}, {"value": "MQ==", "partition": 4}]
    error(await api.post("/topics/t", {"records": records}, BINARY), 404, 40402)
    error(await api.post("/topics/t/partitions/4", {"records": records[:1]}, BINARY), 404, 40402)
    message = error(await api.post("/topics/t/partitions/1", {"records": records[:1]}, BINARY), 422, 422)
    assert "the path names the partition" in message
    assert api.broker.produced == []


async def test_records_of_a_failed_partition_have_errors_and_the_others_offsets(api: Api) -> None:
    for partition, code in ((1, "not_enough_replicas"), (2, "request_timed_out"), (3, "authorization_failed")):
        api.broker.partition_errors[partition] = code
    records = [{"value": "MQ==", "partition": partition} for partition in (0, 1, 2, 3, 0)]
    answer = await api.post("/topics/t", {"records": records}, BINARY)
    assert answer.status == 200
    entries = answer.document["offsets"]
    assert [(entry["partition"], entry["offset"], entry["error_code"]) for entry in entries] == [
        (0, 0, None), (None, None, 50003), (None, None, 50002), (None, None, 40301), (0, 1, None)
    ]  # fmt: skip
    assert all(entry["error"] for entry in entries[1:4])


async def test_a_large_request_has_an_entry_for_each_record_in_order(api: Api) -> None:
    count = 20_000
    records = [{"value": "MQ==", "partition": number % 3} for number in range(count)]
    found = appended(await api.post("/topics/t", {"records": records}, BINARY))
    assert found == [(number % 3, number // 3) for number in range(count)]


# --- Reads of a partition --------------------------------------------------------------------------------------------

READ = "/topics/t/partitions/0/records"


async def produced(api: Api, *values: bytes | None, keys: list[bytes | None] | None = None, **more: Any) -> None:
    api.broker.append("t", encode(list(values), keys=keys, base_timestamp_ms=NOW, **more))


async def test_records_of_a_partition(api: Api) -> None:
    await produced(api, b"\xff", None, keys=[b"k", None], headers=[[("h", b"\x00")], []])
    answer = await api.get(f"{READ}?offset=0&timeout=100&max_bytes=1000", headers={"Accept": BINARY})
    assert answer.headers["Content-Type"].startswith(BINARY)
    common = {"topic": "t", "partition": 0, "timestamp": NOW}
    assert answer.document == [
        {**common, "key": "aw==", "value": "/w==", "offset": 0, "headers": [{"key": "h", "value": "AA=="}]},
        {**common, "key": None, "value": None, "offset": 1, "headers": []},
    ]


async def test_reads_begin_at_their_offset_and_end_at_their_bytes(api: Api) -> None:
    await produced(api, *(b"%03d" % number for number in range(10)))
    first = (await api.get(f"{READ}?offset=3&max_bytes=6", headers={"Accept": TEXT})).document
    assert [(one["offset"], one["value"]) for one in first] == [(3, "003"), (4, "004")]
    assert (await api.get(f"{READ}?offset=10&timeout=0")).document == []
    error(await api.get(f"{READ}?offset=11&timeout=0"), 400, 40002)
    assert "offset" in error(await api.get(READ), 422, 422)
    error(await api.get(f"{READ}?offset=0&limit=1"), 422, 422)


async def test_json_is_shown_as_it_is_stored(api: Api) -> None:
    await produced(api, b'{"n": 1.10}', b'"s"', b"null", None, b" [1]")
    answer = await api.get(f"{READ}?offset=0", headers={"Accept": JSON})
    assert b'{"n": 1.10}' in answer.body
    assert [one["value"] for one in answer.document] == [{"n": 1.1}, "s", None, None, [1]]


@pytest.mark.parametrize(
    ("media_type", "good", "bad"),
    [(JSON, b"1", b"{"), (JSON, b"1", b"[" * 1000 + b"]" * 1000), (JSON, b"1", b"\xff"), (TEXT, b"a", b"\xff")],
)
async def test_a_record_that_the_format_cannot_show_is_neither_changed_nor_left_out(
    api: Api, media_type: str, good: bytes, bad: bytes
) -> None:
    await produced(api, good, good, bad, good)
    accept = {"Accept": media_type}
    assert [one["offset"] for one in (await api.get(f"{READ}?offset=0", headers=accept)).document] == [0, 1]
    assert "offset 2" in error(await api.get(f"{READ}?offset=2", headers=accept), 408, 40801)
    assert [one["offset"] for one in (await api.get(f"{READ}?offset=3", headers=accept)).document] == [3]
    assert len((await api.get(f"{READ}?offset=2")).document) == 2, "binary shows everything"


async def test_large_pages_are_whole_json(api: Api) -> None:
    for _ in range(4):
        await produced(api, *(b"x" * 100 for _ in range(5_000)))
    answer = await api.get(f"{READ}?offset=0&max_bytes=8000000", headers={"Accept": BINARY})
    assert [one["offset"] for one in answer.document] == list(range(20_000))


async def test_everything_that_was_produced_is_read_back(api: Api) -> None:
    texts = ["", "a", "ü", '"', "\\", "\u0000"]
    for media_type, values in ((TEXT, texts), (JSON, [*texts, 1, None, {"a": []}]), (BINARY, ["", "AA==", None])):
        answer = await api.post(
            "/topics/t/partitions/3", {"records": [{"value": value} for value in values]}, media_type
        )
        first = appended(answer)[0][1]
        read = await api.get(f"/topics/t/partitions/3/records?offset={first}", headers={"Accept": media_type})
        assert [one["value"] for one in msgspec.json.decode(read.body)] == values


async def test_a_consumer_is_described_as_another_node_has_changed_it(api: Api) -> None:
    """S7: this node's view is behind."""
    made = {"name": "i", "format": "binary"}
    assert (await api.post("/consumers/g", made, "application/vnd.kafka.v2+json")).status == 200
    record = api.broker.view.instances.instance("g", "i")
    topic = api.broker.view.topic("t")
    assert record is not None and topic is not None

    def change(**members: Any) -> None:
        api.broker.unseen.append(lambda: api.broker._event(InstanceChanged(msgspec.structs.replace(record, **members))))

    change(partitions=(TopicPartition(topic.topic_id, 0),))
    consumer = "/consumers/g/instances/i"
    answer = await api.get(f"{consumer}/assignments")
    assert answer.document == {"partitions": [{"topic": "t", "partition": 0}]}
    change(partitions=(), topics=("t",))
    assert (await api.get(f"{consumer}/subscription")).document == {"topics": ["t"]}
    change(partitions=(), topics=())
    assigned = {"partitions": [{"topic": "t", "partition": 1}]}
    answer = await api.post(f"{consumer}/assignments", assigned, "application/vnd.kafka.v2+json")
    assert answer.status == 204, "it subscribes to nothing any more"
