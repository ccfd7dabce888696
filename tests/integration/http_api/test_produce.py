"""Producing over a socket: every kind of body, the placement of records, and the answers."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from http_api.routes import produce
from http_api.web import gathering
from raftlog.model import TopicPartition
from raftlog.partitioner import partition_for_key
from raftlog.records.batch import Record, RecordBatch
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, eventually, running_api

pytestmark = pytest.mark.integration

NOW = 1_750_000_000_000
RECORDS = "/v1/topics/t/records"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 4, {"max.message.bytes": "65536"})
    async with running_api(broker, clock_ms=lambda: NOW) as running:
        yield running


def stored(api: Api, partition: int = 0) -> list[Record]:
    return [record for batch in api.broker.log("t", partition).batches for record in RecordBatch(batch).records()]


async def test_json_records(api: Api) -> None:
    answer = await api.post(
        RECORDS,
        {
            "records": [
                {"value": "text", "key": "k", "partition": 0, "timestamp": 5, "headers": {"h": "1"}},
                {"value": {"a": [1, None]}, "partition": 0},
                {"value": None, "partition": 0},
            ]
        },
    )
    assert answer.status == 200
    assert answer.document == {
        "topic": "t",
        "record_count": 3,
        "batches": [{"partition": 0, "record_count": 3, "base_offset": 0}],
        "offsets": [{"partition": 0, "offset": offset} for offset in range(3)],
    }
    first, second, third = stored(api)
    assert (first.key, first.value, first.timestamp_ms, list(first.headers)) == (b"k", b"text", 5, [("h", b"1")])
    assert (second.key, second.value, second.timestamp_ms) == (None, b'{"a":[1,null]}', NOW)
    assert third.value is None


@pytest.mark.parametrize("media_type", produce.NDJSON_TYPES)
async def test_json_lines(api: Api, media_type: str) -> None:
    answer = await api.post(RECORDS + "?partition=2", b'{"value":"a"}\n{"value":"b","key":"k"}\n', media_type)
    assert answer.document["batches"] == [{"partition": 2, "record_count": 2, "base_offset": 0}]
    assert [record.value for record in stored(api, 2)] == [b"a", b"b"]


async def test_text_lines(api: Api) -> None:
    answer = await api.post(
        RECORDS + "?partition=1&header=a=x=y&header=b=", b"one\r\ntwo\n", "text/plain; charset=UTF-8"
    )
    assert answer.document["record_count"] == 2
    assert [(record.value, list(record.headers)) for record in stored(api, 1)] == [
        (b"one", [("a", b"x=y"), ("b", b"")]),
        (b"two", [("a", b"x=y"), ("b", b"")]),
    ]


async def test_octets_are_one_record_described_by_query_or_headers(api: Api) -> None:
    body = b"\x00\xff\r\n"
    by_query = RECORDS + "?partition=0&key=k%C3%BC&timestamp=77&header=h=v"
    by_headers = [
        ("X-Raftlog-Partition", "0"),
        ("X-Raftlog-Key", "kü"),
        ("X-Raftlog-Timestamp", "77"),
        ("X-Raftlog-Header", "h=v"),
    ]
    await api.post(by_query, body, "application/octet-stream")
    await api.post(RECORDS, body, "application/octet-stream", headers=dict(by_headers))
    await api.post(RECORDS + "?partition=0&key_base64=/w==", b"", "application/octet-stream")
    first, second, third = stored(api)
    for record in (first, second):
        assert (record.key, record.value, record.timestamp_ms) == ("kü".encode(), body, 77)
        assert list(record.headers) == [("h", b"v")]
    assert (third.key, third.value, third.timestamp_ms, list(third.headers)) == (b"\xff", b"", NOW, [])


async def test_keys_go_where_kafka_puts_them(api: Api) -> None:
    keys = [f"key-{number}" for number in range(50)]
    answer = await api.post(RECORDS, {"records": [{"value": key, "key": key} for key in keys]})
    assert [told["partition"] for told in answer.document["offsets"]] == [
        partition_for_key(key.encode(), 4) for key in keys
    ]
    for told, key in zip(answer.document["offsets"], keys, strict=True):
        assert stored(api, told["partition"])[told["offset"]].value == key.encode()


async def test_records_without_key_go_together_and_each_request_elsewhere(api: Api) -> None:
    went = []
    for _ in range(8):
        answer = await api.post(RECORDS, {"records": [{"value": 1}] * 3})
        (batch,) = answer.document["batches"]
        went.append(batch["partition"])
    assert sorted(went) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_records_without_key_avoid_partitions_that_nobody_leads(api: Api) -> None:
    for partition in (0, 1, 3):
        api.broker.set_leader("t", partition, -1)
    for _ in range(4):
        answer = await api.post(RECORDS, {"records": [{"value": 1}]})
        assert answer.document["batches"][0]["partition"] == 2


async def test_a_body_of_many_records_makes_batches_that_fit_and_is_parsed_off_the_loop(api: Api) -> None:
    threads: set[int] = set()
    service_produce = api.broker.produce

    def note(*_: Any) -> int:
        threads.add(threading.get_ident())
        return NOW

    api.context.clock_ms = note
    lines = b"".join(b'{"value":"%0100d"}\n' % number for number in range(20_000))
    assert len(lines) > 2_000_000
    answer = await api.post(RECORDS + "?partition=3", lines, "application/x-ndjson")
    assert answer.document["record_count"] == 20_000
    assert "offsets" not in answer.document
    assert len(answer.document["batches"]) > 20
    assert [int(record.value or b"") for record in stored(api, 3)] == list(range(20_000))
    assert max(map(len, api.broker.log("t", 3).batches)) <= 65_536
    assert threads and threading.get_ident() not in threads
    assert service_produce == api.broker.produce


@pytest.mark.parametrize(
    ("mode", "count", "listed"), [("each", 1500, True), ("ranges", 2, False), ("auto", 1001, False)]
)
async def test_offsets_are_listed_as_asked(api: Api, mode: str, count: int, listed: bool) -> None:
    body = {"records": [{"value": 1, "key": str(number)} for number in range(count)]}
    answer = (await api.post(f"{RECORDS}?offsets={mode}", body)).document
    assert ("offsets" in answer) is listed
    assert sum(batch["record_count"] for batch in answer["batches"]) == count
    if listed:
        assert len({(told["partition"], told["offset"]) for told in answer["offsets"]}) == count


async def test_acks_and_timeout_reach_the_broker(api: Api) -> None:
    body = {"records": [{"value": 1}]}
    for text, acks in (("all", -1), ("-1", -1), ("1", 1)):
        assert (await api.post(f"{RECORDS}?acks={text}&timeout_ms=1234", body)).status == 200
        assert (api.broker.produced[-1].acks, api.broker.produced[-1].timeout_ms) == (acks, 1234)
    sent = await api.post(f"{RECORDS}?acks=0", body)
    assert sent.status == 202
    assert api.broker.produced[-1].acks == 0
    assert set(sent.document["batches"][0]) == {"partition", "record_count"}
    assert "offsets" not in sent.document


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_bodies_may_be_compressed(api: Api, encoding: str, compress: Any) -> None:
    lines = b"".join(b"%0100d\n" % number for number in range(9_000))
    answer = await api.post(
        RECORDS + "?partition=0", compress(lines), "text/plain", headers={"Content-Encoding": encoding}
    )
    assert answer.document["record_count"] == 9_000
    assert [int(record.value or b"") for record in stored(api)] == list(range(9_000))


async def test_when_all_batches_fail_the_problem_is_theirs(api: Api) -> None:
    api.broker.partition_errors[1] = "not_enough_replicas"
    told = (await api.post(RECORDS + "?partition=1", {"records": [{"value": 1}]})).problem("not_enough_replicas")
    assert told["applied"] == "no"
    assert told["batches"] == [
        {
            "partition": 1,
            "record_count": 1,
            "error": {
                "code": "not_enough_replicas",
                "detail": "as the test asked",
                "retriable": True,
                "applied": "no",
            },
        }
    ]


async def test_when_some_batches_fail_the_problem_tells_what_was_appended(api: Api) -> None:
    api.broker.partition_errors[1] = "leader_not_available"
    body = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 1}, {"value": 3, "partition": 0}]}
    told = (await api.post(RECORDS, body)).problem("leader_not_available")
    assert told["applied"] == "unknown"
    appended, failed = told["batches"]
    assert appended == {"partition": 0, "record_count": 2, "base_offset": 0}
    assert failed["error"]["code"] == "leader_not_available"
    assert api.broker.appended("t") == 1


async def test_no_error_of_one_batch_says_that_another_was_certainly_not_appended(api: Api) -> None:
    """S1: all batches failed, one of them perhaps applied; the answer's code is the other's, which no retry fixes."""
    api.broker.partition_errors |= {0: "outcome_unknown", 1: "batch_too_large"}
    body = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 1}]}
    told = (await api.post(RECORDS, body)).problem("batch_too_large")
    assert told["applied"] == "unknown"
    assert [batch["error"]["applied"] for batch in told["batches"]] == ["unknown", "no"]


async def test_a_produce_request_goes_on_when_its_client_leaves(api: Api) -> None:
    api.broker.hang.clear()
    under_way = asyncio.create_task(api.post(RECORDS + "?partition=0", {"records": [{"value": "kept"}]}))
    await eventually(lambda: len(api.broker.produced) == 1)
    under_way.cancel()
    await eventually(lambda: api.context.requests_under_way == 0)
    assert stored(api) == []
    api.broker.hang.set()
    await eventually(lambda: [record.value for record in stored(api)] == [b"kept"])
    await api.is_well()


async def test_log_append_time_is_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    produce_one = api.broker._produce_one

    def with_time(*arguments: Any) -> Any:
        return msgspec.structs.replace(produce_one(*arguments), log_append_time_ms=NOW + 1)

    monkeypatch.setattr(api.broker, "_produce_one", with_time)
    answer = await api.post(RECORDS + "?partition=0", {"records": [{"value": 1}]})
    assert answer.document["batches"][0]["log_append_time"] == NOW + 1


async def test_a_topic_created_again_is_another_topic(api: Api) -> None:
    before = api.broker.view.topic("t")
    await api.call("DELETE", "/v1/topics/t")
    (await api.post(RECORDS, {"records": [{"value": 1}]})).problem("unknown_topic")
    await api.post("/v1/topics", {"name": "t"})
    assert (await api.post(RECORDS, {"records": [{"value": 1}]})).status == 200
    after = api.broker.view.topic("t")
    assert before is not None and after is not None and before.topic_id != after.topic_id
    assert api.broker.logs[TopicPartition(before.topic_id, 0)].batches == []


async def together(api: Api, monkeypatch: pytest.MonkeyPatch, requests: list[list[dict[str, Any]]]) -> list[Answer]:
    """The answers to requests that arrive while another is appended."""
    monkeypatch.setattr(gathering, "PATIENCE_S", 600.0)
    api.broker.hang.clear()
    first = asyncio.create_task(api.post(RECORDS, {"records": [{"value": "first", "partition": 0}]}))
    await eventually(lambda: len(api.broker.produced) == 1)
    rest = []
    for number, records in enumerate(requests, start=2):
        rest.append(asyncio.create_task(api.post(RECORDS, {"records": records})))
        await eventually(lambda number=number: api.context.requests_under_way == number)
    api.broker.hang.set()
    assert (await first).status == 200
    return [await one for one in rest]


async def test_small_requests_that_arrive_together_share_batches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [[{"value": f"{n} {row}", "partition": row % 2} for row in range(n)] for n in (1, 2, 3)]
    answers = await together(api, monkeypatch, requests)
    assert [[(one["partition"], one["offset"]) for one in answer.document["offsets"]] for answer in answers] == [
        [(0, 1)],
        [(0, 2), (1, 0)],
        [(0, 3), (1, 1), (0, 4)],
    ]
    assert [one["base_offset"] for one in answers[2].document["batches"]] == [3, 1]
    assert [record.value for record in stored(api)] == [b"first", b"1 0", b"2 0", b"3 0", b"3 2"]
    assert [len(request.partitions) for request in api.broker.produced] == [1, 2], "one append for all three"


async def test_a_bad_request_among_those_that_arrive_together_fails_alone(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11."""
    good, bad = [{"value": "good", "partition": 0}], [{"value": "bad", "partition": 9}]
    answers = await together(api, monkeypatch, [good, bad, good])
    assert [answer.status for answer in answers] == [200, 404, 200]
    assert answers[1].document["code"] == "unknown_partition"
    assert [record.value for record in stored(api)] == [b"first", b"good", b"good"]
