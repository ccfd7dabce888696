"""W3C trace context over HTTP: from the headers of a request into its records, out of every API that reads headers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from raftlog.records.batch import Record, RecordBatch
from tests.support.client.fake_broker import CLUSTER_ID, FakeBroker
from tests.support.http.api_client import Answer, Api, running_api

pytestmark = pytest.mark.integration

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWN = f"00-{'1' * 32}-00f067aa0ba902b7-00"
TRACE = {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"}
CARRIED = [("traceparent", PARENT.encode()), ("tracestate", b"congo=t61rcWkgMzE")]
RECORDS = "/v1/topics/t/records?partition=0"
JSON_V2 = "application/vnd.kafka.json.v2+json"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t")
    async with running_api(broker) as running:
        yield running


def stored(api: Api) -> list[Record]:
    return [record for batch in api.broker.log("t", 0).batches for record in RecordBatch(batch).records()]


REQUESTS: dict[str, tuple[str, object, str]] = {
    "JSON": (RECORDS, {"records": [{"value": 1}, {"value": 2}]}, "application/json"),
    "JSON lines": (RECORDS, b'{"value": 1}\n{"value": 2}\n', "application/x-ndjson"),
    "text": (RECORDS, b"1\n2\n", "text/plain"),
    "octets": (RECORDS, b"1", "application/octet-stream"),
    "REST Proxy v2": ("/topics/t", {"records": [{"value": 1, "partition": 0}]}, JSON_V2),
    "REST Proxy v3": (
        f"/v3/clusters/{CLUSTER_ID}/topics/t/records",
        {"partition_id": 0, "value": {"type": "JSON", "data": 1}},
        "application/json",
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_every_record_carries_the_trace_of_its_request(api: Api, kind: str) -> None:
    path, body, media_type = REQUESTS[kind]
    answer = await api.post(path, body, media_type, headers=TRACE)
    assert answer.status == 200, answer
    assert stored(api) and all(list(record.headers) == CARRIED for record in stored(api))


async def test_a_record_that_has_a_trace_keeps_it_and_others_keep_their_headers(api: Api) -> None:
    records = [{"value": 1, "headers": {"traceparent": OWN, "h": "1"}}, {"value": 2, "headers": {"h": "2"}}]
    await api.post(RECORDS, {"records": records}, headers=TRACE)
    assert [list(record.headers) for record in stored(api)] == [
        [("traceparent", OWN.encode()), ("h", b"1")],
        [("h", b"2"), *CARRIED],
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "nonsense")],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("traceparent", PARENT.replace("4bf92f35", "00000000").replace("77b34da6a3ce929d0e0e4736", "0" * 24))],
        [("tracestate", "a=b")],
    ],
)
async def test_without_a_valid_trace_nothing_is_added_and_nothing_refused(
    api: Api, headers: list[tuple[str, str]]
) -> None:
    answer = await api.call("POST", RECORDS, data=b"1", headers=[("Content-Type", "text/plain"), *headers])
    assert answer.status == 200
    assert [list(record.headers) for record in stored(api)] == [[]]


async def test_several_headers_of_the_state_are_one_list(api: Api) -> None:
    headers = [("Content-Type", "text/plain"), ("Traceparent", PARENT), ("Tracestate", "a=b"), ("Tracestate", "c=d")]
    await api.call("POST", RECORDS, data=b"1", headers=headers)
    assert dict(stored(api)[0].headers)["tracestate"] == b"a=b,c=d"


async def test_readers_get_the_trace_among_the_headers(api: Api) -> None:
    await api.post(RECORDS, b"1\n", "text/plain", headers=TRACE)
    answer: Answer = await api.get("/v1/topics/t/partitions/0/records?offset=0")
    (record,) = answer.document["records"]
    assert {one["key"]: one["value"] for one in record["headers"]} == TRACE


async def test_the_log_names_the_trace_of_a_request(api: Api) -> None:
    with capture_logs(processors=[merge_contextvars]) as lines:
        await api.get("/v1/topics", headers=TRACE)
    (line,) = [one for one in lines if one["event"] == "request"]
    assert line["trace_id"] == PARENT[3:35]
