"""Conditions of produce requests over a socket: idempotency keys, expected ends, named producers, preferences.

And pages that may be cached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from raftlog.idempotency import is_keyed
from raftlog.records.batch import RecordBatch, parse_header
from raftlog.version import FEATURE_LEVEL
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, eventually, running_api

pytestmark = pytest.mark.integration

RECORDS = "/v1/topics/t/records"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 4, {"max.message.bytes": "65536"})
    broker.view.feature_level = FEATURE_LEVEL
    async with running_api(broker) as running:
        yield running


def values(api: Api, partition: int) -> list[bytes | None]:
    return [value for batch in api.broker.log("t", partition).batches for value in RecordBatch(batch).values()]


async def keyed(api: Api, key: str, body: Any, query: str = "", **headers: str) -> Answer:
    return await api.post(RECORDS + query, body, headers={"Idempotency-Key": key, **headers})


async def test_a_retry_gets_the_first_answer_and_another_body_is_refused(api: Api) -> None:
    body = {"records": [{"value": "a"}, {"value": "b"}]}
    first = await keyed(api, "order-1", body)
    assert first.status == 200
    api.context.clock_ms = lambda: 5  # The retry comes later.
    again = await keyed(api, '"order-1"', body)
    assert (again.status, again.document) == (200, first.document)
    partition = first.document["batches"][0]["partition"]
    assert values(api, partition) == [b"a", b"b"] and api.broker.appended("t") == 1
    refused = (await keyed(api, "order-1", {"records": [{"value": "a"}, {"value": "c"}]})).problem(
        "idempotency_key_reused"
    )
    assert refused["applied"] == "no"
    (await keyed(api, "order-1", body, "?partition=1")).document  # noqa: B018
    assert (await keyed(api, "order-2", body)).status == 200
    assert api.broker.appended("t") >= 2


async def test_a_key_picks_one_partition_for_records_without_one(api: Api) -> None:
    found = {
        (await keyed(api, f"order-{number}", {"records": [{"value": number}]})).document["batches"][0]["partition"]
        for number in range(40)
    }
    assert found == {0, 1, 2, 3}


async def test_a_retry_appends_what_is_missing(api: Api) -> None:
    body = {"records": [{"value": "a", "partition": 0}, {"value": "b", "partition": 1}]}
    api.broker.partition_errors[1] = "not_enough_replicas"
    (await keyed(api, "order-1", body)).problem("not_enough_replicas")
    del api.broker.partition_errors[1]
    assert (await keyed(api, "order-1", body)).status == 200
    assert (values(api, 0), values(api, 1)) == ([b"a"], [b"b"])


async def test_several_batches_of_one_partition_are_keys_of_their_own(api: Api) -> None:
    body = {"records": [{"value": str(number) * 20_000, "partition": 0} for number in range(9)]}
    assert (await keyed(api, "large", body)).status == 200
    assert (await keyed(api, "large", body)).status == 200
    headers = [parse_header(batch) for batch in api.broker.log("t").batches]
    assert len({one.producer_id for one in headers}) == len(headers) == 3
    assert all(is_keyed(one.producer_id) for one in headers) and len(values(api, 0)) == 9


async def test_text_and_octets_take_keys_too(api: Api) -> None:
    for content_type, query in (("text/plain", ""), ("application/octet-stream", "?key=k")):
        for _ in range(2):
            answer = await api.post(RECORDS + query, b"x", content_type, headers={"Idempotency-Key": content_type})
            assert answer.status == 200
    other = await api.post(RECORDS + "?key=k&header=a=b", b"x", content_type, headers={"Idempotency-Key": content_type})
    other.problem("idempotency_key_reused")
    assert api.broker.appended("t") == 2


async def test_of_several_writers_one_appends_at_the_expected_end(api: Api) -> None:
    async def write(number: int) -> Answer:
        return await api.post(f"{RECORDS}?partition=0", {"records": [{"value": number}]}, headers={"If-Match": '"0"'})

    answers = await asyncio.gather(*map(write, range(8)))
    assert sorted(one.status for one in answers) == [200, *[412] * 7]
    (won,) = [one for one in answers if one.status == 200]
    assert won.headers["ETag"] == '"1"'
    refused = answers[0] if answers[0].status == 412 else answers[1]
    told = refused.problem("log_end_moved")
    assert (told["log_end_offset"], told["applied"], refused.headers["ETag"]) == (1, "no", '"1"')
    assert len(values(api, 0)) == 1
    next_one = await api.post(f"{RECORDS}?partition=0", {"records": [{"value": 9}]}, headers={"If-Match": '"1"'})
    assert next_one.status == 200 and next_one.headers["ETag"] == '"2"'


async def test_a_retry_of_a_conditional_append_is_no_conflict(api: Api) -> None:
    for _ in range(2):
        answer = await keyed(api, "k", {"records": [{"value": 1}]}, "?partition=0", **{"If-Match": '"0"'})
        assert answer.status == 200 and answer.document["batches"][0]["base_offset"] == 0


async def test_a_named_producer_writes_with_its_sequence(api: Api) -> None:
    query = "?partition=0&producer_id=7&producer_epoch=3&sequence=12"
    assert (await api.post(RECORDS + query, {"records": [{"value": 1}, {"value": 2}]})).status == 200
    header = parse_header(api.broker.log("t").batches[0])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 12)
    assert header.is_transactional
    assert (await api.post(RECORDS + query + "&transactional=false&acks=1", {"records": [{"value": 1}]})).status == 200
    assert not parse_header(api.broker.log("t").batches[1]).is_transactional


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"Idempotency-Key": ""}),
        ("", {"Idempotency-Key": "x" * 256}),
        ("?acks=0", {"Idempotency-Key": "a"}),
        ("?acks=0&partition=0", {"If-Match": '"0"'}),
        ("?partition=0", {"If-Match": "0"}),
        ("?partition=0", {"If-Match": "*"}),
        ("?partition=0", {"If-Match": '"-1"'}),
        ("?partition=0", {"If-Match": '"0", "1"'}),
        ("", {"If-Match": '"0"'}),
        ("?partition=0&producer_id=1", {}),
        ("?partition=0&transactional=true", {}),
        ("?partition=0&producer_id=1&producer_epoch=0&sequence=0&acks=1", {}),
        ("?partition=0&producer_id=1&producer_epoch=40000&sequence=0", {}),
        (f"?partition=0&producer_id={2**62}&producer_epoch=0&sequence=0", {}),
        ("?partition=0&producer_id=1&producer_epoch=0&sequence=0", {"Idempotency-Key": "a"}),
        ("?partition=0&producer_id=1&producer_epoch=0&sequence=0&transactional=maybe", {}),
    ],
)
async def test_bad_conditions_append_nothing_s11(api: Api, query: str, headers: dict[str, str]) -> None:
    records = [{"value": 1, "key": "a"}, {"value": 2, "key": "b"}, {"value": 3, "key": "c"}]
    (await api.post(RECORDS + query, {"records": records}, headers=headers)).problem("invalid_request")
    assert api.broker.appended("t") == 0
    await api.is_well()


async def test_conditions_need_the_feature_level(api: Api) -> None:
    api.broker.view.feature_level = FEATURE_LEVEL - 1
    for headers in ({"Idempotency-Key": "a"}, {"If-Match": '"0"'}):
        refused = await api.post(f"{RECORDS}?partition=0", {"records": [{"value": 1}]}, headers=headers)
        assert "finalize" in refused.problem("unsupported_version")["detail"]


async def test_a_preferred_wait_is_applied_and_told(api: Api) -> None:
    await api.post(f"{RECORDS}?partition=0", {"records": [{"value": 1}]}, headers={"Prefer": "wait=3"})
    assert api.broker.produced[-1].timeout_ms == 3000
    answer = await api.post(f"{RECORDS}?timeout_ms=70", {"records": [{"value": 1}]}, headers={"Prefer": "wait=3"})
    assert api.broker.produced[-1].timeout_ms == 70 and "Preference-Applied" not in answer.headers
    read = asyncio.ensure_future(
        api.get("/v1/topics/t/partitions/3/records?offset=latest", headers={"Prefer": "wait=30"})
    )
    await eventually(lambda: api.broker.fetches_waiting > 0)
    await api.post(f"{RECORDS}?partition=3", {"records": [{"value": "later"}]})
    answer = await read
    assert answer.headers["Preference-Applied"] == "wait=30"
    assert [one["value"] for one in answer.document["records"]] == ["later"]


async def test_only_pages_that_never_change_may_be_cached(api: Api) -> None:
    for number in range(3):
        await api.post(f"{RECORDS}?partition=0", {"records": [{"value": number}]})
    topic = api.broker.view.topic("t")
    assert topic is not None
    path = "/v1/topics/t/partitions/0/records"
    full = f"{path}?topic_id={topic.topic_id.hex()}&offset=0&max_records=2"
    answer = await api.get(full)
    assert answer.headers["Cache-Control"] == "private, max-age=3600, immutable"
    tag = answer.headers["ETag"]
    again = await api.get(full, headers={"If-None-Match": f'"x", {tag}'})
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    lines = await api.get(full, headers={"Accept": "application/x-ndjson"})
    assert "immutable" in lines.headers["Cache-Control"]
    for other in (
        f"{path}?offset=0&max_records=2",
        f"{path}?topic_id={topic.topic_id.hex()}&offset=earliest&max_records=2",
        f"{path}?topic_id={topic.topic_id.hex()}&offset=1&max_records=2",
        f"{path}?topic_id={topic.topic_id.hex()}&offset=3",
    ):
        found = await api.get(other)
        assert (found.headers["Cache-Control"], "ETag" in found.headers) == ("no-store", False), other
    api.broker.add_topic("kept", 1, {"cleanup.policy": "compact"})
    for number in range(3):
        await api.post("/v1/topics/kept/records", {"records": [{"value": number, "key": "k"}]})
    kept = api.broker.view.topic("kept")
    assert kept is not None
    where = f"/v1/topics/kept/partitions/0/records?topic_id={kept.topic_id.hex()}&offset=0&max_records=1"
    assert (await api.get(where)).headers["Cache-Control"] == "no-store"
